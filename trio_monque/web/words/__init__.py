"""The sentences of HTTP for facts of `diagnosis/` and of jobs. The terminal has words of its own."""
