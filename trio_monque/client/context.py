"""ClientContext: what every blocking call of a client stands on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..errors import MonqueConnectionError
from ..options import ClientConfig
from ..store import indexes
from ..store.indexes import IndexesGoneError
from ..store.job_collection import JobCollection
from .server_time import ServerTime

T = TypeVar("T")

# Between the making of the indexes and the call they may be lost once more. A bound: it is no chance then.
MOST_LOSSES = 3


class ClientContext(ServerTime):
    """What every blocking call stands on: the collection, the server's time, and the indexes once they exist."""

    def __init__(self, jobs: JobCollection, config: ClientConfig) -> None:
        super().__init__(jobs)
        self.jobs = replace(jobs, has_indexes=not config.skip_index_creation)
        self.config = config
        self._indexing = threading.Lock()
        self._indexed = config.skip_index_creation
        self._were_made = False

    def forget_indexes(self) -> None:
        """They may be gone: they are made again before the next write."""
        with self._indexing:
            self._indexed = self.config.skip_index_creation

    def ensure_indexes(self) -> None:
        """Creates the indexes before the first write; a failure is tried again at the next."""
        if self._indexed:
            return
        with self._indexing:
            if not self._indexed:
                try:
                    indexes.ensure(self.jobs, self.config.retention)
                except MonqueConnectionError as error:
                    # They could be made once. What keeps them from it now passes (two live jobs of one unique key
                    # that came in meanwhile, say), and is no reason for a scheduler to end.
                    error.transient = error.transient or self._were_made
                    error.permanent = error.permanent and not self._were_made
                    raise
                self._indexed = self._were_made = True

    def with_indexes(self, call: Callable[[], T]) -> T:
        """What `call` returns, once there are indexes: made again where it finds that they are gone."""
        for _ in range(MOST_LOSSES):
            self.ensure_indexes()
            try:
                return call()
            except IndexesGoneError:
                self.forget_indexes()
        self.ensure_indexes()
        return call()
