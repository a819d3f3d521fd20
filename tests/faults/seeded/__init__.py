"""Seeded schedules: what a seed draws, played by the real engine on the real server in virtual time, and judged.

`plan.py` says what a seed means, `network.py` stands between `DatabaseThreads` and the server, `world.py` plays
the plan and writes records, `history.py` tells what the server really did, `oracle.py` holds one against the other.
Nothing that judges is the library's.
"""
