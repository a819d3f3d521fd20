"""Move waiting jobs of Agenda or Pulse with `python examples/migrate/agenda.py` MONGODB_URI COLLECTION [--stopped].

Why it exists: each job leaves the old collection and arrives in the new one in one transaction. A crash therefore
loses nothing, and a second run finds only what is left. Old workers may run meanwhile: the script does not touch jobs
that they hold. Pass `--stopped` when the last of them has ended: then it moves those jobs, too.
"""

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database

from trio_monque import Monque
from trio_monque.errors import InvalidCronError

WAITING: Mapping[str, Any] = {"lockedAt": None, "nextRunAt": {"$ne": None}}
WAITING_OR_HELD: Mapping[str, Any] = {"$or": [{"lockedAt": {"$ne": None}}, {"nextRunAt": {"$ne": None}}]}
# Jobs that were disabled stay, and so do those with options that no schedule has here.
PLAIN: Mapping[str, Any] = {"disabled": {"$ne": True}} | dict.fromkeys(("repeatAt", "startDate", "endDate", "skipDays"))


def move(db: Database[Any], collection: str, *, stopped: bool = False) -> int:
    """Return how many jobs were moved. They are kept in `COLLECTION.moved`, to look them up or to put them back."""
    monque, old, moved = Monque(db), db[collection], db[f"{collection}.moved"]
    selection = {**PLAIN, **(WAITING_OR_HELD if stopped else WAITING)}

    def move_one(session: ClientSession, found: Any) -> bool:
        job = old.find_one_and_delete({**selection, "_id": found["_id"]}, session=session)
        if job is None:  # An old worker was faster.
            return False
        moved.insert_one(job, session=session)
        name, data = re.sub(r"\s+", "-", job["name"]), job.get("data")  # Names have no whitespace here.
        if cron := job.get("repeatInterval"):
            # Not in the transaction: its key makes it one schedule. `Workers.cron` declares it under the same key.
            zone = job.get("repeatTimezone") or "UTC"
            monque.sync.schedule(str(cron), name, data, timezone=zone, unique_key=f"cron:{name}")
        else:
            monque.sync.enqueue(name, data, run_at=job["nextRunAt"], session=session)
        return True

    count = 0
    with db.client.start_session() as session:
        for found in old.find(selection):
            try:
                count += session.with_transaction(partial(move_one, found=found))
            except InvalidCronError as error:
                print(f"left {found['name']}: {error}")
    return count


if __name__ == "__main__":
    with MongoClient[Any](sys.argv[1], tz_aware=True) as client:
        print("moved", move(client.get_default_database(), sys.argv[2], stopped="--stopped" in sys.argv))
