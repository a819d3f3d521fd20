"""What a scheduler is to the clients of its run: see the wake board."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..client.ground import Ground
from ..engine.nursery import Engine
from .paused_names import PausedNames


class EngineOnTheBoard:
    """Hears of jobs, on the collection's time; the engine's timers are on trio's clock. And says whether it works."""

    def __init__(self, engine: Engine[Any, Any], ground: Ground, paused: PausedNames, instance_id: str) -> None:
        self.instance_id = instance_id
        self._ground = ground
        self._paused = paused
        self.is_idle = engine.is_idle
        self.wait_changed = engine.wait_changed
        self.look = engine.waker.look
        self.look_for_the_dead = engine.reaper.look
        self.watch = engine.reaper.watch
        self.look_while = engine.waker.look_while
        self._expect = engine.waker.expect

    def look_for_pauses(self) -> None:
        self._paused.forget()
        # Not before: a claim that begins now must find out that it does not know.
        self.look()

    def expect(self, due: datetime) -> None:
        self._expect(self._ground.clock.on_run_clock(due))
