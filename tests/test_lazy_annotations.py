"""Annotations of handlers may use names that only type checkers know, on every version of Python.

From Python 3.14 on, an annotation is evaluated when it is read. Before, such a module begins with
`from __future__ import annotations`.
"""

from __future__ import annotations
import __future__

import sys
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from pymongo import MongoClient

from trio_monque import Monque, Workers
from trio_monque.checks import problem_of_handler
from trio_monque.cli.run.target import WorkerTarget, check_usable
from trio_monque.client.sync_monque import SyncMonque

FLAGS = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag


def defined(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "shop.py", "exec", flags=FLAGS, dont_inherit=True), names)
    function: Callable[..., Any] = names["function"]
    return function


@pytest.mark.parametrize("start", ["def", "async def"])
def test_handler_and_middleware_are_registered(start: str) -> None:
    middleware = defined(f"{start} function(job: Unknown, run: Unknown) -> Unknown: ...")
    workers = Workers(middleware=[middleware])
    workers.register("send", defined(f"{start} function(job: RunningJob[Unknown]) -> Unknown: ..."))
    assert workers.names == ("send",)


def test_handler_that_takes_too_much_is_still_refused() -> None:
    problem = problem_of_handler(defined("def function(job: Unknown, pool: Unknown): ..."), "job")
    assert problem is not None
    assert problem.startswith("its handler takes 2 arguments (job, pool)")


def test_function_that_gives_workers_is_usable() -> None:
    check_usable(WorkerTarget("shop:function", defined("def function() -> Unknown: ...")))


def test_both_clients_show_the_annotations_of_their_methods() -> None:
    """Also bound to a client, where a wrapper checks the call."""
    with MongoClient[Any]("localhost:1", connect=False) as client:
        monque = Monque(client["x"])
        for method in (Monque.get_job, SyncMonque.get_job, monque.get_job, monque.sync.get_job):
            assert get_type_hints(method).keys() >= {"return"}
            assert method.__annotations__.keys() >= {"return"}
