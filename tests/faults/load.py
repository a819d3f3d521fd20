"""Enqueuers that never stop while the database is tormented, and the ledger of what they were told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from random import Random
from typing import Any, Final

from trio_monque import Job, JobStateError, Monque, MonqueConnectionError, NewJob, PartlyEnqueuedError

ENQUEUERS: Final = 6
MANY: Final = 20
KEYS: Final = 30
AN_HOUR: Final = 3600.0


class Told(Enum):
    """What a caller was told of its call."""

    DONE = auto()
    UNKNOWN = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class Sent:
    """One job that somebody wanted to enqueue.

    Attributes:
        job: The id that was told; empty where none was.
    """

    told: Told
    job: str = ""


@dataclass(frozen=True)
class Managed:
    """One thing that was done to a job which nobody else touches.

    Attributes:
        what: "cancel", "delete" or "reschedule".
        moment: For when it was rescheduled.
    """

    what: str
    told: Told
    moment: datetime | None = None


@dataclass
class Ledger:
    """All that was told.

    Attributes:
        sent: By the number in the data of each job.
        keyed: The ids that were told for each unique key.
        managed: By job.
    """

    sent: dict[int, Sent] = field(default_factory=dict)
    keyed: dict[str, set[str]] = field(default_factory=dict)
    managed: dict[str, Managed] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: int = 0

    def numbers(self, count: int) -> range:
        with self._lock:
            self._numbers += count
            return range(self._numbers - count, self._numbers)

    @property
    def done(self) -> int:
        """How many jobs were acknowledged that are to be run."""
        return sum(one.told is Told.DONE for one in list(self.sent.values()))

    def count(self, told: Told) -> int:
        """How many calls were told so, of either kind."""
        all_told = [one.told for one in self.sent.values()] + [one.told for one in self.managed.values()]
        return all_told.count(told)


class Enqueuer:
    """One thread's: what it does is drawn from its own seed."""

    def __init__(self, monque: Monque, ledger: Ledger, seed: int) -> None:
        self._calls = monque.sync
        self._ledger = ledger
        self._random = Random(seed)

    def work_while(self, goes_on: Callable[[], bool]) -> None:
        kinds = [self._one, self._many, self._keyed, self._manage]
        while goes_on():
            self._random.choices(kinds, [60, 15, 15, 10])[0]()

    def _data(self, number: int) -> dict[str, Any]:
        # One in a hundred runs for longer than any election takes, and so loses its lease in the longest ones.
        seconds = self._random.uniform(2, 4) if self._random.random() < 0.01 else self._random.uniform(0, 0.02)
        return {"n": number, "for": seconds, "fails": int(self._random.random() < 0.1)}

    def _one(self) -> None:
        (number,) = self._ledger.numbers(1)
        try:
            sent = Sent(Told.DONE, str(self._calls.enqueue("counts", self._data(number)).id))
        except MonqueConnectionError as error:
            sent = Sent(_told(error))
        self._ledger.sent[number] = sent

    def _many(self) -> None:
        numbers = self._ledger.numbers(MANY)
        # Unique keys that nobody else uses go another way through the store.
        new = [
            NewJob(name="counts", data=self._data(number), unique_key=f"own-{number}" if number % 2 else None)
            for number in numbers
        ]
        told: dict[int, Sent]
        try:
            told = {place: Sent(Told.DONE, str(job.id)) for place, job in enumerate(self._calls.enqueue_many(new))}
        except PartlyEnqueuedError as error:
            told = {
                **{place: Sent(Told.DONE, job) for place, job in error.enqueued.items()},
                **{place: Sent(Told.UNKNOWN, job) for place, job in error.unknown.items()},
            }
        except MonqueConnectionError as error:
            told = dict.fromkeys(range(MANY), Sent(_told(error)))
        for place, number in enumerate(numbers):
            self._ledger.sent[number] = told.get(place, Sent(Told.REFUSED))

    def _keyed(self) -> None:
        """Of a job that stays pending: whoever asks, it is the same one."""
        key = str(self._random.randrange(KEYS))
        try:
            job = self._calls.enqueue("keyed", unique_key=key, delay=AN_HOUR)
        except MonqueConnectionError:
            return
        self._ledger.keyed.setdefault(key, set()).add(str(job.id))

    def _manage(self) -> None:
        try:
            job = self._calls.enqueue("managed", delay=AN_HOUR)
        except MonqueConnectionError:
            return
        what = self._random.choice(["cancel", "delete", "reschedule"])
        moment = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
        try:
            done = self._do(what, job, moment)
        except MonqueConnectionError as error:
            self._ledger.managed[str(job.id)] = Managed(what, _told(error), moment)
            return
        except JobStateError as error:
            raise AssertionError(f"a job that nobody else touches: {error}") from error
        assert done, f"{what}: a job that was acknowledged is not there: {job}"
        self._ledger.managed[str(job.id)] = Managed(what, Told.DONE, moment)

    def _do(self, what: str, job: Job, moment: datetime) -> object:
        if what == "cancel":
            return self._calls.cancel_job(job.id)
        if what == "delete":
            return self._calls.delete_job(job.id)
        return self._calls.reschedule_job(job.id, moment)


def _told(error: MonqueConnectionError) -> Told:
    return Told.UNKNOWN if error.unknown_outcome else Told.REFUSED


@contextmanager
def enqueuing(clients: Sequence[Monque], seed: int, at_least: float, at_most: float) -> Iterator[Ledger]:
    """Enqueuers at work for as long as the block, and until so many jobs were acknowledged."""
    ledger = Ledger()
    block_ended = threading.Event()
    faults: list[BaseException] = []

    def goes_on() -> bool:
        done = ledger.done
        return not faults and done < at_most and not (block_ended.is_set() and done >= at_least)

    def work(number: int) -> None:
        try:
            monque = clients[number % len(clients)]
            Enqueuer(monque, ledger, seed * ENQUEUERS + number).work_while(goes_on)
        except BaseException as error:  # noqa: BLE001  # It is raised below.
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(ENQUEUERS)]
    for thread in threads:
        thread.start()
    try:
        yield ledger
    finally:
        block_ended.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
