"""What one answer of the change stream comes to, for the engine."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import trio

from tests.support.node_peer import NodePeer
from trio_monque import Monque, Workers
from trio_monque.scheduler.job_stream import JobStream
from trio_monque.scheduler.paused_names import PausedNames
from trio_monque.scheduler.told import Told
from trio_monque.store.types import Collection, Database


@pytest.mark.parametrize("order", [(-5, 40, 20), (40, 20, -5), (20, -5, 40)])
async def test_earliest_and_latest_of_what_is_due_are_told_in_whatever_order_it_came(
    db: Database, jobs: Collection, order: tuple[int, ...]
) -> None:
    monque, workers, node = Monque(db), Workers(), NodePeer(jobs)
    workers.register("greet", lambda _: None)
    paused = PausedNames(monque._door, rests=False)
    stream = JobStream(monque._ground, monque._door, workers, paused, "us", Told())
    await stream.open()
    now = monque._ground.clock.now()
    for seconds in order:
        node.enqueue("greet", nextRunAt=now + timedelta(seconds=seconds))
    node.enqueue("theirs", nextRunAt=now + timedelta(seconds=90))
    heard = [await stream.next(math.inf)]
    # Each answer has what was there when it was asked for.
    while max(one.last_due for one in heard) < trio.current_time() + 30:
        heard.append(await stream.next(math.inf))
    await stream.close()
    assert min(one.due for one in heard) == pytest.approx(trio.current_time() - 5, abs=3)
    assert max(one.last_due for one in heard) == pytest.approx(trio.current_time() + 40, abs=3)
    assert not any(one.look for one in heard)
