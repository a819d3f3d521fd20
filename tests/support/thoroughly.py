"""How much is tried: a part in a normal run, more with one of two variables in the environment.

MONQUE_TEST_FULL=1: the numbers that are promised, in minutes. MONQUE_TEST_THOROUGH=1: these and more, in an hour.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

THOROUGH: Final = os.environ.get("MONQUE_TEST_THOROUGH") == "1"
FULL: Final = THOROUGH or os.environ.get("MONQUE_TEST_FULL") == "1"


def in_full(normally: int, full: int) -> int:
    """Of jobs, documents or seeds: how many. A test module that has such a number is marked `larger_in_full`."""
    return full if FULL else normally


def examples(normally: int, thoroughly: int) -> int:
    """How many random examples are tried."""
    return thoroughly if THOROUGH else normally


def the_same_examples(normally: int, thoroughly: int) -> settings:
    """Settings for random examples that are the same in every run: each asks the server, and none is kept."""
    return settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=examples(normally, thoroughly),
        suppress_health_check=list(HealthCheck),
    )


def one_in(step: int, *columns: Sequence[object], first: int = 0) -> list[Any]:
    """For `pytest.mark.parametrize`: all combinations; a normal run tries one in `step`.

    These lie on diagonals: each value of a column is tried, unless all other columns together have fewer values than
    `step`. Another `first` is another diagonal.
    """
    places = product(*(range(len(column)) for column in columns))
    return _marked(step, first, zip(map(sum, places), product(*columns), strict=True))


def rows_in(step: int, rows: Sequence[Sequence[object]], first: int = 0) -> list[Any]:
    """For `pytest.mark.parametrize` with several names: all rows, one in `step` of them in a normal run."""
    return _marked(step, first, enumerate(rows))


def _marked(step: int, first: int, cases: Iterable[tuple[int, Sequence[object]]]) -> list[Any]:
    marked = [pytest.param(*values, marks=() if at % step == first else pytest.mark.full) for at, values in cases]
    assert not all(one.marks for one in marked), "a normal run tries none of them"
    return marked
