"""A signal during the imports of the command is not lost, also where this is the first process of a container (PID 1).

The kernel drops a signal for PID 1 that has the default handling. To ignore SIGTERM from before the start of the
interpreter has the same effect, and needs no right to make a container.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.thoroughly import one_in
from trio_monque.cli.exit_statuses import INTERRUPTED

from .demo_process import environment

# Runs the installed command as its script does, and sends itself a signal at the first import of the given module.
COMMAND: Final = """
import os, signal, sys
from importlib.metadata import entry_points

at, number = sys.argv[1], int(sys.argv[2])

class Signaller:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)

(command,) = entry_points(group="console_scripts", name="trio-monque")
sys.meta_path.insert(0, Signaller())
module, _, attribute = command.value.partition(":")
exec(f"from {module} import {attribute} as main")
sys.argv = ["trio-monque", *sys.argv[3:]]
sys.exit(main())
"""


def signalled_at(module: str, number: signal.Signals, *arguments: str, folder: Path) -> tuple[int, str, str]:
    """The exit status, the output and the errors of the command that gets the signal at the import of this module."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, module, str(int(number)), *arguments],
        # A parent ignores it for the moment of the start; that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text("print('imported')\nraise ValueError('the signal was lost')\n", encoding="utf-8")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "number"),
    one_in(4, ["trio", "pymongo", "click", "trio_monque.cli.run.command"], [signal.SIGTERM, signal.SIGINT]),
)
def test_signal_during_the_imports_ends_the_worker_before_its_target_is_imported(
    folder: Path, module: str, number: signal.Signals
) -> None:
    ended = signalled_at(module, number, "run", "shop:workers", "--uri", "mongodb://localhost:1/shop", folder=folder)
    assert ended == (INTERRUPTED, "", "")


@pytest.mark.full
@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one process", "processes"])
def test_signal_during_the_import_of_the_target_ends_the_worker(folder: Path, more: tuple[str, ...]) -> None:
    (folder / "shop.py").write_text("import json_of_shop\n", encoding="utf-8")
    (folder / "json_of_shop.py").write_text("", encoding="utf-8")
    module = "trio_monque.cli.run.supervisor" if more else "json_of_shop"
    status, output, errors = signalled_at(
        module, signal.SIGTERM, "run", "shop:workers", "--uri", "mongodb://localhost:1/shop", *more, folder=folder
    )
    assert (status, output, errors) == (INTERRUPTED, "", "")


def test_signal_during_the_imports_ends_every_other_command_too(folder: Path) -> None:
    assert signalled_at("click", signal.SIGTERM, "preview", "@daily", folder=folder) == (INTERRUPTED, "", "")
