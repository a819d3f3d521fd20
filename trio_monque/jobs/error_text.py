"""What is kept of an error: which of its texts are stored, and how the operator's own hook changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..log import logger_of

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
