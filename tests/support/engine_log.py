"""Waits for a line in the log of the engine, in any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LogLine(logging.Handler):
    """Sets an event once the engine logs a line with this text, in any thread. Waiting for it releases the GIL."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.logged = threading.Event()
        self.messages: list[str] = []
        self._text = text

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._text in message:
            self.messages.append(message)
            self.logged.set()


@contextmanager
def hearing(text: str) -> Iterator[LogLine]:
    line = LogLine(text)
    logger = logging.getLogger("trio_monque.engine")
    logger.addHandler(line)
    try:
        yield line
    finally:
        logger.removeHandler(line)


def block_the_loop_until(line: LogLine) -> None:
    line.logged.wait()
