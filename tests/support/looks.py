"""What the looks for due jobs read."""

from __future__ import annotations

from typing import Any

import pytest

from trio_monque.store.jobs import due


class Reads:
    """How many jobs each look has read.

    Attributes:
        numbers: Of each look, in their order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: list[int] = []
        look = due.look

        def counted(*args: Any, **kwargs: Any) -> due.Looked:
            found = look(*args, **kwargs)
            self.numbers.append(len(found.jobs))
            return found

        monkeypatch.setattr(due, "look", counted)
