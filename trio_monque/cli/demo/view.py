"""What a view of the demo can do; there is one for terminals and one for logs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from .progress import Progress

Row = tuple[str, str]


class View(Protocol):
    """Shows the demo. Methods are called on the run's own thread, and never block for long."""

    def say(self, line: str) -> None:
        """Prints one line for good."""

    def reporting_logs(self) -> AbstractContextManager[None]:
        """Inside, what the library logs is shown without harm to the display."""

    async def show(self, progress: Progress) -> None:
        """Shows the progress until cancelled; what it shows last stays."""

    def show_table(self, title: str, rows: Sequence[Row], *, good: bool) -> None:
        """Prints a table of two columns."""
