"""What the dashboard costs, in a queue of two million jobs: its pages, and its viewers beside work.

    python -m benchmarks.dashboard [--jobs 2000000] [--rounds 5] [--only pages,viewers,changes]

Starts a private server (or takes the one that MONQUE_MONGODB_URI names), fills a database of its own, serves the
application in a process of its own, and prints how long its pages take, beside a plain find in the same rounds.
"""

from __future__ import annotations

import argparse
import logging
import time
from typing import Any

from pymongo import MongoClient

from trio_monque.embedded import embedded_mongod

from . import dashboard_live, dashboard_pages
from .dashboard_jobs import JOBS, fill
from .measuring import new_database, tell

PARTS = ("pages", "viewers", "changes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2_000_000, help="how many jobs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each page is asked for (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load (default: %(default)s)")
    parser.add_argument("--only", default=",".join(PARTS), help="these parts (default: %(default)s)")
    options = parser.parse_args()
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    wanted = options.only.split(",")
    with (
        embedded_mongod() as server,
        MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client,
        new_database(client) as database,
    ):
        began = time.monotonic()
        fill(database, options.jobs)
        tell(f"{database[JOBS].estimated_document_count():,} jobs in {time.monotonic() - began:.0f} s")
        if "pages" in wanted:
            print(dashboard_pages.table(*dashboard_pages.measured(server.uri, database, options.rounds)), flush=True)
        if "viewers" in wanted:
            print(dashboard_live.viewers(server.uri, database, options.seconds), flush=True)
        if "changes" in wanted:
            print(dashboard_live.changes(server.uri, database, options.seconds), flush=True)


if __name__ == "__main__":
    main()
