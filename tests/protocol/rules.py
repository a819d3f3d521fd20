"""The rules of the protocol, which can each be taken out alone, and the bounds within which it is tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ALL_OF_THE_FENCE: Final = ("status", "claimed_by", "locked_at", "claim_token")

# What a claim pins by equality of the copy that was read before it.
PINS: Final = ("attempts", "fail_count", "rescues", "rev")

# The ends of a claim that a requested cancellation stands in the way of: all but completing a one-off job.
ENDS_THAT_OBEY: Final = frozenset(
    {"go on", "go on, exhausted", "fail", "retry", "release", "disown", "rescue", "give up"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol. The defaults are the design's; a test takes one out and shows what goes wrong.

    Attributes:
        fence: Which fields a write under a claim compares, besides the id.
        claim_repeats_condition: The guarded write of a claim repeats that the job is due, not only its status.
        claim_wants_no_holder: ... and that `claimedBy` is absent.
        pins: What else a claim without a read-back compares.
        edits_are_counted: Every edit of a pending job adds 1 to `rev`.
        claim_is_exact: What a handler gets was pinned by the write, or read back behind it.
        claim_clears_request: A claim clears a request that was left behind by an earlier one.
        token_is_sent_once: A claim whose answer was lost is never sent again with the same token.
        lost_claim_is_disowned: One that is not found is released at every beat: it may be applied later.
        resolved_by_majority: By a write and a read that a majority answers, not by what one server has.
        obeying: The ends of a claim that look for a requested cancellation and write `cancelled` instead.
        request_is_fenced: A cancellation is requested under the fence of the claim that was read.
        schedule_is_fenced: A next occurrence is written only while the schedule is the one it was computed from.
        completion_is_fenced_on_one_off: A job is completed for good only while it has no schedule.
        beat_grows: Each renewal writes a greater `lastHeartbeat`, whatever the clocks say.
        resolving_beat_grows: So does the renewal that resolves a claim.
        rescue_observes: A claim is dead when it did not change for three intervals; otherwise by the wall clock.
        observed_after_answer: ... counted from the answer of the first look; otherwise from its question.
        rescue_is_fenced: The rescue is conditional on the claim that was observed.
        rescue_pins_beat: ... and on its heartbeat.
        rescue_cancels_instead: Where a cancellation was requested, the rescue writes that.
        rescue_cancels_under_beat: ... and that is conditional on the heartbeat too.
        rescue_is_no_failure: A rescue is not counted among the failures.
        request_on_foreign_is_stale: On a Node peer's claim a request can only be one that was left behind.
    """

    fence: tuple[str, ...] = ALL_OF_THE_FENCE
    claim_repeats_condition: bool = True
    claim_wants_no_holder: bool = True
    pins: tuple[str, ...] = PINS
    edits_are_counted: bool = True
    claim_is_exact: bool = True
    claim_clears_request: bool = True
    token_is_sent_once: bool = True
    lost_claim_is_disowned: bool = True
    resolved_by_majority: bool = True
    obeying: frozenset[str] = ENDS_THAT_OBEY
    request_is_fenced: bool = True
    schedule_is_fenced: bool = True
    completion_is_fenced_on_one_off: bool = True
    beat_grows: bool = True
    resolving_beat_grows: bool = True
    rescue_observes: bool = True
    observed_after_answer: bool = True
    rescue_is_fenced: bool = True
    rescue_pins_beat: bool = True
    rescue_cancels_instead: bool = True
    rescue_cancels_under_beat: bool = True
    rescue_is_no_failure: bool = True
    request_on_foreign_is_stale: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen in one history. Each budget is shared by all that draw on it, in any combination.

    Attributes:
        recurring: The job has a schedule.
        claims: Claims sent by our instances.
        faults: Lost and late answers, roll-backs, crashes, freezes, an instance cut off for a lease.
        hands: What people do: cancel, retry, edit, reschedule; and a shutdown that cuts a run short.
        beats: Heartbeats sent.
        node: What a Node peer begins: claims, recoveries, retries.
        moments_coincide: Every claim has the same `lockedAt`: clocks are free to do that. Otherwise none has.
        mixed_batches: Claims in batches whose pins differ, which are read back.
        max_attempts: Failures after which a job ends.
        max_rescues: Deaths in a row after which a job is given up.
    """

    recurring: bool = False
    claims: int = 2
    faults: int = 1
    hands: int = 1
    beats: int = 1
    node: int = 0
    moments_coincide: bool = True
    mixed_batches: bool = False
    max_attempts: int = 1
    max_rescues: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One game: what is allowed, and how much of it."""

    rules: Rules
    bounds: Bounds
