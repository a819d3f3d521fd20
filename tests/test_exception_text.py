"""The text of an exception, whatever the author of its class did."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import bson
import pytest

from tests.support.hostile_errors import HOSTILE, TextOfItsOwnError
from tests.support.thoroughly import one_in
from trio_monque.log import UnprintableError, loggable
from trio_monque.safe_text import message_of, text_of, traceback_of

LONGEST = 500


@pytest.mark.full
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_text_is_an_exact_and_bounded_string_that_bson_holds(make: Callable[[], BaseException]) -> None:
    error = make()
    for text in (message_of(error, LONGEST), text_of(error, LONGEST), traceback_of(error, LONGEST)):
        assert type(text) is str
        assert len(text) <= LONGEST + 200
        bson.encode({"text": text})


@pytest.mark.parametrize(("kind", "where"), one_in(3, list(HOSTILE), ["itself", "cause", "group"]))
def test_what_is_logged_of_it_raises_nothing_and_is_bounded(kind: str, where: str) -> None:
    error = HOSTILE[kind]()
    if where == "cause":
        outer = ValueError("outer")
        outer.__cause__, error = error, outer
    elif where == "group":
        error = BaseExceptionGroup("several", [error, ValueError("beside")])
    stream = io.StringIO()
    logger = logging.getLogger("of_this_test")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    logger.error("it failed", exc_info=loggable(error))
    logger.removeHandler(handler)
    assert stream.getvalue().startswith("it failed\n")
    assert len(stream.getvalue()) < 20_000
    stream.getvalue().encode()  # As a handler that writes to a file has to.


def test_ordinary_error_is_logged_as_it_is() -> None:
    error = ValueError("plain")
    error.__cause__ = KeyError("of that")
    assert loggable(error) is error
    assert isinstance(loggable(TextOfItsOwnError(lambda: 1 / 0)), UnprintableError)


def test_long_message_does_not_push_the_frames_out() -> None:
    def fails_here() -> None:
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError, match="xxx") as caught:
        fails_here()
    text = traceback_of(caught.value, 4000)
    assert "in fails_here" in text
    assert len(text) <= 4000


def test_error_with_notes_is_logged_as_it_is() -> None:
    error = ValueError("wrong")
    error.add_note("write it like this")
    assert loggable(error) is error
    error.add_note("x" * 10_000)
    assert isinstance(loggable(error), UnprintableError)
    error.__notes__ = "not a list"  # type: ignore[assignment]
    assert isinstance(loggable(error), UnprintableError)
