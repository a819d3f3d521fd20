"""Where a scheduler learns what has changed: from a change stream, or from a process that has one for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..store.job_collection import JobCollection
from ..store.jobs import change_stream
from ..store.jobs.change_stream import JobChange


class OpenChanges(Protocol):
    """Changes that are reported from now on. One thread at a time."""

    @property
    def is_open(self) -> bool:
        """False once they have ended in order."""
        ...

    def read(self, wait: float) -> Sequence[JobChange]:
        """Return what has changed; wait for this number of seconds at most. Raises MonqueConnectionError."""
        ...

    def close(self) -> None:
        """Never raises."""
        ...


class ChangeSource(Protocol):
    """Opens the changes of one scheduler, and opens them again. In threads."""

    def open(self) -> OpenChanges:
        """When it returns, everything is reported that happens from now on.

        Raises:
            NoStreamError: There are none.
            MonqueConnectionError: There are none at the moment.
        """
        ...

    def end_wait(self) -> None:
        """End the wait of a `read` in another thread, at the end of the scheduler. Raises MonqueConnectionError."""
        ...


class ChangesOfDatabase:
    """A change stream of the scheduler's own.

    Args:
        jobs: Gives the collection.
        instance_id: Ends the waits of this instance.
    """

    def __init__(self, jobs: Callable[[], JobCollection], instance_id: str) -> None:
        self._jobs = jobs
        self._instance_id = instance_id

    def open(self) -> OpenChanges:
        return change_stream.open_watch(self._jobs(), self._instance_id)

    def end_wait(self) -> None:
        change_stream.end_wait(self._jobs(), self._instance_id)
