"""What a job keeps of an error: the reason, the history with tracebacks, and their limits.

`redact_errors`, the operator's own function, changes each text before it is stored or logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..log import logger_of
from ..safe_text import message_of, name_of, plain, traceback_of
from .job import Job
from .verdicts import Discard, Retry, Snooze, leaves_of

# A reason is for people; a megabyte of one would travel with every read of the job.
LONGEST_REASON: Final = 10_000
LONGEST_TRACEBACK: Final = 4_000

MOST_ERRORS: Final = 5
"""How many of the last errors a job remembers."""

logger = logger_of("scheduler")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What the options say about the texts of errors.

    Attributes:
        store_tracebacks: Whether the history of errors has tracebacks.
        redact: Called with each text before it is stored or logged; what it returns takes its place.
    """

    store_tracebacks: bool = True
    redact: Callable[[str], object] | None = None

    def redacted(self, text: str) -> str:
        """The text as it may be kept. A hook that fails must not let out what it was to hide."""
        if self.redact is None or not text:
            return text
        try:
            kept = self.redact(text)
        except Exception as error:  # noqa: BLE001  # A user's function.
            problem = f"raised {type(error).__name__}"
        else:
            if isinstance(kept, str):
                return kept
            problem = f"returned {type(kept).__name__} instead of str"
        logger.error("redact_errors %s: the text of an error was left out", problem)
        return f"(left out: redact_errors {problem})"


EVERYTHING = ErrorText()


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed try leaves in the job.

    Attributes:
        reason: `failReason`.
        record: One entry of the history of errors.
    """

    reason: str
    record: Mapping[str, Any] | None = None

    def written(self, job: Job) -> dict[str, Any]:
        """The fields; the history is the copy's, which the fence proves to be current."""
        if self.record is None:
            return {"fail_reason": self.reason}
        return {"fail_reason": self.reason, "errors": [*job.errors, self.record][-MOST_ERRORS:]}


# --- Words for people ---


def failure_of(error: BaseException, job: Job, now: datetime, kept: ErrorText = EVERYTHING) -> Failure:
    """What a failed try leaves in its job."""
    reason = kept_reason(error, kept)
    record: dict[str, Any] = {"at": now, "attempt": job.attempts, "error": reason}
    if kept.store_tracebacks:
        record["traceback"] = plain(kept.redacted(traceback_of(error, LONGEST_TRACEBACK)), LONGEST_TRACEBACK)
    return Failure(reason, record)


def kept_reason(error: BaseException, kept: ErrorText) -> str:
    """What is stored and logged as the reason of a failure."""
    return plain(kept.redacted(reason_of(error)), LONGEST_REASON)


def reason_of(error: BaseException) -> str:
    """What `failReason` says of an error: the type and message of its first leaf, and how many others there were."""
    # Beside a real error, a Retry or Snooze is not what anybody wants to read of.
    leaves = sorted(leaves_of(error), key=lambda leaf: isinstance(leaf, Retry | Snooze))
    first = leaves[0]
    text = name_of(first)
    if message := message_of(first, LONGEST_REASON):
        text = message if isinstance(first, Retry | Discard) else f"{text}: {message}"
    if len(leaves) > 1:
        text += f" (and {len(leaves) - 1} more)"
    return plain(text, LONGEST_REASON)
