"""The look for documents that no scheduler runs. Blocking: one step a batch."""

from __future__ import annotations

from ..checks import check_count
from ..jobs.views import BrokenDocument
from ..store import broken_documents
from ..store.job_collection import JobCollection


class Sifting:
    """One look through the collection, done one step after the other, maybe each in another thread."""

    def __init__(self, jobs: JobCollection, limit: int) -> None:
        check_count("limit", limit, at_least=1)
        self._jobs = jobs
        self._limit = limit
        self._look = broken_documents.Look()
        self.found: list[BrokenDocument] = []

    @property
    def is_over(self) -> bool:
        return self._look.is_over

    def step(self) -> None:
        """One batch."""
        self.found += broken_documents.sift(self._jobs, self._look, self._limit - len(self.found))

    def run(self) -> list[BrokenDocument]:
        """All of it."""
        while not self.is_over:
            self.step()
        return self.found
