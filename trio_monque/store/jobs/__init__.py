"""The commands of jobs. The files that `store/documents/` has too are parallel."""
