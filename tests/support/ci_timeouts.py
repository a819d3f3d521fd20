"""Five times the timeout of each test in CI, where others work on the same machine.

Elsewhere, a test that hangs ends soon.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pytest

FACTOR: Final = 5


def is_ci() -> bool:
    """`.ci/run` sets MONQUE_TEST_CI, and services of continuous integration set CI."""
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("MONQUE_TEST_CI", "CI"))


def timeout_of(item: pytest.Item) -> float:
    """The seconds of its own mark; 0 if it has none."""
    mark = item.get_closest_marker("timeout")
    return 0.0 if mark is None else float(mark.args[0] if mark.args else mark.kwargs["timeout"])


def lengthen(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Of tests with a mark of their own, too. A timeout on the command line or in PYTEST_TIMEOUT stays as it is."""
    is_asked_for = config.getoption("timeout", None) is not None or "PYTEST_TIMEOUT" in os.environ
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is not None:
            options = {name: value for name, value in mark.kwargs.items() if name != "timeout"}
            item.add_marker(pytest.mark.timeout(FACTOR * timeout_of(item), *mark.args[1:], **options), append=False)
        elif not is_asked_for and (ordinary := config.getini("timeout")):
            item.add_marker(pytest.mark.timeout(FACTOR * float(ordinary)), append=False)
