"""Every rule taken out alone, with the harm that it was there to prevent.

The bounds of each are as small as the harm allows, so that all of them together take seconds. `REDUNDANT` lists
what does no harm on its own; the rules stay all the same, for the reason given there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .rules import ALL_OF_THE_FENCE, ENDS_THAT_OBEY, PINS, Bounds, Rules


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule taken out.

    Attributes:
        rule: What is missing, in words.
        rules: The protocol without it.
        bounds: Where that does harm.
        harm: How the text of the harm begins; for a redundant rule, why it is there.
    """

    rule: str
    rules: Rules
    bounds: Bounds
    harm: str

    def __str__(self) -> str:
        return self.rule.replace(" ", "-")


def _bounds(
    *, claims: int = 1, faults: int = 0, hands: int = 0, beats: int = 0, node: int = 0, recurring: bool = False
) -> Bounds:
    return Bounds(claims=claims, faults=faults, hands=hands, beats=beats, node=node, recurring=recurring)


def _fence(*compared: str) -> Rules:
    return Rules(fence=compared)


def _without(field: str) -> Rules:
    return Rules(fence=tuple(name for name in ALL_OF_THE_FENCE if name != field))


def _unpinned(field: str) -> Rules:
    return Rules(pins=tuple(name for name in PINS if name != field))


def _ignoring(end: str) -> Rules:
    return Rules(obeying=ENDS_THAT_OBEY - {end})


LOST_CLAIM: Final = "a claim that was lost changed the job"
OVERLAP: Final = "two runs overlap"
WIPED: Final = "an acknowledged request to cancel was wiped"
LIVING: Final = "a death was counted although the holder lived"
STALE: Final = "a handler was given a stale copy"
ATTEMPT: Final = "`attempt` did not grow"

THE_FENCE: Final = (
    Mutation("the fence on the token alone", _fence("claim_token"), _bounds(node=1), LOST_CLAIM),
    Mutation("the fence on status and token", _fence("status", "claim_token"), _bounds(node=2), LOST_CLAIM),
    Mutation("the fence on claimedBy alone", _fence("claimed_by"), _bounds(claims=2, hands=1), LOST_CLAIM),
    Mutation("the fence without claimedBy", _without("claimed_by"), _bounds(node=2), LOST_CLAIM),
    Mutation("the fence without the token", _without("claim_token"), _bounds(claims=2, hands=1), LOST_CLAIM),
    # Node's claims have no token of their own: there, the moment alone tells one from the next.
    Mutation("the fence without lockedAt", _without("locked_at"), _bounds(node=2, hands=1), LOST_CLAIM),
)

THE_CLAIM: Final = (
    Mutation(
        "the guard by status only",
        Rules(claim_repeats_condition=False),
        Bounds(claims=1, faults=0, hands=1, beats=0, mixed_batches=True),
        "a job was claimed that had been put off",
    ),
    Mutation("no pins and no read-back", Rules(claim_is_exact=False), _bounds(hands=1), STALE),
    Mutation("attempts not pinned", _unpinned("attempts"), _bounds(claims=2, hands=1), ATTEMPT),
    Mutation(
        "failCount not pinned",
        _unpinned("fail_count"),
        Bounds(claims=1, faults=0, hands=0, beats=0, node=1, max_attempts=2),
        STALE,
    ),
    Mutation("rescues not pinned", _unpinned("rescues"), _bounds(faults=1, node=1), STALE),
    Mutation("rev not pinned", _unpinned("rev"), _bounds(hands=1), STALE),
    Mutation("an edit that is not counted", Rules(edits_are_counted=False), _bounds(hands=1), STALE),
    Mutation(
        "a request not cleared by the claim",
        Rules(claim_clears_request=False),
        _bounds(claims=2, hands=1, node=1),
        "a request outlived its claim",
    ),
    Mutation(
        "a token sent twice",
        Rules(token_is_sent_once=False),
        Bounds(claims=2, faults=2, hands=0, beats=0, mixed_batches=True, max_attempts=2),
        LOST_CLAIM,
    ),
    Mutation("a lost claim forgotten", Rules(lost_claim_is_disowned=False), _bounds(faults=1), LIVING),
    Mutation(
        "a claim resolved by a local read", Rules(resolved_by_majority=False), _bounds(claims=2, faults=1), OVERLAP
    ),
)

THE_REQUEST: Final = (
    Mutation(
        "recurring success ignores a request", _ignoring("go on"), _bounds(hands=1, recurring=True), f"{WIPED} (go on)"
    ),
    Mutation("the last failure ignores a request", _ignoring("fail"), _bounds(hands=1), f"{WIPED} (fail)"),
    Mutation(
        "exhaustion ignores a request",
        _ignoring("go on, exhausted"),
        _bounds(hands=1, recurring=True),
        f"{WIPED} (go on, exhausted)",
    ),
    Mutation(
        "a retry ignores a request",
        _ignoring("retry"),
        Bounds(claims=1, faults=0, hands=1, beats=0, max_attempts=2),
        f"{WIPED} (retry)",
    ),
    Mutation("a release ignores a request", _ignoring("release"), _bounds(hands=2), f"{WIPED} (release)"),
    Mutation(
        "disowning ignores a request", _ignoring("disown"), _bounds(faults=1, hands=1, beats=1), f"{WIPED} (disown)"
    ),
    Mutation("a rescue ignores a request", _ignoring("rescue"), _bounds(faults=1, hands=1), f"{WIPED} (rescue)"),
    Mutation(
        "the last rescue ignores a request",
        _ignoring("give up"),
        Bounds(claims=1, faults=1, hands=1, beats=0, max_rescues=0),
        f"{WIPED} (give up)",
    ),
    Mutation(
        "a request by status alone",
        Rules(request_is_fenced=False),
        _bounds(hands=2, node=1),
        "a request was acknowledged on a Node peer's claim",
    ),
    Mutation(
        "the rescue of a Node claim obeys a request",
        Rules(request_on_foreign_is_stale=False),
        _bounds(faults=1, hands=1, node=2),
        "a run was cancelled for a request of another claim",
    ),
)

THE_SCHEDULE: Final = (
    Mutation(
        "a next occurrence not fenced on its schedule",
        Rules(schedule_is_fenced=False),
        _bounds(hands=1, recurring=True),
        "a next occurrence was computed from a schedule",
    ),
    Mutation(
        "a last failure not fenced on there being no schedule",
        Rules(schedule_is_fenced=False),
        _bounds(hands=1),
        "a schedule was declared over the job and died unnoticed (fail)",
    ),
    Mutation(
        "a completion not fenced on there being no schedule",
        Rules(completion_is_fenced_on_one_off=False),
        _bounds(hands=1),
        "a schedule was declared over the job and died unnoticed (complete)",
    ),
)

THE_RESCUE: Final = (
    Mutation("a beat that does not grow", Rules(beat_grows=False), _bounds(claims=2, beats=1), OVERLAP),
    Mutation(
        "a resolving beat that does not grow", Rules(resolving_beat_grows=False), _bounds(claims=2, faults=1), OVERLAP
    ),
    Mutation("rescue by the wall clock", Rules(rescue_observes=False), _bounds(claims=2), OVERLAP),
    Mutation(
        "observation counted from before the answer",
        Rules(observed_after_answer=False),
        _bounds(claims=2, beats=1),
        OVERLAP,
    ),
    Mutation("a rescue of whatever claim there is", Rules(rescue_is_fenced=False), _bounds(claims=3, hands=1), OVERLAP),
    Mutation(
        "a rescue of whatever heartbeat there is", Rules(rescue_pins_beat=False), _bounds(claims=2, beats=1), OVERLAP
    ),
    Mutation(
        "a rescue that cancels whatever heartbeat there is",
        Rules(rescue_cancels_under_beat=False),
        _bounds(claims=2, hands=2, beats=1),
        OVERLAP,
    ),
    Mutation(
        "a rescue that leaves alone what shall be cancelled",
        Rules(rescue_cancels_instead=False),
        _bounds(hands=1),
        "the job is lost",
    ),
    Mutation(
        "a rescue counted as a failure",
        Rules(rescue_is_no_failure=False),
        _bounds(faults=1),
        "a job failed although no attempt of it did",
    ),
)

FOUND: Final = (*THE_FENCE, *THE_CLAIM, *THE_REQUEST, *THE_SCHEDULE, *THE_RESCUE)

_ANYTHING: Final = Bounds(claims=1, faults=1, hands=1, beats=0, node=1)
_MOMENTS_DIFFER: Final = Bounds(claims=2, faults=0, hands=1, beats=0, node=1, moments_coincide=False)

REDUNDANT: Final = (
    Mutation(
        "the fence without the status",
        _without("status"),
        _ANYTHING,
        "it says what is meant, and serves the indexes; every end of a claim, Node's too, takes `claimedBy` away",
    ),
    Mutation(
        "a claim that does not ask for a holder",
        Rules(claim_wants_no_holder=False),
        _ANYTHING,
        "no pending job has one; Monque's documentation asks for it, and its index serves the query",
    ),
    Mutation(
        "the fence without claimedBy where no two moments coincide",
        _without("claimed_by"),
        _MOMENTS_DIFFER,
        "but clocks are free to make them coincide",
    ),
    Mutation(
        "the fence without the token where no two moments coincide",
        _without("claim_token"),
        _MOMENTS_DIFFER,
        "but clocks are free to make them coincide",
    ),
    Mutation(
        "the fence without lockedAt where there is no Node peer",
        _without("locked_at"),
        Bounds(claims=2, faults=1, hands=1, beats=0),
        "the token embeds it; a Node peer's claims have none",
    ),
)
