"""How much is tried: a part in a normal run, all of it with MONQUE_TEST_THOROUGH=1 in the environment."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

THOROUGH: Final = os.environ.get("MONQUE_TEST_THOROUGH") == "1"


def examples(normally: int, thoroughly: int) -> int:
    """How many random examples are tried."""
    return thoroughly if THOROUGH else normally


def the_same_examples(normally: int, thoroughly: int) -> settings:
    """So many random examples, which are the same in every run: each asks the server, and none is kept."""
    return settings(
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=examples(normally, thoroughly),
        suppress_health_check=list(HealthCheck),
    )
