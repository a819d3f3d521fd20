"""One run of the parent's handler in one state: how a step of it is written down.

A run reads its own memory, and the documents; a step changes one document at most, and the run. The modules of the runs
share this, and the move that leads from all sides into a block's cancellation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .nursery_fates import is_failure
from .nursery_invariants import Harm, Invariant
from .nursery_search import Kind, Step
from .nursery_setting import Setting
from .nursery_state import BLOCK_FAILED, CANCELLED, CANCELLING, COMPLETED, DELETED, PENDING, Child, Run, State


class Turn(NamedTuple):
    """It is this run's turn."""

    state: State
    at: int
    run: Run
    setting: Setting

    @property
    def holds(self) -> bool:
        return self.state.holds(self.run)

    def place(self, number: int) -> int:
        return self.state.place(self.run.scope, number)

    def child(self, number: int) -> Child:
        return self.state.children[self.place(number)]

    def put(self, number: int, child: Child) -> State:
        return self.state.with_child(self.place(number), child)

    def to(self, text: str, state: State | None = None, kind: Kind = Kind.OURS, **changes: Any) -> Step[State]:
        """The run goes on; the state is the one after its write, if it writes."""
        after = (self.state if state is None else state).with_run(self.at, self.run._replace(**changes))
        return Step(f"run {self.run.epoch} {text}", after, kind)

    def over(self, text: str, state: State | None = None, kind: Kind = Kind.OURS) -> Step[State]:
        """The run is over."""
        after = (self.state if state is None else state).without_run(self.at)
        return Step(f"run {self.run.epoch} {text}", after, kind)

    # --- What several phases do ---

    def pending_again(self, number: int) -> State:
        """Inserts the child, or makes it pending again."""
        child = self.child(number)
        if child.by_operator and child.status == CANCELLED and child.run >= self.run.scope_try:
            raise Harm(Invariant.OPERATOR_IS_OBEYED)
        if self.holds:
            self._check_kept(child)
            if self.state.parent.went_on:
                raise Harm(Invariant.NOTHING_STARTED_BEHIND)
        return self.put(number, pending(child, self.run.epoch))

    def fails_by(self, number: int) -> Step[State]:
        """The block fails by the end of this child."""
        child = self.child(number)
        if self.holds:
            self._check_kept(child)
            if child.run < self.run.scope_try:
                raise Harm(Invariant.RETRY_BEGINS_ANEW)
            if self.state.parent.in_vain:
                raise Harm(Invariant.NO_ATTEMPT_IN_VAIN)
            if child.status == CANCELLED and 0 < child.cancelled_by < self.run.epoch:
                raise Harm(Invariant.STALE_RUNS_DO_NO_HARM)
            if not any(is_failure(one) for one in self.state.of_scope(self.run.scope)):
                raise Harm(Invariant.FAILED_BY_A_CHILD)
        return self.to(f"fails by child {number}", phase=CANCELLING, why=BLOCK_FAILED, seen=None)

    def buried(self, number: int) -> State:
        """With a tombstone for a child that was deleted: its end stays, also for the next run."""
        child = self.child(number)
        if self.holds:
            self._check_kept(child)
        tombstone = child._replace(status=CANCELLED, run=self.run.epoch, cancelled_by=0, by_operator=True)
        return self.put(number, tombstone)

    def checked_end(self, number: int) -> str:
        """The end of a child, as the block hands it to the handler."""
        child = self.child(number)
        if child.status == CANCELLED and child.cancelled_by:
            raise Harm(Invariant.ENDS_ARE_OF_CHILDREN)
        if self.holds and child.status == COMPLETED and child.occurrence != self.state.parent.occurrence:
            raise Harm(Invariant.OWN_RESULTS)
        return child.status

    def _check_kept(self, child: Child) -> None:
        """Whether retention has deleted what is of use: a result, or an end in this try."""
        is_pruned = child.status == DELETED and not child.by_operator
        if is_pruned and (child.completions or child.run >= self.run.scope_try):
            raise Harm(Invariant.RESULTS_ARE_KEPT)


def pending(child: Child, epoch: int) -> Child:
    """Started by the run of this epoch, and without the mark of any pass."""
    unmarked = child._replace(cancelled_by=0, by_operator=False)
    return unmarked._replace(status=PENDING, by_node=False, is_asked=False, run=epoch)
