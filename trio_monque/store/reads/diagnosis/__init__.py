"""The facts that `trio-monque doctor` asks a database for. Nothing is written, and each question is bounded."""
