"""Compiles each module of the tests and of the package once, not once a process.

Three processes collect all tests, and many tests start programs: to compile the modules takes each of them longer than
all else that it does before the first test.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]


def keep_bytecode() -> None:
    """Keep bytecode beside the sources, here and in the programs that tests start, also where Python does not.

    Many containers have PYTHONDONTWRITEBYTECODE in their environment.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def import_in_an_order_of_its_own(config: pytest.Config) -> None:
    """Import all test modules before pytest does, in another order than the other processes of pytest-xdist.

    In one order, all processes would compile the same module at the same time.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    paths = [path.relative_to(TESTS.parent).with_suffix("") for path in sorted(TESTS.rglob("test_*.py"))]
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[first:] + paths[:first]:
        try:
            importlib.import_module(".".join(path.parts))
        except Exception:  # noqa: BLE001 - The collection imports it again, and reports the error.
            continue
