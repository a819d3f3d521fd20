"""`trio-monque doctor`: says what is wrong with a database of jobs, and what to do."""
