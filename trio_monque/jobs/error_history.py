"""What a job keeps of an error: the reason, the history with tracebacks, and their limits.

`redact_errors`, the operator's own function, changes each text before it is stored or logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from ..foreign_errors import is_a, is_caused_by_another, leaves_of
from ..log import ExcInfo, exc_info_of, logger_of
from ..safe_text import message_of, name_of, plain, traceback_of
from .job import Job
from .outcomes import Discard, Retry, Snooze

# Characters. The reason is read by people, and every read of the job transfers it.
LONGEST_REASON: Final = 10_000
LONGEST_TRACEBACK: Final = 4_000

MOST_ERRORS: Final = 5
"""The cap on the history: a job keeps its last five errors."""

logger = logger_of("scheduler")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """The options for the texts of errors.

    Attributes:
        store_tracebacks: Whether the history of errors has tracebacks.
        redact: Called with each text before it is stored or logged; its return value replaces the text.
        full_tracebacks: Keep the frames before the handler too, of the engine and of trio.
    """

    store_tracebacks: bool = True
    redact: Callable[[str], object] | None = None
    full_tracebacks: bool = False

    def redacted(self, text: str) -> str:
        """The text after `redact`. If that function fails, the text is omitted: it may have secrets."""
        if self.redact is None or not text:
            return text
        try:
            kept = self.redact(text)
        except BaseException as error:  # noqa: BLE001  # A user's function.
            problem = f"raised {name_of(error)}"
        else:
            if issubclass(type(kept), str):
                return cast("str", kept)
            problem = f"returned {type(kept).__name__} instead of str"
        logger.error("redact_errors %s; the text of the error was omitted", problem)
        return f"(omitted: redact_errors {problem})"


EVERYTHING = ErrorText()


@dataclass(frozen=True, slots=True)
class Failure:
    """The fields that a failed attempt writes into its job.

    Attributes:
        reason: The new `failReason`.
        record: A new entry in the history of errors; None for no entry.
    """

    reason: str
    record: Mapping[str, Any] | None = None

    def written(self, job: Job) -> dict[str, Any]:
        """The fields to write. The history is extended from the claimed copy, which the fence proves to be current."""
        if self.record is None:
            return {"fail_reason": self.reason}
        return {"fail_reason": self.reason, "errors": [*job.errors, self.record][-MOST_ERRORS:]}


# --- From an exception to texts ---


def failure_of(
    error: BaseException, job: Job, now: datetime, kept: ErrorText = EVERYTHING, ran: float | None = None
) -> Failure:
    """The Failure that this error leaves in the job, whose run took `ran` seconds; None if that is unknown."""
    reason = kept_reason(error, kept)
    record: dict[str, Any] = {"at": now, "attempt": job.attempts, "error": reason}
    if job.claim is not None and job.claim.by is not None:
        record["by"] = job.claim.by
    if ran is not None:
        record["ran"] = round(ran * 1000)
    if kept.store_tracebacks:
        record["traceback"] = plain(kept.redacted(traceback_of(error, LONGEST_TRACEBACK)), LONGEST_TRACEBACK)
    return Failure(reason, record)


def kept_reason(error: BaseException, kept: ErrorText) -> str:
    """The reason of a failure as it is stored and logged: redacted, and at most 10,000 characters."""
    return plain(kept.redacted(reason_of(error)), LONGEST_REASON)


def logged_traceback(error: BaseException, kept: ErrorText) -> ExcInfo | None:
    """The `exc_info` of the line that reports a failed attempt.

    None with `redact`, as a traceback has the unredacted text. None for a Retry or Discard that has a reason, and no
    error behind it: the handler decided, and a traceback would show no fault.
    """
    if kept.redact is not None or (is_a(error, (Retry, Discard)) and _explains_itself(error)):
        return None
    return exc_info_of(error)


def _explains_itself(error: BaseException) -> bool:
    try:
        has_notes = bool(getattr(error, "__notes__", None))
    except BaseException:  # noqa: BLE001  # A property of a user's class.
        return False
    return bool(message_of(error, LONGEST_REASON)) and not has_notes and not is_caused_by_another(error)


def reason_of(error: BaseException) -> str:
    """The type and message of an error. For a group: those of its first leaf, and how many more there are."""
    # If a group has a real error beside a Retry or Snooze, the real error is more useful to the reader.
    leaves = sorted(leaves_of(error), key=lambda leaf: is_a(leaf, (Retry, Snooze)))
    first = leaves[0]
    text = name_of(first)
    if message := message_of(first, LONGEST_REASON):
        text = message if is_a(first, (Retry, Discard)) else f"{text}: {message}"
    if len(leaves) > 1:
        text += f" (and {len(leaves) - 1} more)"
    return plain(text, LONGEST_REASON)
