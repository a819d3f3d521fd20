"""Another scheduler on the same database, on trio in a thread of its own: it takes what it may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from trio_monque import Workers, open_scheduler
from trio_monque.store.driver.types import Database


@contextmanager
def competing(db: Database, workers: Workers[Any], **options: Any) -> Iterator[None]:
    """Run the scheduler for as long as the block. It is ready when the block begins."""
    is_ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        async with open_scheduler(db, workers, shutdown_timeout=5, **options):
            is_ready.set()
            await trio.to_thread.run_sync(stop.wait)

    thread = threading.Thread(target=partial(trio.run, main), name="competitor")
    thread.start()
    try:
        assert is_ready.wait(40)
        yield
    finally:
        stop.set()
        thread.join(40)
        assert not thread.is_alive()
