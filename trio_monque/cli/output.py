"""What commands print: tables for people, plain columns for other programs, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from ..safe_text import one_line

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))

LONGEST: Final = 1e12
"""Seconds. A longer time, infinity and NaN were not measured by this library: another program stored them."""


def print_records(records: Sequence[Mapping[str, object]], empty: str, *, kept: int = 1) -> None:
    """Print a table with a line for each record, or `empty` if there are none.

    A terminal gets a table that fits its width: what is too long is cut, beginning with the last column, but never the
    first column, which one copies, and the first `kept` ones only when all others are as narrow as their headings.
    Where not even that fits, the last columns are left out.

    Anything else gets whole values, in columns that are separated by two spaces.
    """
    if not records:
        click.echo(empty)
        return
    headings, rows = list(records[0]), [[cell(value) for value in record.values()] for record in records]
    if _is_terminal():
        # Only here: rich takes as long to import as all else that `--help` needs.
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        console = Console(highlight=False)
        widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
        fitting = fitted(widths, [len(heading) for heading in headings], console.width, kept)
        for heading, width in zip(headings, fitting, strict=False):
            table.add_column(heading, no_wrap=True, overflow="ellipsis", width=width)
        for row in rows:
            table.add_row(*map(Text, row[: len(fitting)]))
        console.print(table)
    else:
        print_columns([headings, *rows])


def fitted(widths: Sequence[int], least: Sequence[int], space: int, kept: int) -> Sequence[int]:
    """Return the widths of columns that fit the space, with two spaces behind each.

    The last columns are cut first, none below its least width. The first `kept` ones are cut after all others, and the
    very first one never. What does not fit even so is left out, beginning with the last column.
    """
    shown = len(widths)
    while shown > 1 and widths[0] + sum(least[1:shown]) + 2 * (shown - 1) > space:
        shown -= 1
    found, kept = list(widths[:shown]), min(kept, shown)
    excess = sum(found) + 2 * (len(found) - 1) - space
    for place in (*reversed(range(kept, len(found))), *reversed(range(1, kept))):
        cut = min(max(excess, 0), max(found[place] - least[place], 0))
        found[place] -= cut
        excess -= cut
    return found


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of whole values, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one record: a line for each field that has a value."""
    print_columns([(name, cell(value)) for name, value in fields.items() if value not in (None, "")])


def print_json(found: object, *, is_one_line: bool = False) -> None:
    """Print a value of JSON; moments become ISO 8601."""
    click.echo(json.dumps(found, indent=None if is_one_line else 2, ensure_ascii=False, default=_moment_or_text))


def cell(value: object) -> str:
    """Return a value as one line of text; "" for None."""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else one_line(str(value))


def moment(value: datetime) -> str:
    """Return a moment in UTC, to the second."""
    return f"{value:%Y-%m-%d %H:%M:%SZ}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units, such as "2h 5m"; below ten seconds with tenths."""
    if not abs(seconds) < LONGEST:
        return "an unknown time"
    if abs(seconds) < 10:
        return f"{seconds:.1f}s"
    parts, rest = [], round(abs(seconds))
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return ("-" if seconds < 0 else "") + " ".join(parts[:2])


def since_and_by(then: datetime | None, by: str | None) -> str:
    """Return since when something is so and by whom, with a space before it; "" if neither is known."""
    return ("" if then is None else f" since {moment(then)}") + ("" if by is None else f" by {one_line(by)}")


def since(then: datetime, now: datetime) -> str:
    """Return how long ago a moment was, or in how long it will be."""
    seconds = (now - then) / timedelta(seconds=1)
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 job" or "1,204 jobs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def due(at: datetime, now: datetime) -> str:
    """Return when a job is due, such as "due now" or "due 2026-01-01 12:00:00Z (in 2h)"."""
    return "due now" if at <= now else f"due {moment(at)} ({since(at, now)})"


def warn(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _moment_or_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
