"""`python -m tests.faults.seeded SEED ...` plays these seeds again, and shows what happened and what is wrong."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from pymongo import MongoClient

from trio_monque.embedded import embedded_mongod

from .play import played


def main() -> int:
    harm = 0
    quiet = "--digest" in sys.argv
    with embedded_mongod() as server, MongoClient[Any](server.uri, tz_aware=True) as client:
        name = f"monque_test_{secrets.token_hex(6)}"
        for seed in map(int, (one for one in sys.argv[1:] if one.isdigit())):
            outcome = played(seed, client[name])
            shown = [] if quiet else [str(line) for line in outcome.lines]
            print(*shown, *outcome.harm, outcome.digest, sep="\n")  # noqa: T201
            harm += len(outcome.harm)
        client.drop_database(name)
    return int(harm > 0)


if __name__ == "__main__":
    sys.exit(main())
