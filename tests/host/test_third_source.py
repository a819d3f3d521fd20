"""The host gives a third kind of work its readiness, events, drain, cut, crash and report; see `outbox`."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import pytest
import trio

from tests.host import outbox
from tests.host.outbox import Message, OutboxSource, outbox_host
from trio_monque.engine.run import Run
from trio_monque.host.host import Body, Life
from trio_monque.store.driver.types import Database


async def beside(_in_body: trio.CancelScope) -> None: ...


BODY = Body(name="open_outbox", beside=beside)


async def test_messages_are_delivered_and_deleted_and_the_host_logs_and_reports(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trio_monque.outbox")
    db["outbox"].insert_many([{"text": str(number), "by": None} for number in range(5)])
    heard: list[str] = []
    all_delivered = trio.Event()

    async def deliver(run: Run[Message]) -> None:
        heard.append(run.claim["text"])
        if len(heard) == 5:
            all_delivered.set()

    events: list[str] = []
    host = outbox_host(db, deliver, lambda event: events.append(event.text))
    async with host.opened(BODY):
        await all_delivered.wait()
    assert sorted(heard) == sorted(events) == list("01234")
    assert db["outbox"].count_documents({}) == 0
    assert host.report == {"delivered": 5, "unfinished": 0}
    assert [record.getMessage() for record in caplog.records] == [
        f"outbox one started on {db.name}: delivers messages",
        "outbox one stopped claiming and is draining: the body of open_outbox has ended",
        "outbox one ended (the body of open_outbox has ended): 5 delivered, 0 unfinished",
    ]


async def test_body_that_raises_cuts_deliveries_and_their_messages_are_free_again(db: Database) -> None:
    db["outbox"].insert_one({"text": "slow", "by": None})
    begun = trio.Event()

    async def deliver(run: Run[Message]) -> None:
        begun.set()
        await trio.sleep_forever()

    with pytest.raises(ValueError, match="of the body"):
        async with outbox_host(db, deliver, lambda _: None).opened(BODY):
            await begun.wait()
            raise ValueError("of the body")
    assert [one["by"] for one in db["outbox"].find()] == [None]


async def test_crash_cancels_the_body_and_is_raised_alone(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(OutboxSource, "take_messages", bug)

    async def deliver(run: Run[Message]) -> None:
        pytest.fail("nothing is claimed")

    with pytest.raises(ZeroDivisionError):
        async with outbox_host(db, deliver, lambda _: None).opened(BODY):
            await trio.sleep_forever()


async def test_error_of_the_last_words_ends_the_host_and_is_raised(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def deliver(run: Run[Message]) -> None: ...

    monkeypatch.setattr(outbox, "Life", partial(Life, leave=fail))
    host = outbox_host(db, deliver, lambda _: None)
    with trio.fail_after(20), pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True, allow_unwrapped=True):
        async with host.opened(BODY):
            pass
