"""What a lock in a document means, from any writer, and what it becomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Code, Int64
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lock_values import LOCKS
from trio_monque.locks_and_dead_letters import (
    LONGEST_ERROR,
    MOST_TRIES,
    NEVER,
    Lock,
    LockStamp,
    LockState,
    dead_letter_lock,
    freed,
    read_lock,
    renewed_until,
    state_of,
)
from trio_monque.options_and_defaults import LEASE_IN_BEATS, LONGEST_BEAT, SHORTEST_BEAT

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAST, FUTURE = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)

STATES: list[tuple[Any, LockState]] = [
    (None, LockState.FREE),
    ({"by": None}, LockState.FREE),
    ({"by": None, "until": None}, LockState.FREE),
    ({"by": None, "until": PAST}, LockState.FREE),
    ({"by": None, "until": NOW}, LockState.FREE),
    ({"until": PAST}, LockState.FREE),
    ({"by": None, "until": FUTURE}, LockState.WAITING),
    ({"until": FUTURE}, LockState.WAITING),
    ({"by": None, "until": NEVER}, LockState.DEAD_LETTER),
    ({"by": None, "until": NEVER + timedelta(days=1)}, LockState.DEAD_LETTER),
    ({"by": "x", "until": FUTURE, "token": "x:1"}, LockState.HELD),
    # It is dead if no observer saw it change for a lease, and not because its date is over.
    ({"by": "x", "until": PAST, "token": "x:1"}, LockState.HELD),
    ({"by": "x", "until": FUTURE}, LockState.FOREIGN),
    ({"by": "x", "until": PAST}, LockState.FOREIGN),
    # A program that knows only two fields has overwritten them, and left ours.
    ({"by": "y", "until": FUTURE, "token": "x:1"}, LockState.FOREIGN),
    ({"by": "x", "until": FUTURE, "token": "x2:1"}, LockState.FOREIGN),
    ({"by": "x", "until": FUTURE, "token": 5}, LockState.FOREIGN),
    ({}, LockState.UNKNOWN),
    ({"owner": "x"}, LockState.UNKNOWN),
    ({"until": None}, LockState.UNKNOWN),
    ({"by": "x"}, LockState.UNKNOWN),
    ({"by": "x", "until": None}, LockState.UNKNOWN),
    ({"by": "x", "until": "soon"}, LockState.UNKNOWN),
    ({"by": None, "until": "soon"}, LockState.UNKNOWN),
    ({"by": None, "until": 5}, LockState.UNKNOWN),
    ({"by": 5, "until": FUTURE}, LockState.UNKNOWN),
    ({"by": ["x"], "until": FUTURE}, LockState.UNKNOWN),
    ({"by": None, "until": [PAST]}, LockState.UNKNOWN),
    (5, LockState.UNKNOWN),
    ("x", LockState.UNKNOWN),
    (True, LockState.UNKNOWN),
    (PAST, LockState.UNKNOWN),
    ([], LockState.UNKNOWN),
    ([None], LockState.UNKNOWN),
    ([{"by": None, "until": PAST}], LockState.UNKNOWN),
]


@pytest.mark.parametrize(("value", "state"), STATES, ids=str)
def test_lock_means_what_is_published(value: Any, state: LockState) -> None:
    assert state_of(read_lock(value), NOW) is state


@given(LOCKS)
def test_whatever_stands_in_the_field_is_read_or_is_unknown(value: Any) -> None:
    lock = read_lock(value)
    state = state_of(lock, NOW)
    assert (lock is None) is (state is LockState.UNKNOWN)
    if lock is not None:
        assert (lock.by is None) is (state in {LockState.FREE, LockState.WAITING, LockState.DEAD_LETTER})
        assert lock.by is None or lock.until is not None
        assert lock.until is None or lock.until.tzinfo is not None
        assert 0 <= lock.tries <= MOST_TRIES
        assert LEASE_IN_BEATS * SHORTEST_BEAT <= lock.lease <= LEASE_IN_BEATS * LONGEST_BEAT


@pytest.mark.parametrize(
    ("stored", "tries"),
    [(3, 3), (Int64(3), 3), (-1, 0), (2**40, MOST_TRIES), (True, 0), (3.0, 0), ("3", 0), (None, 0), ([3], 0)],
)
def test_tries_are_a_whole_number_in_reason_or_none(stored: Any, tries: int) -> None:
    lock = read_lock({"by": None, "until": PAST, "tries": stored})
    assert lock is not None
    assert lock.tries == tries


@pytest.mark.parametrize(
    ("stored", "lease"),
    [
        (20_000, 60.0),
        (500.0, 1.5),
        (0, LEASE_IN_BEATS * SHORTEST_BEAT),
        (-5, LEASE_IN_BEATS * SHORTEST_BEAT),
        (10**12, LEASE_IN_BEATS * LONGEST_BEAT),
        (float("inf"), LEASE_IN_BEATS * LONGEST_BEAT),
        (float("nan"), LEASE_IN_BEATS * SHORTEST_BEAT),
        ("20", LEASE_IN_BEATS * SHORTEST_BEAT),
        (None, LEASE_IN_BEATS * SHORTEST_BEAT),
    ],
)
def test_lease_is_that_of_the_holder_within_what_ours_may_have(stored: Any, lease: float) -> None:
    lock = read_lock({"by": "x", "until": PAST, "token": "x:1", "every": stored})
    assert lock is not None
    assert lock.lease == pytest.approx(lease)


def test_date_without_a_zone_is_in_utc() -> None:
    lock = read_lock({"by": None, "until": PAST.replace(tzinfo=None)})
    assert lock is not None
    assert lock.until == PAST


def test_lock_error_that_is_not_a_string_is_read_as_none() -> None:
    assert read_lock({"by": None, "until": NEVER, "error": 5}) == Lock(None, NEVER)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), st.floats(SHORTEST_BEAT, 300.0))
def test_stamp_is_read_as_a_lock_of_ours(by: str, every: float) -> None:
    stamp = LockStamp.new(by, NOW, every, "n")
    lock = read_lock(stamp.fields)
    assert lock is not None
    assert lock.is_ours
    assert (lock.by, lock.token, lock.until, lock.tries) == (by, f"{by}:n", renewed_until(NOW, every), 0)
    assert lock.every == pytest.approx(every, abs=0.001)
    assert state_of(lock, NOW) is LockState.HELD


@given(st.integers(0, MOST_TRIES), st.integers(-5, 5))
def test_freed_lock_is_claimable_from_its_moment_on(tries: int, seconds: int) -> None:
    moment = NOW + timedelta(seconds=seconds)
    lock = read_lock(freed(tries, moment))
    assert lock == Lock(None, moment, tries=tries)
    assert state_of(lock, moment) is LockState.FREE
    assert state_of(lock, moment - timedelta(milliseconds=1)) is LockState.WAITING


@given(st.integers(0, MOST_TRIES), st.text())
def test_what_is_laid_aside_never_comes_back_by_itself(tries: int, error: str) -> None:
    lock = read_lock(dead_letter_lock(tries, error))
    assert lock == Lock(None, NEVER, tries=tries, error=error[:LONGEST_ERROR])
    assert state_of(lock, datetime(2400, 1, 1, tzinfo=UTC)) is LockState.DEAD_LETTER


def test_error_of_a_document_that_is_laid_aside_is_cut() -> None:
    assert len(dead_letter_lock(1, "x" * 10_000)["error"]) == LONGEST_ERROR


def test_never_stays_within_what_python_can_tell_in_every_zone() -> None:
    stored = bson.decode(bson.encode({"until": NEVER}))["until"]
    assert stored.replace(tzinfo=UTC) == NEVER
    assert NEVER + timedelta(hours=14) < datetime.max.replace(tzinfo=UTC)


def test_code_is_not_a_text_although_python_takes_it_for_one() -> None:
    """It has no hash: as a holder or a token it would end whatever looks locks up."""
    assert read_lock({"by": Code("a"), "until": NOW}) is None
    read = read_lock({"by": "a", "until": NOW, "token": Code("a:1"), "error": Code("x"), "every": True})
    assert read == Lock("a", NOW)
