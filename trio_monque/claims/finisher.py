"""Ends claims that do not wait for documents to come (`wait=False`), when nothing is left."""

from __future__ import annotations

from ..engine.progress import Progress
from ..errors import MonqueConnectionError
from .source import DocumentEngine, DocumentSource


class Finisher:
    """A loop beside the engine's own.

    Attributes:
        progress: How it gets on.
    """

    def __init__(self, engine: DocumentEngine, source: DocumentSource) -> None:
        self.progress = Progress("finisher")
        self._engine = engine
        self._source = source

    async def run(self) -> None:
        """Drains the engine once nothing is held, nothing is being claimed, and the database has nothing more.

        Each condition closes a race. A document that is held is left to be done. One that is being claimed may be
        granted after the question. And between the question and its answer, a claim may have been granted, too.
        """
        engine = self._engine
        while True:
            self.progress.wait_for_others()
            await engine.wait_changed()
            # A handler that goes on after its document was finished is waited for, too: nothing has asked for an end
            # that it would have to hurry for.
            if engine.is_at_work or engine.is_claiming:
                continue
            self.progress.ask()
            try:
                is_anything_left = await self._source.is_anything_left()
            except MonqueConnectionError as error:
                self.progress.fail(error)
                continue  # The claimer meets the same error, retries, and reports it.
            self.progress.answered()
            if not is_anything_left and not engine.is_at_work:
                engine.stop.drain("nothing is left")
                return
