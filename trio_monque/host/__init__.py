"""One life for whatever is claimed and run: it gets ready, runs an engine, delivers events, and reports."""
