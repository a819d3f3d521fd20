"""The life of a job: random sequences of operations, on the real server and in a pure model, and no difference.

Two instances of this library, people, and a Node peer act on a few jobs, with copies that may be stale. A normal run
plays sixty sequences; with MONQUE_TEST_FULL=1 in the environment it is a thousand. How many of them reached each
transition is printed (pytest -rP shows it).

That the comparison can fail is shown by taking one guard at a time out of what the library sends. Not among
them are guards that cannot be found so, as others hold where they are missing: of the fence its status, its
owner or its lock time alone, and of the claim's condition the name and the absent owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pymongo import UpdateMany, UpdateOne
from pymongo.read_concern import ReadConcern

from tests.support.store import handle
from tests.support.thoroughly import in_full
from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.transitions import TABLE
from trio_monque.store.driver import commands
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, indexes, leases, settling_statements

from .operations import SEQUENCES, SHORTEST, Operation, play
from .state import Difference

pytestmark = [pytest.mark.timeout(600), pytest.mark.larger_in_full]

COUNT: Final = in_full(60, 1000)
EACH_IN: Final = COUNT // 20
MOST_TO_FIND: Final = 1000
"""Within how many sequences a guard that was taken out must be found."""

NODE_COMMANDS: Final = (
    *("claim", "complete", "completion of an occurrence", "failure", "last failure", "release", "recovery"),
    *("heartbeat", "cancel", "retry", "reschedule"),
)
TRANSITIONS: Final = frozenset(
    {
        # Children of job nurseries have models of their own.
        *(f"{row.name} of {row.source}" for row in TABLE if row.name != "run_child_again"),
        "delete of any",
        "replace of pending",
        "replace of processing",
        *(f"node's {command}" for command in NODE_COMMANDS),
    }
)

# The same sequences each time: a failure is a fault, and every run reproduces it.
_SETTINGS: Final = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    report_multiple_bugs=False,
)


@pytest.fixture
def jobs(db: Database, monkeypatch: pytest.MonkeyPatch) -> JobCollection:
    """Quick enough for tens of thousands of commands: nothing here asks what survives a failover."""
    jobs = handle(db, write_concern=1)
    indexes.ensure(jobs, also=[indexes.START_BY, indexes.RUN_AGAIN])
    # A majority's read waits for the journal, a tenth of a second each. On one member it finds the same.
    monkeypatch.setattr(commands, "MAJORITY", ReadConcern("local"))
    return jobs


def test_no_sequence_of_operations_makes_a_difference_to_the_model(jobs: JobCollection) -> None:
    reached: Counter[str] = Counter()
    lengths: list[int] = []

    @settings(_SETTINGS, max_examples=COUNT)
    @given(SEQUENCES)
    def run(sequence: list[Operation]) -> None:
        lengths.append(len(sequence))
        reached.update(play(jobs, sequence))

    run()
    print(f"{len(lengths)} sequences, {sum(lengths)} steps; of these reached")  # noqa: T201
    for transition in sorted(TRANSITIONS, key=lambda one: reached[one]):
        print(f"{reached[transition]:5} {transition}")  # noqa: T201
    assert len(lengths) >= COUNT
    assert min(lengths) >= SHORTEST
    assert set(reached) == TRANSITIONS
    assert min(reached.values()) >= EACH_IN


# --- Guards taken out, one at a time ---

Mutation = Callable[[pytest.MonkeyPatch, JobCollection], None]


def _settling_without(*fields: str) -> Mutation:
    """Settlements are sent without asking for these."""

    def mutate(patch: pytest.MonkeyPatch, jobs: JobCollection) -> None:
        for kind in (UpdateOne, UpdateMany):
            patch.setattr(settling_statements, kind.__name__, _without(kind, fields))

    return mutate


def _renewing_without(*fields: str) -> Mutation:
    return lambda patch, jobs: patch.setattr(leases, "UpdateMany", _without(UpdateMany, fields))


def _without(kind: Callable[..., Any], fields: tuple[str, ...]) -> Callable[..., Any]:
    def made(filter: dict[str, Any], update: object, **options: Any) -> Any:  # noqa: A002  # The driver's name.
        return kind({name: condition for name, condition in filter.items() if name not in fields}, update, **options)

    return made


def _transition_without(function: str, *attributes: str) -> Mutation:
    """What this transition asks for is less by these."""
    original: Callable[..., Transition] = getattr(transitions, function)

    def weakened(*arguments: Any, **named: Any) -> Transition:
        whole = original(*arguments, **named)
        return replace(whole, guard={name: one for name, one in whole.guard.items() if name not in attributes})

    return lambda patch, jobs: patch.setattr(transitions, function, weakened)


def _without_pins(patch: pytest.MonkeyPatch, jobs: JobCollection) -> None:
    patch.setattr(claiming, "pins", lambda job: {})


def _without_unique_index(patch: pytest.MonkeyPatch, jobs: JobCollection) -> None:
    jobs.collection.drop_index("name_1_uniqueKey_1")


GUARDS: Final[Mapping[str, Mutation]] = {
    "settle: owner and lock time": _settling_without("claimedBy", "lockedAt"),
    "settle: the whole fence": _settling_without("status", "claimedBy", "lockedAt", "claimToken"),
    "settle: cancel request": _settling_without("cancelRequestedAt"),
    "settle: schedule": _settling_without("repeatInterval"),
    "settle: another run": _settling_without("again"),
    "cancel a pending job: status": _transition_without("cancel_pending", "status"),
    "retry: status": _transition_without("retry_again", "status"),
    "reschedule: status": _transition_without("reschedule", "status"),
    "update a run: status": _transition_without("update_claimed", "status"),
    "update a run: revision": _transition_without("update_claimed", "internals.rev"),
    "unique keys: index": _without_unique_index,
    "claim: due": _transition_without("claim", "next_run_at"),
    "claim: status": _transition_without("claim", "status", "claim.by"),
    "claim: all but status": _transition_without("claim", "name", "next_run_at", "claim.by"),
    "claim: pins": _without_pins,
    "settle: token": _settling_without("claimToken"),
    "rescue: heartbeat": _settling_without("lastHeartbeat", "renewedAt"),
    "renew: owner and lock time": _renewing_without("claimedBy", "lockedAt"),
    "report: owner and lock time": _transition_without("report", "claim.by", "claim.since"),
    "release_all: cancel request": _transition_without("release_all", "claim.cancel_requested_at"),
    "cancel a run: fence": _transition_without("request_cancel", "claim.by", "claim.since", "claim.token"),
    "update a pending job: status": _transition_without("update_pending", "status"),
    "update a pending job: revision": _transition_without("update_pending", "internals.rev"),
}
QUICKLY_FOUND: Final = ("retry: status",)
"""Within the first few sequences. The others need up to some hundreds."""


@pytest.mark.parametrize(
    "guard", [pytest.param(guard, marks=() if guard in QUICKLY_FOUND else pytest.mark.full) for guard in GUARDS]
)
def test_guard_taken_out_is_found(jobs: JobCollection, guard: str) -> None:
    played: list[list[Operation]] = []

    @settings(_SETTINGS, max_examples=MOST_TO_FIND, phases=[Phase.generate])
    @given(SEQUENCES)
    def run(sequence: list[Operation]) -> None:
        played.append(sequence)
        play(jobs, sequence)

    with pytest.MonkeyPatch.context() as patch:
        GUARDS[guard](patch, jobs)
        with pytest.raises(Difference) as found:
            run()
    print(f"found in sequence {len(played)}: {found.value}")  # noqa: T201
    jobs.collection.delete_many({})
    indexes.ensure(jobs, also=[indexes.START_BY, indexes.RUN_AGAIN])
    play(jobs, played[-1])  # With the guard in its place there is no difference.
