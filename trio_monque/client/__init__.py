"""The producer's and the operator's door."""
