"""KindWords: what the terminal prints for one kind of finding."""

from __future__ import annotations

from dataclasses import dataclass

from ...diagnosis.findings import SEVERITIES, Severity


@dataclass(frozen=True, slots=True)
class KindWords:
    """The words for one kind of finding. `{fields}` are the values of a case.

    Attributes:
        name: Identifies it, also in JSON.
        sentence: What is wrong.
        advice: What to do. It names commands.
    """

    name: str
    sentence: str
    advice: str

    @property
    def severity(self) -> Severity:
        """How much it matters. All but notes make the exit status 1."""
        return SEVERITIES[self.name]
