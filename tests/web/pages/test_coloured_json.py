"""Values as coloured JSON: exact, cut, and of any shape."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from trio_monque.web.pages.coloured_json import WIDTH, ColouredJson, coloured

LONG: Final = 100_000


def text_of(one: ColouredJson) -> str:
    return "".join(piece.text for piece in one.pieces)


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        {},
        [],
        [[], {}, ""],
        {"": {"": []}},
        2**63 - 1,
        -(2**70),
        [1e308, 0.1, -0.0, 5e-324],
        {"$date": "2026-01-01T00:00:00Z"},
        {"$code": "x" * 500},
        {"$timestamp": {"t": 1, "i": 2}},
        ["x" * 40, 1],
        ["a"] * 100,
        [list(range(300)), {"n": [None, True]}],
        'quote " back \\ line \n zero \0 \u202e ö 漢',
        deep(178),
    ],
)
def test_text_of_the_pieces_is_the_value(value: Any) -> None:
    made = coloured(value, LONG)
    assert json.loads(text_of(made)) == value
    assert not made.is_cut
    assert made.size == len(json.dumps(value, separators=(",", ":")))


def test_each_piece_has_the_class_of_its_kind() -> None:
    made = coloured({"key": ["text", 1, 1.5, True, None, {"at": {"$date": "2026"}}]}, LONG)
    kinds = [(piece.kind, piece.text) for piece in made.pieces if piece.kind]
    assert kinds == [
        ("j-k", '"key"'),
        ("j-s", '"text"'),
        ("j-n", "1"),
        ("j-n", "1.5"),
        ("j-b", "true"),
        ("j-b", "null"),
        ("j-k", '"at"'),
        ("j-k", '"$date"'),
        ("j-s", '"2026"'),
    ]


def test_short_values_of_a_list_share_lines() -> None:
    assert text_of(coloured([10482, 10483, 20017], LONG)) == "[10482, 10483, 20017]"
    lines = text_of(coloured(list(range(1000)), LONG)).split("\n")
    assert len(lines) < 120
    assert all(len(line) <= WIDTH + 4 for line in lines)


@pytest.mark.parametrize(
    "value", ["x" * 2_000_000, list(range(400_000)), {"a": {"b": ["x" * 100] * 40_000}}, deep(500)]
)
def test_a_large_value_is_cut_within_a_piece_and_says_its_size(value: Any) -> None:
    made = coloured(value, 1000)
    assert made.is_cut
    assert len(text_of(made)) == 1000
    assert made.size == len(json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), {"a": b"x"}, [10**5000]])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        coloured(value, LONG)
