"""What the library logs, as lines of the view instead of across it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _LineHandler(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def logs_said(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, `say` is called with each line from INFO on, from whichever thread logs it."""
    logger = logging.getLogger("trio_monque")
    level = logger.level
    handler = _LineHandler(say)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
