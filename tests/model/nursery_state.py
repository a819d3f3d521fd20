"""What is in the world of a job nursery: the parent's document, its children's, the runs of its handler, the sweeper.

Fields that lie in a document are named after what they mean; the name there is in the comment. Ghosts lie nowhere: the
model alone knows them, to see whether an invariant is broken.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ABSENT, PENDING, PROCESSING = "absent", "pending", "processing"
COMPLETED, FAILED, CANCELLED, DELETED = "completed", "failed", "cancelled", "deleted"
DETACHED = "detached"  # A child that was retried by hand after the scope was over: an ordinary job from then on.
LIVE: Final = (PENDING, PROCESSING)
ENDED: Final = (COMPLETED, FAILED, CANCELLED)

CHILDREN: Final = 2  # In the one block that a scope has.
MOST_CLAIMS: Final = 6  # Of the parent.
NEWER_THAN_ALL: Final = 9  # The epoch that a sweep of a deleted parent's children writes.

# Why a run leaves its block or ends.
HAS_RESULTS, RETURNS = "has all results", "returns"
BLOCK_FAILED, RAISED = "a child failed", "raised"
ASKED, SHUT_DOWN, LOST, OUTLASTED = "asked to end", "shut down", "lost its claim", "has waited for too long"

# Where a run is.
BEFORE, STARTING, WAITING, LEAVING, CANCELLING, BEHIND, ENDING = (
    *("before its block", "starts children", "waits"),
    *("leaves normally", "cancels its block", "behind its block", "ends"),
)
INSIDE: Final = (WAITING, LEAVING, CANCELLING)
"""Where a run waits for its children, without a slot."""


class Child(NamedTuple):
    """A child's document."""

    status: str = ABSENT
    by_node: bool = False
    is_asked: bool = False  # cancelRequestedAt
    run: int = 0  # scopeRun
    cancelled_by: int = 0  # scopeCancel; 0: absent
    by_operator: bool = False  # Ghost: an operator has cancelled or deleted it.
    occurrence: int = 0  # Ghost: in which occurrence of the parent it was completed.
    completions: int = 0  # Ghost.
    failures: int = 0  # Ghost.


class Parent(NamedTuple):
    """The parent's document."""

    status: str = PENDING
    attempts: int = 0
    is_asked: bool = False  # cancelRequestedAt
    scope: int = 0  # ownScope; 0: absent
    scope_for: int = 0  # ownScopeFor
    scope_try: int = 0  # scopeTry; 0: absent
    has_failed: bool = False  # scopeFailed: its block has failed in this try.
    tries: int = 0  # failCount
    deaths: int = 0  # rescues
    again: bool = False  # Other data was left in it for a run after this one.
    occurrence: int = 1  # Of its schedule, or of its data.
    hard_deaths: int = 0  # Ghost: deaths since a run of it last came to its wait.
    went_on: str = ""  # Ghost: the end of the block behind which the handler went on in this try.
    in_vain: bool = False  # Ghost: it is retried although its block had failed.


class Run(NamedTuple):
    """One run of the parent's handler: what it has in memory."""

    epoch: int
    phase: str = BEFORE
    scope: int = 0
    scope_try: int = 0
    knows_failed: bool = False  # Its block has failed: it found that in the parent, or has written it.
    has_opened: bool = False  # Its scope is new: no earlier run has started anything in it.
    wanted: int = 0  # The children that it asks for, as bits; 0: undecided.
    started: int = 0
    unanswered: int = 0  # Starts whose outcome is unknown.
    seen: Child | None = None  # The next child, as it was read.
    ends: str = ""  # Of its children, as it found them.
    why: str = ""
    is_cut: bool = False  # Its clean-up took too long.


class Sweep(NamedTuple):
    """The sweeper of one instance."""

    doing: str = ""
    scope: int = 0
    epoch: int = 0


class Budget(NamedTuple):
    """How often each fault may happen."""

    kills: int = 0
    losses: int = 0  # A claim is lost, and its run goes on.
    failures: int = 0  # Of children, for good.
    errors: int = 0  # Of the parent's handler.
    hands: int = 0  # Of operators: cancel, retry, delete.
    child_retries: int = 0
    child_deletions: int = 0
    node: int = 0  # A Node peer runs children.
    node_parent: int = 0  # A Node peer runs an occurrence of the parent.
    late: int = 0  # Inserts without an answer.
    shutdowns: int = 0
    limits: int = 0  # `lock_timeout` ends the renewals of a run.
    pruned: int = 0  # By retention.
    cuts: int = 0  # Clean-ups that take too long.
    crashes: int = 0  # Children that are released, rescued or retried.
    other_ways: int = 0  # Runs that return without coming to their block.
    transactions: int = 0
    replacements: int = 0
    same_keys: int = 0  # Calls with the key of a child.
    slow_starts: int = 0  # Starts that write some time after they have read.


class State(NamedTuple):
    """All of it. The children of scope 1 come first, then those of scope 2."""

    parent: Parent
    runs: tuple[Run, ...]
    budget: Budget
    children: tuple[Child, ...] = ()
    sent: frozenset[tuple[int, int]] = frozenset()
    """Inserts that may yet be applied: the places of the children, each with the epoch of the run that sent it."""
    sweep: Sweep = Sweep()

    def place(self, scope: int, number: int) -> int:
        return (scope - 1) * CHILDREN + number

    def scope_of_child(self, place: int) -> int:
        return place // CHILDREN + 1

    def of_scope(self, scope: int) -> tuple[Child, ...]:
        return self.children[(scope - 1) * CHILDREN : scope * CHILDREN] if scope else ()

    def lives(self, scope: int) -> bool:
        """Whether a child of the scope does."""
        return any(child.status in LIVE for child in self.of_scope(scope))

    def holds(self, run: Run) -> bool:
        return self.parent.status == PROCESSING and self.parent.attempts == run.epoch

    def with_child(self, place: int, child: Child) -> State:
        return self._replace(children=(*self.children[:place], child, *self.children[place + 1 :]))

    def with_run(self, at: int, run: Run) -> State:
        return self._replace(runs=(*self.runs[:at], run, *self.runs[at + 1 :]))

    def without_run(self, at: int) -> State:
        return self._replace(runs=self.runs[:at] + self.runs[at + 1 :])

    def paid(self, fault: str) -> State | None:
        """With one of these faults less; None if there is none left."""
        left: int = getattr(self.budget, fault)
        return self._replace(budget=self.budget._replace(**{fault: left - 1})) if left else None
