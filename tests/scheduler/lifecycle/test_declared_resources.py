"""A scheduler does not open without the resources that its workers name."""

from __future__ import annotations

from typing import Any

import pytest

from trio_monque import Workers, open_scheduler, run_scheduler
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener


class Pool:
    pass


def shop(workers: Workers[Any]) -> Workers[Any]:
    workers.register("send", lambda job: None)
    return workers


async def test_workers_that_name_resources_are_not_run_without_them(
    db: Database, open_test_scheduler: SchedulerOpener
) -> None:
    """Each job would fail with an AttributeError of None."""
    workers = shop(Workers[Pool]())
    needed = r"resources=None: must be a Pool: the workers are a Workers\[Pool\]"
    with pytest.raises(InvalidOptionError, match=needed):
        async with open_scheduler(db, workers):
            pass
    with pytest.raises(InvalidOptionError, match=needed):
        await run_scheduler(db, workers)
    with pytest.raises(InvalidOptionError, match=needed):
        async with open_test_scheduler(workers):
            pass
    assert db.list_collection_names() == []


async def test_workers_with_resources_or_without_a_need_are_run(open_test_scheduler: SchedulerOpener) -> None:
    async with open_test_scheduler(shop(Workers[Pool]()), resources=Pool()):
        pass
    for workers in (Workers[Pool]().with_resources(Pool()), Workers[Pool | None](), Workers[Any](), Workers()):
        async with open_test_scheduler(shop(workers)):
            pass
