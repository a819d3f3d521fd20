"""What a worker and the scheduler together say about tries."""

from __future__ import annotations

from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from ..backoff import Backoff, asked_backoff
from ..jobs.error_history import ErrorText
from ..jobs.retry_policy import ErrorTypes, RetryPolicy
from ..log import logger_of
from ..options import SchedulerConfig
from .worker import Worker
from .worker_settings import WorkerSettings

logger = logger_of("scheduler")


class Policies:
    """Makes the policy of a worker; what it does not say, the scheduler's options do."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_attempts = config.max_attempts
        self._backoff = Backoff(
            base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter
        )
        self._error_text = ErrorText(config.store_tracebacks, config.redact_errors)
        # By worker, and not by its name: a name may get another worker while jobs of the first one run.
        self._policies: WeakKeyDictionary[Worker[Any], RetryPolicy] = WeakKeyDictionary()

    def policy_of(self, worker: Worker[Any]) -> RetryPolicy:
        """One that is made once: it is asked for at the end of every run."""
        policy = self._policies.get(worker)
        if policy is None:
            policy = self._policies[worker] = self._made_of(worker.settings)
        return policy

    def _made_of(self, worker: WorkerSettings) -> RetryPolicy:
        backoff = worker.backoff
        return RetryPolicy(
            max_attempts=self._max_attempts if worker.max_attempts is None else worker.max_attempts,
            backoff=self._backoff,
            own_backoff=partial(asked_backoff, backoff, self._backoff) if callable(backoff) else backoff,
            retry_on=cast("ErrorTypes | None", worker.retry_on),
            discard_on=cast("ErrorTypes", worker.discard_on),
            error_text=self._error_text,
        )
