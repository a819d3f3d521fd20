"""Workers that declare their event loop run on that one only, and on another one nothing starts."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.asyncio_hosts.conftest import BACKENDS, Run
from trio_monque import RunningJob, Workers, open_scheduler, run_scheduler
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Database

OTHER = {"trio": "asyncio", "asyncio": "trio"}


def declaring(loop: Any) -> Workers[Any]:
    workers = Workers[Any](loop=loop)

    @workers.register("job")
    async def job(job: RunningJob[Any]) -> str:
        await anyio.lowlevel.checkpoint()
        return "done"

    return workers


def running_loop(request: pytest.FixtureRequest) -> str:
    return BACKENDS[request.node.callspec.params["run"]][0]


def test_mismatch_is_an_error_before_anything_is_written(
    run: Run, db: Database, request: pytest.FixtureRequest
) -> None:
    mine = running_loop(request)
    other = OTHER[mine]
    started: list[object] = []

    async def main() -> None:
        for workers in (declaring(other), declaring(other).union(Workers()), Workers[Any]().union(declaring(other))):
            with pytest.raises(InvalidOptionError, match=f"would run on {mine}.*--loop {other}"):
                async with open_scheduler(db, workers.subset(["job"]).with_resources(None)):
                    started.append("open")
            with pytest.raises(InvalidOptionError, match=f"would run on {mine}.*--loop {other}"):
                await run_scheduler(db, workers)

    run(main)
    assert (started, db.list_collection_names()) == ([], [])


def test_declared_loop_runs_the_handlers(run: Run, db: Database, request: pytest.FixtureRequest) -> None:
    ended: list[str] = []

    async def main() -> None:
        async with open_scheduler(db, declaring(running_loop(request))) as scheduler:
            job = await scheduler.enqueue("job")
            assert job.id is not None
            ended.append((await scheduler.wait_job(job.id)).status)

    run(main)
    assert ended == ["completed"]


@pytest.mark.parametrize(
    ("loop", "said"),
    [("uvloop", 'write "asyncio"'), ("curio", "or None"), (True, '"trio" or "asyncio"')],
)
def test_another_loop_is_refused_where_it_is_declared(loop: Any, said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        Workers(loop=loop)


def test_sets_that_need_different_loops_cannot_be_united() -> None:
    with pytest.raises(InvalidOptionError, match="processes of their own"):
        Workers[Any](loop="trio").union(Workers[Any](loop="asyncio"))
