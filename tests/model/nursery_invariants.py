"""What must never be in a job nursery, in one place; the models raise `Harm` in the move that breaks an invariant.

Those of the last group are about the future: from each state, without further faults, an end must be within reach.
`nursery_search` checks them when all states are known.
"""

from __future__ import annotations

from enum import Enum


class Invariant(Enum):
    """One sentence each, which holds in all states."""

    NOTHING_OUTLIVES_BLOCK = "Once a block is left, and whatever its end was, none of its children lives."
    COMPLETED_WITHOUT_LIVE_CHILD = "When a parent is completed, also by a transaction, none of its children lives."
    OWN_RESULTS = "An occurrence takes only results that its own children made."
    COMPLETED_ONCE = "No child is completed twice, unless a new occurrence or an operator's deletion came between."
    NOTHING_STARTED_BEHIND = "Once the handler has gone on behind its block, no run of this try starts anything of it."
    SAME_END_IN_ALL_RUNS = "All runs of one try find the same end of a block that the handler has gone on behind."
    FAILED_BY_A_CHILD = (
        "A block fails only if one of its children failed, was deleted, or was cancelled by an operator."
    )
    ENDS_ARE_OF_CHILDREN = "No handler is given a cancellation by a pass for the end of a child, not even a stale one."
    STALE_RUNS_DO_NO_HARM = "The run that holds the parent does not fail by what a stale run has cancelled."
    MOVING_CANCELS_NOTHING = "A parent that moves to another instance leaves its children alive to the next run."
    LIVING_IS_NOT_SWEPT = "The sweeper cancels nothing of a nursery whose parent runs."
    OPERATOR_IS_OBEYED = "A child that an operator has cancelled is not run again in this try."
    RETRY_BEGINS_ANEW = "A retry of the parent by hand does not fail by what had failed before it."
    NO_ATTEMPT_IN_VAIN = "No attempt is made that must find the failure of the attempt before it."
    RESULTS_ARE_KEPT = "Retention deletes no result that a run of the parent is yet to ask for."
    WAITING_COSTS_NOTHING = "A parent loses no attempt, and is not given up, for what it has only waited for."
    RENEWING_IS_NOT_GIVEN_UP = "A program that renews its job is not given up."
    RETURN_MEANS_HELD = "A program whose children were swept does not return normally."

    EVERYTHING_ENDS = "From each state, all parents and children can come to their ends."
    ORPHANS_END = "The children of an ended parent end, also if none ends by itself."
    SCOPES_END = "The children of a scope that is over end, also if none ends by itself."
    CANCELLED_BLOCKS_END = "A block that is being cancelled comes to its end, also if no child ends by itself."


class Harm(Exception):  # noqa: N818  # The finding that the models are for.
    """An invariant is broken."""

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant.value)
        self.invariant = invariant
