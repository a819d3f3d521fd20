"""The rules of the job nursery, each with the harm that is done without it.

Both models ask for a rule wherever a transition is guarded by it: of one whose parent is a job, and of one whose parent
is a program. A test takes out one rule at a time, and an invariant (see `nursery_invariants`) must break.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Rule(Enum):
    """The number in the design, and what happens without the rule."""

    # --- Opening ---
    FENCED_SCOPE = "N1", "A stale run opens a scope that no job has, and its children are swept while it waits."
    SCOPE_ENDS_WITH_JOB = "N2", "The run after a completion takes the results of the run before for its own."
    SCOPE_FOR_OCCURRENCE = "N3", "Node ends an occurrence without clearing the scope; the next one takes its results."
    REPLACE_CLEARS = "N4", "After a replacement, the run with the new data takes the results of the old."
    AGAIN_CLEARS = "N4", "The run that was left for after the end takes the results of the one before."
    NO_TRANSACTION_INSIDE = "N5", "A transaction completes the job in an open block, and its children live."
    TRANSACTION_CLOSES = "N5", "A transaction completes the job, and children that an earlier run started live."
    # --- Starting ---
    KEEP_COMPLETED = "N6", "A child that has completed runs again in the next run of its parent."
    TOMBSTONE = "N7", "An insert whose answer was lost is applied after the block was left."
    DELETED_LEAVES_TOMBSTONE = "N7", "The block fails by a deleted child, and the next run starts that child anew."
    GUARDED_START = "N15", "A run writes by what it read; meanwhile another run started the child, and it completed."
    # --- Failing ---
    REPEATED_PASS = "N9", "A child is claimed between the two statements of a pass, and outlives the block."
    FAILURE_IS_RECORDED = (
        "N11",
        "A later run starts a child that the failed block did not have, before it finds the failure.",
    )
    KEEP_FAILED = "N12", "A child fails, the handler undoes the block and is killed, and the child succeeds after all."
    LOST_LEAVES = "N13", "The children of a parent that moves to another instance are cancelled."
    HEAL = "N14", "A run fails because a stale one has cancelled its child."
    NEWER_WINS = "N14", "A thawed run takes a newer one's cancellation for a failure, and fails the block for good."
    NEW_TRY = "N15", "A parent that is retried by hand fails at once by what had failed before."
    NOT_TRIED_IN_VAIN = "N16", "A parent is retried after its block failed, and finds the same failure."
    CHILD_RETRY_REFUSED = "N17", "A child that is retried by hand runs although its handler has gone on without it."
    HANDS_UNMARK = "N18", "An operator's cancellation is taken for that of a stale run, and undone."
    # --- Leaving ---
    STRAGGLERS = "N19", "A child that an earlier run started, and this one did not ask for, outlives the block."
    RUN_CLOSES = "N19", "A run that returns without coming to its block leaves the children of an earlier run alive."
    WAIT_FREES_SLOT = "N20", "Parents that wait have all slots, and their children never run."
    WAIT_IS_SETTLED = "N20", "Parents that wait count as unsettled, and the instance claims nothing any more."
    WAIT_FORGETS_DEATHS = "N20", "A workflow is given up for deaths that lie days apart."
    LIMIT_HANDS_OVER = "N20", "A workflow that waits longer than `lock_timeout` loses an attempt."
    NO_UNIQUE_KEY = "N21", "Another call with the same key runs the child once more."
    # --- After deaths ---
    SWEEPER = "N22", "The children of a parent that was deleted, or has died, run on."
    SWEEPER_COMPARES_SCOPE = "N22", "Children of an occurrence that is over run on, as their parent lives."
    CHILDREN_READ_FIRST = "N22", "A block that opens between the two reads of the sweeper is swept."
    SPARE_CHILDREN = "N23", "Retention deletes a result that the next run of the parent asks for."
    SPARE_OF_ENDED = "N23", "A failed parent that is retried by hand does finished work again."
    # --- A program as the parent ---
    JOB_BEFORE_CHILDREN = "program", "A program's first child is swept before the program's job exists."
    GIVEN_UP_AS_OBSERVED = "N24", "A program that renews its job again after a freeze is given up."
    NEVER_RESCUED = "N24", "The job of a dead program is pending for ever, as nothing can run it."
    NEVER_RETRIED = "N24", "An operator's retry makes a program's job pending for ever."
    FENCED_END = "program", "A program whose job was given up returns normally, though its children were swept."

    __hash__ = object.__hash__  # The one of enums is Python, and rules are asked for millions of times.

    @property
    def number(self) -> str:
        return self.value[0]

    @property
    def harm(self) -> str:
        return self.value[1]


ALL: Final = frozenset(Rule)
OF_PROGRAMS: Final = frozenset(
    {
        Rule.JOB_BEFORE_CHILDREN,
        Rule.CHILDREN_READ_FIRST,
        Rule.GIVEN_UP_AS_OBSERVED,
        Rule.NEVER_RESCUED,
        Rule.NEVER_RETRIED,
        Rule.FENCED_END,
        Rule.SWEEPER,
        Rule.REPEATED_PASS,
        Rule.TOMBSTONE,
    }
)
"""Those that the model of a program asks for."""
