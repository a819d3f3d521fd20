"""The dashboard: one module a screen, which asks the client and gives a template what it shows."""
