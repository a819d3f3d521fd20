"""What schedulers did in each minute: how many jobs ended, how long they waited and ran. Pure.

Jobs cannot be asked that later: retention deletes them, and retries and schedules overwrite them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

BUCKETS: Final = 26
"""Of a histogram. The first one has what took up to 1 ms, each other one up to twice as much as the one before; the
last one ends after nine hours, and has all that took longer, too."""

NUMBERS: Final = 6
"""Before the two histograms in a row: done, failed attempts, failed for good, rescued, and the milliseconds of all runs
and of all waits."""

DONE, FAILED_ATTEMPTS, FAILED_FOR_GOOD, RESCUED, RUN_MS, WAIT_MS = range(NUMBERS)
RUN_BUCKETS: Final = NUMBERS
WAIT_BUCKETS: Final = NUMBERS + BUCKETS
ROW: Final = NUMBERS + 2 * BUCKETS
"""The length of a row: all the numbers of one name in one minute."""

MOST_NAMES: Final = 100
OTHER_NAMES: Final = ""
"""Names beyond MOST_NAMES in a minute share this one: programs may make names from data."""

KEPT_FOR: Final = timedelta(hours=26)
MINUTE: Final = timedelta(minutes=1)


def bucket_of(milliseconds: int) -> int:
    """Return the number of the bucket for this length of time."""
    return min(max(0, milliseconds - 1).bit_length(), BUCKETS - 1)


def minute_of(moment: datetime) -> datetime:
    """Return the beginning of the minute that the moment is in."""
    return moment.replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Lengths of time, by their sizes.

    Attributes:
        counts: How many are in each bucket: the first has those of up to 1 ms, each other one those of up to twice as
            much as the one before.
        seconds: Their sum.
    """

    counts: Sequence[int] = (0,) * BUCKETS
    seconds: float = 0.0

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(
            tuple(one + more for one, more in zip(self.counts, other.counts, strict=True)),
            self.seconds + other.seconds,
        )

    @property
    def number(self) -> int:
        """How many there are."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their mean in seconds; None if there are none."""
        return self.seconds / self.number if self.number else None

    def percentile(self, share: float) -> float | None:
        """Return the seconds that this share of them, from 0 to 1, did not exceed; None if there are none.

        It is exact to the bucket, in which they are taken as evenly distributed.
        """
        rank = share * self.number
        passed = 0
        for place, count in enumerate(self.counts):
            if count and passed + count >= rank:
                below = 0.0 if place == 0 else 2.0 ** (place - 1)
                return (below + (2.0**place - below) * max(0.0, rank - passed) / count) / 1000
            passed += count
        return None


NO_TIMES: Final = Histogram()


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of runs.

    Attributes:
        done: Runs that succeeded.
        failed_attempts: Runs that failed, with or without attempts left.
        failed_for_good: Jobs that failed for good.
        rescued: Claims of dead instances that were taken away.
        run: How long the runs took.
        wait: How long the jobs were due before they were claimed.
    """

    done: int = 0
    failed_attempts: int = 0
    failed_for_good: int = 0
    rescued: int = 0
    run: Histogram = NO_TIMES
    wait: Histogram = NO_TIMES

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.done + other.done,
            self.failed_attempts + other.failed_attempts,
            self.failed_for_good + other.failed_for_good,
            self.rescued + other.rescued,
            self.run + other.run,
            self.wait + other.wait,
        )


@dataclass(frozen=True, slots=True)
class Minute:
    """What all schedulers did in one minute.

    Attributes:
        at: When it began, UTC.
        slots: How many jobs could run at once in the schedulers that did something.
        by_name: The figures of each name. Beyond a hundred names of a scheduler, the others are under "".
    """

    at: datetime
    slots: int
    by_name: Mapping[str, Figures] = field(default_factory=dict)

    @property
    def in_all(self) -> Figures:
        """The figures of all names together."""
        return sum(self.by_name.values(), Figures())


@dataclass(frozen=True, slots=True)
class LastHour:
    """What all schedulers did in the last hour.

    Attributes:
        minutes: Each minute, the earliest first.
        usual_wait: For each name, the median of the seconds that its jobs were due before they ran.
    """

    minutes: Sequence[Minute] = ()
    usual_wait: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, minutes: Sequence[Minute]) -> LastHour:
        """Make it from its minutes."""
        medians = {name: figures.wait.percentile(0.5) for name, figures in _by_name(minutes).items()}
        return cls(minutes, {name: median for name, median in medians.items() if median is not None})

    def since(self, moment: datetime) -> Mapping[str, Figures]:
        """Return the figures of each name in the minutes that ended later than this moment."""
        return _by_name([one for one in self.minutes if one.at + MINUTE > moment])


def _by_name(minutes: Iterable[Minute]) -> Mapping[str, Figures]:
    found: dict[str, Figures] = {}
    for minute in minutes:
        for name, figures in minute.by_name.items():
            if name != OTHER_NAMES:
                found[name] = found[name] + figures if name in found else figures
    return found


@dataclass(frozen=True, slots=True)
class Part:
    """What one scheduler did in one minute.

    Attributes:
        at: When the minute began, UTC.
        slots: How many jobs it could run at once.
        rows: The numbers of each name; see `ROW`.
    """

    at: datetime
    slots: int
    rows: Mapping[str, Sequence[int]]


def merged(parts: Iterable[Part]) -> Sequence[Minute]:
    """Return the minutes that these parts make, the earliest first."""
    slots: dict[datetime, int] = defaultdict(int)
    by_name: dict[datetime, dict[str, Figures]] = defaultdict(dict)
    for part in parts:
        slots[part.at] += part.slots
        names = by_name[part.at]
        for name, row in part.rows.items():
            names[name] = names.get(name, Figures()) + figures_of(row)
    return [Minute(at, slots[at], by_name[at]) for at in sorted(slots)]


def figures_of(row: Sequence[int]) -> Figures:
    """Return the figures in a row."""
    return Figures(
        row[DONE],
        row[FAILED_ATTEMPTS],
        row[FAILED_FOR_GOOD],
        row[RESCUED],
        Histogram(tuple(row[RUN_BUCKETS:WAIT_BUCKETS]), row[RUN_MS] / 1000),
        Histogram(tuple(row[WAIT_BUCKETS:ROW]), row[WAIT_MS] / 1000),
    )
