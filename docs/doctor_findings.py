"""Writes the findings of the doctor into the page on troubleshooting: `python -m docs.doctor_findings`.

A test compares the page with the findings.
"""

from __future__ import annotations

import re
from pathlib import Path

from trio_monque.cli.doctor.shown_finding import KINDS

PAGE = Path(__file__).parent / "how-to" / "troubleshoot.md"
BEGIN, END = "<!-- the findings of the doctor -->\n", "<!-- the end of the findings -->\n"

APPENDED = re.compile(r"\{(also|command|declarer|end|obstacle|others|start|suggestion|waiting)\}")
"""What only some cases say: a sentence before or after the others."""
CODE_OR_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--[a-z][\w-]*")


def shown(text: str) -> str:
    """Return a text of the doctor as the page has it: an ellipsis for each value, and options as code."""
    text = APPENDED.sub("", text)
    text = re.sub(r"\{[^}]*\}", "…", text).replace("|", r"\|")
    return CODE_OR_OPTION.sub(lambda found: found[0] if found[0].startswith("`") else f"`{found[0]}`", text)


def table() -> str:
    """Return all findings as a table of Markdown."""
    rows = [
        f"| `{kind.name}` | {kind.severity} | {shown(kind.sentence)} | {shown(kind.advice)} |\n"
        for kind in KINDS.values()
    ]
    return "".join(["| Finding | | Meaning | What to do |\n|---|---|---|---|\n", *rows])


def updated(page: str) -> str:
    """Return the page with the findings of today."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
