"""The results in the documentation: its table, its picture, and the results themselves."""

from __future__ import annotations

from . import picture
from .processes import REPOSITORY
from .report import HEADS, PARTS, Results, dumped, rows, told_once

FOLDER = REPOSITORY / "docs" / "explanation"
PAGE, PICTURE, KEPT = FOLDER / "performance.md", FOLDER / "benchmarks.svg", FOLDER / "benchmarks.json"
BEGIN, END = "<!-- figures: python -m benchmarks --render FILE -->", "<!-- the end of the figures -->"


def render(results: Results) -> None:
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    PICTURE.write_text(picture.drawn(results), encoding="utf-8")
    KEPT.write_text(dumped(results), encoding="utf-8")


def with_figures(text: str, results: Results) -> str:
    """The page with these figures between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures(results)}{END}{after}"


def figures(results: Results) -> str:
    where = results.environment
    commit = (where["commit"][:12] or "unknown") + " with changes" * where["changed"]
    versions = f"MongoDB {where['server']}, Python {where['python']}, trio {where['trio']}, pymongo {where['pymongo']}"
    machine = f"{where['cpus']} processors, shared by the server and its clients"
    load = f"load {where['load_before'][0]:.1f} before and {where['load_after'][0]:.1f} after"
    written = [f"Measured {where['date']}, at commit {commit}: {versions}, {machine}, {load}."]
    if where["quick"]:
        written.append("**This was a trial with few jobs. It shows that every part works, not how fast it is.**")
    for part, title in PARTS.items():
        found = [figure for figure in results.figures if figure.part == part]
        if found:
            table = [f"| {' | '.join(HEADS)} |", "|---|--:|---|--:|--:|--:|---|"]
            table += [f"| {' | '.join(row)} |" for row in told_once(rows(found))]
            written += [f"### {title}", "\n".join(table)]
    return "\n\n".join(written) + "\n\n"
