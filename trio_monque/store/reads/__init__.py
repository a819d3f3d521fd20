"""Questions about jobs that change nothing: lists, pages, counts, and the facts for the doctor."""
