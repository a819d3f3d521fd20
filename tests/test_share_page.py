"""What the page on a collection shared with Node says of cron lines is so: here, and as a Node process computed it.

`node_cron.json` was made under Node by cron-parser 5.10.5, the parser of @monque/core. No runs: it refused the line.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from tests.support.pages import DOCS, rows
from tests.support.programs import ROOT
from trio_monque.errors import InvalidCronError
from trio_monque.jobs.cron import occurrences

PAGE: Final = "how-to/share-a-collection-with-node.md"
NODES: Final[list[dict[str, Any]]] = json.loads((ROOT / "tests/jobs/data/node_cron.json").read_text())
IN_UTC: Final = {one["line"]: one for one in NODES if one["timezone"] == "UTC"}
# The day of each change of clocks ends here.
DAYS: Final = {"2026-03-28T23:00:00Z": timedelta(hours=23), "2026-10-24T22:00:00Z": timedelta(hours=25)}


def table(heading: str, following: str) -> list[list[str]]:
    of_both, of_later = rows(PAGE, heading), rows(PAGE, following)
    return [list(row) for row in of_both[: len(of_both) - len(of_later)]]


ONLY_NODE: Final = [row[0].strip("`") for row in table("### What only Node understands", "### What only this")]
ONLY_HERE: Final = [row[0].strip("`") for row in table("### What only this library", "### What means")]
DIFFERENT: Final = [row for row in rows(PAGE, "### What means") if len(row) == 3]
CHANGES: Final = [row for row in rows(PAGE, "### What means") if len(row) == 5]


def ours(one: dict[str, Any], count: int = 4) -> list[datetime]:
    return list(occurrences(one["line"], one["timezone"], datetime.fromisoformat(one["after"]), count))


def theirs(one: dict[str, Any]) -> list[datetime]:
    return [datetime.fromisoformat(moment) for moment in one["runs"]]


def test_page_has_lines_of_every_kind() -> None:
    assert (len(ONLY_NODE), len(ONLY_HERE), len(DIFFERENT), len(CHANGES)) == (6, 4, 2, 5)


@pytest.mark.parametrize("line", [*ONLY_NODE, "", "@weekends", "@minutely", "@secondly"])
def test_line_that_only_node_understands_is_refused_here(line: str) -> None:
    assert IN_UTC[line]["runs"] is not None
    with pytest.raises(InvalidCronError):
        ours(IN_UTC[line])


@pytest.mark.parametrize("line", ONLY_HERE)
def test_line_that_only_this_library_understands_is_refused_by_node(line: str) -> None:
    assert IN_UTC[line]["runs"] is None
    assert len(ours(IN_UTC[line])) == 4


@pytest.mark.parametrize("line", [row[0].strip("`") for row in DIFFERENT])
def test_line_that_means_something_else_does(line: str) -> None:
    assert ours(IN_UTC[line]) != theirs(IN_UTC[line])


def test_all_other_recorded_lines_mean_the_same_or_nothing_on_both_sides() -> None:
    reported = {
        *ONLY_NODE,
        *ONLY_HERE,
        *(row[0].strip("`") for row in DIFFERENT),
        "",
        "@weekends",
        "@minutely",
        "@secondly",
    }
    others = IN_UTC.keys() - reported
    assert len(others) > 10
    for line in others:
        if IN_UTC[line]["runs"] is None:
            with pytest.raises(InvalidCronError):
                ours(IN_UTC[line])
        else:
            assert ours(IN_UTC[line]) == theirs(IN_UTC[line]), line


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row[0])
def test_runs_on_the_days_when_clocks_change_are_as_the_page_says(row: list[str]) -> None:
    line, *reported = (cell.strip("`") for cell in row)
    counted: list[str] = []
    for after, day in DAYS.items():
        (one,) = (each for each in NODES if (each["line"], each["after"], each["timezone"][:3]) == (line, after, "Eur"))
        until = datetime.fromisoformat(after) + day
        runs = [moment for moment in ours(one, 26) if moment < until]
        # Midnight itself is the moment to start from, and so not among the runs of either side.
        starts_at_midnight = line.split()[1].startswith(("*", "0"))
        numbers = (len(side) + starts_at_midnight for side in (runs, theirs(one)))
        counted += [f"{number} run{'' if number == 1 else 's'}" for number in numbers]
    if line == "30 2 * * *":  # The same number in March, at other times.
        reported[:2] = ["1 run", "1 run"]
    assert counted == reported


@pytest.mark.parametrize(
    "untrue",
    ["never take a claim that a Node process holds", "Node understands cron lines of six fields, and we do not"],
)
def test_untrue_statements_do_not_come_back(untrue: str) -> None:
    assert untrue not in (DOCS / PAGE).read_text(encoding="utf-8")
