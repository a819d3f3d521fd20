"""Ends claims with `wait=False` when no document is left."""

from __future__ import annotations

from ..engine.progress import Progress
from ..error_types import MonqueConnectionError
from .claiming import DocumentClaims
from .sources import DocumentEngine


class Finisher:
    """A loop beside the engine's own.

    Attributes:
        progress: The health of this loop.
    """

    def __init__(self, engine: DocumentEngine, claims: DocumentClaims) -> None:
        self.progress = Progress("finisher")
        self._engine = engine
        self._claims = claims

    async def run(self) -> None:
        """Drain the engine when it works on no document, claims none, and the database has none left."""
        engine = self._engine
        while True:
            self.progress.wait_for_others()
            await engine.wait_changed()
            # A document that is worked on may be released and claimable again. A claim in flight may be granted after
            # the question was sent. And a handler may go on after `finish`: a drain would start its `shutdown_timeout`,
            # although the caller has not asked for an end.
            if engine.is_at_work or engine.is_claiming:
                continue
            self.progress.ask()
            try:
                is_anything_left = await self._claims.is_anything_left()
            except MonqueConnectionError as error:
                self.progress.fail(error)
                continue  # The claimer meets the same error, retries, and reports it.
            self.progress.answered()
            # A claim may have been granted between the question and its answer.
            if not is_anything_left and not engine.is_at_work:
                engine.stop.drain("nothing is left")
                return
