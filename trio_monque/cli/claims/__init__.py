"""`trio-monque claims`: the documents of any collection that instances claim with `open_claims` or `run_claims`."""
