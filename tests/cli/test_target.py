"""Targets and selections that no database is needed for: what is imported, called and entered, and what is refused."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import anyio
import pytest
import trio

from trio_monque import RunningJob, Workers
from trio_monque.cli.run.target import SelectedNames, WorkerTarget, declared_loop, load_target, workers_of_all
from trio_monque.cli.run.worker_process import FirstError
from trio_monque.cli.tracebacks import UserCodeError, traceback_for_user
from trio_monque.errors import MonqueError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, in which targets are looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for module in ("nesting", "jobs_of_shop", "refusing"):
        sys.modules.pop(module, None)


def test_attribute_may_be_one_of_an_attribute(folder: Path) -> None:
    (folder / "nesting.py").write_text("class Shop:\n    class jobs:\n        workers = 3\n", encoding="utf-8")
    assert load_target("nesting:Shop.jobs.workers") == WorkerTarget("nesting:Shop.jobs.workers", 3)
    with pytest.raises(MonqueError, match="nesting has no attribute 'wrokers'; did you mean 'workers'?"):
        load_target("nesting:Shop.jobs.wrokers")


def test_missing_module_whose_name_begins_like_that_of_the_target_is_an_error_of_the_target(folder: Path) -> None:
    (folder / "jobs_of_shop.py").write_text("import jobs_of\n", encoding="utf-8")
    with pytest.raises(UserCodeError) as raised:
        load_target("jobs_of_shop:workers")
    assert str(raised.value.__cause__) == "No module named 'jobs_of'"


def test_missing_module_without_a_name_is_an_error_of_the_target(folder: Path) -> None:
    (folder / "refusing.py").write_text("raise ModuleNotFoundError('the extra is missing')\n", encoding="utf-8")
    with pytest.raises(UserCodeError) as raised:
        load_target("refusing:workers")
    assert str(raised.value.__cause__) == "the extra is missing"


FUNCTIONS = """
from contextlib import asynccontextmanager
from functools import partial
from trio_monque import Workers

workers, others = Workers({one}), Workers({other})

@asynccontextmanager
async def opened(uri):
    yield workers

def made(extra=None):
    return workers

of_partial = partial(made, extra=1)

class Made(Workers):
    pass

class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("it is not ready yet")

lazy = Lazy()
"""


@pytest.mark.parametrize(
    ("one", "other", "loop"),
    [
        ("loop='asyncio'", "loop='asyncio'", "asyncio"),
        ("loop='trio'", "loop='trio'", "trio"),
        ("loop='asyncio'", "", None),  # The function may give either.
        ("", "", None),
        ("loop='asyncio'", "loop='trio'", None),
    ],
)
def test_function_stands_on_the_loop_that_the_workers_of_its_module_declare(
    folder: Path, one: str, other: str, loop: str | None
) -> None:
    (folder / "jobs_of_shop.py").write_text(FUNCTIONS.format(one=one, other=other), encoding="utf-8")
    for name in ("opened", "made", "of_partial"):
        assert declared_loop([load_target(f"jobs_of_shop:{name}")]) == loop
    assert declared_loop([load_target("jobs_of_shop:Made")]) is None


def shop() -> Workers[str]:
    workers = Workers[str]()

    async def handle(_job: RunningJob[Any, str]) -> None: ...

    for name in ("send", "weigh", "post"):
        workers.register(name)(handle)
    return workers


def test_names_that_are_not_run_must_be_those_of_workers() -> None:
    """A typing error would run what must not run here."""
    assert SelectedNames((), ("weigh",)).of(shop(), "shop:workers").names == ("send", "post")
    with pytest.raises(MonqueError, match="--except wiegh: no worker of shop:workers .*; did you mean 'weigh'?"):
        SelectedNames((), ("wiegh",)).of(shop(), "shop:workers")


async def test_async_context_manager_is_entered_and_left() -> None:
    """Also one that could be called, as those that are made by `asynccontextmanager`: they are decorators too."""
    steps = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Workers[str], str]]:
        steps.append("opened")
        yield shop(), "a pool"
        steps.append("closed")

    async with AsyncExitStack() as stack:
        for name, value in (("function", opened), ("manager", opened())):
            workers = await workers_of_all([WorkerTarget(name, value)], stack)
            assert workers.names == ("send", "weigh", "post")
        steps.append("entered")
    assert steps == ["opened", "opened", "entered", "closed", "closed"]


async def awaits_a_future_of_its_own() -> None:
    await asyncio.Event().wait()


async def awaits_what_only_asyncio_understands() -> None:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def asks_for_the_loop() -> None:
    asyncio.get_running_loop().call_soon(print)


async def has_another_error() -> None:
    raise ValueError("the queue asyncio_mail is missing")


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def has_a_hostile_error() -> None:
    raise HostileError


@pytest.mark.parametrize(
    ("needs", "is_explained"),
    [
        (awaits_a_future_of_its_own, True),
        (awaits_what_only_asyncio_understands, True),
        (asks_for_the_loop, True),
        (lambda: asyncio.sleep(1), True),
        (has_another_error, False),
        (has_a_hostile_error, False),
    ],
)
def test_target_that_needs_asyncio_names_the_option_if_it_was_called_on_trio(
    needs: Callable[[], Awaitable[None]], is_explained: bool
) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Workers[str]]:
        await needs()
        yield shop()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await workers_of_all([WorkerTarget("shop:opened", opened)], stack)

    with pytest.raises(UserCodeError) as raised:
        trio.run(run)
    assert ("--loop asyncio" in traceback_for_user(raised.value)) == is_explained


def test_target_that_fails_on_asyncio_gets_no_advice_about_loops() -> None:
    async def fails() -> Workers[str]:
        await asyncio.wait_for(asyncio.Event().wait(), 0)
        return shop()

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await workers_of_all([WorkerTarget("shop:fails", fails)], stack)

    with pytest.raises(UserCodeError) as raised:
        anyio.run(run, backend="asyncio")
    assert "--loop" not in traceback_for_user(raised.value)


class Pool:
    """A resource."""


@pytest.mark.parametrize(
    ("made", "is_refused"),
    [
        (Workers[Pool], True),
        (Workers[str], True),
        (Workers[Any], False),
        (Workers[None], False),
        (Workers[Pool | None], False),
        (Workers[object], False),
        (Workers[dict[str, Any]], True),
        (Workers[tuple[Pool, str]], True),
        (Workers[Pool | str], True),
        (Workers[Optional[Pool]], False),  # noqa: UP045
        (Workers[Annotated[Pool, "shared"]], True),
        (Workers[Annotated[Pool | None, "shared"]], False),
        (Workers[Callable[[], Pool]], True),
        (Workers["Pool"], False),
        (Workers, False),
    ],
    ids=str,
)
async def test_workers_that_need_resources_are_not_run_without(
    made: Callable[[], Workers[Any]], is_refused: bool
) -> None:
    """Each job would fail with an AttributeError of None, and use up its attempts."""
    workers = made()

    async def handle(_job: RunningJob[Any, Any]) -> None: ...

    workers.register("send")(handle)
    async with AsyncExitStack() as stack:
        equipped = await workers_of_all([WorkerTarget("shop:both", lambda: (workers, Pool()))], stack)
        assert equipped.names == ("send",)
        if not is_refused:
            assert (await workers_of_all([WorkerTarget("shop:workers", workers)], stack)).names == ("send",)
            return
        for value in (workers, lambda: workers):
            with pytest.raises(MonqueError, match=r"shop:workers is a Workers\[.+\], and provides no"):
                await workers_of_all([WorkerTarget("shop:workers", value)], stack)


async def test_error_of_ours_that_ended_the_block_is_named_and_not_what_follows_from_it() -> None:
    ours = MonqueError("it ended the block")
    with pytest.raises(MonqueError) as raised:
        first = FirstError()
        async with first.raised_at_last(), AsyncExitStack() as stack, first.noted():
            stack.push_async_callback(fails_as_it_closes)
            raise ours
    assert raised.value is ours


async def test_error_of_a_target_as_it_is_left_is_raised_with_its_cause() -> None:
    """The block has ended well: what the target met and could not mend is all that is known."""
    with pytest.raises(ValueError, match="17 invoices") as raised:
        first = FirstError()
        async with first.raised_at_last(), AsyncExitStack() as stack, first.noted():
            stack.push_async_callback(fails_as_it_closes)
    assert isinstance(raised.value.__cause__, MonqueError)


async def fails_as_it_closes() -> None:
    try:
        raise MonqueError("could not reach the outbox")
    except MonqueError as error:
        raise ValueError("17 invoices were not sent") from error


async def test_function_with_a_parameter_uri_gets_the_connection_string() -> None:
    given: list[str] = []

    def plain(uri: str = "mongodb://elsewhere") -> tuple[Workers[str], str]:
        given.append(uri)
        return shop(), "pool"

    async def of_async(*, uri: str) -> tuple[Workers[str], str]:
        given.append(uri)
        return shop(), "pool"

    @asynccontextmanager
    async def opened(uri: str) -> AsyncIterator[tuple[Workers[str], str]]:
        given.append(uri)
        yield shop(), "pool"

    for function in (plain, of_async, opened):
        async with AsyncExitStack() as stack:
            target = WorkerTarget("shop:open_workers", function)
            assert (await workers_of_all([target], stack, "mongodb://h/shop")).names == ("send", "weigh", "post")
    assert given == ["mongodb://h/shop"] * 3

    given.clear()
    of_its_own = (partial(plain, uri="mongodb://mine"), lambda uri="d", /: plain(uri), lambda *uri: plain("e"))
    for other in of_its_own:
        async with AsyncExitStack() as stack:
            await workers_of_all([WorkerTarget("shop:open_workers", other)], stack, "mongodb://h/shop")
    assert given == ["mongodb://mine", "d", "e"]

    def with_both(database: str, uri: str) -> tuple[Workers[str], str]:
        given.append(f"{database} at {uri}")
        return shop(), "pool"

    def with_own(database: str = "mine") -> tuple[Workers[str], str]:
        given.append(database)
        return shop(), "pool"

    for given_function, expected in ((with_both, "other at mongodb://h/shop"), (with_own, "mine")):
        async with AsyncExitStack() as stack:
            await workers_of_all([WorkerTarget("shop:given", given_function)], stack, "mongodb://h/shop", "other")
        assert given[-1] == expected

    async def needs_more(uri: str, pool: str) -> Workers[str]:
        return shop()

    async with AsyncExitStack() as stack:
        with pytest.raises(
            MonqueError, match=r"of type function that needs arguments \(it can have uri= and database= only\)"
        ):
            await workers_of_all([WorkerTarget("shop:needs_more", needs_more)], stack, "mongodb://h/shop")
