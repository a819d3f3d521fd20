"""The protocol of claims, leases, fences and rescues as an exhaustive model: pure Python, no database.

`rules.py` says what the protocol is, `state.py` what is in the world, `writes.py` what each conditional write
does to the document, the `moves_*.py` what each actor may do next, `checks.py` what must never be, and
`search.py` looks at every interleaving. `timed.py` is a second, smaller model with clocks, for the lease alone.
"""
