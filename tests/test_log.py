"""Records of the library: text of others is on one line, bounded, and without secrets, whichever call wrote them."""

from __future__ import annotations

import ast
import asyncio
import io
import logging
import re
from pathlib import Path

import pytest
import trio

import trio_monque
from tests.support.hostile_errors import HOSTILE
from tests.support.thoroughly import one_in
from trio_monque.interruptions import is_interruption
from trio_monque.log import OwnLines, logger_of

PACKAGE = Path(trio_monque.__file__).parent


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        ("%s failed: %s", ("a\nERROR forged", ValueError("b\x1b[2J")), r"a\nERROR forged failed: b\x1b[2J"),
        ("%d jobs, %.1f s", (3, 1.25), "3 jobs, 1.2 s"),
        ("counts: %s", ({"a": 1},), "counts: {'a': 1}"),
        ("%r and %s", ("a\n", "a"), r"'a\n' and a"),
        ("at mongodb://h, with %s", ("mongodb://a:hunter2@h",), "at mongodb://h, with mongodb://***@h"),
        ("failed: %s", (UnspeakableError(),), "failed: <UnspeakableError that cannot be shown>"),
        ("blocked at:\n%s", (OwnLines("one\ntwo"),), "blocked at:\none\ntwo"),
    ],
)  # fmt: skip
def test_text_of_others_is_made_fit(
    caplog: pytest.LogCaptureFixture, template: str, arguments: tuple[object, ...], expected: str
) -> None:
    logger_of("scheduler").warning(template, *arguments)
    (record,) = caplog.records
    assert record.getMessage() == expected
    assert record.msg == template  # Services group records by it.


def test_ten_megabytes_are_a_thousand_characters(caplog: pytest.LogCaptureFixture) -> None:
    logger_of("store").warning("%s is not a job: %r", "x" * 10**7, "y" * 10**7)
    assert len(caplog.records[0].getMessage()) < 2100


def test_secret_is_not_cut_in_two(caplog: pytest.LogCaptureFixture) -> None:
    """Without the `@` behind it, it would not be known as one."""
    logger_of().warning("%s", "." * 975 + " mongodb://root:hunter2hunter2hunter2@h")
    assert "hunter2" not in caplog.text


@pytest.mark.full
def test_every_logger_of_the_library_makes_text_fit() -> None:
    for path in PACKAGE.rglob("*.py"):
        # The command sets up handlers and levels, and logs nothing itself.
        if path in (PACKAGE / "log.py", PACKAGE / "cli" / "log_output.py", PACKAGE / "cli" / "demo" / "printing.py"):
            continue
        calls = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert "getLogger" not in calls, f"{path} has a logger that is not from logger_of"
    assert all(logging.getLogger(f"trio_monque.{part}").filters for part in ("scheduler", "engine", "store", "events"))


def templates() -> set[str]:
    """What the package logs, whichever level it is."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "log" or re.fullmatch(r"logger\.(info|warning|error|exception|log)", called):
                texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                found.add(texts[0])
    return found


def test_how_to_page_lists_every_line() -> None:
    """By the longest part of it that is no placeholder."""
    page = " ".join((PACKAGE.parent / "docs" / "how-to" / "log.md").read_text().split())
    assert len(templates()) > 40
    parts = {one: max(re.split(r"%[\d.]*[a-z]", one), key=len).strip(" :,;\n") for one in templates()}
    assert [one for one, longest in parts.items() if longest not in page] == [], "docs/how-to/log.md lacks these lines"


@pytest.mark.parametrize("kind", one_in(3, list(HOSTILE)))
def test_traceback_of_an_error_whose_text_misbehaves_is_written_and_bounded(kind: str) -> None:
    """`logging` asks for that text in the call of the logger, which may be the one of a loop of ours."""
    error, written = HOSTILE[kind](), io.BytesIO()
    handler = logging.StreamHandler(io.TextIOWrapper(written, encoding="utf-8", write_through=True))
    logger = logger_of("scheduler")
    logger.addHandler(handler)
    try:
        raise error
    except BaseException as raised:
        logger.error("the job failed", exc_info=raised)
    finally:
        logger.removeHandler(handler)
    assert written.getvalue().startswith(b"the job failed\nTraceback (most recent call last)")
    assert len(written.getvalue()) < 20_000


class _RaisingPart(logging.Handler):
    """A handler that raises; its `emit` is a filter that raises, too."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


@pytest.mark.parametrize("part", ["handler", "filter"])
@pytest.mark.parametrize("error", [ValueError("full"), SystemExit(3), GeneratorExit(), KeyboardInterrupt()], ids=repr)
def test_error_of_a_log_handler_or_filter_does_not_reach_the_loop_that_logs(
    capsys: pytest.CaptureFixture[str], part: str, error: BaseException
) -> None:
    logger, raising = logger_of("test_of_raising_parts"), _RaisingPart(error)
    if part == "handler":
        logger.addHandler(raising)
    else:
        logger.addFilter(raising.emit)  # type: ignore[arg-type]
    try:
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                logger.warning("any line")
        else:
            logger.warning("any line")
            assert type(error).__name__ in capsys.readouterr().err
    finally:
        logger.removeHandler(raising)
        logger.removeFilter(raising.emit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (asyncio.CancelledError(), True),
        (KeyboardInterrupt(), True),
        (BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [asyncio.CancelledError()])]), True),
        (BaseExceptionGroup("", [SystemExit()]), False),
        (SystemExit(), False),
        (ValueError(), False),
    ],
    ids=repr,
)
def test_only_ctrl_c_and_cancellations_pass(error: BaseException, passes: bool) -> None:
    assert is_interruption(error) is passes


async def test_cancellation_by_trio_passes() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(trio.Cancelled) as caught:
            await trio.lowlevel.checkpoint()
        assert is_interruption(caught.value)
