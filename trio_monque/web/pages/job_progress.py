"""How far a run is, from what its handler reports: any value. Pure.

The value is the one that the caller may see: a serializer of the host has changed it already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..words.lengths import grouped, length

_DONE: Final = ("done", "current", "processed", "completed", "finished")
_TOTAL: Final = ("total", "of", "all", "size")
_PERCENT: Final = ("percent", "percentage")
_SHARE: Final = ("share", "fraction", "ratio")

LONGEST_WORDS: Final = 200
SURE_FROM: Final = 0.02
"""The share from which the time that is left is estimated: before, one slow first step would decide it."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is.

    Attributes:
        share: From 0 to 1; None if the value does not say it.
        words: The numbers and the text in it; "" if there are none.
    """

    share: float | None
    words: str

    @property
    def percent(self) -> int | None:
        """The share in whole percents. Only what is complete has 100."""
        return None if self.share is None else 100 if self.share == 1 else min(99, round(100 * self.share))


def progress_of(shown: Any) -> RunProgress:
    """Return what a value says of the progress.

    It understands {"done": 3, "total": 9}, {"done": 3, "pages": 9}, {"percent": 33} and 0.33, with a text beside them.
    """
    if isinstance(shown, str):
        return RunProgress(None, _quoted(shown))
    if isinstance(shown, float) and 0 <= shown <= 1:
        return RunProgress(shown, "")
    if not isinstance(shown, Mapping):
        return RunProgress(None, grouped(shown) if type(shown) is int else "")
    texts = [_quoted(one) for one in shown.values() if isinstance(one, str) and one]
    share, counts = _counted(shown)
    return RunProgress(share, " · ".join([*([counts] if counts else []), *texts[:1]]))


def time_left(progress: RunProgress, elapsed: float) -> str | None:
    """Return about how long a run will go on that has run for this many seconds; None if that is not known."""
    share = progress.share
    if share is None or not SURE_FROM <= share < 1 or elapsed <= 0:
        return None
    left = elapsed * (1 - share) / share
    if left < 10:
        return "a few seconds left"
    number, unit, *_ = length(left).split(" ")  # One unit: a second one would promise more than an estimate knows.
    return f"about {number} {unit} left"


def _counted(shown: Mapping[str, Any]) -> tuple[float | None, str]:
    numbers = {name: value for name, value in shown.items() if type(value) in (int, float) and value >= 0}
    done: str | None = next((name for name in _DONE if name in numbers), None)
    total: str | None = next((name for name in _TOTAL if name in numbers), None)
    if done is not None and total is None:
        others = [name for name in numbers if name != done]
        total = others[0] if len(others) == 1 else None
    if done is not None and total is not None and 0 < numbers[total] >= numbers[done]:
        unit = "" if total in _TOTAL else f" {total}"
        words = f"{_number(numbers[done])} of {_number(numbers[total])}{unit}"
        return numbers[done] / numbers[total], words[:LONGEST_WORDS]
    for names, whole in ((_PERCENT, 100), (_SHARE, 1)):
        for name in names:
            if name in numbers and numbers[name] <= whole:
                return numbers[name] / whole, ""
    return None, ""


def _number(value: float) -> str:
    return f"{value:,}"


def _quoted(text: str) -> str:
    return f"“{text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 1] + '…'}”"
