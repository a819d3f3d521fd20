"""What schedulers did in each minute: how many jobs ended, how long they waited and ran. Pure.

Jobs cannot be asked that later: retention deletes them, and retries and schedules overwrite them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import add
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
        failed_for_good: Jobs that failed for good: after such a run, after too many rescues, or because the server
            refuses every claim on them.
        rescued: Claims of dead instances that were taken away.
        run: How long the runs took.
        wait: How long the jobs were there and due before they were claimed.
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


def total(several: Iterable[Figures]) -> Figures:
    """Add figures up: as `sum` with `+`, and ten times as fast for many."""
    every = [*several]
    return Figures(
        sum(one.done for one in every),
        sum(one.failed_attempts for one in every),
        sum(one.failed_for_good for one in every),
        sum(one.rescued for one in every),
        _together([one.run for one in every]),
        _together([one.wait for one in every]),
    )


def _together(every: Sequence[Histogram]) -> Histogram:
    counts = tuple(map(sum, zip(*[one.counts for one in every], strict=True))) if every else NO_TIMES.counts
    return Histogram(counts, sum(one.seconds for one in every))


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
        return total(self.by_name.values())


@dataclass(frozen=True, slots=True)
class LastHour:
    """What all schedulers did in the last hour.

    Attributes:
        minutes: Each minute, the earliest first.
        usual_wait: For each name, the median of the seconds that its jobs were due before they ran.
        failed_for_good: For each name with such jobs, how many failed for good.
    """

    minutes: Sequence[Minute] = ()
    usual_wait: Mapping[str, float] = field(default_factory=dict)
    failed_for_good: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, minutes: Sequence[Minute]) -> LastHour:
        """Make it from its minutes."""
        names = _of_names(minutes)
        medians = {name: figures.wait.percentile(0.5) for name, figures in names.items()}
        return cls(
            minutes,
            {name: median for name, median in medians.items() if median is not None},
            {name: figures.failed_for_good for name, figures in names.items() if figures.failed_for_good},
        )

    def since(self, moment: datetime) -> Mapping[str, Figures]:
        """Return the figures of each name in the minutes that ended later than this moment."""
        return _of_names([one for one in self.minutes if one.at + MINUTE > moment])


def totals_by_name(minutes: Iterable[Minute]) -> Mapping[str, Figures]:
    """Return the figures of each name in these minutes together."""
    found: dict[str, list[Figures]] = defaultdict(list)
    for minute in minutes:
        for name, figures in minute.by_name.items():
            found[name].append(figures)
    return {name: total(several) for name, several in found.items()}


def _of_names(minutes: Iterable[Minute]) -> Mapping[str, Figures]:
    return {name: figures for name, figures in totals_by_name(minutes).items() if name != OTHER_NAMES}


@dataclass(frozen=True, slots=True)
class Part:
    """What one scheduler did in one minute.

    Attributes:
        at: When the minute began, UTC.
        slots: How many jobs it could run at once.
        rows: The numbers of each name; see `ROW`.
        steps: How often the server's clock had stepped back before: a minute may come again.
        by: The instance; "" before it is written.
    """

    at: datetime
    slots: int
    rows: Mapping[str, Sequence[int]]
    steps: int = 0
    by: str = ""


def merged(parts: Iterable[Part]) -> Sequence[Minute]:
    """Return the minutes that these parts make, the earliest first. It keeps no part."""
    # Lists of integers: a day of a fleet has hundreds of thousands of rows, and figures take ten times as long to add.
    slots: dict[datetime, dict[str, int]] = defaultdict(dict)
    rows: dict[datetime, dict[str, list[int]]] = defaultdict(dict)
    for part in parts:
        of_minute = slots[part.at]
        of_minute[part.by] = max(of_minute.get(part.by, 0), part.slots)  # It may have started again within the minute.
        names = rows[part.at]
        for name, row in part.rows.items():
            sums = names.get(name)
            names[name] = [*row] if sums is None else [*map(add, sums, row)]
    return [
        Minute(at, sum(slots[at].values()), {name: figures_of(row) for name, row in rows[at].items()})
        for at in sorted(slots)
    ]


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
