"""The lease in time: one holder, one rescuer, one claim, and messages that take as long as they like.

Time passes in ticks for all at once, but each side measures it by its own monotonic clock, which has its own rate.
Wall clocks do not occur: `lastHeartbeat` is only ever compared with itself, and where a clock that steps back could
matter, the value simply does not change. A state holds ages, not moments, so that there are finitely many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from tests.support.thoroughly import THOROUGH

Reading = Literal["idle", "asked", "served", "watching", "taking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The lease arithmetic; the defaults are the design's.

    Attributes:
        interval: H, in ticks; a multiple of 6.
        cleanup: How long a clean-up asks for, in ticks: more than it is given.
        renewals: How many are sent.
        holder_rate: What the holder's clock gains in a tick, in thousandths of one.
        rescuer_rate: The same for the rescuer's.
        lease_counts_from_sending: Otherwise from the answer.
        margin: A sixth of an interval between the end of the clean-up and the end of the lease.
        cleanup_is_clipped: ... to the end of the lease less the margin; otherwise it gets all that it asks for.
        late_answers_start_nothing: An answer that comes after that starts no run.
        beat_grows: Otherwise a renewal may write what is there already: the server's clock stepped back.
        observed_after_answer: The rescuer counts from the answer of its first look; otherwise from its question.
        rescue_observes: It waits for three intervals by its own clock; otherwise a wall clock tells it anything.
        documents_interval: ... of those that the document names; otherwise of its own, which are shorter.
    """

    interval: int = 6
    cleanup: int = 6
    renewals: int = 1
    holder_rate: int = 1000
    rescuer_rate: int = 1000
    lease_counts_from_sending: bool = True
    margin: bool = True
    cleanup_is_clipped: bool = True
    late_answers_start_nothing: bool = True
    beat_grows: bool = True
    observed_after_answer: bool = True
    rescue_observes: bool = True
    documents_interval: bool = True

    @property
    def cancelled_at(self) -> int:
        """Ticks of the holder's clock after the sending at which the run's scope is cancelled."""
        return self.end_at - min(self.cleanup, self.interval // 2)

    @property
    def end_at(self) -> int:
        """... at which its clean-up is over."""
        return 3 * self.interval - (self.interval // 6 if self.margin else 0)

    @property
    def really_over_at(self) -> int:
        """... after which nothing of it runs."""
        return self.end_at if self.cleanup_is_clipped else self.cancelled_at + self.cleanup


class Sent(NamedTuple):
    """A claim or a renewal on its way. `age` is in ticks since it was sent."""

    age: int
    applied: bool = False


class Moment(NamedTuple):
    """The world at one tick.

    Attributes:
        claim: The claim, until it is answered; None afterwards, and where its answer was lost.
        renewal: The renewal under way, which after a lost answer is the one that resolves the claim.
        renewals: How many may still be sent.
        started: The handler runs, or ran.
        lease: Ticks since the sending that the run's lease counts from.
        claimed: The document bears the claim.
        beat: Its `lastHeartbeat`.
        reading: What the rescuer does.
        watched: Ticks since its observation began.
        seen: The heartbeat that it saw.
        taken: The rescue was applied; another instance may run the job from here on.
    """

    claim: Sent | None = Sent(0)
    renewal: Sent | None = None
    renewals: int = 0
    started: bool = False
    lease: int = 0
    claimed: bool = False
    beat: int = 0
    reading: Reading = "idle"
    watched: int = 0
    seen: int = 0
    taken: bool = False


def acts(moment: Moment, arithmetic: Arithmetic) -> bool:
    """Whether code of the holder's run, its clean-up included, may still run."""
    elapsed = moment.lease * arithmetic.holder_rate
    return moment.started and elapsed < arithmetic.really_over_at * 1000


def harm_of(moment: Moment, arithmetic: Arithmetic) -> str | None:
    return "two runs overlap" if moment.taken and acts(moment, arithmetic) else None


def successors(moment: Moment, arithmetic: Arithmetic) -> Iterator[tuple[str, Moment]]:
    yield "a tick", _tick(moment, arithmetic)
    yield from _claim(moment, arithmetic)
    yield from _renewal(moment, arithmetic)
    yield from _rescuer(moment, arithmetic)


def _tick(moment: Moment, arithmetic: Arithmetic) -> Moment:
    # Beyond four intervals nothing depends on an age any more, whatever the rates.
    most = 4 * arithmetic.interval
    return moment._replace(
        claim=_older(moment.claim, most),
        renewal=_older(moment.renewal, most),
        lease=min(moment.lease + 1, most) if moment.started else 0,
        watched=min(moment.watched + 1, most) if moment.reading != "idle" else 0,
    )


def _older(sent: Sent | None, most: int) -> Sent | None:
    return None if sent is None else sent._replace(age=min(sent.age + 1, most))


# --- The holder ---


def _claim(moment: Moment, arithmetic: Arithmetic) -> Iterator[tuple[str, Moment]]:
    claim = moment.claim
    if claim is None:
        return
    if not claim.applied:
        yield "the claim is applied", moment._replace(claim=claim._replace(applied=True), claimed=True)
        return
    yield "the claim is answered", _answered(moment._replace(claim=None), claim, arithmetic)
    if moment.renewals:
        resolving = moment._replace(claim=None, renewal=Sent(0), renewals=moment.renewals - 1)
        yield "the claim's answer is lost; a renewal is sent that resolves it", resolving


def _renewal(moment: Moment, arithmetic: Arithmetic) -> Iterator[tuple[str, Moment]]:
    renewal = moment.renewal
    if renewal is None:
        if moment.started and moment.renewals and not _is_cancelled(moment, arithmetic):
            yield "a renewal is sent", moment._replace(renewal=Sent(0), renewals=moment.renewals - 1)
        return
    if not renewal.applied:
        if moment.claimed:
            applied = moment._replace(renewal=renewal._replace(applied=True))
            yield "the renewal is applied", applied._replace(beat=moment.beat + 1)
            if not arithmetic.beat_grows:
                yield "the renewal is applied, and changes nothing", applied
    else:
        yield "the renewal is answered", _answered(moment._replace(renewal=None), renewal, arithmetic)
    if moment.renewals:
        again = moment._replace(renewal=Sent(0), renewals=moment.renewals - 1)
        yield "the renewal's answer is lost; another is sent", again


def _is_cancelled(moment: Moment, arithmetic: Arithmetic) -> bool:
    return moment.lease * arithmetic.holder_rate >= arithmetic.cancelled_at * 1000


def _answered(moment: Moment, sent: Sent, arithmetic: Arithmetic) -> Moment:
    """An acknowledged sending starts the run, or prolongs its lease; a run that was cancelled stays so."""
    age = sent.age if arithmetic.lease_counts_from_sending else 0
    if moment.started:
        return moment if _is_cancelled(moment, arithmetic) else moment._replace(lease=min(moment.lease, age))
    if age * arithmetic.holder_rate >= arithmetic.end_at * 1000:
        if arithmetic.late_answers_start_nothing:
            return moment
        # It looks at its deadline for the first time when it has already started.
        age = arithmetic.really_over_at * 1000 // arithmetic.holder_rate - 1
    return moment._replace(started=True, lease=age)


# --- The rescuer ---


def _rescuer(moment: Moment, arithmetic: Arithmetic) -> Iterator[tuple[str, Moment]]:
    reading = moment.reading
    if reading == "idle" and moment.claimed:
        yield "the rescuer asks", moment._replace(reading="asked", watched=0)
    elif reading == "asked" and moment.claimed:
        yield "the server reads for it", moment._replace(reading="served", seen=moment.beat)
    elif reading == "served":
        watched = 0 if arithmetic.observed_after_answer else moment.watched
        yield "the rescuer is answered", moment._replace(reading="watching", watched=watched)
    elif reading == "watching" and _is_due(moment, arithmetic):
        yield "the rescuer sends its write", moment._replace(reading="taking", watched=0)
    elif reading == "taking":
        if moment.claimed and moment.beat == moment.seen:
            yield "the claim is taken away", moment._replace(reading="idle", watched=0, claimed=False, taken=True)
        else:
            yield "the rescuer's write finds a change", moment._replace(reading="idle", watched=0)


def _is_due(moment: Moment, arithmetic: Arithmetic) -> bool:
    elapsed = moment.watched * arithmetic.rescuer_rate
    interval = arithmetic.interval if arithmetic.documents_interval else arithmetic.interval // 2
    return not arithmetic.rescue_observes or elapsed >= 3 * interval * 1000


AS_DESIGNED: Final = Arithmetic(interval=12, cleanup=12) if THOROUGH else Arithmetic()

# One renewal that the holder sends, and the rule without which it harms.
BROKEN: Final = {
    "observation counted from before the answer": replace(AS_DESIGNED, observed_after_answer=False),
    "the lease counted from the answer": replace(AS_DESIGNED, lease_counts_from_sending=False),
    "a late answer that starts a run": replace(AS_DESIGNED, late_answers_start_nothing=False),
    "a clean-up that is not clipped": replace(AS_DESIGNED, cleanup_is_clipped=False),
    "a beat that does not grow": replace(AS_DESIGNED, beat_grows=False),
    "rescue by the wall clock": replace(AS_DESIGNED, rescue_observes=False),
    "three intervals of the rescuer's, not the document's": replace(AS_DESIGNED, documents_interval=False),
}
