"""The two sides of one transaction in its thread: what the task that gives it up may still do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trio_monque.host import transaction_thread
from trio_monque.host.transaction_thread import TransactionThread


def test_abort_that_comes_after_its_thread_has_left_the_session_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may have given the session to another thread, whose command the abort would end."""
    sent = list[object]()

    def abort(_end: object, session_id: object) -> None:
        sent.append(session_id)

    monkeypatch.setattr(transaction_thread, "end_on_server", abort)
    nothing = cast("Any", None)
    thread: TransactionThread[Any, Any] = TransactionThread(nothing, nothing, nothing, nothing, nothing)
    thread.session_id = "of its thread"
    thread.abort_on_server()
    thread.leave()
    thread.abort_on_server()
    assert sent == ["of its thread"]
