"""Writes what the modules say of themselves into two pages: `python -m docs.room_list`. A test compares them.

The page on the architecture has the first line of each room, above a paragraph by hand. The page on the files has that
of every module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "trio_monque"
ARCHITECTURE, FILES = DOCS / "explanation" / "architecture.md", DOCS / "explanation" / "files.md"
BEGIN, END = "<!-- the modules: python -m docs.room_list -->", "<!-- the end of the modules -->"

# In the order in which they are best read. Rooms inside a room follow it.
ROOMS = (
    *("jobs", "payloads", "store", "client", "diagnosis", "engine", "host", "scheduler", "claims", "bridge"),
    *("cli", "web", "metrics", "testing", "embedded"),
)


def first_sentence(module: Path) -> str:
    """The first line of the docstring, up to the end of its sentence if that is on the next line."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    line, _, more = text.partition("\n\n")[0].partition("\n")
    if line[-1:] not in ".?" and more:
        line += " " + re.split(r"(?<=[.?])(?:\s|$)", more.replace("\n", " "), maxsplit=1)[0]
    assert line[-1:] in ".?", f"{module}: its docstring has no first sentence"
    return line


def folders() -> Iterator[Path]:
    """Every room that is a folder, and the rooms inside it."""
    top = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert top == set(ROOMS), top ^ set(ROOMS)
    for room in ROOMS:
        yield PACKAGE / room
        yield from sorted(path.parent for path in (PACKAGE / room).glob("*/**/__init__.py"))


def updated_architecture(page: str) -> str:
    """Return the page with what each room says of itself in the line after `<!-- room ROOM -->`."""
    return re.sub(
        r"(<!-- room (\S+) -->\n)[^\n]*",
        lambda found: found[1] + first_sentence(PACKAGE / found[2] / "__init__.py"),
        page,
    )


def updated_files(page: str) -> str:
    """Return the page with a list of the modules of each room between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    listed = [_listed("Modules beside the rooms", PACKAGE)]
    listed += [_listed(f"`{folder.relative_to(PACKAGE)}/`", folder) for folder in folders()]
    return before + "\n\n".join([BEGIN, *listed, END]) + after


def _listed(heading: str, folder: Path) -> str:
    modules = [module for module in sorted(folder.glob("*.py")) if module.name != "__init__.py"]
    lines = [f"- `{module.name}`: {first_sentence(module)}" for module in modules]
    about = [first_sentence(folder / "__init__.py")] * (folder != PACKAGE)
    return "\n\n".join([f"## {heading}", *about, "\n".join(lines)])


if __name__ == "__main__":
    ARCHITECTURE.write_text(updated_architecture(ARCHITECTURE.read_text(encoding="utf-8")), encoding="utf-8")
    FILES.write_text(updated_files(FILES.read_text(encoding="utf-8")), encoding="utf-8")
