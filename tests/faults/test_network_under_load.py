"""Jobs under load, and a network that loses replies, breaks connections, delays messages and falls silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from tests.support.fast_driver import FAST_URI, fast_driver

from .mixture import in_threads
from .processes import OwnServer, WorkerProcess, frozen
from .promises import nothing_is_run_in_vain
from .proxy import FaultyProxy, Way, faulty_proxy
from .scenario import HEARTBEAT, JOBS, Scenario
from .traffic import WRITES, HalfOfThem

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

ENQUEUERS: Final = 4
EACH_TURN: Final = JOBS // 2
ENOUGH: Final = EACH_TURN // 4

# Where every other renewal loses its reply, a lease of two seconds runs out on a machine that is busy: then work
# is done in vain. An instance that shuts down cuts its runs, and releases them.
OPTIONS: Final[dict[str, Any]] = {"heartbeat_interval": 1.5, "shutdown_timeout": 0}

# What the driver repeats by itself would hide what the library has to find out.
UNAIDED: Final = ("retryWrites=false",)


@pytest.fixture
def address(own_server: OwnServer) -> tuple[str, int | None]:
    host, port = parse_uri(own_server.uri)["nodelist"][0]
    return str(host), port


@contextmanager
def enqueuing(
    scenario: Scenario, proxy: FaultyProxy, *options: str, jobs: int = JOBS, **client_options: Any
) -> Iterator[None]:
    """Enqueues jobs from several threads, for as long as the block lasts and until all are there.

    A handler that saves something, and meets the fault there, has failed and is tried again, as often as it takes.
    """
    with fast_driver(), ExitStack() as stack:
        # A client for each: where one loses its connection, the pool of all who share it is emptied.
        clients = [stack.enter_context(MongoClient[Any](proxy.uri(*options), tz_aware=True)) for _ in range(ENQUEUERS)]
        databases = [client[scenario.db.name] for client in clients]
        enqueuers = [scenario.enqueuer(one, db, client_options, max_attempts=100) for one, db in enumerate(databases)]
        share = jobs // ENQUEUERS
        # On a half-open connection the driver would wait for ever when it says good-bye.
        stack.callback(proxy.cut)
        with in_threads(lambda one: enqueuers[one].enqueue(range(one * share, (one + 1) * share)), ENQUEUERS):
            yield


@pytest.mark.parametrize("first", [True, False], ids=["the first half", "the other half"])
def test_what_was_done_although_its_reply_was_lost_is_found_out_and_not_done_again(
    scenario: Scenario, address: tuple[str, int | None], first: bool
) -> None:
    chooses = HalfOfThem(WRITES, first=first)
    with ExitStack() as stack:
        start = stack.enter_context
        proxy = start(faulty_proxy(address))
        uri = proxy.uri(FAST_URI, *UNAIDED)
        one, two, three, four = (start(scenario.worker(name, uri, **OPTIONS)) for name in "1234")
        scenario.enqueuer(ENQUEUERS, max_attempts=100).declare_schedules()
        for worker in (one, two, three):
            worker.open()
        proxy.lose_replies(chooses)
        # A patient caller gets its answer in the end: a lost reply shows at once.
        with enqueuing(scenario, proxy, FAST_URI, *UNAIDED, jobs=EACH_TURN, operation_timeout=20.0):
            scenario.wait_completed(ENOUGH)
            scenario.kill(three)
            four.open()
            one.end()
            two.end()
        scenario.wait_over()
        four.end()
    evidence = scenario.check(nothing_is_run_in_vain)
    assert [one.detail for one in evidence.records if one.what == "not acknowledged"] == []
    assert proxy.lost >= 0.9 * chooses.chosen.total()
    expected = WRITES if first else [kind for kind in WRITES if kind not in ("resolve", "release", "rescue")]
    assert [kind for kind in expected if not chooses.chosen[kind]] == []


def fall_silent_in_a_run(scenario: Scenario, worker: WorkerProcess, proxy: FaultyProxy) -> None:
    """A silence that begins in the middle of a run and outlasts its lease: until another process has rescued it.

    The process is frozen while the silence begins, so that no run ends in between.
    """
    with ExitStack() as silence:

        def is_silent() -> bool:
            with frozen(worker.pid):
                if is_running := scenario.runs_in(worker):
                    silence.enter_context(proxy.half_open(*Way))
            return is_running

        scenario.wait(is_silent, f"{worker.name} runs something")
        scenario.wait(lambda: not scenario.held_by(worker), f"what {worker.name} held is rescued")


def torment(proxies: Sequence[FaultyProxy], random: Random, ended: threading.Event, *, faults: int) -> None:
    """One short fault after another, each at one of the proxies."""
    for _ in range(faults):
        proxy = random.choice(proxies)
        kind = random.choice(["delay", "cut", "half-open"])
        seconds = random.uniform(0.02, HEARTBEAT)
        if kind == "delay":
            with proxy.delayed(random, most=0.05):
                ended.wait(seconds)
        elif kind == "cut":
            proxy.cut(lambda: random.random() < 0.5)
        else:
            ways = random.choice([(Way.REQUESTS,), (Way.REPLIES,), tuple(Way)])
            with proxy.half_open(*ways):
                ended.wait(seconds)
        ended.wait(random.uniform(0, 0.1))


def test_no_promise_is_broken_by_a_network_that_delays_cuts_and_falls_silent(
    scenario: Scenario, address: tuple[str, int | None]
) -> None:
    fast_uri = (FAST_URI, "connectTimeoutMS=500")
    options = {"operation_timeout": 1.0, "max_rescues": 20}
    ended = threading.Event()
    with ExitStack() as stack:
        start = stack.enter_context
        proxies = [start(faulty_proxy(address)) for _ in range(3)]
        one = start(scenario.worker("one", proxies[0].uri(*fast_uri), **options))
        two = start(scenario.worker("two", proxies[1].uri(*fast_uri, *UNAIDED), **options))
        scenario.enqueuer(ENQUEUERS, max_attempts=100).declare_schedules()
        one.open()
        two.open()
        stack.callback(ended.set)
        with enqueuing(scenario, proxies[2], *fast_uri, *UNAIDED):
            scenario.wait_completed(JOBS // 20)
            fall_silent_in_a_run(scenario, one, proxies[0])
            torment(proxies, scenario.random, ended, faults=19)
        scenario.wait_over()
        one.end()
        two.end()
    evidence = scenario.check()
    acknowledged = [one for one in evidence.records if one.what == "acknowledged"]
    assert len(acknowledged) > 0.9 * JOBS
    assert [one for one in evidence.records if one.what == "lost"], "a lease was lost"
