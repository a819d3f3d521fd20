"""What stands before every route: which requests are let in, how large and how often, and the log of what was tried."""
