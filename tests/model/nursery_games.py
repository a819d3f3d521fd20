"""Which games are played: small ones for every rule and feature, larger ones, and where the harm of each rule shows.

The budgets are as small as the harm allows, so that most games have some thousands of states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .nursery_rules import ALL, Rule
from .nursery_setting import Setting
from .nursery_state import Budget


def setting(rules: frozenset[Rule] = ALL, **of: Any) -> Setting:
    """A setting, from what differs from the plainest one; faults are given by their names in the budget."""
    faults = {name: of.pop(name) for name in list(of) if name in Budget._fields}
    return Setting(budget=Budget(**faults), rules=rules, **of)


SMALL: Final[Mapping[str, Setting]] = {
    "deaths": setting(kills=1, losses=1, max_deaths=1),
    "a stale run": setting(losses=1, errors=1),
    "late inserts": setting(late=1, kills=1, losses=1, max_tries=0),
    "late inserts, no stale run": setting(late=1, kills=1, errors=1),
    "operators": setting(hands=1, kills=1, failures=1),
    "operators and a stale run": setting(hands=1, losses=1),
    "Node": setting(node=1, crashes=1, errors=1, hands=1),
    "recurring": setting(recurring=True, kills=1, failures=1),
    "retention": setting(pruned=1, kills=1, failures=1, recurring=True),
    "clean-up takes too long": setting(cuts=1, errors=1, kills=1, crashes=1),
    "shutdown": setting(shutdowns=1, failures=1, hands=1),
    "shutdown and a stale run": setting(shutdowns=1, losses=1),
    "recurring, clean-up takes too long": setting(recurring=True, cuts=1, errors=1, max_tries=0),
    "handled": setting(handles=True, kills=1, failures=1, errors=1),
    "handled, and a stale run": setting(handles=True, losses=1, failures=1, errors=1),
    "retried by hand": setting(handles=True, hands=1, failures=2, errors=1, max_tries=0),
    "retried by hand, and a stale run": setting(hands=1, failures=1, losses=1, kills=1, max_deaths=0),
    "child retried by hand": setting(handles=True, child_retries=1, failures=1, kills=1),
    "ways around the block": setting(other_ways=1, transactions=1, kills=1, shutdowns=1),
    "replaced": setting(replacements=1, kills=1, errors=1),
    "Node runs the parent": setting(recurring=True, node_parent=1, kills=1),
    "deployments": setting(kills=2, max_deaths=1, failures=1),
    "retention and a retry by hand": setting(pruned=1, hands=1, failures=1, errors=1, max_tries=0),
    "program": setting(is_program=True, kills=1, losses=1, failures=1, errors=1, hands=1, crashes=1),
    "program, late inserts": setting(is_program=True, kills=1, errors=1, late=1, node=1),
    # --- What the design has besides, and what it does not mention ---
    "one slot": setting(room=1, kills=1, failures=1, errors=1),
    "limits": setting(limits=1, kills=1, failures=1),
    "limits and a stale run": setting(limits=1, losses=1),
    "late inserts of a failed block": setting(handles=True, failures=1, late=1, kills=1),
    "a read before the write": setting(errors=1, losses=1, slow_starts=1),
    "a read before the write, and a retry by hand": setting(hands=1, failures=1, slow_starts=1, losses=1, max_deaths=0),
    "any order": setting(handles=True, any_order=True, failures=1, kills=1),
    "any order, and a stale run": setting(handles=True, any_order=True, failures=1, losses=1),
    "any order, and a retry by hand": setting(handles=True, any_order=True, failures=1, hands=1, kills=1),
    "children deleted": setting(handles=True, child_deletions=1, kills=1),
    "children deleted and failed": setting(handles=True, failures=1, child_deletions=1, kills=1),
    "wait": setting(fail="wait", handles=True, failures=1, kills=1, errors=1),
    "wait, and a stale run": setting(fail="wait", handles=True, failures=1, losses=1, errors=1),
    "wait, and operators": setting(fail="wait", handles=True, failures=1, kills=1, hands=1),
    "wait, and nothing is handled": setting(fail="wait", failures=1, kills=1, errors=1),
    "wait, children deleted": setting(fail="wait", handles=True, failures=1, child_deletions=1, kills=1),
    "wait, any order": setting(fail="wait", handles=True, any_order=True, failures=1, kills=1, errors=1),
    "keep": setting(fail="keep", handles=True, failures=1, kills=1, errors=1),
    "keep, and a stale run": setting(fail="keep", handles=True, failures=1, losses=1, errors=1),
    "keep, and operators": setting(fail="keep", handles=True, failures=1, kills=1, hands=1),
    "keep, children deleted": setting(fail="keep", handles=True, failures=1, child_deletions=1, kills=1),
    "keep, any order": setting(fail="keep", handles=True, any_order=True, failures=1, kills=1, errors=1),
}
"""All that is clean within a minute each."""

ALWAYS: Final = (
    *("deaths", "recurring", "handled", "retried by hand", "child retried by hand", "ways around the block"),
    *("program, late inserts", "one slot", "limits", "late inserts of a failed block", "any order"),
    *("children deleted and failed", "wait", "keep"),
)
"""Those of a normal run: a second each at most, and every actor is in one of them."""

LARGER: Final[Mapping[str, Setting]] = {
    "deaths": setting(kills=2, losses=1, failures=1, max_deaths=2),
    "stale runs": setting(losses=2, errors=1, max_deaths=3),
    "operators": setting(hands=2, kills=1, failures=1),
    "operators and a stale run": setting(hands=2, losses=1),
    "Node": setting(node=1, crashes=1, errors=1, hands=1, kills=1),
    "recurring": setting(recurring=True, kills=1, failures=1, errors=1),
    "retention": setting(pruned=2, kills=2, failures=1, recurring=True),
    "shutdown": setting(shutdowns=2, failures=1, hands=1),
    "replaced": setting(replacements=1, kills=1, failures=1, errors=1),
    "Node runs the parent": setting(recurring=True, node_parent=1, kills=1, errors=1),
}
"""Up to a minute each, where nothing else runs."""

MOST_STATES: Final = 3_000_000
MOST_STATES_TO_HARM: Final = 30_000

SHOWN_IN: Final[Mapping[Rule, Mapping[str, Any]]] = {
    Rule.FENCED_SCOPE: {"losses": 1},
    Rule.SCOPE_ENDS_WITH_JOB: {"replacements": 1},
    Rule.SCOPE_FOR_OCCURRENCE: {"recurring": True, "node_parent": 1, "kills": 1},
    Rule.REPLACE_CLEARS: {"replacements": 1, "errors": 1},
    Rule.AGAIN_CLEARS: {"replacements": 1},
    Rule.NO_TRANSACTION_INSIDE: {"transactions": 1},
    Rule.TRANSACTION_CLOSES: {"transactions": 1, "kills": 1},
    Rule.KEEP_COMPLETED: {"kills": 1},
    Rule.TOMBSTONE: {"late": 1},
    Rule.DELETED_LEAVES_TOMBSTONE: {"fail": "keep", "handles": True, "child_deletions": 1, "kills": 1},
    Rule.GUARDED_START: {"handles": True, "errors": 1, "losses": 1, "slow_starts": 1},
    Rule.REPEATED_PASS: {"errors": 1},
    Rule.FAILURE_IS_RECORDED: {"handles": True, "any_order": True, "failures": 1, "kills": 1},
    Rule.KEEP_FAILED: {"hands": 1, "kills": 1},
    Rule.LOST_LEAVES: {"losses": 1},
    Rule.HEAL: {"losses": 1, "errors": 1},
    Rule.NEWER_WINS: {"fail": "keep", "losses": 1, "errors": 1},
    Rule.NEW_TRY: {"handles": True, "hands": 1, "failures": 1, "max_tries": 0},
    Rule.NOT_TRIED_IN_VAIN: {"failures": 1},
    Rule.CHILD_RETRY_REFUSED: {"handles": True, "child_retries": 1, "failures": 1},
    Rule.HANDS_UNMARK: {"node": 1, "errors": 1, "hands": 1},
    Rule.STRAGGLERS: {"kills": 1},
    Rule.RUN_CLOSES: {"other_ways": 1, "kills": 1},
    Rule.WAIT_FREES_SLOT: {"room": 1},
    Rule.WAIT_IS_SETTLED: {"room": 1},
    Rule.WAIT_FORGETS_DEATHS: {"kills": 2, "max_deaths": 1},
    Rule.LIMIT_HANDS_OVER: {"limits": 1},
    Rule.NO_UNIQUE_KEY: {"same_keys": 1},
    Rule.SWEEPER: {"hands": 1},
    Rule.SWEEPER_COMPARES_SCOPE: {"recurring": True, "cuts": 1, "errors": 1, "max_tries": 0},
    Rule.CHILDREN_READ_FIRST: {},
    Rule.SPARE_CHILDREN: {"pruned": 1, "kills": 1},
    Rule.SPARE_OF_ENDED: {"pruned": 1, "hands": 1, "errors": 1, "max_tries": 0},
}
"""Where the harm of each rule shows first: few faults, so that it is found in a second."""
