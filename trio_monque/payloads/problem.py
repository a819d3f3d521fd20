"""What is wrong with a value inside a payload, and where it is."""

from __future__ import annotations

from typing import Any, Final

from .. import safe_text

LONGEST_SHOWN: Final = 60
LONGEST_PROBLEM: Final = 400


class ValueProblem(Exception):  # noqa: N818  # The callers turn it into an error that fits the call.
    """A value that cannot be stored, or cannot be read as what is declared.

    It is raised at the value, and each container that it passes on its way out adds its own step: a payload
    without a problem pays nothing for paths.

    Attributes:
        problem: What is wrong.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem if len(problem) <= LONGEST_PROBLEM else problem[: LONGEST_PROBLEM - 1] + "…"
        self._steps: list[str] = []

    def under(self, step: str) -> None:
        """The value is inside of another one: under `.field`, `[3]` or `['key']`."""
        self._steps.append(step)

    @property
    def is_inside(self) -> bool:
        """Whether it is a part that is wrong, and not the whole."""
        return bool(self._steps)

    def __str__(self) -> str:
        return f"data{''.join(reversed(self._steps))}: {self.problem}"


def wrong(expected: str, value: Any) -> ValueProblem:
    """The problem of a value that has another type, or another form."""
    return ValueProblem(f"must be {expected}, not {shown(value)}")


def shown(value: Any) -> str:
    """A value for people: its type, and as much of it as one line has room for."""
    name = type(value).__name__
    return name if value is None else f"{name} {safe_text.shown(value, LONGEST_SHOWN)}"


def key_step(key: Any) -> str:
    """The step of a path that leads to the value of a key."""
    return f"[{safe_text.shown(key, LONGEST_SHOWN)}]"
