"""A worker process and its parent: it answers the questions of its parent, and leaves in order if the parent dies."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from ...log import logger_of
from ...options_and_defaults import SchedulerOptions, scheduler_config
from ..exit_statuses import FAILED
from .worker_state import WorkerState

logger = logger_of("cli")

SUPERVISED: Final = "--supervised"
"""The option that makes a worker process the child of another one.

Its values: the descriptor of its link, that of the changes (`NO_CHANGES` for none), and a name."""

NO_CHANGES: Final = -1

HEALTH: Final = "health"
METRICS: Final = "metrics"
"""The questions: what is the health of this process, what are its metrics?"""

STARTED: Final = -1
"""The number of the only message that is not an answer: the scheduler has started."""

_FOR_RESOURCES: Final = 10.0
"""Seconds that a process without a parent has for the end of its resources, beyond the end of its scheduler."""


class ParentLink:
    """The socket that a worker process shares with its parent. If it ends, the parent has died.

    This works everywhere and for every death of the parent; PR_SET_PDEATHSIG works on Linux only, and there follows
    the thread of the parent that started this process.
    """

    def __init__(self, descriptor: int, options: SchedulerOptions, state: WorkerState) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003
        config = scheduler_config(options)
        self._leave_within = config.shutdown_timeout + config.cleanup_timeout + 2.0 + _FOR_RESOURCES
        self._connection = Connection(descriptor)
        self._lock = threading.Lock()

        self._state = state
        state.on_start.append(lambda _: self._send(STARTED, None))

    def serve(self, answers: Mapping[str, Callable[[], Any]]) -> None:
        """Answer questions from threads, until the process ends."""
        threading.Thread(target=self._serve, args=(answers,), name="trio_monque parent link", daemon=True).start()

    def _serve(self, answers: Mapping[str, Callable[[], Any]]) -> None:
        while True:
            try:
                number, what = self._connection.recv()
            except (EOFError, OSError):
                self._leave()
                return
            # Each in a thread of its own: the metrics may wait for the database, and then the health is worth knowing.
            thread = threading.Thread(target=self._answer, args=(number, what, answers[what]), daemon=True)
            with suppress(RuntimeError):  # There is no thread: this process does not answer, and the parent shows it.
                thread.start()

    def _answer(self, number: int, what: str, ask: Callable[[], Any]) -> None:
        answer = None
        try:
            answer = ask()
        except Exception:  # Of a collector of the targets, for example.
            logger.warning("could not send the %s of this process to its parent", what, exc_info=True)
        self._send(number, answer)

    def _send(self, number: int, answer: Any) -> None:
        with self._lock, suppress(OSError):  # The parent has died: the next `recv` fails as well.
            self._connection.send((number, answer))

    def _leave(self) -> None:
        logger.warning("the parent process ended; draining this worker process")
        if self._state.scheduler is None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        else:
            # Not a signal: it would be the second one, which cuts, if the parent has passed one on before its death.
            self._state.scheduler.drain()
        if self._leave_within < math.inf:
            time.sleep(self._leave_within)
            # A handler swallows its cancellation, or something blocks the event loop. There is no parent left whose
            # process manager would kill this process.
            logger.critical("did not end within %.0f s of its parent; exiting", self._leave_within)
            logging.shutdown()
            os._exit(FAILED)
