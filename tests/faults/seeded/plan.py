"""What a seed means: who lives when, what clients do, how handlers behave. Pure; the same seed is the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

NAMES: Final = ("amber", "birch", "cedar", "dune")
PLAIN: Final = "dune"
"""The name whose handler is a plain function, in a thread."""

EVERY_MINUTE: Final = "* * * * *"


@dataclass(frozen=True)
class Life:
    """One scheduler, from its start to its end; seconds of virtual time.

    Attributes:
        ending: How it ends: "drain", "cut" or "crash".
    """

    id: str
    names: tuple[str, ...]
    start: float
    end: float
    ending: str


@dataclass(frozen=True)
class Instance:
    """One member of the fleet: its lives follow each other, and have the same options."""

    options: dict[str, Any]
    lives: tuple[Life, ...]


@dataclass(frozen=True)
class Action:
    """What a client does at a moment."""

    at: float
    what: str
    choice: int


@dataclass(frozen=True)
class Outage:
    """From when to when nothing gets through, for one instance or for all (None)."""

    start: float
    end: float
    whose: int | None


@dataclass(frozen=True)
class Plan:
    seed: int
    horizon: float
    trouble: float
    instances: tuple[Instance, ...]
    actions: tuple[Action, ...]
    outages: tuple[Outage, ...]


@dataclass(frozen=True)
class Behaviour:
    """One run of a handler.

    Attributes:
        steps: What it does one after the other: ("sleep", seconds), ("save", 0), ("spawn", 0).
        end: "return", "raise", "retry", "snooze", "discard" or "crash".
        when_cancelled: "obey", "clean up", "return" or "raise".
    """

    steps: tuple[tuple[str, float], ...]
    end: str
    when_cancelled: str
    clean_up: float


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    horizon = chance.choice((30.0, 60.0, 100.0))
    instances = tuple(_instance(number, horizon, chance) for number in range(chance.choice((1, 2, 2, 3, 3, 4))))
    actions = sorted((_action(horizon, chance) for _ in range(chance.randint(10, 24))), key=lambda one: one.at)
    outages = tuple(_outage(len(instances), horizon, chance) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    return Plan(seed, horizon, chance.choice((0.02, 0.06, 0.12, 0.2)), instances, tuple(actions), outages)


def _instance(number: int, horizon: float, chance: Random) -> Instance:
    interval = chance.choice((2.0, 4.0, 8.0))
    options = {
        "heartbeat_interval": interval,
        "cleanup_timeout": chance.choice((0.0, 0.5, 2.0, 5.0)),
        "shutdown_timeout": chance.choice((0.0, 2.0, 10.0)),
        "operation_timeout": chance.choice((2.0, 5.0)),
        "lock_timeout": chance.choice((1800.0, 40.0)),
        "concurrency_per_name": chance.choice((1, 2, 4)),
        "concurrency": chance.choice((None, None, 1, 3)),
        "max_attempts": chance.choice((1, 2, 3)),
        "max_rescues": chance.choice((0, 1, 3)),
        "base_retry_interval": chance.choice((0.0, 0.1, 1.0)),
        "max_backoff_delay": 15.0,
    }
    lives: list[Life] = []
    same_id = chance.random() < 0.5
    start = chance.choice((0.0, 0.0, chance.uniform(0, horizon / 3)))
    while start < horizon - 5:
        end = min(horizon, start + chance.choice((horizon, chance.uniform(3, horizon))))
        names = tuple(name for name in NAMES if chance.random() < 0.8) or NAMES
        ending = chance.choice(("drain", "drain", "cut", "crash"))
        lives.append(Life(f"i{number}" if same_id else f"i{number}.{len(lives)}", names, start, end, ending))
        start = end + chance.uniform(0, 10)
    return Instance(options, tuple(lives))


ACTIONS: Final = {
    "enqueue": 8,
    "delayed": 3,
    "unique": 4,
    "many": 2,
    "transaction": 2,
    "schedule": 3,
    "cancel": 6,
    "retry": 3,
    "reschedule": 3,
    "delete": 1,
    "poison": 1,
}


def _action(horizon: float, chance: Random) -> Action:
    (what,) = chance.choices(tuple(ACTIONS), tuple(ACTIONS.values()))
    at = 0.0 if chance.random() < 0.2 else chance.uniform(0, horizon - 5)
    return Action(round(at, 3), what, chance.getrandbits(30))


def _outage(instances: int, horizon: float, chance: Random) -> Outage:
    start = chance.uniform(0, horizon - 5)
    whose = None if chance.random() < 0.2 else chance.randrange(instances)
    return Outage(start, start + chance.choice((0.5, 5.0, 15.0, 40.0)), whose)


def behaviour(seed: int, marker: str, attempt: int) -> Behaviour:
    """How this attempt of the job with that marker goes. Late attempts succeed, so that all comes to an end."""
    chance = Random(f"run {seed} {marker} {attempt}")
    steps = []
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        what = chance.choice(("sleep", "sleep", "sleep", "save", "spawn" if chance.random() < 0.3 else "save"))
        steps.append((what, chance.choice((0.0, 0.3, 4.0, chance.uniform(0, 40))) if what == "sleep" else 0.0))
    end = chance.choices(
        ("return", "raise", "retry", "snooze", "discard", "crash"), (10, 5, 1, 1.5, 0.7, 0.8 if attempt < 4 else 0)
    )[0]
    if marker.startswith("poison"):
        end = "crash"
    elif attempt > 5:
        end = "return"
    when_cancelled = chance.choice(("obey", "obey", "clean up", "clean up", "return", "raise"))
    return Behaviour(tuple(steps), end, when_cancelled, chance.choice((0.2, 1.0, 60.0)))
