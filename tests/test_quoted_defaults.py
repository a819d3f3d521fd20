"""Every default that a page quotes is the one of the code.

The sentence is followed by a mark that derives the number: `<!-- 105 = 3.5 * heartbeat_interval -->`. The names are
those of the options of a scheduler; those of claims begin with `claims.`. Defaults of other programs are marked too:
`<!-- a default of uvicorn -->`.
"""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import reduce
from typing import Any, Final

import pytest

import trio_monque
from tests.support.pages import DOCS, PAGES
from trio_monque import embedded
from trio_monque.claims.claim_options import ClaimConfig
from trio_monque.options_and_defaults import SchedulerConfig

MARK: Final = re.compile(r"<!-- (?:(?P<quoted>[\d.,*+ ]+) = (?P<derived>.+?)|a default of .+?) -->")
WORDS: Final = {"ten": 10, "five": 5}
NUMBER: Final = rf"(?:\d[\d,.]*|\b(?:{'|'.join(WORDS)})\b)"
# "30 seconds by default", "the default is 1", "`max_rescues` (3)", "`shutdown_timeout` (30 seconds)".
QUOTES: Final = re.compile(
    rf"\bdefault\b.*?{NUMBER}|{NUMBER}.*?\bdefault\b|`[a-z_]+`[^`.|]{{0,30}}\({NUMBER}(?: seconds?)?\)", re.DOTALL
)
# They are compared as tables, or made from the code.
ELSEWHERE: Final = re.compile(
    r"reference/(?:options|command-line/.*|http-api)\.md|explanation/(?:files|benchmarks)\.md"
)

OPERATIONS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value_of(expression: str) -> float:
    return _value(ast.parse(re.sub(r"(?<=\d),(?=\d)", "", expression), mode="eval").body)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATIONS[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id="max"), args=alternatives):
            return max(map(_value, alternatives))
        case _:
            return _default(ast.unparse(node))


def _default(name: str) -> float:
    """Of an option, or of the argument of a call: `Monque.get_jobs.limit`."""
    *owner, last = name.split(".")
    found: Any
    if len(owner) > (owner == ["claims"]):
        root: Any = trio_monque if hasattr(trio_monque, owner[0]) else embedded
        found = inspect.signature(reduce(getattr, owner, root)).parameters[last].default
    else:
        config = ClaimConfig if owner else SchedulerConfig
        (found,) = (field.default for field in fields(config) if field.name == last)
    assert isinstance(found, int | float), name
    return found


def statements(text: str) -> Iterator[str]:
    """The sentences and cells of a page, each with the mark that follows it; without code blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for part in re.split(r"\n\n|\n(?= *[-*] |\d+\. |\|)", prose):
        cells = re.split(r"(?<!\\)\|", part) if part.startswith("|") else [" ".join(part.split())]
        for cell in cells:
            yield from re.split(r"(?<=[.?!:])(?<!e\.g\.) +(?=[A-Z`\[*(])(?!<!--)|(?<=-->) +", cell)


@pytest.mark.parametrize("page", [page.relative_to(DOCS).as_posix() for page in PAGES if page.name != "index.md"])
def test_default_that_a_page_quotes_is_that_of_the_code(page: str) -> None:
    wrong = []
    for statement in statements((DOCS / page).read_text(encoding="utf-8")):
        mark, text = MARK.search(statement), MARK.sub("", statement)
        if mark is None:
            if QUOTES.search(text) and not ELSEWHERE.fullmatch(page):
                wrong.append(f"without a mark: {statement}")
        elif mark["derived"]:
            derived, quoted = value_of(mark["derived"]), value_of(mark["quoted"])
            first = re.findall(r"[\d.,]+", mark["quoted"])[0]
            digits = len(first.partition(".")[2])
            spoken = [str(WORDS.get(one, one)).strip(".,") for one in re.findall(NUMBER, text.lower())]
            if first not in spoken or quoted != round(derived, digits):
                wrong.append(f"{mark[0]} is {derived}: {statement}")
    assert wrong == []


def test_options_in_the_lists_of_pages_have_their_defaults() -> None:
    """`- heartbeat_interval=20.0`, in code at the beginning of an item."""
    page = (DOCS / "how-to/claim-any-document.md").read_text(encoding="utf-8").partition("## Options")[2]
    listed = re.findall(r"`(\w+)=([\w.]+)`", page.partition("##")[0])
    defaults = {field.name: field.default for field in fields(ClaimConfig)}
    assert len(listed) == 5
    assert {name: ast.literal_eval(text) for name, text in listed} == {name: defaults[name] for name, _ in listed}
