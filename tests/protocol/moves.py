"""All that may happen next. One move is one thing that one actor does, or one that befalls it."""

from __future__ import annotations

from collections.abc import Iterator

from . import moves_claiming, moves_others, moves_running
from .rules import Setting
from .state import State


def successors(state: State, setting: Setting) -> Iterator[tuple[str, State]]:
    """Every state that is one move away, with the move in words."""
    for me in state.instances:
        if me.health == "up":
            yield from moves_claiming.claiming(state, me, setting)
            yield from moves_running.running(state, me, setting)
        yield from moves_running.befalling(state, me)
    yield from moves_claiming.arrivals(state, setting)
    yield from moves_running.arrivals(state, setting)
    yield from moves_others.rescuer(state, setting)
    yield from moves_others.node(state, setting)
    yield from moves_others.hands(state, setting)
