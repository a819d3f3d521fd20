"""ShownFinding: a finding with its words for the terminal, and its values as texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from shlex import quote
from string import Formatter
from typing import Any, Final

from ...diagnosis.findings import Finding
from ...safe_text import one_line
from ...store.reads.diagnosis.caps import Count
from ..output import duration, moment, since_and_by
from .kind_words import KindWords
from .words_of_jobs import WORDS_OF_JOBS
from .words_of_server import WORDS_OF_SERVER


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A kind with the values of one case, as the terminal has them."""

    kind: KindWords
    fields: Mapping[str, Any]

    @property
    def as_json(self) -> dict[str, Any]:
        """The values; a count is a number, and `is_capped` beside it has whether there may be more."""
        counts = {name: value for name, value in self.fields.items() if isinstance(value, Count)}
        numbers = {name: count.number for name, count in counts.items()}
        is_capped = {"is_capped": any(count.is_capped for count in counts.values())} if counts else {}
        return {**self.fields, **numbers, **is_capped}

    @property
    def sentence(self) -> str:
        return self.kind.sentence.format_map(self.fields)

    @property
    def advice(self) -> str:
        return self.kind.advice.format_map(self.fields)


def shown(finding: Finding) -> ShownFinding:
    """Return the finding with its words. Its values become texts where the words need them so."""
    return ShownFinding(KINDS[finding.kind], _fields_of(finding))


class LengthInWords(float):
    """A length of time in seconds: a number in JSON, and words in a sentence."""

    def __format__(self, _spec: str) -> str:
        return duration(float(self))


class NamesInBrackets(list[str]):
    """Names: a list in JSON, and words in brackets in a sentence."""

    def __format__(self, _spec: str) -> str:
        return f" ({_first_of(map(repr, self))})" if self else ""


class AlsoWaiting(list[str]):
    """Names: a list in JSON, and a sentence behind others."""

    def __format__(self, _spec: str) -> str:
        return f" Also waiting: {_first_of(map(repr, self))}." if self else ""


class OtherIds(list[str]):
    """Ids: a list in JSON, and a sentence behind others."""

    def __format__(self, _spec: str) -> str:
        return f" Also: {_first_of(self)}." if self else ""


def _first_of(texts: Iterable[str]) -> str:
    (*shown,) = texts
    more = f" and {len(shown) - MOST_LISTED:,} more" if len(shown) > MOST_LISTED else ""
    return ", ".join(shown[:MOST_LISTED]) + more


MOST_LISTED: Final = 10
"""Names or ids that a sentence lists; JSON has all."""

LENGTHS: Final = frozenset({"ago", "silent", "longest", "lease", "seconds"})

KINDS: Final[Mapping[str, KindWords]] = {one.name: one for one in (*WORDS_OF_SERVER, *WORDS_OF_JOBS)}
"""All kinds, by name, in the order of the page docs/how-to/troubleshoot.md."""


# --- Values as texts ---


def _safe(value: Any) -> Any:
    """Return texts as they may be printed: any program may have written them, or named a database like this."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [_safe(one) for one in value]
    if isinstance(value, dict):
        return {_safe(name): _safe(one) for name, one in value.items()}
    return value


def _fields_of(finding: Finding) -> dict[str, Any]:
    given = {name: _safe(value) for name, value in finding.values.items()}
    fields = dict(given)
    for name in LENGTHS & given.keys():
        fields[name] = LengthInWords(given[name])
    if "name" in given:
        fields["quoted"] = quote(given["name"])
    if "similar" in given:
        fields["suggestion"] = f"; one runs {given['similar']!r}" if given["similar"] else ""
    if "is_alone" in given:
        fields["start"] = _START if given["is_alone"] else ""
    if "obstacle" in given:
        fields["obstacle"] = _OBSTACLES[given["obstacle"]]
    if "by" in given:
        fields["since_and_by"] = since_and_by(given["since"], given["by"])
    if (own := _OWN_TEXTS.get(finding.kind)) is not None:
        fields |= own(given)
    words = KINDS[finding.kind]
    named = {field for _, field, _, _ in Formatter().parse(words.sentence + words.advice)}
    return {name: value for name, value in fields.items() if name in named}


_OBSTACLES: Final = {
    "paused": " The name is paused now.",
    "unserved": " No live instance runs the name now.",
    None: "",
}
_START: Final = "No instance is alive: start a worker, `trio-monque run MODULE:ATTRIBUTE`. "


def _of_stuck_jobs(values: Mapping[str, Any]) -> dict[str, Any]:
    if values["state"] == "ended":
        return {"reason": "it has ended, as it has no entry in the fleet"}
    where = f"its process {values['pid']} on {values['host']}"
    if values["state"] == "alive":
        return {"reason": f"{where} is alive, but does not renew them"}
    return {"reason": f"{where} has sent no heartbeat for {duration(values['ago'])}: it died or is frozen"}


def _of_members(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"members": ", ".join(f"{one} ({state})" for one, state in values["members"].items()) or "unknown"}


def _of_clocks(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"seconds": f"{values['seconds']:.1f}", "direction": "ahead of" if values["is_ahead"] else "behind"}


def _of_block(values: Mapping[str, Any]) -> dict[str, Any]:
    handler = values["handler"]
    culprit = "Something outside of the handlers" if handler is None else f"A handler of {handler!r}"
    return {"culprit": culprit}


def _schedule_of(values: Mapping[str, Any]) -> str:
    return f"job {values['job']}" + ("" if values["key"] is None else f", with the key {values['key']!r}")


def _of_broken(values: Mapping[str, Any]) -> dict[str, Any]:
    ids = " ".join([values["document"], *values["others"]])
    named = 1 + len(values["others"])
    them = "them" if values["count"].number <= named else f"the first {named}; then ask the doctor again"
    command = "" if values["repair"] is None else f"`trio-monque repair {ids} {values['repair']}` repairs {them}. "
    return {"others": OtherIds(values["others"]), "command": command}


def _of_size(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": f"{values['size']:,}"}


_OWN_TEXTS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "blocked-loop": _of_block,
    "stuck-jobs": _of_stuck_jobs,
    "long-runs": lambda one: {"since": moment(one["since"])},
    "slots-taken": lambda one: {"names": NamesInBrackets(one["names"]), "also": AlsoWaiting(one["also"])},
    "no-primary": _of_members,
    "no-majority": _of_members,
    "clock-off": _of_clocks,
    "member-clock-off": _of_clocks,
    "oversized-document": _of_size,
    "nearly-full-document": _of_size,
    "many-streams": lambda one: {"writes": f"{one['writes']:,.0f}", "percent": f"{one['share']:.0%}"},
    "ended-schedule": lambda one: {"at": moment(one["at"]), "schedule": _schedule_of(one)},
    "changed-schedule": lambda one: {
        "at": moment(one["at"]),
        "schedule": _schedule_of(one),
        "declarer": "" if one["declared_by"] is None else f" by {one['declared_by']}",
    },
    "dead-instance": lambda one: {"others": OtherIds(one["others"])},
    "put-off-key": lambda one: {"at": moment(one["at"])},
    "jobs-elsewhere": lambda one: {
        "databases": ", ".join(f"{name} ({pending} pending)" for name, pending in one["databases"].items()),
        "example": quote(one["example"]),
    },
    "poison-job": lambda one: {
        "end": "" if one["status"] == "failed" else f"If it still runs, end it: `trio-monque cancel {one['job']}`. "
    },
    "unknown-name": lambda one: {
        "waiting": "" if one["oldest_due"] is None else f"; the oldest has waited {duration(one['oldest_due'])}"
    },
    "broken-document": _of_broken,
    "node-indexes": lambda one: {"names": ", ".join(one["names"])},
}
