"""What the demo was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The arguments of `trio-monque demo`.

    Attributes:
        folder: Whose files are read.
        pattern: Which of them.
        most_files: The largest number of files to process; None for all.
        uri: The server to use; None for an embedded one.
        keep: Leave the collections on a server that is not the demo's own.
        job_seconds: How much longer each job takes than its work does.
    """

    folder: Path
    pattern: str = "*.py"
    most_files: int | None = None
    uri: str | None = field(default=None, repr=False)  # It may hold a password.
    keep: bool = False
    job_seconds: float = 0.0
