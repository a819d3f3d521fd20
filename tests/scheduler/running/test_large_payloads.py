"""Large payloads are read beside the event loop, and errors about them stay short."""

from __future__ import annotations

import asyncio
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import bson
import pydantic
import pytest
import trio

from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.errors import UnreadablePayloadError
from trio_monque.payloads.large_values_in_threads import LARGE, is_large
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain

MANY = 20_000


class Numbers(pydantic.BaseModel):
    numbers: list[int]


WRONG = {"numbers": ["x"] * MANY}


@pytest.mark.parametrize("is_on_asyncio", [False, True], ids=["trio", "asyncio"])
def test_loop_goes_on_while_a_large_payload_is_read(db: Database, is_on_asyncio: bool) -> None:
    """The reader of the large payload waits for the handler of a small one, which needs the loop."""
    reads: list[bool] = []
    reading, small_ran = threading.Event(), threading.Event()

    @dataclass
    class Text:
        text: str

        def __post_init__(self) -> None:
            if len(self.text) > LARGE:
                reading.set()
                reads.append(small_ran.wait(30))

    workers = Workers(loop="asyncio" if is_on_asyncio else "trio")

    @workers.register("large", payload=Text)
    async def large(job: RunningJob[Text]) -> None:
        job.scheduler.drain()

    @workers.register("small")
    async def small(job: RunningJob[Any]) -> None:
        small_ran.set()

    # Before the worker is known in this process: otherwise the call would read the payload.
    Monque(db).sync.enqueue("large", {"text": "x" * (LARGE + 1)})

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            await (asyncio.to_thread(reading.wait, 30) if is_on_asyncio else trio.to_thread.run_sync(reading.wait, 30))
            await scheduler.enqueue("small")
            await scheduler.wait_drained()

    if is_on_asyncio:
        asyncio.run(main())
    else:
        trio.run(main)
    assert reads == [True]


async def test_small_payload_is_read_without_a_thread(open_test_scheduler: SchedulerOpener) -> None:
    read_in: list[threading.Thread] = []

    def read(stored: Any) -> Any:
        read_in.append(threading.current_thread())
        return stored

    workers = Workers()

    @workers.register("job", payload=read)
    async def job(job: RunningJob[Any]) -> None:
        pass

    async with open_test_scheduler(workers) as scheduler:
        for size in (10, LARGE // 2, LARGE):
            await scheduler.enqueue("job", "x" * size)
            await drain(scheduler)
    here = threading.current_thread()
    assert [one is here for one in read_in] == [True, True, False]


@pytest.mark.parametrize("payload", [Numbers, Numbers.model_validate], ids=["type", "function"])
async def test_error_of_a_large_wrong_payload_counts_the_problems_and_keeps_ten(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    caplog: pytest.LogCaptureFixture,
    payload: Any,
) -> None:
    workers = Workers()

    @workers.register("job", payload=payload, max_attempts=1)
    async def job(job: RunningJob[Any]) -> None:
        pass

    await monque.enqueue("job", WRONG)  # By a process that does not know the worker.
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
    document = jobs.find_one({})
    assert document is not None
    assert (
        f"numbers[0]: Input should be a valid integer, unable to parse string as an integer (and {MANY - 1} more)"
        in (document["failReason"])
    )
    [error] = document["errors"]
    assert ".numbers[9]:" in error["traceback"]
    assert ".numbers[10]:" not in error["traceback"]
    assert "File " not in error["traceback"]
    [record] = [one for one in caplog.records if one.exc_info and "failed" in one.getMessage()]
    assert record.exc_info is not None
    assert record.exc_info[1] is not None
    chain = causes_of(record.exc_info[1])
    assert not any(isinstance(one, pydantic.ValidationError) for one in chain)
    assert sum(len("".join(traceback.format_exception_only(one))) for one in chain) < 5_000


def causes_of(error: BaseException) -> list[BaseException]:
    """The error, its causes and its contexts: a log record formats them all."""
    found, left = list[BaseException](), [error]
    while left:
        one = left.pop()
        found.append(one)
        left += [other for other in (one.__cause__, one.__context__) if other is not None and other not in found]
    return found


def test_error_with_few_problems_has_all_in_its_cause() -> None:
    workers = Workers()
    worker = workers.register("job", lambda job: None, payload=Numbers)
    with pytest.raises(UnreadablePayloadError, match=r"numbers\[0\].*\(and 1 more\)") as caught:
        worker.loaded({"numbers": ["x", 1, "y"]})
    [original] = [one for one in causes_of(caught.value) if isinstance(one, pydantic.ValidationError)]
    assert original.error_count() == 2


@pytest.mark.parametrize(
    "of_size",
    [
        lambda size: "x" * size,
        lambda size: b"x" * size,
        lambda size: list(range(size // 11)),
        lambda size: {f"key {number}": number for number in range(size // 18)},
        lambda size: [{"a": number, "b": "text"} for number in range(size // 38)],
        lambda size: {"a": {"b": [["x" * (size // 10)] * 10]}},
    ],
    ids=["text", "bytes", "numbers", "keys", "rows", "nested"],
)
def test_size_is_about_that_of_bson(of_size: Any) -> None:
    for size, expected in ((LARGE // 2, False), (LARGE * 2, True)):
        value = of_size(size)
        assert size * 0.6 < len(bson.encode({"": value})) < size * 1.4
        assert is_large(value) is expected
    assert not is_large(None)


def test_value_is_large_from_the_limit_on_by_its_text_or_its_keys() -> None:
    assert is_large("x" * LARGE)
    assert not is_large("x" * (LARGE - 1))
    assert is_large({"k" * LARGE: 1})
    assert not is_large({"k" * (LARGE // 2): 1})


def test_list_that_is_large_by_its_length_is_not_walked() -> None:
    """A payload of 16 MB may have millions of numbers."""

    class Unread(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError

    assert is_large(Unread(range(LARGE)))
