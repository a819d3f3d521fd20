"""What each model of a nursery shows: no order of steps breaks an invariant, and each rule taken out breaks one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from .nursery_invariants import Invariant
from .nursery_rules import Rule
from .nursery_search import Explored, explored


def games(names: Iterable[str], always: Collection[str]) -> list[Any]:
    """The games as parameters of a test: only `always` in a normal run, all of them in a thorough one."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.thorough) for name in names]


def show_that_nothing_breaks(model: Explored[Any], most: int) -> None:
    """Explore `most` states at most, and print how many there are."""
    finding = explored(model, most)
    print(finding)  # noqa: T201
    assert finding.broken is None, str(finding)


def show_the_harm(model: Explored[Any], taken_out: Rule, broken: Invariant, most: int) -> None:
    """Show that a model without this rule breaks just this invariant."""
    finding = explored(model, most)
    print(f"{taken_out.number}: {taken_out.harm}\n{finding}")  # noqa: T201
    assert finding.broken is broken, str(finding)
