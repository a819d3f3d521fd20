"""Tests of the dashboard's pages."""
