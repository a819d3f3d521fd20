"""How much is tried: a part in a normal run, all of it with MONQUE_TEST_THOROUGH=1 in the environment."""

from __future__ import annotations

import os
from typing import Final

THOROUGH: Final = os.environ.get("MONQUE_TEST_THOROUGH") == "1"


def examples(normally: int, thoroughly: int) -> int:
    """How many random examples are tried."""
    return thoroughly if THOROUGH else normally
