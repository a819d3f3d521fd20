"""Others that work on a queue without notice to its scheduler: they hit what it has read ahead. Blocking calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from bson import ObjectId

from tests.support.node_peer import Document, NodePeer
from tests.support.store import handle, stamp
from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import claiming, job_changes, settling
from trio_monque.store.jobs.settling import Fate
from trio_monque.store.reads import queries

MUCH_LATER = timedelta(hours=1)


class Meddlers:
    """One instance of the library's own functions, a Node peer, and an operator who manages jobs.

    Args:
        now: The time of the test.

    Attributes:
        gone: What they ended for good, or put off beyond the test, and how: it must not run.
        claimed: The attempts that they made: (job, number).
        touched: When each job was changed last: by the number of changes before.
        changes: How many there were.
        did: How often they did what.
    """

    def __init__(self, db: Database, chance: random.Random, now: Callable[[], datetime]) -> None:
        self._jobs = handle(db)
        self._documents: Collection = db["monque_jobs"]
        self._node = NodePeer(self._documents)
        self._chance = chance
        self._now = now
        self._held: list[Job] = []
        self.gone: dict[ObjectId, str] = {}
        self.claimed: set[tuple[ObjectId, int]] = set()
        self.touched: dict[ObjectId, int] = {}
        self.changes = 0
        self.did: Counter[str] = Counter()
        self._deeds: list[Callable[[Job], bool]] = [
            self._edit,
            self._edit,
            self._edit_raw,
            self._cancel,
            self._delete,
            self._put_off,
            self._put_off_a_little,
            self._bring_forward,
            self._claim_and_release,
            self._claim_and_release,
            self._claim_and_complete,
            self._claim_and_fail,
            self._claim_and_die,
            self._claim_and_die,
            self._claim_and_hold,
            self._node_claims_and_releases,
            self._node_claims_and_completes,
            self._node_claims_and_fails,
            self._node_claims_and_dies,
            self._node_cancels_and_tries_again,
            self._leave_an_owner,
        ]

    def meddle(self, job_id: ObjectId) -> None:
        """Changes this job somehow, if it is pending."""
        job = queries.get_job(self._jobs, job_id)
        deed = self._chance.choice(self._deeds)
        if job is not None and job.status == "pending" and deed(job):
            self.did[deed.__name__] += 1

    def let_go(self) -> None:
        """Ends one of the claims that are held."""
        if self._held:
            job = self._held.pop(0)
            self._end(transitions.release(job, self._now()))
            self._changed(job.id)

    def let_go_of_all(self) -> None:
        while self._held:
            self.let_go()

    def holds(self, job_id: ObjectId) -> bool:
        return any(job.id == job_id for job in self._held)

    def _changed(self, job_id: ObjectId) -> bool:
        self.changes += 1
        self.touched[job_id] = self.changes
        return True

    # --- By hand ---

    def _apply(self, job: Job, transition: Transition) -> bool:
        return job_changes.apply_if_allowed(self._jobs, transition) is not None and self._changed(job.id)

    def _edit(self, job: Job) -> bool:
        data = {**job.data, "version": job.data["version"] + 1}
        return self._apply(job, transitions.update_pending(job, self._now(), job.next_run_at, data=data))

    def _edit_raw(self, job: Job) -> bool:
        changed = self._documents.update_one(
            {"_id": job.id, "status": "pending"}, {"$inc": {"rev": 1, "data.version": 1}}
        ).modified_count
        return bool(changed) and self._changed(job.id)

    def _cancel(self, job: Job) -> bool:
        return self._apply(job, transitions.cancel_pending(job.id, self._now())) and self._ended(job.id, "cancelled")

    def _delete(self, job: Job) -> bool:
        deleted = self._documents.delete_one({"_id": job.id, "status": "pending"}).deleted_count
        return bool(deleted) and self._changed(job.id) and self._ended(job.id, "deleted")

    def _put_off(self, job: Job) -> bool:
        later = self._now() + MUCH_LATER
        return self._apply(job, transitions.reschedule(job.id, self._now(), later)) and self._ended(job.id, "later")

    def _put_off_a_little(self, job: Job) -> bool:
        return self._apply(
            job,
            transitions.reschedule(
                job.id, self._now(), self._now() + timedelta(milliseconds=self._chance.randint(5, 500))
            ),
        )

    def _bring_forward(self, job: Job) -> bool:
        return self._apply(job, transitions.reschedule(job.id, self._now(), job.next_run_at - timedelta(minutes=1)))

    def _leave_an_owner(self, job: Job) -> bool:
        """As a tool may that changes the status alone. No instance claims such a job."""
        changed = self._documents.update_one(
            {"_id": job.id, "status": "pending"}, {"$set": {"claimedBy": "nobody"}}
        ).modified_count
        return bool(changed) and self._changed(job.id) and self._ended(job.id, "owned")

    def _ended(self, job_id: ObjectId, how: str) -> bool:
        self.gone[job_id] = how
        return True

    # --- As another instance of this library ---

    def _claim(self, job: Job) -> Job | None:
        taken = claiming.take(self._jobs, [job], self._now(), stamp("another", self._now())).jobs
        if not taken:
            return None
        assert (job.id, taken[0].attempts) not in self.claimed
        self.claimed.add((job.id, taken[0].attempts))
        self._changed(job.id)
        return taken[0]

    def _end(self, transition: Transition) -> bool:
        fates = settling.settle(self._jobs, settling.grouped([transition], f"another{self.changes}"))
        assert list(fates.values()) == [Fate.WRITTEN]
        return True

    def _claim_and_release(self, job: Job) -> bool:
        for _ in range(self._chance.randint(1, 3)):
            current = queries.get_job(self._jobs, job.id)
            claimed = None if current is None else self._claim(current)
            if claimed is None:
                return False
            self._end(transitions.release(claimed, self._now()))
        return True

    def _claim_and_complete(self, job: Job) -> bool:
        claimed = self._claim(job)
        if claimed is None:
            return False
        return self._end(transitions.complete(claimed, self._now())) and self._ended(job.id, "completed")

    def _claim_and_fail(self, job: Job) -> bool:
        claimed = self._claim(job)
        return claimed is not None and self._end(
            transitions.retry(claimed, self._now(), Failure("no"), claimed.next_run_at)
        )

    def _claim_and_die(self, job: Job) -> bool:
        claimed = self._claim(job)
        return claimed is not None and self._end(transitions.rescue(claimed, self._now(), claimed.next_run_at))

    def _claim_and_hold(self, job: Job) -> bool:
        claimed = self._claim(job)
        if claimed is None:
            return False
        self._held.append(claimed)
        return True

    # --- As Node: it takes the first one of a name ---

    def _node_claims(self, job: Job) -> Document | None:
        found = self._node.claim(job.name, self._now())
        if found is None:
            return None
        self._changed(found["_id"])
        if self.gone.get(found["_id"]) == "owned":
            del self.gone[found["_id"]]  # Node takes it all the same, and then it has an owner again.
        return found

    def _node_claims_and_releases(self, job: Job) -> bool:
        claimed = self._node_claims(job)
        return claimed is not None and self._node.release(claimed["_id"])

    def _node_claims_and_completes(self, job: Job) -> bool:
        claimed = self._node_claims(job)
        return claimed is not None and self._node.complete(claimed["_id"]) and self._ended(claimed["_id"], "completed")

    def _node_claims_and_fails(self, job: Job) -> bool:
        claimed = self._node_claims(job)
        return claimed is not None and self._node.fail(claimed, claimed["nextRunAt"], self._now())

    def _node_claims_and_dies(self, job: Job) -> bool:
        claimed = self._node_claims(job)
        died = None if claimed is None else queries.get_job(self._jobs, claimed["_id"])
        return died is not None and self._end(transitions.rescue(died, self._now(), died.next_run_at))

    def _node_cancels_and_tries_again(self, job: Job) -> bool:
        if not self._node.cancel(job.id, self._now()):
            return False
        self._node.retry(job.id, job.next_run_at, self._now())
        return self._changed(job.id)
