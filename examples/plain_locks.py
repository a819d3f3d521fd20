"""Beside `run_claims`, without it: a lock is `{by, until}`. Run it: `python examples/plain_locks.py`, or with a name.

As a program in any language may do it. Neither takes what the other holds; what is left behind by a program that died
is free when its `until` is over. The name must be the process's own.
"""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from trio_monque.embedded import embedded_mongod

ME = sys.argv[1] if len(sys.argv) > 1 else "plain"
LOCKED_FOR = timedelta(seconds=1)  # Longer than the work takes: nobody renews the lock.
WANTED = {"state": "new"}

Document = dict[str, Any]


def take(documents: Collection[Document]) -> Document | None:
    now = datetime.now(UTC)
    free = [{"lock": None}, {"lock.until": {"$lt": now}}]
    locked = {"$set": {"lock": {"by": ME, "until": now + LOCKED_FOR}}}
    return documents.find_one_and_update({**WANTED, "$or": free}, locked)


def finish(documents: Collection[Document], document: Document, update: Mapping[str, Any]) -> bool:
    """Whether it was still ours, so that the result is written."""
    mine = {"_id": document["_id"], "lock.by": ME}
    return documents.find_one_and_update(mine, {**update, "$unset": {"lock": ""}}) is not None


def main() -> None:
    with embedded_mongod() as server, MongoClient[Document](server.uri) as client:
        documents = client.get_default_database("plain_locks")["messages"]
        if documents.find_one() is None:
            documents.insert_many([{"state": "new", "results": 0} for _ in range(10)])
        done = 0
        while documents.find_one(WANTED) is not None:
            while (document := take(documents)) is not None:
                time.sleep(0.02)  # The work.
                result = {"$set": {"state": "done", "written_by": {"by": ME}}, "$inc": {"results": 1}}
                done += finish(documents, document, result)
            time.sleep(0.02)
        print(f"{ME} has done {done}")


main()
