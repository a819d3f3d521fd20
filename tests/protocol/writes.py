"""The conditional writes: what each asks of the document, what it leaves, and what harm it did if it could.

A write returns the document behind it, or None where its guard did not hold; and a harm, or "". The ghosts, which no
guard looks at, show the harm: what must not happen is said here without the protocol's own means.
"""

from __future__ import annotations

from typing import Final, Literal

from .rules import Setting
from .state import NODE, Copy, Document, Fence, LateClaim, Outcome, Token, is_ours

Written = tuple[Document | None, str]
End = Literal[
    "complete", "go on", "go on, exhausted", "fail", "retry", "release", "disown", "rescue", "give up", "cancel"
]

NOT_WRITTEN: Final[Written] = (None, "")


def holds(document: Document, fence: Fence, compared: tuple[str, ...]) -> bool:
    """Whether the document satisfies the fence, or what the rules have left of it."""
    return (
        ("status" not in compared or document.status == "processing")
        and ("claimed_by" not in compared or document.claimed_by == fence.claimed_by)
        and ("locked_at" not in compared or document.locked_at == fence.locked_at)
        and ("claim_token" not in compared or document.claim_token == fence.claim_token)
    )


def freed(document: Document) -> Document:
    """Without the claim, and without the request that was meant for it."""
    return document._replace(claimed_by="", locked_at=0, claim_token=None, last_heartbeat=0, cancel_requested=0)


# --- pending -> processing ---


def claimable(document: Document, setting: Setting) -> bool:
    rules = setting.rules
    if document.status != "pending" or (rules.claim_wants_no_holder and document.claimed_by):
        return False
    return document.due or not rules.claim_repeats_condition


def claim(document: Document, message: LateClaim, setting: Setting) -> Written:
    """The guarded write: the whole condition again, and the pins."""
    token, pins = message
    if not claimable(document, setting):
        return NOT_WRITTEN
    if pins is not None and any(getattr(pins, name) != getattr(document, name) for name in setting.rules.pins):
        return NOT_WRITTEN
    claimed = document._replace(
        status="processing",
        claimed_by=token.claimed_by,
        locked_at=token.locked_at,
        claim_token=token,
        last_heartbeat=0,
        attempts=document.attempts + 1,
        claims=document.claims + 1,
        cancel_requested=0 if setting.rules.claim_clears_request else document.cancel_requested,
    )
    return claimed, _harm_of_claim(document, claimed)


def _harm_of_claim(before: Document, claimed: Document) -> str:
    if before.claimed_by:
        return "two holders: a claim was taken from its holder"
    if not before.due:
        return "a job was claimed that had been put off"
    if claimed.cancel_requested:
        return "a request outlived its claim, and cancels another run"
    return ""


# --- The ends of a claim ---


def end_of(copy: Copy, outcome: Outcome, setting: Setting) -> End:
    """Which end an outcome means. The instance decides from its copy; the fence proves that to be current."""
    if outcome == "success":
        return "go on" if copy.schedule else "complete"
    if outcome == "failure":
        if copy.fail_count + 1 < setting.bounds.max_attempts:
            return "retry"
        return "go on, exhausted" if copy.schedule else "fail"
    return "release" if outcome == "release" else "cancel"


def settle(document: Document, token: Token, copy: Copy, end: End, setting: Setting) -> Written:
    """What a run's end writes, under the fence of its claim."""
    rules = setting.rules
    fence = Fence(token.claimed_by, token.locked_at, token)
    if not holds(document, fence, rules.fence) or (end in rules.obeying and document.cancel_requested):
        return NOT_WRITTEN
    if _mistakes_schedule(document, copy, end, setting):
        return NOT_WRITTEN
    harm = _harm_of_end(document, copy, end)
    return _ended(document, end), harm


def _mistakes_schedule(document: Document, copy: Copy, end: End, setting: Setting) -> bool:
    rules = setting.rules
    if end == "complete":
        return rules.completion_is_fenced_on_one_off and document.schedule != 0
    if end in ("go on", "go on, exhausted", "fail"):
        return rules.schedule_is_fenced and document.schedule != copy.schedule
    return False


def _ended(document: Document, end: End) -> Document:
    free = freed(document)
    if end == "complete":
        return free._replace(status="completed", rescues=0)
    if end in ("go on", "go on, exhausted"):
        return free._replace(status="pending", due=False, fail_count=0, rescues=0)
    if end == "retry":
        return free._replace(status="pending", due=False, fail_count=document.fail_count + 1, rescues=0)
    if end == "fail":
        return free._replace(status="failed", fail_count=document.fail_count + 1, rescues=0)
    if end == "give up":
        return free._replace(status="failed", rescues=0)
    if end == "cancel":
        return free._replace(status="cancelled", rescues=0)
    return free._replace(status="pending")


def _harm_of_end(document: Document, copy: Copy, end: End) -> str:
    if document.status != "processing" or document.claims != copy.claim:
        return f"a claim that was lost changed the job ({end})"
    if end == "cancel":
        return "" if document.cancel_requested == copy.claim else "a run was cancelled for a request of another claim"
    if document.cancel_requested == copy.claim and end != "complete":
        return f"an acknowledged request to cancel was wiped ({end})"
    if end in ("go on", "go on, exhausted") and document.schedule != copy.schedule:
        return "a next occurrence was computed from a schedule that is no longer in the document"
    if end in ("complete", "fail") and document.schedule != copy.schedule:
        return f"a schedule was declared over the job and died unnoticed ({end})"
    return ""


def disown(document: Document, token: Token, setting: Setting) -> Written:
    """Gives back, by the stamp alone, what a claim took whose answer was lost."""
    fence = Fence(token.claimed_by, token.locked_at, token)
    if not holds(document, fence, setting.rules.fence):
        return NOT_WRITTEN
    if document.cancel_requested and "disown" in setting.rules.obeying:
        return NOT_WRITTEN
    if document.cancel_requested:
        return _ended(document, "release"), "an acknowledged request to cancel was wiped (disown)"
    if document.claim_token != token:
        return _ended(document, "release"), "a claim that was lost changed the job (disown)"
    return _ended(document, "release"), ""


# --- Rescue: the end of a claim, written by another instance ---


def _still_as_observed(document: Document, fence: Fence, beat: int, *, with_beat: bool, setting: Setting) -> bool:
    if document.status != "processing":
        return False
    if setting.rules.rescue_is_fenced and not holds(document, fence, setting.rules.fence):
        return False
    return not with_beat or document.last_heartbeat == beat


def _may_be_asked_to_stop(document: Document, setting: Setting) -> bool:
    return is_ours(document) or not setting.rules.request_on_foreign_is_stale


def rescue(document: Document, fence: Fence, beat: int, copy: Copy, setting: Setting) -> Written:
    """Takes a dead claim away: counted as a death, not as a failure; above the limit the job does not come back."""
    rules, bounds = setting.rules, setting.bounds
    if not _still_as_observed(document, fence, beat, with_beat=rules.rescue_pins_beat, setting=setting):
        return NOT_WRITTEN
    given_up = copy.rescues + 1 > bounds.max_rescues
    end: End = "rescue" if not given_up else "go on, exhausted" if copy.schedule else "give up"
    if document.cancel_requested and end in rules.obeying and _may_be_asked_to_stop(document, setting):
        return NOT_WRITTEN
    if given_up and rules.schedule_is_fenced and document.schedule != copy.schedule:
        return NOT_WRITTEN
    harm = _harm_of_end(document, copy, end)
    after = _ended(document, end)
    if end == "rescue":
        # The first makes the job due at once, the others back off.
        after = after._replace(rescues=document.rescues + 1, due=document.rescues == 0)
        if not rules.rescue_is_no_failure:
            last = document.fail_count + 1 >= bounds.max_attempts
            after = after._replace(fail_count=document.fail_count + 1, status="failed" if last else "pending")
            harm = harm or ("a job failed although no attempt of it did" if last else "")
    return after, harm


def must_cancel_instead(document: Document, fence: Fence, beat: int, setting: Setting) -> bool:
    """Whether a rescue was not written because of a request to cancel the run."""
    with_beat = setting.rules.rescue_cancels_under_beat
    return (
        setting.rules.rescue_cancels_instead
        and document.cancel_requested != 0
        and _may_be_asked_to_stop(document, setting)
        and _still_as_observed(document, fence, beat, with_beat=with_beat, setting=setting)
    )


def cancel_observed(document: Document, fence: Fence, beat: int, copy: Copy, setting: Setting) -> Written:
    """What a rescue writes instead."""
    with_beat = setting.rules.rescue_cancels_under_beat
    if not _still_as_observed(document, fence, beat, with_beat=with_beat, setting=setting):
        return NOT_WRITTEN
    return _ended(document, "cancel"), _harm_of_end(document, copy, "cancel")


# --- Under a claim, without ending it ---


def renew(document: Document, token: Token, setting: Setting, *, grows: bool) -> Document | None:
    if not holds(document, Fence(token.claimed_by, token.locked_at, token), setting.rules.fence):
        return None
    return document._replace(last_heartbeat=document.last_heartbeat + 1) if grows else document


def request_cancel(document: Document, fence: Fence, setting: Setting) -> Written:
    """Asks the holder of a claim of ours to stop."""
    rules = setting.rules
    if document.status != "processing" or (rules.request_is_fenced and not holds(document, fence, rules.fence)):
        return NOT_WRITTEN
    if document.cancel_requested:
        return NOT_WRITTEN
    harm = "a request was acknowledged on a Node peer's claim, where nobody hears it"
    return document._replace(cancel_requested=document.claims), harm if document.claimed_by == NODE else ""
