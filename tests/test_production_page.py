"""The numbers of the checklist for production follow from the defaults."""

from __future__ import annotations

from typing import Final

from tests.support.pages import DOCS
from trio_monque.options_and_defaults import LEASE_IN_BEATS, SchedulerConfig

TEXT: Final = " ".join((DOCS / "how-to/run-in-production.md").read_text(encoding="utf-8").split())


def test_time_limits_and_attempts_are_the_defaults() -> None:
    defaults = SchedulerConfig()
    assert defaults.lock_timeout is not None
    minutes, seconds = divmod(0.9 * defaults.lock_timeout - defaults.cleanup_timeout, 60)
    assert f"A run may take up to {minutes:g} minutes and {seconds:g} seconds by default" in TEXT
    waits = sum(2**failures * defaults.base_retry_interval for failures in range(1, defaults.max_attempts))
    assert f"Ten failed attempts by default, within about {waits / 60:.0f} minutes" in TEXT
    assert defaults.max_attempts == 10


def test_killed_process_is_rescued_within_a_lease_and_a_look() -> None:
    interval = SchedulerConfig().heartbeat_interval
    assert f"its jobs run again within {LEASE_IN_BEATS * interval + interval / 2:g} seconds" in TEXT
