"""The wake board: joins those who enqueue with the schedulers of the same run and collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

_Wakers = dict[str, list[Callable[[], None]]]
_board_of_run: trio.lowlevel.RunVar[_Wakers] = trio.lowlevel.RunVar("monque_wake_board")


def _board() -> _Wakers:
    try:
        return _board_of_run.get()
    except LookupError:
        board: _Wakers = defaultdict(list)
        _board_of_run.set(board)
        return board


@contextmanager
def woken_by(namespace: str, wake: Callable[[], None]) -> Iterator[None]:
    """While inside: `wake` is called whenever a client of the same run says that the collection has work."""
    board = _board()
    board[namespace].append(wake)
    try:
        yield
    finally:
        board[namespace].remove(wake)


def wake_neighbours(namespace: str) -> None:
    """Wakes the schedulers of this run that work on the collection; outside of trio there are none.

    Two servers may hold a collection of the same name: that costs the wrong scheduler one look.
    """
    if trio.lowlevel.in_trio_task():
        for wake in list(_board()[namespace]):
            wake()
