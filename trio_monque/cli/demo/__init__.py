"""`trio-monque demo`: real work on real input, shown live and checked at the end."""
