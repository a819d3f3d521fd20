"""What several tests of the engine need."""

from __future__ import annotations

import pytest

from trio_monque.engine import pauses


@pytest.fixture
def virtual_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after faults freeze virtual time for some real seconds, by themselves. Here no source is real."""
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)
