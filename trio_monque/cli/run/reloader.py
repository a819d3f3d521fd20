"""`--reload`: a parent that restarts its worker process when the program changes. For development."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from itertools import count
from pathlib import Path
from typing import Final

import trio
import watchfiles

from ...error_types import MonqueError
from ...log import logger_of
from .children import Children, first_of
from .restarts import described, exit_status

logger = logger_of("cli")

_DRAIN_WITHIN: Final = 2.0
"""Seconds that running jobs get to finish when the program has changed."""
_CUT_WITHIN: Final = 10.0
"""Seconds that they get to clean up. Then the process is killed: its handlers do not end."""


class Reloader:
    """Keeps one worker process running, and restarts it when a Python file changes.

    Args:
        children: The worker processes, with one place.
        folders: Those that are watched, with all that is in them.
    """

    def __init__(self, children: Children, folders: Sequence[Path]) -> None:
        self._children = children
        self._folders = folders
        self._changed = trio.Event()

    async def run(self) -> int:
        """Return the exit status of the last process, after a signal.

        Raises:
            MonqueError: The folders cannot be watched.
        """
        with self._children.signals_received() as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._children.pass_on, signals)
                nursery.start_soon(self._watch)
                status = await self._keep()
                nursery.cancel_scope.cancel(reason="the last process has ended")
        return status

    async def _keep(self) -> int:
        for start in count(1):
            self._changed = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_changed, self._changed)
                returncode, _ = await self._children.run_one(1, start, lambda: None)
                nursery.cancel_scope.cancel(reason="the process has ended")
            if not self._changed.is_set() and not self._children.ending.is_set():
                logger.warning(
                    "the worker process %s; starting the next one when a file changes", described(returncode)
                )
                await first_of(self._changed, self._children.ending)
            if self._children.ending.is_set():
                return exit_status(returncode)
        raise AssertionError("count() has no end")

    async def _end_when_changed(self, changed: trio.Event) -> None:
        await changed.wait()
        self._children.send(1, signal.SIGTERM)
        await trio.sleep(_DRAIN_WITHIN)
        self._children.send(1, signal.SIGINT)
        await trio.sleep(_CUT_WITHIN)
        logger.warning("killing the worker process because its handlers did not end")
        self._children.send(1, signal.SIGKILL)

    async def _watch(self) -> None:
        logger.info("watching the Python files in %s", ", ".join(map(str, self._folders)))
        try:
            # Not by cancelling: watchfiles would notice that seconds later.
            async for changes in watchfiles.awatch(
                *self._folders, watch_filter=watchfiles.PythonFilter(), stop_event=self._children.ending
            ):
                if not self._changed.is_set():
                    logger.info("%s changed; restarting the worker process", min(path for _, path in changes))
                self._changed.set()
        except OSError as error:
            self._children.end("the program cannot be watched")
            raise MonqueError(f"cannot watch the program for --reload: {error}") from None


def folders_of(targets: Sequence[str]) -> list[Path]:
    """Return the current directory, and the folders of the packages of the targets that are not in it.

    It imports nothing: an import of a package would run it.
    """
    here = Path.cwd()
    folders = [here]
    for target in targets:
        package = target.partition(":")[0].partition(".")[0]
        spec = PathFinder.find_spec(package, [str(here), *sys.path])
        if spec is None:
            continue  # The worker process says what is wrong.
        places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
        folders += [Path(place) for place in places if Path(place).exists()]
    return [one for one in dict.fromkeys(folders) if one == here or not one.is_relative_to(here)]
