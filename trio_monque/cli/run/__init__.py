"""`trio-monque run`: a worker process."""
