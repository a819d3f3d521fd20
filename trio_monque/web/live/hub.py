"""The hub of one application: who looks, and what has become stale for them. It has one change stream for all viewers.

No task outlives the requests: the viewers take turns in reading the stream, each for as long as its own request lasts.
When it leaves, the next one goes on with the same stream. The last one closes it.

A viewer that does not read costs one small set: what becomes stale meanwhile is merged into it, and never queued.

Changes without pause are a rush. All that many look at is stale then the moment it was read: it is announced less and
less often, every five seconds at last. In between, a narrow stream has what is rare, and the jobs that are looked at,
so that neither this process nor the server has work with each change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Set
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
from .rush import Rush

logger = logger_of("web")

MOST_VIEWERS = 100
TOO_MANY: Final = "Too many streams are open: poll every ten seconds instead"

LOOK_EVERY: Final = 5.0
"""Seconds between two looks where there is no change stream: each time, all may have become stale."""

KEPT_FOR: Final = 0.5
"""Seconds for which the viewers share an answer to the question how the jobs are. What has changed is stale twice:
at once, and after this time, for those who were shown an answer from before the change."""

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

    def mark(self, regions: Set[str]) -> None:
        """Note what has become stale, of what this viewer may see."""
        # The smaller set first: there may be thousands of jobs in the other one.
        self.stale |= (ALL_REGIONS & regions) | (self.own & regions)
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
        open_regions: Opens the change stream, in a thread; a narrow one if it gets regions that are looked at.
        most: How many viewers there may be at once; None for MOST_VIEWERS.
        look_every: Seconds between two looks without a change stream.
    """

    def __init__(
        self,
        open_regions: Callable[[Set[str] | None], RegionWatch],
        most: int | None = None,
        look_every: float = LOOK_EVERY,
    ) -> None:
        self.viewers: set[Viewer] = set()
        self._open_regions = open_regions
        self._most = MOST_VIEWERS if most is None else most
        self._look_every = look_every
        self._watch: RegionWatch | None = None
        self._looked_at: Set[str] | None = None  # For which the stream was opened; None for a stream of all.
        self._turn: anyio.Lock | None = None
        self._rush = Rush()
        self._narrow_until = 0.0
        self._once_more: dict[str, float] = {}  # What is to be stale again, and when.

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
            self._begin()
        self.viewers.add(viewer)
        try:
            yield viewer
        finally:
            self.viewers.discard(viewer)
            if not self.viewers:
                await self._close()

    def _begin(self) -> None:
        """Forget what was before the first viewer: a rush may be long over, and another event loop may serve now."""
        self._turn = anyio.Lock()
        self._rush = Rush()
        self._narrow_until = 0.0
        self._once_more.clear()

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
                    logger.info("could not read changes for open pages: %s", error)
                    await self._look()

    async def _read(self) -> None:
        left = self._narrow_until - anyio.current_time()
        is_narrow = left > 0
        looked_at = frozenset[str]().union(*(viewer.own for viewer in self.viewers)) if is_narrow else None
        if self._watch is None or not self._watch.is_open or looked_at != self._looked_at:
            await self._open(looked_at)
        assert self._watch is not None
        try:
            regions = await anyio.to_thread.run_sync(self._watch.read, left if is_narrow else None)
        except MonqueConnectionError:
            await self._close()
            raise
        if not is_narrow:
            if not regions:
                self._rush.quiet()
            elif wait := self._rush.news(anyio.current_time(), len(self.viewers)):
                # These are stale with all others at its end. A narrow stream begins a moment ago: it has the rare ones.
                self._narrow_until = anyio.current_time() + wait
                self._once_more.clear()
                return
        self._announce(regions)
        await anyio.sleep(READ_EVERY)

    async def _open(self, looked_at: Set[str] | None) -> None:
        """Open the stream, instead of the one that is open. For a wide one, what happened between them is unknown."""
        await self._close()
        # Not abandoned if it is cancelled: a stream that is opened must be closed again. It has a bound of its own.
        self._watch = await anyio.to_thread.run_sync(self._open_regions, looked_at)
        self._looked_at = looked_at
        if looked_at is not None:
            self._announce(looked_at)
            return
        self.mark(None)
        if self._rush.is_on:
            self._once_more.update(dict.fromkeys(ALL_REGIONS, anyio.current_time() + KEPT_FOR))

    async def _close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            with anyio.CancelScope(shield=True):  # The viewer whose turn it is may leave now.
                await anyio.to_thread.run_sync(watch.close)  # Within a second.

    def _announce(self, regions: Set[str]) -> None:
        self.mark(regions | self._due_again(regions))

    def _due_again(self, regions: Set[str]) -> Set[str]:
        """Return what was stale a while ago, and has not become so again since."""
        now = anyio.current_time()
        due = {region for region, at in self._once_more.items() if at <= now}
        for region in due:
            del self._once_more[region]
        # Not the jobs: their pages are read anew each time.
        self._once_more.update(dict.fromkeys(regions & ALL_REGIONS, now + KEPT_FOR))
        return due

    async def _look(self) -> None:
        await anyio.sleep(self._look_every)
        self.mark(None)

    def mark(self, regions: Set[str] | None) -> None:
        """Tell the viewers what has become stale; None for everything."""
        for viewer in self.viewers:
            viewer.mark(ALL_REGIONS | viewer.own if regions is None else regions)
