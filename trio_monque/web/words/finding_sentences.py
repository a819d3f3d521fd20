"""The words of HTTP for what was found wrong: for each kind a sentence, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...diagnosis.findings import Finding
from .finding_texts import TEXTS
from .lengths import counted, length, moment, since_and_by

MOST_LISTED: Final = 10
"""Names or ids that a sentence lists; the values have all."""

HIDDEN: Final = "(hidden)"


def sentence_about(finding: Finding) -> str:
    """Return what is wrong."""
    return TEXTS[finding.kind][0].format_map(_texts_of(finding.values))


def advice_about(finding: Finding) -> str:
    """Return what to do."""
    return TEXTS[finding.kind][1].format_map(_texts_of(finding.values))


def _texts_of(values: Mapping[str, Any]) -> Mapping[str, str]:
    texts = {name: _text(value) for name, value in values.items()}
    if "pid" in values:
        texts["pid"] = str(values["pid"])
    for name in ("ago", "silent", "lease", "seconds", "longest"):
        if name in values:
            texts[name] = length(values[name])
    if "names" in values:
        texts["in_the_way"] = f" ({', '.join(values['names'])})" if values["names"] else ""
    if "also" in values:
        texts["also"] = f" Also waiting: {_first_of(values['also'])}." if values["also"] else ""
    if "others" in values:
        texts["others"] = f" Also: {_first_of(values['others'])}." if values["others"] else ""
    if "declared_by" in values:
        texts["declarer"] = "" if values["declared_by"] is None else f" by {values['declared_by']}"
    if "oldest_due" in values:
        oldest = values["oldest_due"]
        texts["waiting"] = "" if oldest is None else f"; the oldest has waited {length(oldest)}"
    texts |= _phrases_of(values)
    if (holder := _HOLDERS.get(texts.get("state", ""))) is not None:
        texts["holder"] = holder.format_map(texts)
    return texts


def _phrases_of(values: Mapping[str, Any]) -> Mapping[str, str]:
    phrases: dict[str, str] = {}
    if "is_ahead" in values:
        phrases["direction"] = "ahead of" if values["is_ahead"] else "behind"
    if "is_alone" in values:
        phrases["start"] = "No instance is alive: start a worker. " if values["is_alone"] else ""
    if "at" in values:
        phrases["at"] = moment(values["at"])
    if "key" in values:
        key = "" if values["key"] is None else f", with the key {values['key']}"
        phrases["schedule"] = f"{values['job']}{key}"
    if "by" in values:
        phrases["since_and_by"] = since_and_by(values["since"], values["by"])
    if "similar" in values:
        phrases["hint"] = f" One runs {values['similar']}: is the name misspelt?" if values["similar"] else ""
    if "handler" in values:
        handler = values["handler"]
        phrases["culprit"] = "Something" if handler is None else f"A handler of {handler}"
        phrases["times"] = counted(values["times"], "time")
    if "obstacle" in values:
        phrases["obstacle"] = _OBSTACLES[values["obstacle"]]
    if "share" in values:
        phrases["share"] = f"{values['share']:.0%}"
    return phrases


def _first_of(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MOST_LISTED:,} more" if len(texts) > MOST_LISTED else ""
    return ", ".join(texts[:MOST_LISTED]) + more


def _text(value: Any) -> str:
    if value is None:
        return HIDDEN
    if isinstance(value, Mapping):
        return ", ".join(f"{one} ({state})" for one, state in value.items()) or "unknown"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


_OBSTACLES: Final = {
    "paused": " The name is paused now.",
    "unserved": " No live instance runs the name now.",
    None: "",
}
_HOLDERS: Final = {
    "ended": "it has ended, as it has no entry in the fleet",
    "alive": "its process {pid} on {host} is alive, but does not renew them",
    "silent": "its process {pid} on {host} has sent no heartbeat for {ago}",
}
