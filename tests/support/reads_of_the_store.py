"""Finds every read of the room `store/` in its source: which concern it asks for, and whether it is in a session."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .programs import ROOT

STORE: Final = ROOT / "trio_monque" / "store"

_READS: Final = {
    "aggregate",
    "aggregate_raw_batches",
    "count_documents",
    "distinct",
    "estimated_document_count",
    "find",
    "find_one",
    "find_raw_batches",
}

IN_BATCHES: Final = STORE / "driver" / "raw_batches.py"
_READS_IN_BATCHES: Final = {"aggregated_in_batches", "found_in_batches"}
"""Its functions, which are given the collection. What they do themselves counts where they are called."""


def reads_by_function() -> Mapping[str, Sequence[str]]:
    """For each function with reads ("claiming.read_back"), what each of them asks for, sorted."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*STORE.rglob("*.py")} - {IN_BATCHES}):
        room = ".".join(path.relative_to(STORE).with_suffix("").parts)
        for function, read in _reads_in(ast.parse(path.read_text()), ()):
            found[f"{room}.{function[-1].name}"].append(_what_is_asked(read, function))
    return {name: sorted(asked) for name, asked in found.items()}


def _reads_in(
    node: ast.AST, inside: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[tuple[ast.FunctionDef, ...], ast.Call]]:
    if isinstance(node, ast.FunctionDef):
        inside = (*inside, node)
    if isinstance(node, ast.Call) and _handle_of(node) is not None:
        assert inside, "a read outside of a function"
        yield inside, node
    for child in ast.iter_child_nodes(node):
        yield from _reads_in(child, inside)


def _handle_of(call: ast.Call) -> ast.expr | None:
    """What a read reads; None for another call."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS:
        return call.func.value
    if isinstance(call.func, ast.Name) and call.func.id in _READS_IN_BATCHES:
        return call.args[0]
    return None


def _what_is_asked(read: ast.Call, inside: Sequence[ast.FunctionDef]) -> str:
    handle = _handle_of(read)
    assert handle is not None
    concern = _concern_of(handle, inside)
    in_session = any(_has_session(one, inside) for one in read.keywords)
    return f"{concern}, in a session" if in_session else concern


def _has_session(keyword: ast.keyword, inside: Sequence[ast.FunctionDef]) -> bool:
    if keyword.arg is not None:
        return keyword.arg == "session"
    options = _assigned(keyword.value.id, inside) if isinstance(keyword.value, ast.Name) else None
    keys = options.keys if isinstance(options, ast.Dict) else []
    return any(isinstance(key, ast.Constant) and key.value == "session" for key in keys)


def _concern_of(handle: ast.expr, inside: Sequence[ast.FunctionDef]) -> str:
    for node in ast.walk(handle):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "by_majority":
            return "majority"
        if isinstance(node, ast.keyword) and node.arg == "read_concern":
            assert isinstance(node.value, ast.Name)
            return node.value.id.strip("_").lower()
        if isinstance(node, ast.Name) and (made := _assigned(node.id, inside)) is not None:
            return _concern_of(made, inside)
    return "local"


def _assigned(name: str, inside: Sequence[ast.FunctionDef]) -> ast.expr | None:
    """What the functions assign to that name last, from other names."""
    values = [
        node.value
        for function in inside
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name in _targets(node)
    ]
    # `collection = collection.with_options(...)` leads nowhere.
    return next((one for one in reversed(values) if name not in _names(one)), None)


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {one.id for one in targets if isinstance(one, ast.Name)}


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
