"""The routes of the management API: those of the contract that Monque's clients know, and our own."""
