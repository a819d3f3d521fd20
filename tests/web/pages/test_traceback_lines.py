"""Tracebacks in parts: frames of the program, of libraries, and the error itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trio_monque.web.pages.traceback_lines import LONGEST, traceback_parts

PLAIN = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/trio/_core/_run.py", line 214, in run
    await handler(job)
    ~~~~~~~^^^^^
  File "/srv/shop/catalogue.py", line 88, in upsert
    raise ValueError(
        "two lines")
ValueError: first
  second line of the message

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "C:\\app\\Lib\\site-packages\\x.py", line 1, in f
  File "C:\\app\\shop.py", line 2, in g
KeyError: 1
"""

GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/srv/shop/a.py", line 3, in f
  |     async with trio.open_nursery() as n:
  | ExceptionGroup: 1 sub-exception
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "<frozen importlib._bootstrap>", line 2, in g
    | ValueError: x
    +------------------------------------
"""


def test_frames_of_the_program_are_strong_and_those_of_libraries_faint() -> None:
    parts = traceback_parts(PLAIN)
    assert "".join(one.text for one in parts) == PLAIN.rstrip("\n")
    by_kind = {kind: "".join(one.text for one in parts if one.kind == kind) for kind in ("own", "lib", "")}
    assert "catalogue.py" in by_kind["own"]
    assert '"two lines")' in by_kind["own"]
    assert "shop.py" in by_kind["own"]
    assert "site-packages" not in by_kind["own"]
    assert "~~~~" in by_kind["lib"]
    assert "site-packages\\x.py" in by_kind["lib"]
    assert by_kind[""].count("Error") == 2
    assert "second line" in by_kind[""]


def test_frames_in_a_group_of_errors_are_found() -> None:
    kinds = [(one.kind, one.text.strip("\n").split("\n")[0]) for one in traceback_parts(GROUP)]
    assert [kind for kind, _ in kinds] == ["lib", "own", "", "lib", ""]
    assert kinds[2][1] == "  | ExceptionGroup: 1 sub-exception"


@pytest.mark.parametrize("text", ["", "no traceback\n at all", '  File "', "\n\n", "| " * 1000])
def test_any_text_is_shown_as_it_is(text: str) -> None:
    assert "".join(one.text for one in traceback_parts(text)) == text.rstrip("\n")


@pytest.mark.parametrize("line", ["| " * 8, '  File "/a/' + "b/" * 9, "trio/" * 9, "\n" * 9, " " * 40])
def test_a_huge_text_is_cut_and_takes_no_time(line: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        parts = pool.submit(traceback_parts, line * 200_000).result(timeout=10)
    assert sum(len(one.text) for one in parts) <= LONGEST
