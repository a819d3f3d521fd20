"""Values that stand for the health of a scheduler."""

from __future__ import annotations

from typing import Any

from trio_monque import Health


def make_health(**values: Any) -> Health:
    usual: dict[str, Any] = {
        "reasons": (),
        "warnings": (),
        "draining": False,
        "loops": (),
        "event_loop_lag": 0.0,
        "broken": 0,
        "last_database_contact": None,
        "last_database_contact_age": None,
    }
    return Health(healthy=not values.get("reasons"), **{**usual, **values})
