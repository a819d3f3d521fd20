"""Claims from what was read ahead, while others change just that, and statements end in the middle. By chance."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

import pytest
import trio
from bson import ObjectId
from pymongo.errors import NetworkTimeout
from trio.testing import MockClock

from tests.support.internals import candidates_of, interference_of, prefetch_of, prefetched, read_at
from tests.support.jobs_in_memory import flat
from tests.support.meddlers import Meddlers
from trio_monque import RunningJob
from trio_monque.jobs.job import Job
from trio_monque.jobs.rescue_policy import is_suspect
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, now

NAMES = ("mail", "report", "sync", "crawl")
HEARTBEAT = 30.0
KEPT_FOR = 0.1

# How many of each name are about to be claimed.
NEXT = 15

# (attempts, failCount, rescues, rev): one, as many as one statement can pin, and more.
PASTS = {
    "alike": [(0, 0, 0, 0)],
    "mixed": [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)],
    "motley": [(tries, tries // 2, 0, rev) for tries in range(5) for rev in range(4)],
}


def backlog(jobs: Collection, chance: random.Random, count: int, pasts: str, moment: datetime) -> None:
    documents = []
    for number in range(count):
        attempts, fail_count, rescues, rev = chance.choice(PASTS[pasts])
        at = moment - timedelta(seconds=count - number)
        counts = {"attempts": attempts, "rescues": rescues, "rev": rev}
        documents.append(
            {
                "name": chance.choice(NAMES),
                "data": {"number": number, "version": 0},
                "status": "pending",
                "nextRunAt": at,
                "failCount": fail_count,
                "createdAt": at,
                "updatedAt": at,
                **{name: value for name, value in counts.items() if value},
            }
        )
    jobs.insert_many(documents)


class Judge:
    """Compares each run with the document as it is when it starts."""

    def __init__(self, jobs: Collection, others: Meddlers, chance: random.Random) -> None:
        self._jobs = jobs
        self._others = others
        self._chance = chance
        self._running: dict[ObjectId, Job] = {}
        self.limits: dict[str, int] = {}
        self.starts: Counter[tuple[ObjectId, int]] = Counter()
        self.succeeded: Counter[ObjectId] = Counter()
        self.complaints: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def handler(self, job: RunningJob[Any]) -> None:
        self._check(job)
        self._running[job.id] = job.job
        self._check_limits(job)
        self.meanwhile()
        self.starts[job.id, job.attempt] += 1
        try:
            await trio.sleep(0.002 * self._chance.randint(1, 10))
        finally:
            self._running.pop(job.id, None)
        if self._chance.random() < 0.05:
            raise ConnectionError("again")
        self.succeeded[job.id] += 1

    def _check(self, job: RunningJob[Any]) -> None:
        document = self._jobs.find_one({"_id": job.id})
        if document is None:
            self._complain(job, "is deleted")
            return
        claimed = job.job
        found = {
            "status": (document["status"], "processing"),
            "claimToken": (document.get("claimToken"), flat(claimed).claim_token),
            "data": (document["data"], claimed.data),
            "attempts": (document["attempts"], claimed.attempts),
            "failCount": (document["failCount"], claimed.fail_count),
            "rescues": (document.get("rescues", 0), claimed.rescues),
            "rev": (document.get("rev", 0), claimed.internals.rev),
            "nextRunAt": (document["nextRunAt"], claimed.next_run_at),
        }
        for name, (stored, given) in found.items():
            if stored != given:
                self._complain(job, f"has {name}={given!r}, and the database {stored!r}")
        if job.id in self._others.gone:
            self._complain(job, f"was {self._others.gone[job.id]}")
        if job.id in self._running or self._others.holds(job.id):
            self._complain(job, "runs already")
        if (job.id, job.attempt) in self.starts or (job.id, job.attempt) in self._others.claimed:
            self._complain(job, f"had attempt {job.attempt} before")
        if claimed.next_run_at > now():
            self._complain(job, f"is due at {claimed.next_run_at}, and now it is {now()}")

    def _check_limits(self, job: RunningJob[Any]) -> None:
        names = Counter(one.name for one in self._running.values())
        if names[job.name] > self.limits[job.name] or names.total() > self.limits["all"]:
            self._complain(job, f"more run than may: {names}")
        if sum(map(is_suspect, self._running.values())) > 1:
            self._complain(job, "another suspect runs")

    def _complain(self, job: RunningJob[Any], what: str) -> None:
        self.complaints.append(f"{job.job} runs, and {what}")


class Trouble:
    """For the statements of the scheduler: others come first, and some are cut off before, after and half-way."""

    def __init__(self, others: Meddlers, chance: random.Random, purpose: str, share: float) -> None:
        self._others = others
        self._chance = chance
        self._purpose = purpose
        self._share = share
        self.late: list[Callable[[], object]] = []
        self.did: Counter[str] = Counter()
        self.hit: set[ObjectId] = set()
        self.ends = False
        self.then: Callable[[], None] = lambda: None

    def takes(self, purpose: str) -> bool:
        return purpose == self._purpose and not self.ends

    def inject(self, call: Any) -> Any:
        candidates: Sequence[Job] = call.args[1] if call.func.__name__ == "take" else []
        if candidates and self._chance.random() < 0.2:
            for job in self._chance.sample(candidates, min(2, len(candidates))):
                self._others.meddle(job.id)
                self.hit.add(job.id)
        if self._chance.random() >= self._share:
            answer = call()
            self.then()
            return answer
        ways = ("after", "half-way", "later", "before") if candidates else ("after", "before")
        how = ways[self.did.total() % len(ways)]
        self.did[how] += 1
        match how:
            case "after":
                call()
            case "half-way":
                handle, _, *rest = call.args
                call.func(handle, candidates[: -(-len(candidates) // 2)], *rest)
            case "later":
                self.late.append(call)
        raise NetworkTimeout("no answer came in time")

    def apply_late(self) -> None:
        """What was given up arrives after all."""
        while self.late:
            self.late.pop()()


class Sight:
    """What the claims of a scheduler were made from."""

    def __init__(self, scheduler: Any, others: Meddlers, clock: MockClock) -> None:
        self._candidates = candidates_of(scheduler)
        self._window = prefetch_of(self._candidates)
        self._others = others
        self._clock = clock
        self._looked = self._read = 0
        self.oldest = 0.0
        self.claims = self.old = self.hits = self.old_and_hit = 0
        self._wrap()

    def meddle(self, chance: random.Random) -> None:
        """Now and then one of those is changed that would be claimed next."""
        ahead = [job.id for group in prefetched(self._window) for job in islice(group, NEXT)]
        if ahead and chance.random() < 0.15:
            self._others.meddle(chance.choice(ahead))

    def _wrap(self) -> None:
        look, fill, asking_for = self._window.look, self._window.fill, self._candidates.asking_for

        def look_now() -> None:
            self._looked = self._others.changes
            look()

        def fill_now(*arguments: Any, **also: Any) -> None:
            self._read = self._looked
            fill(*arguments, **also)

        @contextmanager
        def asking_for_these(chosen: Sequence[Job]) -> Iterator[Any]:
            self.claims += 1
            age, read = self._clock.current_time() - read_at(self._window), self._read
            is_old = age > 0
            self.oldest = max(self.oldest, age)
            self.old += is_old
            with asking_for(chosen) as answer:
                yield answer
            hits = sum(self._others.touched.get(job.id, -1) > read for job in chosen)
            self.hits += hits
            self.old_and_hit += is_old and hits > 0

        self._window.look, self._window.fill = look_now, fill_now
        self._candidates.asking_for = asking_for_these


async def let_go(others: Meddlers) -> None:
    while True:
        await trio.sleep(0.005)
        others.let_go()


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 20))])
@pytest.mark.parametrize(
    ("pasts", "slots", "count"),
    [("alike", 12, 180), ("mixed", 60, 350), ("motley", 60, 350)],
)
async def test_whatever_others_do_to_what_was_read_ahead_each_run_is_exact(
    open_test_scheduler: SchedulerOpener,
    db: Database,
    jobs: Collection,
    autojump_clock: MockClock,
    pasts: str,
    slots: int,
    count: int,
    seed: int,
) -> None:
    chance = random.Random(f"{seed} {slots} {pasts}")
    began: list[datetime] = []

    def time_of_test() -> datetime:
        return began[0] + timedelta(milliseconds=int(autojump_clock.current_time() * 1000))

    others = Meddlers(db, chance, time_of_test)
    judge = Judge(jobs, others, chance)
    async with open_test_scheduler(
        deterministic=True,
        seed=seed,
        concurrency=slots,
        heartbeat_interval=HEARTBEAT,
        base_retry_interval=2.0,
        max_attempts=99,
        recover_stale_jobs=False,
    ) as scheduler:
        began.append(now())
        backlog(jobs, chance, count, pasts, began[0])
        made = set(jobs.distinct("_id"))
        sight = Sight(scheduler, others, autojump_clock)
        judge.meanwhile = partial(sight.meddle, chance)
        claims = Trouble(others, chance, "claim jobs", 0.15)
        finding_out = Trouble(others, chance, "check the outcome of a claim", 0.1)
        # What was not found may be applied right then.
        finding_out.then = claims.apply_late
        troubles = [
            claims,
            finding_out,
            Trouble(others, chance, "look for due jobs", 0.05),
            Trouble(others, chance, "settle jobs", 0.03),
        ]
        interference_of(scheduler).extend(troubles)
        judge.limits["all"] = slots
        for number, name in enumerate(NAMES):
            judge.limits[name] = most = max(2, slots // (number + 1))
            scheduler.register(name, judge.handler, concurrency=most, priority=number % 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go, others)
            await drain(scheduler)
            nursery.cancel_scope.cancel()
        for trouble in troubles:
            trouble.ends = True
        claims.apply_late()
        others.let_go_of_all()
        await trio.sleep(2 * HEARTBEAT)  # What was given up and came late after all is given back.
        await drain(scheduler)

    assert judge.complaints == []
    left = {one["_id"]: one["status"] for one in jobs.find({"status": {"$ne": "completed"}})}
    assert left.keys() == {job_id for job_id, how in others.gone.items() if how in ("cancelled", "later", "owned")}
    assert "processing" not in left.values()
    assert judge.succeeded == Counter(made - others.gone.keys())
    assert sight.oldest < KEPT_FOR
    # Otherwise it would prove nothing.
    assert sight.hits >= 15
    assert sight.old_and_hit >= 4
    assert min(claims.did[how] for how in ("before", "after", "half-way", "later")) >= 1
