"""Move waiting jobs of Sidequest's MongoDB backend: `python examples/migrate/sidequest.py` MONGODB_URI [--stopped].

Why it exists: each job leaves the old collection and arrives in the new one in one transaction. A crash therefore
loses nothing, and a second run finds only what is left. Old engines may run meanwhile: the script does not touch jobs
that they have claimed. Pass `--stopped` when the last of them has ended: then it moves those jobs, too.
"""

import sys
from functools import partial
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database

from trio_monque import Monque


def move(db: Database[Any], *, stopped: bool = False) -> int:
    """Return how many jobs were moved. They are kept in `sidequest_jobs.moved`, to look them up or to put them back."""
    monque, old, moved = Monque(db), db["sidequest_jobs"], db["sidequest_jobs.moved"]
    states = ["waiting", "claimed", "running"] if stopped else ["waiting"]
    # Jobs with arguments for their constructor stay: there is nothing like it here.
    selection: dict[str, Any] = {"state": {"$in": states}, "constructor_args": []}

    def move_one(session: ClientSession, found: Any) -> bool:
        job = old.find_one_and_delete({**selection, "_id": found["_id"]}, session=session)
        if job is None:  # An old engine was faster.
            return False
        moved.insert_one(job, session=session)
        monque.sync.enqueue(
            job["class"],
            job["args"],
            run_at=job["available_at"],
            max_attempts=max(1, job["max_attempts"] - job["attempt"]),
            timeout=job["timeout"] / 1000 if job.get("timeout") else None,
            session=session,
        )
        return True

    with db.client.start_session() as session:
        return sum(session.with_transaction(partial(move_one, found=found)) for found in old.find(selection))


if __name__ == "__main__":
    with MongoClient[Any](sys.argv[1], tz_aware=True) as client:
        print("moved", move(client.get_default_database(), stopped="--stopped" in sys.argv))
