"""Runs any kind of claimed work: starts, runs an engine, delivers events, shuts down and reports."""
