"""What a run makes of a child: one pure decision, for a child that it starts and for one that it waits for.

The decision is made from the child's document as it was read, and from the epoch and the try of the run; the write that
follows asks for what was read. Nothing else in the model looks at the mark that a pass leaves.
"""

from __future__ import annotations

from enum import Enum

from .nursery_rules import Rule
from .nursery_setting import Setting
from .nursery_state import ABSENT, CANCELLED, COMPLETED, DELETED, DETACHED, FAILED, LIVE, Child, Run


class Fate(Enum):
    """What becomes of it."""

    INSERT = "starts"
    ADOPT = "adopts"
    TAKE = "takes the result of"
    RUN_AGAIN = "runs again"
    END = "takes the failure of"
    LEAVE = "is the stale one: it leaves"


def fate_of(child: Child, run: Run, setting: Setting) -> Fate:
    """For a run that cancels nothing itself, and waits for the child."""
    is_of_older_try = child.run < run.scope_try and setting.has(Rule.NEW_TRY)
    if child.status in (ABSENT, DELETED):
        return Fate.INSERT
    if child.status == DETACHED:
        return Fate.LEAVE
    if child.status in LIVE:
        return Fate.ADOPT
    if child.status == COMPLETED:
        return Fate.TAKE
    if child.status == CANCELLED and child.cancelled_by >= run.epoch and setting.has(Rule.NEWER_WINS):
        return Fate.LEAVE
    if is_of_older_try:
        return Fate.RUN_AGAIN
    is_of_stale_run = child.status == CANCELLED and 0 < child.cancelled_by < run.epoch
    return Fate.RUN_AGAIN if is_of_stale_run and setting.has(Rule.HEAL) else Fate.END


def fate_at_start(child: Child, run: Run, setting: Setting) -> Fate:
    """For a child that is asked for; what ended in an earlier run of this try stays as it is."""
    fate = fate_of(child, run, setting)
    keeps = {Fate.TAKE: Rule.KEEP_COMPLETED, Fate.END: Rule.KEEP_FAILED}
    return Fate.RUN_AGAIN if fate in keeps and not setting.has(keeps[fate]) else fate


def has_failed(child: Child, run: Run, setting: Setting) -> bool:
    """Whether a child that was started makes its block fail. Of a deleted one the tombstone does, once it is there."""
    if child.status == DELETED:
        return not setting.has(Rule.DELETED_LEAVES_TOMBSTONE)
    return fate_of(child, run, setting) is Fate.END


def has_end(child: Child, run: Run, setting: Setting) -> bool:
    """Whether a child that was started has an end that stays."""
    return child.status == COMPLETED or has_failed(child, run, setting)


def is_failure(child: Child) -> bool:
    """Whether a child is a reason of its own for the failure of its block."""
    return child.status in (FAILED, DELETED) or (child.status == CANCELLED and child.by_operator)
