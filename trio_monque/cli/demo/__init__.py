"""`trio-monque demo`: real work on real input, shown as it goes, with a summary of the stored jobs."""
