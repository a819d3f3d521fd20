"""Writes that are sent by halves because some documents are locked: the others are written, in bounded time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver import by_halves
from trio_monque.store.driver.by_halves import LONGEST_SEARCH, TIME_OF_A_PART, sent_by_halves

LOCKED = {
    "one": {500},
    "eight at the front": set(range(8)),
    "eight at the end": set(range(992, 1000)),
    "eight far from each other": set(range(0, 1000, 125)),
    "a hundred at the front": set(range(100)),
    "a hundred in the middle": set(range(450, 550)),
}


class Server:
    """Answers no write that meets a locked document. Its time passes only by that."""

    def __init__(self, locked: set[int]) -> None:
        self.locked = locked
        self.moment = 0.0

    def monotonic(self) -> float:
        return self.moment

    def send(self, part: Sequence[int]) -> int:
        if self.locked.isdisjoint(part):
            return len(part)
        self.moment += TIME_OF_A_PART
        raise MonqueConnectionError("not in time", transient=True)


@pytest.mark.parametrize("which", LOCKED)
def test_all_are_written_but_those_that_are_locked(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    server = Server(LOCKED[which])
    monkeypatch.setattr(by_halves, "time", server)
    answered = list(sent_by_halves(list(range(1000)), server.send))
    assert all(answer == len(part) for part, answer in answered)
    assert sorted(one for part, _ in answered for one in part) == sorted(set(range(1000)) - server.locked)


def test_search_ends_if_no_part_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(set(range(1000)))
    monkeypatch.setattr(by_halves, "time", server)
    assert list(sent_by_halves(list(range(1000)), server.send)) == []
    assert server.moment <= LONGEST_SEARCH


def test_error_that_does_not_pass_ends_the_search() -> None:
    def refuse(part: Sequence[int]) -> None:
        raise MonqueConnectionError("no rights", transient=False)

    with pytest.raises(MonqueConnectionError, match="no rights"):
        list(sent_by_halves([1, 2], refuse))
