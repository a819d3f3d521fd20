"""Where the served dashboard is, for those who serve it and those who visit it."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "/ops/jobs"
READS_ONLY: Final = "/viewer/jobs"
READ_ONLY: Final = "/frozen/jobs"
"""Of an application without `authorize`, and of one that refuses all changes."""

APP_NAME: Final = "the dashboard"
"""What the server of MongoDB knows its connections by."""

MOST_EXAMINED: Final = 400
MOST_IN_A_BATCH: Final = 20
"""The caps of the server are lower, so that a test needs fewer jobs."""
