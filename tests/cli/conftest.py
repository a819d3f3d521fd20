"""Fixtures of the command line's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`run` and `dashboard` configure the log of their process. In this one, they must leave nothing to later tests.

    Their handler writes to the standard error that pytest has captured for one test, and is closed after it.
    """
    monkeypatch.setattr(logging.root, "handlers", [])  # So that those of pytest are not closed.
    loggers = [logging.root, *map(logging.getLogger, ("pymongo", "watchfiles"))]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)  # Not by monkeypatch: loggers keep what they have found about levels.
    logging.captureWarnings(False)
