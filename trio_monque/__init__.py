"""Background jobs for trio and anyio programs on MongoDB, with structured concurrency.

The names of everyday use. The others are in `trio_monque.jobs`, `.client`, `.scheduler` and `.claims`, by topic; events
in `trio_monque.events`, exceptions in `trio_monque.errors`.

Each name is imported when a program first uses it. This file runs before any module of the package, also before the
command line and the plugin of pytest: if it imported trio and pymongo, `trio-monque --help` would take a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .claims import Claim, Claims, open_claims, run_claims
    from .client import JobNursery, Monque, SyncMonque, open_job_nursery
    from .error_types import MonqueError
    from .jobs import (
        Discard,
        Job,
        JobCancelledError,
        JobDeletedError,
        JobFailedError,
        JobFilter,
        JobNurseryError,
        JobSelector,
        JobStatus,
        NewJob,
        Retry,
        Snooze,
    )
    from .options_and_defaults import Retention
    from .scheduler import (
        CancelReason,
        Health,
        RunningJob,
        Scheduler,
        SchedulerReport,
        Statistics,
        Worker,
        Workers,
        open_scheduler,
        run_scheduler,
        run_until_signalled,
    )

__all__ = [
    "CancelReason",
    "Claim",
    "Claims",
    "Discard",
    "Health",
    "Job",
    "JobCancelledError",
    "JobDeletedError",
    "JobFailedError",
    "JobFilter",
    "JobNursery",
    "JobNurseryError",
    "JobSelector",
    "JobStatus",
    "Monque",
    "MonqueError",
    "NewJob",
    "Retention",
    "Retry",
    "RunningJob",
    "Scheduler",
    "SchedulerReport",
    "Snooze",
    "Statistics",
    "SyncMonque",
    "Worker",
    "Workers",
    "open_claims",
    "open_job_nursery",
    "open_scheduler",
    "run_claims",
    "run_scheduler",
    "run_until_signalled",
]

# The places of the names, as the imports above say them to type checkers. A test compares the two.
_NAMES_OF: Final = {
    "claims": ("Claim", "Claims", "open_claims", "run_claims"),
    "client": ("JobNursery", "Monque", "SyncMonque", "open_job_nursery"),
    "error_types": ("MonqueError",),
    "errors": (),
    "events": (),
    "jobs": (
        "Discard",
        "Job",
        "JobCancelledError",
        "JobDeletedError",
        "JobFailedError",
        "JobFilter",
        "JobNurseryError",
        "JobSelector",
        "JobStatus",
        "NewJob",
        "Retry",
        "Snooze",
    ),
    "options_and_defaults": ("Retention",),
    "scheduler": (
        "CancelReason",
        "Health",
        "RunningJob",
        "Scheduler",
        "SchedulerReport",
        "Statistics",
        "Worker",
        "Workers",
        "open_scheduler",
        "run_scheduler",
        "run_until_signalled",
    ),
}
_PLACES: Final = {name: module for module, names in _NAMES_OF.items() for name in names}

if not TYPE_CHECKING:  # Type checkers would take any other name for one that exists.

    def __getattr__(name: str) -> Any:
        if name in _NAMES_OF:  # `import trio_monque; trio_monque.errors`
            return import_module(f".{name}", __name__)
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_PLACES[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_NAMES_OF})
