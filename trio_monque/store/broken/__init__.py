"""Documents that are not readable jobs: found, listed and repaired."""
