"""The engine, for jobs: where the two columns meet."""
