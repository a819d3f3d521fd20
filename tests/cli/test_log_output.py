"""The log of `trio-monque run`: with `--log-format json`, each line is one JSON object."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.log_output import JsonFormatter
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .run_process import run_process

PROGRAM = """
import logging
import warnings

from trio_monque import Workers

workers = Workers()


class Unspeakable:
    def __str__(self):
        raise OSError("no")

    __repr__ = __str__


@workers.register("log")
async def log(job):
    logger = logging.getLogger("shop")
    logger.warning("two\\nlines %s", job.data, extra={"value": float("nan"), "bad": Unspeakable()})
    logger.warning("%d items", "no number", stack_info=True)
    logger.warning("%s", Unspeakable())
    warnings.warn("deprecated\\nthing")
    try:
        raise ValueError("multi\\nline")
    except ValueError:
        logger.exception("failed")
    print("logged", flush=True)
"""


class Unspeakable:
    def __str__(self) -> str:
        raise OSError("no")

    __repr__ = __str__


def parsed(line: str) -> dict[str, Any]:
    """Parse strictly: NaN is not JSON."""
    assert "\n" not in line
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(found, dict)
    return found


def formatted(message: object, *arguments: object, exc_info: Any = None, **extra: object) -> dict[str, Any]:
    record = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "jobs.py", 1, message, arguments, exc_info, extra=extra, sinfo="Stack:\n  a"
    )
    return parsed(JsonFormatter().format(record))


def test_values_of_any_kind_are_json() -> None:
    numbers = {"nan": float("nan"), "inf": float("inf"), "one": 1.5}
    line = formatted("two\nlines", **numbers, data=b"\n", bad=Unspeakable(), text="a\nb\ud800")
    assert line["message"] == "two\nlines"
    assert (line["nan"], line["inf"], line["one"], line["text"]) == ("nan", "inf", 1.5, "a\nb\ud800")
    assert "Unspeakable" in line["bad"]
    assert line["stack"] == "Stack:\n  a"


@pytest.mark.parametrize(("message", "argument"), [("%d items", "no number"), ("%s", Unspeakable())], ids=["%d", "%s"])
def test_arguments_that_do_not_fit_leave_the_message(message: str, argument: object) -> None:
    text = formatted(message, argument)["message"]
    assert text.startswith(f"{message} (its arguments cannot be shown: ")


def test_secrets_are_hidden_everywhere() -> None:
    uri = "mongodb://me:hunter2@h/x"
    try:
        raise ValueError(uri)
    except ValueError:
        line = formatted(f"at {uri}: %d", uri, exc_info=sys.exc_info(), where=uri)
    assert "hunter2" not in json.dumps(line)
    assert "ValueError: mongodb://***@h/x" in line["traceback"]


@pytest.mark.full
def test_each_line_of_a_worker_process_is_json(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> None:
    (tmp_path / "logging_jobs.py").write_text(PROGRAM, encoding="utf-8")
    Monque(db).sync.enqueue("log", "a\nb")
    uri = uri_of_database(mongod.uri, db.name)
    with run_process(tmp_path, "logging_jobs:workers", "--uri", uri, "--log-format", "json") as worker:
        worker.wait_for("logged")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    lines = [parsed(line) for line in errors.splitlines()]
    assert status == 0
    assert [one["logger"] for one in lines if not one["logger"].startswith("trio_monque")] == [
        "shop",
        "shop",
        "shop",
        "py.warnings",
        "shop",
    ]
