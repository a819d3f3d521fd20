"""Fixtures for the tests of the web room."""

from __future__ import annotations

import pytest

from trio_monque.web.guard import limits_per_caller


@pytest.fixture(autouse=True)
def any_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sends as many changes a second as the machine can."""
    monkeypatch.setattr(limits_per_caller, "MOST_A_SECOND", 1_000_000)
