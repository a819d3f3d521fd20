"""One worker process: its event loop, its signals and its exit status. Its scheduler ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from trio_monque import RunningJob, SchedulerReport, Workers
from trio_monque.cli.connection_options import Connection
from trio_monque.cli.exit_statuses import CHECK_FAILED, SUCCEEDED
from trio_monque.cli.run import worker_process
from trio_monque.cli.run.target import SelectedNames, WorkerTarget
from trio_monque.cli.run.worker_process import Work, run_worker
from trio_monque.cli.run.worker_state import WorkerState


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


async def nothing() -> None: ...


class Run:
    """Runs a worker process in this process.

    Attributes:
        report: What its scheduler did.
        handlers_at_import: The handlers of its signals when its target is imported.
    """

    def __init__(self) -> None:
        self.report = SchedulerReport()
        self.handlers_at_import: list[Any] = []

    def __call__(self, loop: str, target: Callable[[], Any] = nothing) -> int:
        self._target = target
        connection = Connection("mongodb://localhost/shop", None)
        return run_worker(Work(("shop:open_workers",), SelectedNames((), ()), connection, loop, {}), WorkerState())

    def load_target(self, name: str) -> WorkerTarget:
        self.handlers_at_import = handlers()
        return WorkerTarget(name, self._open_workers)

    async def run_made_until_signalled(self, *_arguments: object, **_options: object) -> SchedulerReport:
        return self.report

    async def _open_workers(self) -> Workers[Any]:
        await self._target()
        workers = Workers[Any]()
        workers.register("send")(_send)
        return workers


async def _send(_job: RunningJob[Any, Any]) -> None: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    one = Run()
    monkeypatch.setattr(worker_process, "load_target", one.load_target)
    monkeypatch.setattr(worker_process, "run_made_until_signalled", one.run_made_until_signalled)
    return one


@pytest.fixture
def ignores_ctrl_c() -> Iterator[None]:
    """As background processes of a shell without job control do. SIGTERM has a handler of the caller."""
    before = signal.signal(signal.SIGTERM, _mark), signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        signal.signal(number, handler)


def _mark(_number: int, _frame: object) -> None: ...


def test_jobs_that_are_left_to_their_leases_are_in_the_exit_status(run: Run) -> None:
    assert run("trio") == SUCCEEDED
    unfinished: Any = ("a job",)
    run.report = SchedulerReport(unfinished=unfinished)
    assert run("trio") == CHECK_FAILED


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_targets_are_called_on_the_loop_that_was_asked_for(run: Run, loop: str) -> None:
    loops: list[str] = []

    async def target() -> None:
        loops.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    assert run(loop, target) == SUCCEEDED
    assert loops == [loop]


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_signals_end_the_imports_also_where_ctrl_c_was_ignored_and_are_as_before_in_the_end(
    run: Run, ignores_ctrl_c: None, loop: str
) -> None:
    run(loop)
    at_sigterm, at_sigint = run.handlers_at_import
    assert at_sigint is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        _with_default_ctrl_c(at_sigterm)
    assert handlers() == [_mark, signal.SIG_IGN]


def _with_default_ctrl_c(handler: Callable[[int, None], object]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        handler(signal.SIGTERM, None)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_signals_after_the_end_of_the_resources_do_not_change_the_exit_status(run: Run, loop: str) -> None:
    """The event loop ends what the targets have left: here, a generator."""
    at_the_end: list[Any] = []

    async def pages() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            at_the_end.extend(handlers())

    left = pages()

    async def target() -> None:
        assert await anext(left) == 1

    assert run(loop, target) == SUCCEEDED
    assert at_the_end == [signal.SIG_IGN, signal.SIG_IGN]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_process_that_a_target_forks_has_the_default_signals(run: Run) -> None:
    """What a target opens before the start of the scheduler may be a pool of processes."""
    codes: list[int] = []

    def fork() -> int:
        child = os.fork()
        if child == 0:
            is_default = handlers() == [signal.SIG_DFL, signal.default_int_handler]
            os.kill(os.getpid(), signal.SIGKILL if is_default else signal.SIGABRT)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def target() -> None:
        codes.append(fork())

    assert run("trio", target) == SUCCEEDED
    assert codes == [-signal.SIGKILL]
