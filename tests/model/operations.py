"""All operations by name, how often each is drawn, and how a sequence of them is played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

from trio_monque.store.job_collection import JobCollection

from . import claims, ends, hands
from .play import Play
from .state import Difference

Operation = tuple[str, int, int]

# By how often each was needed for each transition to be reached often enough.
_DRAWN: Final[Sequence[tuple[int, Callable[[Play, int, int], None]]]] = (
    (3, hands.node_beat),  # The first is what a failing sequence is reduced to, where nothing is needed.
    (4, claims.enqueue),
    (2, claims.node_enqueue),
    (4, claims.advance),
    (6, claims.look),
    (7, claims.take),
    (7, claims.claim),
    (6, claims.renew),
    (4, claims.report),
    (2, claims.release_all),
    (18, ends.settle),
    (4, ends.settle_lost),
    (3, ends.settle_again),
    (6, ends.read),
    (5, ends.rescue),
    (6, hands.cancel),
    (3, hands.cancel_seen),
    (6, hands.retry),
    (3, hands.set_aside),
    (2, hands.end_unstarted),
    (5, hands.replace),
    (5, hands.replace_running),
    (3, hands.run_after_end),
    (4, hands.reschedule),
    (3, hands.reschedule_between),
    (1, hands.delete),
    (5, hands.update),
    (3, hands.node_claim),
    (9, hands.node_end),
    (3, hands.node_recover),
    (2, hands.node_cancel),
    (3, hands.node_retry),
    (2, hands.node_reschedule),
)
_BY_NAME: Final = {function.__name__: function for _, function in _DRAWN}
_NAMES: Final = [function.__name__ for weight, function in _DRAWN for _ in range(weight)]

SHORTEST: Final = 20
_LONGEST: Final = 24
# What each operation answers is compared at once; everything that is stored, every few steps.
_STEPS_BETWEEN: Final = 4


def _decoded(drawn: bytes) -> list[Operation]:
    steps = zip(drawn[::3], drawn[1::3], drawn[2::3], strict=False)
    return [(_NAMES[choice * len(_NAMES) // 256], a, b) for choice, a, b in steps]


# Three bytes a step. Of a list of tuples, hypothesis tries variations in which many of them are equal: for
# sequences that build on each other that is waste, and of a thousand hardly one got far.
SEQUENCES: Final = st.binary(min_size=3 * SHORTEST, max_size=3 * _LONGEST).map(_decoded)


def play(jobs: JobCollection, sequence: Sequence[Operation]) -> set[str]:
    """Plays one sequence on an empty collection; returns which transitions happened.

    Raises:
        Difference: The two sides differ; says after which step.
    """
    jobs.collection.delete_many({})
    both = Play(jobs)
    for place, (name, a, b) in enumerate(sequence):
        try:
            _BY_NAME[name](both, a, b)
            if place % _STEPS_BETWEEN == 0 or place == len(sequence) - 1:
                both.check_all()
        except Difference as difference:
            difference.add_note(f"in step {place}, {name}({a}, {b}), of {sequence}")
            raise
    return both.model.happened
