"""A reproducible order: with the same seed, a run under a virtual clock does the same things in the same order."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import trio

from ..errors import MonqueError
from ..threads import take_turns

FIRST_MOMENT: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""When virtual time begins in a reproducible run, unless the test says otherwise: the same each time."""


def new_seed() -> int:
    return secrets.randbelow(2**32)


@contextmanager
def reproducible_order(seed: int) -> Iterator[None]:
    """While inside: threads take turns, and trio chooses among tasks that could all run by the seed.

    Also Python's `random`, from which the jitter of retries comes, goes by the seed. Threads that the
    program starts by itself are not ordered.
    """
    run = _trio_run()
    state, allowed, chance = run._r.getstate(), run._ALLOW_DETERMINISTIC_SCHEDULING, random.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    random.seed(seed)
    take_turns()
    try:
        yield
    except BaseException as error:
        error.add_note(f"This run was ordered by seed={seed}; with the same seed it runs in the same order.")
        raise
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        run._r.setstate(state)
        random.setstate(chance)


def _trio_run() -> Any:
    """trio's own switch for a deterministic order, which exists for Hypothesis; pytest-trio uses it, too."""
    run = trio._core._run
    if not (hasattr(run, "_ALLOW_DETERMINISTIC_SCHEDULING") and hasattr(run, "_r")):
        raise MonqueError(f"trio {trio.__version__} has no switch for a deterministic order that is known here")
    return run
