"""`trio-monque jobs`, `show`, `stats`, `enqueue`, `cancel` and the other commands about jobs."""
