"""What was found: figures beside their floors, as values, as JSON, and as a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .measuring import Bench, median
from .processes import REPOSITORY

PARTS = {
    "T": "Throughput",
    "L": "Latency",
    "I": "Idle instances",
    "S": "Claims beside a long history",
    "E": "Enqueuing",
    "M": "Memory",
    "C": "Claims on a plain collection",
    "A": "On asyncio and uvloop",
    "F": "What a fleet meets",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a figure is compared with, in the same rounds.

    Attributes:
        floor: Its name.
        values: Of each round.
        at_least, at_most: Which ratio to it is wanted; None where it is only told.
    """

    floor: str
    values: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One thing that was measured.

    Attributes:
        part, key, what: Of which part; a name that stays; and the name for people.
        values, unit: Of each round.
        floors: What it is compared with.
        at_least, at_most: What is wanted of its value; None where only ratios are.
    """

    part: str
    key: str
    what: str
    values: Sequence[float]
    unit: str
    floors: Sequence[Comparison] = field(default=())
    at_least: float | None = None
    at_most: float | None = None

    @property
    def value(self) -> float:
        return median(self.values)

    def ratio(self, beside: Comparison) -> float | None:
        """The median of the rounds' ratios: what slows a whole round down falls on both. None to nothing."""
        pairs = zip(self.values, beside.values, strict=True)
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return median(ratios) if ratios else None


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run.

    Attributes:
        environment: Where, when, and of what.
        seconds: How long each part took.
        figures: What was found.
    """

    environment: Mapping[str, Any]
    seconds: Mapping[str, float]
    figures: Sequence[Figure]


def environment(bench: Bench, *, quick: bool, load_before: Sequence[float]) -> dict[str, Any]:
    """The versions, the machine, and how busy it was before and after."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "quick": quick,
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "server": bench.client.server_info()["version"],
        "python": platform.python_version(),
        "trio": version("trio"),
        "pymongo": version("pymongo"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_before": [round(one, 2) for one in load_before],
        "load_after": [round(one, 2) for one in os.getloadavg()],
        "size": asdict(bench.size),
    }


def _git(*arguments: str) -> str:
    try:
        asked = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""  # Not a checkout.
    return asked.stdout.strip()


# --- As JSON ---


def dumped(results: Results) -> str:
    """With the medians and ratios, for whoever reads it without this."""
    figures = [
        {
            **_plain(figure),
            "value": _short(figure.value),
            "floors": [
                {**_plain(beside), "value": _short(median(beside.values)), "ratio": _rounded(figure.ratio(beside))}
                for beside in figure.floors
            ],
        }
        for figure in results.figures
    ]
    whole = {"environment": results.environment, "seconds": results.seconds, "figures": figures}
    return json.dumps(whole, indent=1) + "\n"


def _plain(one: Figure | Comparison) -> dict[str, Any]:
    return {
        name: [_short(number) for number in told] if name == "values" else told
        for name, told in vars(one).items()
        if told is not None and name != "floors"
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def loaded(path: Path) -> Results:
    return parsed(path.read_text(encoding="utf-8"))


def parsed(text: str) -> Results:
    """The results with the digits that are written down: what is drawn and told of them is the same ever after."""
    whole = json.loads(text)
    derived = {"value", "ratio", "floors"}

    def given(told: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in told.items() if name not in derived}

    figures = [
        Figure(**given(told), floors=[Comparison(**given(beside)) for beside in told["floors"]])
        for told in whole["figures"]
    ]
    return Results(environment=whole["environment"], seconds=whole["seconds"], figures=figures)


# --- For people ---


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def wanted(one: Figure | Comparison) -> str:
    bounds = [f"≥ {one.at_least:g}"] if one.at_least is not None else []
    return " ".join([*bounds, *([f"≤ {one.at_most:g}"] if one.at_most is not None else [])])


def reached(one: Figure | Comparison, value: float | None) -> bool | None:
    """Whether it is as wanted; None where nothing is, or nothing is known."""
    if value is None or (one.at_least is None and one.at_most is None):
        return None
    return (one.at_least is None or value >= one.at_least) and (one.at_most is None or value <= one.at_most)


def rows(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """What, its value, the floor, the floor's value, the ratio, what is wanted, whether it is reached."""
    marks = {None: "", True: "yes", False: "no"}
    found: list[tuple[str, ...]] = []
    for figure in figures:
        told, aim = f"{number(figure.value)} {figure.unit}", wanted(figure)
        if aim or not figure.floors:
            aim = f"{aim} {figure.unit}" if aim else ""
            found.append((figure.what, told, "", "", "", aim, marks[reached(figure, figure.value)]))
        for beside in figure.floors:
            ratio = figure.ratio(beside)
            theirs = f"{number(median(beside.values))} {figure.unit}"
            mark = marks[reached(beside, ratio)]
            found.append(
                (figure.what, told, beside.floor, theirs, "" if ratio is None else f"{ratio:.2f}", wanted(beside), mark)
            )
    return found


def told_once(found: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Where rows are of one figure, only the first says what was found."""
    before = [("",), *found]
    return [("", "", *row[2:]) if row[0] == last[0] else row for last, row in zip(before, found, strict=False)]


WIDE = 180
HEADS = ("What", "Found", "Compared with", "That is", "Ratio", "Wanted", "Reached")


def show(results: Results, console: Console) -> None:
    """A table for each part. Where nobody sees it, it is as wide as it needs to be."""
    if not console.is_terminal:
        console.width = WIDE
    for part, title in PARTS.items():
        figures = [figure for figure in results.figures if figure.part == part]
        if not figures:
            continue
        table = Table(title=f"{title} ({results.seconds[part]:.0f} s)", title_justify="left", box=box.SIMPLE_HEAD)
        for head in HEADS:
            table.add_column(head, justify="left" if head in ("What", "Compared with") else "right")
        for row in told_once(rows(figures)):
            table.add_row(*row, style="" if row[-1] != "no" else "yellow")
        console.print(table)
