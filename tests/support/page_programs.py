"""The Python blocks of a page as modules that a type checker can read.

A page shows a part of a program, and leaves out what its reader knows: imports, the client, functions of their own. A
module begins with these: names that an earlier block of the page defines, public names of the library, libraries, and
for all else a name of type Any. From the first `async with` or `async for` outside of a function on, the block is the
body of one.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio_monque
import trio_monque.errors
import trio_monque.events
import trio_monque.testing

from .pages import DOCS
from .programs import all_blocks

# What the pages call the things that every program has.
KNOWN: Final[Mapping[str, str]] = {
    "Collection": "from pymongo.collection import Collection",
    "Database": "from pymongo.database import Database",
    "MongoClient": "from pymongo import MongoClient",
    "Path": "from pathlib import Path",
    "UTC": "from datetime import UTC",
    "client": "client: _pymongo.MongoClient[dict[str, _Any]]",
    "dataclass": "from dataclasses import dataclass",
    "datetime": "from datetime import datetime",
    "db": "db: _database.Database[dict[str, _Any]]",
    "messages": "messages: _collection.Collection[dict[str, _Any]]",
    "monque": "monque: _trio_monque.Monque",
    "scheduler": "scheduler: _trio_monque.Scheduler",
    "timedelta": "from datetime import timedelta",
    "workers": "workers: _trio_monque.Workers",
}
HEAD: Final = """\
from typing import Any as _Any
import pymongo as _pymongo, trio_monque as _trio_monque
from pymongo import collection as _collection, database as _database
"""
LIBRARIES: Final = frozenset({"anyio", "asyncio", "json", "logging", "multiprocessing", "os", "pytest", "sys", "trio"})
PUBLIC: Final = {
    name: module.__name__
    for module in (trio_monque.testing, trio_monque.events, trio_monque.errors, trio_monque)
    for name in module.__all__
}


@dataclass(frozen=True)
class Block:
    """A Python block of a page.

    Attributes:
        module: Under this name the others import it.
        file: The file of the reader's that it is, if the page names one (`# jobs.py`, or a quotation).
        quoted: A file of the repository has it to the letter.
        type_errors: The number of lines in which it shows an error. The page marks it by `<!-- 4 type errors -->`.
    """

    module: str
    code: str
    file: str | None
    quoted: bool
    type_errors: int


def blocks_of(page: Path) -> Iterator[Block]:
    for number, (mark, language, code) in enumerate(all_blocks(page)):
        if language == "python":
            name = re.sub(r"\W", "_", f"{page.relative_to(DOCS).with_suffix('')}_{number}")
            first_line = re.match(r"# (\w+\.py)\n", code)
            source = re.fullmatch(r"from (\S+)", mark)
            file = Path(source[1]).name if source else first_line[1] if first_line else None
            errors = re.fullmatch(r"(\d+) type errors?", mark)
            # A quotation may be from the middle of a function.
            yield Block(name, textwrap.dedent(code), file, source is not None, int(errors[1]) if errors else 0)


def module_text(block: Block, before: list[Block]) -> str:
    """Return a module with this block, after what the page leaves out; `before` are the blocks above it."""
    defined = {name: one.module for one in before for name in _defined_at_top(_unwrapped(one.code)[0])}
    left_out = "".join(f"{line}\n" for line in _left_out(block.code, defined))
    plain, wrapped = _unwrapped(block.code)
    body = f"{plain}\nasync def _rest_of_the_block() -> None:\n{textwrap.indent(wrapped, '    ')}" if wrapped else plain
    return f"{HEAD}{left_out}\n{body}"


def _unwrapped(code: str) -> tuple[str, str]:
    """The lines before the first statement that only an async function may have, and the rest."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.AsyncWith | ast.AsyncFor):
            lines = code.splitlines(keepends=True)
            return "".join(lines[: node.lineno - 1]), "".join(lines[node.lineno - 1 :])
    return code, ""


def _left_out(code: str, defined: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(_free_names(code) - vars(builtins).keys() - {"__file__", "__name__"}):
        if name in defined:
            yield f"from {defined[name]} import {name}"
        elif name in PUBLIC:
            yield f"from {PUBLIC[name]} import {name}"
        elif name in LIBRARIES:
            yield f"import {name}"
        elif name in KNOWN:
            yield KNOWN[name]
        elif name[0].isupper() and not name.isupper():
            yield f"class {name}(_Any): ..."
        else:
            yield f"{name}: _Any"


def _free_names(code: str) -> Set[str]:
    """Names that the block reads and does not define."""

    def of(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            is_global = table.get_type() == "module" or symbol.is_global()
            if is_global and symbol.is_referenced():
                yield symbol.get_name()
        for child in table.get_children():
            yield from of(child)

    return set(of(symtable.symtable(code, "block", "exec"))) - _defined_at_top(code)


def _defined_at_top(code: str) -> Set[str]:
    top = symtable.symtable(code, "block", "exec")
    return {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
