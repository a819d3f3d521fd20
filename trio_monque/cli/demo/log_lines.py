"""The library's warnings, as lines of the view instead of across it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _LineHandler(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def logs_said(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, `say` is called with each warning, from whichever thread logs it."""
    logger = logging.getLogger("trio_monque")
    handler = _LineHandler(say)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
