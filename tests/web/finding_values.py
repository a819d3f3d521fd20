"""The values of a finding of any kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from trio_monque.store.reads.diagnosis.caps import Count

EVERY_VALUE: Final = {
    **dict.fromkeys(("ago", "silent", "lease", "seconds", "longest"), 75.0),
    **dict.fromkeys(("count", "pending", "due", "held", "running"), Count(1204, True)),
    **dict.fromkeys(("up", "needed", "size", "used", "available", "examined", "returned", "deaths", "failures"), 7),
    **dict.fromkeys(("failed", "attempts", "failed_for_good"), 12),
    **dict.fromkeys(("name", "instance", "host", "job", "index", "other", "problem", "reason", "query", "status"), "x"),
    **dict.fromkeys(("version", "oldest", "member", "before", "after", "database", "collection", "document"), "y"),
    "pid": 4711,
    "handler": "export",
    "times": 3,
    "is_ahead": True,
    "is_alone": True,
    "share": 0.8,
    "writes": 2000.0,
    "names": ["a", "b"],
    "others": [],
    "repair": None,
    "also": ["c"],
    "declared_by": "w1",
    "members": {"a:1": "PRIMARY"},
    "similar": None,
    "since": None,
    "by": "dana",
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "key": "daily",
    "obstacle": "paused",
    "oldest_due": 75.0,
    "databases": {"store": "52"},
    "rule": "{}",
    "level": "strict",
    "held_key": "daily",
    "state": "silent",
}
