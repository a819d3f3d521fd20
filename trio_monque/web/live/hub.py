"""The hub of one application: who looks, and what has become stale for them. It has one change stream for all viewers.

No task outlives the requests: the viewers take turns in reading the stream, each for as long as its own request lasts.
When it leaves, the next one goes on with the same stream. The last one closes it.

A viewer that does not read costs one small set: what becomes stale meanwhile is merged into it, and never queued.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread

from ...error_types import MonqueConnectionError
from ...log import logger_of
from ...store.jobs.change_stream import NoStreamError
from ...store.jobs.stale_regions import ALL_REGIONS, RegionWatch
from ..answers import RefusedRequestError

logger = logger_of("web")

MOST_VIEWERS = 100
TOO_MANY: Final = "Too many streams are open here: look every ten seconds instead"

LOOK_EVERY: Final = 5.0
"""Seconds between two looks where there is no change stream: each time, all may have become stale."""

READ_EVERY: Final = 0.25
"""Seconds between two reads of the stream: beside many writes, each read brings many changes."""


@dataclass(eq=False)
class Viewer:
    """One stream of a browser.

    Attributes:
        own: Regions that its page shows beside those of all: a job, or an action.
        stale: What has become stale since the last message to it.
    """

    own: frozenset[str] = frozenset()
    stale: set[str] = field(default_factory=set)
    _woken: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.stale |= ALL_REGIONS | self.own

    def mark(self, regions: Iterable[str]) -> None:
        """Note what has become stale, of what this viewer may see."""
        self.stale.update(one for one in regions if one in ALL_REGIONS or one in self.own)
        if self.stale:
            self._woken.set()

    async def wait(self) -> None:
        """Return when something is stale."""
        if not self.stale:
            self._woken = anyio.Event()
            await self._woken.wait()

    def take(self) -> list[str]:
        """Return what is stale, for a message to the viewer."""
        taken = sorted(self.stale)
        self.stale.clear()
        return taken


class Hub:
    """The viewers of one application.

    Args:
        open_regions: Opens the change stream, in a thread.
        most: How many viewers there may be at once; None for MOST_VIEWERS.
        look_every: Seconds between two looks without a change stream.
        again_after: Seconds for which answers are kept. Regions are stale once more that long after their last change:
            what was shown at once may have been made of an answer from before it.
    """

    def __init__(
        self,
        open_regions: Callable[[], RegionWatch],
        most: int | None = None,
        look_every: float = LOOK_EVERY,
        again_after: float = 0.0,
    ) -> None:
        self.viewers: set[Viewer] = set()
        self._open_regions = open_regions
        self._most = MOST_VIEWERS if most is None else most
        self._look_every = look_every
        self._again_after = again_after
        self._again: set[str] = set()
        self._again_at = 0.0
        self._watch: RegionWatch | None = None
        self._turn: anyio.Lock | None = None

    @asynccontextmanager
    async def viewing(self, own: frozenset[str] = frozenset()) -> AsyncIterator[Viewer]:
        """Be a viewer for as long as the block lasts.

        Raises:
            RefusedRequestError: There are too many (503).
        """
        if len(self.viewers) >= self._most:
            raise RefusedRequestError(503, TOO_MANY, {"Retry-After": "10"})
        viewer = Viewer(own)
        if not self.viewers:
            self._turn = anyio.Lock()  # Of the event loop that serves now.
        self.viewers.add(viewer)
        try:
            yield viewer
        finally:
            self.viewers.discard(viewer)
            if not self.viewers and self._watch is not None:
                watch, self._watch = self._watch, None
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(watch.close)  # Within a second.

    async def take_turns(self) -> None:
        """Read the change stream for all viewers, when it is this one's turn; until it is cancelled."""
        assert self._turn is not None
        async with self._turn:
            while True:
                try:
                    await self._read()
                except NoStreamError:
                    await self._look()
                except MonqueConnectionError as error:
                    logger.info("could not read what has become stale: %s", error)
                    await self._look()

    async def _read(self) -> None:
        if self._watch is None or not self._watch.is_open:
            self._watch = None
            # Not abandoned if it is cancelled: a stream that is opened must be closed again. It has a bound of its own.
            self._watch = await anyio.to_thread.run_sync(self._open_regions)
            self.mark(None)  # What happened before is unknown.
        try:
            regions = await anyio.to_thread.run_sync(self._watch.read)
        except MonqueConnectionError:
            watch, self._watch = self._watch, None
            await anyio.to_thread.run_sync(watch.close)
            raise
        self.mark(regions)
        self._mark_again(regions)
        await anyio.sleep(READ_EVERY)

    def _mark_again(self, regions: Collection[str]) -> None:
        now = anyio.current_time()
        if self._again and now >= self._again_at:
            self.mark(self._again)
            self._again.clear()
        if self._again_after and regions:
            self._again.update(regions)
            self._again_at = now + self._again_after

    async def _look(self) -> None:
        await anyio.sleep(self._look_every)
        self.mark(None)

    def mark(self, regions: Iterable[str] | None) -> None:
        """Tell the viewers what has become stale; None for everything."""
        for viewer in self.viewers:
            viewer.mark(ALL_REGIONS | viewer.own if regions is None else regions)
