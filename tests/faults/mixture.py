"""What jobs the scenarios are made of, and who enqueues them. Drawn from a seed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from trio_monque import Job, Monque, NewJob
from trio_monque.errors import MonqueConnectionError, PartialEnqueueError
from trio_monque.store.driver.types import Database, ObjectId

from .records import Recorder

NAME: Final = "mixed"
MANY: Final = 25
KEYS: Final = 10
SCHEDULES: Final = 10
RARELY: Final = "0 0 29 2 *"
AN_HOUR: Final = 3600.0


def drawn(random: Random, number: int) -> dict[str, Any]:
    """The data of a job: how many steps of how many seconds; whether it fails first, and is snoozed first."""
    takes_long = random.random() < 0.02
    return {
        "n": number,
        "steps": 5 if takes_long else random.randint(1, 2),
        "step": 0.1 if takes_long else random.uniform(0, 0.01),
        "fails": int(random.random() < 0.1),
        "snoozes": random.random() < 0.1,
    }


class Enqueuer:
    """Enqueues by blocking calls, and writes down what was acknowledged.

    Args:
        max_attempts: Of every job, instead of as many as it is planned to fail and one.

    Attributes:
        acknowledged: How many were.
        managed: How many jobs were changed by hand, and are known to be.
    """

    def __init__(self, monque: Monque, recorder: Recorder, seed: int, *, max_attempts: int | None = None) -> None:
        self._calls = monque.sync
        self._recorder = recorder
        self._random = Random(seed)
        self._max_attempts = max_attempts
        self.acknowledged = 0
        self.managed = 0

    def _draw(self, number: int) -> tuple[dict[str, Any], int]:
        data = drawn(self._random, number)
        return data, self._max_attempts or 1 + data["fails"]

    def declare_schedules(self) -> None:
        """Each has an occurrence at once, and the next one in years."""
        for number in range(SCHEDULES):
            job = self._calls.schedule(RARELY, NAME, drawn(self._random, -1 - number), unique_key=f"rare-{number}")
            self._calls.reschedule_job(job.id, datetime.now(UTC))
            self._recorder.write("acknowledged", str(job.id))

    def enqueue(self, numbers: range) -> None:
        """A job for each number, in one way or another."""
        remaining = iter(numbers)
        while (number := next(remaining, None)) is not None:
            way = self._random.random()
            if way < 0.06:
                self._many([number, *(one for _, one in zip(range(MANY - 1), remaining, strict=False))])
            elif way < 0.2:
                self._keyed(number)
            else:
                self._one(number)
            if way > 0.98:
                self._manage()

    def enqueue_at_once(self, numbers: Sequence[int]) -> None:
        """The same with few statements."""
        for first in range(0, len(numbers), 500):
            self._many(numbers[first : first + 500])

    def enqueue_long(self, numbers: Sequence[int], until: Path) -> Sequence[ObjectId]:
        """Each takes a second or two, and until the file is there. Returns their ids.

        They have been due for an hour: by any clock of these tests.
        """
        due, new = datetime.now(UTC) - timedelta(hours=1), []
        for number in numbers:
            data, max_attempts = self._draw(number)
            data = {**data, "steps": self._random.randint(12, 20), "step": 0.1, "until": str(until)}
            new.append(NewJob(name=NAME, data=data, max_attempts=max_attempts, run_at=due))
        return self._all(new)

    def enqueue_later(self, numbers: Sequence[int], delay: float) -> Sequence[ObjectId]:
        """Enqueues all at once, due after `delay` seconds. Returns their ids."""
        new = []
        for number in numbers:
            data, max_attempts = self._draw(number)
            new.append(NewJob(name=NAME, data=data, max_attempts=max_attempts, delay=delay))
        return self._all(new)

    def _all(self, new: Sequence[NewJob]) -> Sequence[ObjectId]:
        jobs = self._calls.enqueue_many(new)
        self._write_acknowledged(jobs)
        return [job.id for job in jobs]

    def _one(self, number: int) -> None:
        data, max_attempts = self._draw(number)
        try:
            job = self._calls.enqueue(NAME, data, max_attempts=max_attempts)
        except MonqueConnectionError as error:
            self._failed(error, number)
        else:
            self._acknowledged(str(job.id), number)

    def _keyed(self, number: int) -> None:
        """Enqueues with a key; a live job with that key is the job."""
        data, max_attempts = self._draw(number)
        key = f"key-{self._random.randrange(KEYS)}"
        try:
            job = self._calls.enqueue(NAME, data, unique_key=key, max_attempts=max_attempts)
        except MonqueConnectionError as error:
            self._failed(error, number)
        else:
            assert job.unique_key == key
            self._acknowledged(str(job.id), job.data["n"])

    def _many(self, numbers: Sequence[int]) -> None:
        drawn_jobs = [self._draw(number) for number in numbers]
        # Unique keys used once go another way through the store.
        new = [
            NewJob(
                name=NAME,
                data=data,
                max_attempts=max_attempts,
                unique_key=f"own-{data['n']}" if data["n"] % 2 else None,
            )
            for data, max_attempts in drawn_jobs
        ]
        try:
            self._write_acknowledged(self._calls.enqueue_many(new))
        except PartialEnqueueError as error:
            for place, number in enumerate(numbers):
                if place in error.enqueued:
                    self._acknowledged(str(error.enqueued[place]), number)
                elif place in error.unknown:
                    self._recorder.write("unknown", str(error.unknown[place]), detail=str(number))
                else:
                    self._recorder.write("refused", detail=str(number))
            self._recorder.write("not acknowledged", detail=f"{numbers}: {error}")
        except MonqueConnectionError as error:
            self._failed(error, *numbers)

    def _write_acknowledged(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._acknowledged(str(job.id), job.data["n"])

    def _acknowledged(self, job: str, number: int) -> None:
        self._recorder.write("acknowledged", job, detail=str(number))
        self.acknowledged += 1

    def _failed(self, error: MonqueConnectionError, *numbers: int) -> None:
        for number in numbers:
            self._recorder.write("unknown" if error.unknown_outcome else "refused", detail=str(number))
        self._recorder.write("not acknowledged", detail=f"{numbers}: {error}")

    def _manage(self) -> None:
        """By hand, of a job that is not due for long."""
        what = self._random.choice(["cancel", "delete", "reschedule"])
        try:
            job = self._calls.enqueue("elsewhere", delay=AN_HOUR)
        except MonqueConnectionError:
            return
        self._recorder.write("put off", str(job.id), detail=what)
        moment = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
        detail = f"{what} {moment.isoformat()}" if what == "reschedule" else what
        try:
            done = self._do(what, job, moment)
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                self._recorder.write("not managed", str(job.id), detail=detail)
        else:
            self._recorder.write("managed" if done else "missing", str(job.id), detail=detail)
            self.managed += bool(done)

    def _do(self, what: str, job: Job, moment: datetime) -> object:
        if what == "cancel":
            return self._calls.cancel_job(job.id)
        if what == "delete":
            return self._calls.delete_job(job.id)
        return self._calls.reschedule_job(job.id, moment)


@contextmanager
def in_threads(work: Callable[[int], None], count: int) -> Iterator[Callable[[], bool]]:
    """Works in `count` threads, each with its number; gives whether all have ended. Raises what one raised."""
    faults: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as fault:  # noqa: BLE001  # It is raised below.
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: not any(thread.is_alive() for thread in threads)
    finally:
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]


def is_over(db: Database) -> bool:
    """All that is due within a day has ended."""
    soon = datetime.now(UTC) + timedelta(days=1)
    live = {"name": NAME, "status": {"$in": ["pending", "processing"]}, "nextRunAt": {"$lt": soon}}
    return db["monque_jobs"].find_one(live, {"_id": 1}) is None
