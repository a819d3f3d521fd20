"""How values become HTML: one set of templates, in which every value is escaped, and what they print values with.

A name, a key, an error or a payload may hold anything. Three walls keep it text: Jinja escapes each value, no template
takes a value as HTML (a test reads the templates), and the content policy allows no script but ours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..words.lengths import ago, grouped, length, short_length
from .form import packed

LONGEST_TEXT: Final = 2_000
"""Characters of one value in a line. What may be longer has a place of its own that says how it is cut."""

LONGEST_PRINTED: Final = 64 * 1024
"""Characters of one value anywhere. A name, a key or an id may have 16 MiB, and a page prints it more than once."""

_SYMBOLS: Final = {**{code: 0x2400 + code for code in range(0x20)}, 0x7F: 0x2421}
"""Pictures of the control characters, which Unicode has for this purpose."""

_STAYS: Final = frozenset("\n\t")


def visible(text: str) -> str:
    """Return the text with what cannot be seen, or changes the direction of what follows, as a symbol or its code."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _STAYS else _symbol(one) for one in text)


def _symbol(character: str) -> str:
    code = ord(character)
    if code in _SYMBOLS:
        return chr(_SYMBOLS[code])
    if unicodedata.category(character) == "Zs":  # Spaces of other widths.
        return character
    return f"⟨U+{code:04X}⟩"


def _printed(value: Any) -> Any:
    """Return what a template prints for a value: Jinja passes each one through here, and escapes the result."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(_cut(value, LONGEST_PRINTED))


def _cut(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


def _clock(moment: datetime, now: datetime) -> str:
    """Return a moment in UTC as people read it: the time today, and the day with it on any other."""
    utc = moment.astimezone(UTC)
    if utc.date() == now.date():
        return f"{utc:%H:%M:%S}"
    return f"{utc:%b} {utc.day} {utc:%H:%M}" if utc.year == now.year else f"{utc:%Y-%m-%d %H:%M}"


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["packed"] = lambda **fields: packed(fields.items())
    made.filters |= {
        "number": grouped,
        "length": length,
        "short": short_length,
        "ago": ago,
        "cut": _cut,
        "iso": _iso,
        "clock": _clock,
    }
    return made


_TEMPLATES: Final = _environment()


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """Return the HTML of a template, such as "overview.html"."""
    # BSON may bring a lone surrogate, which UTF-8 does not have.
    return _TEMPLATES.get_template(template).render(values).encode("utf-8", "replace").decode()
