"""The page of failure windows names tests that exist, and times that the defaults give."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final

import pytest

from tests.support.pages import rows
from tests.support.programs import ROOT
from trio_monque import Retention
from trio_monque.claims.claim_options import ClaimConfig
from trio_monque.client import children_of_block, program_nurseries
from trio_monque.engine import pauses
from trio_monque.options_and_defaults import SchedulerConfig
from trio_monque.scheduler import follow_up_loop, nursery_sweeper, paused_names, presence, pruner, unstarted_jobs
from trio_monque.store.driver import transaction_attempts
from trio_monque.store.jobs import instances

PAGE: Final = "explanation/failure-windows.md"

FEATURES: Final = (
    *("Enqueue", "Replace, debounce", "Claim", "Run and heartbeat", "End of a run", "Shutdown", "Rescue"),
    *("Follow-ups", "Transactions", "`start_by`", "Job nurseries", "Actions by hand", "Retention", "Schedules"),
    *("Names, instances and indexes", "Claims on documents"),
)

FIXED: Final[Mapping[str, float]] = {
    "follow_up_look": follow_up_loop.INTERVAL,
    "start_by_look": unstarted_jobs.LOOK_INTERVAL,
    "start_by_retry": unstarted_jobs.PAUSE_AFTER_FAULT,
    "beat_retry": pauses.LONGEST_BEAT_RETRY,
    "retention_lock": instances.LOCK_LEASE.total_seconds(),
    "retention_interval": Retention(completed=0).interval,
    "program_heartbeat": program_nurseries.BEAT,
    "transaction_limit": transaction_attempts.LONGEST,
    "entry_beats": presence.PRUNED_AFTER_BEATS,
    "pause_look": paused_names.LOOK_FOR_RESUMES,
    "jitter": follow_up_loop.JITTER,
}

OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def windows() -> Sequence[Sequence[str]]:
    return [row for row in rows(PAGE, "## Enqueue") if len(row) == 5 and "::" in row[4]]


def value_of(formula: str) -> float:
    """What a formula gives with the defaults; a name that is neither an option nor a fixed interval is an error."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left=left, op=one, right=right):
                return OPERATORS[type(one)](value(left), value(right))
            case ast.Attribute(value=ast.Name(id="claims"), attr=name):
                return defaults(ClaimConfig())[name]
            case ast.Name(id=name):
                return {**defaults(SchedulerConfig()), **FIXED}[name]
        raise ValueError(f"{formula} has {ast.unparse(node)}")

    return value(ast.parse(formula, mode="eval").body)


def defaults(config: Any) -> Mapping[str, float]:
    named = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: one for name, one in named.items() if isinstance(one, int | float)}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(one.name for one in functions if one.name.startswith("test_"))


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_has_windows(feature: str) -> None:
    section = (ROOT / "docs" / PAGE).read_text(encoding="utf-8").partition(f"\n## {feature}")[2].partition("\n## ")[0]
    assert "::test_" in section


def test_each_row_is_a_window_with_a_test_that_exists() -> None:
    text = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(windows()) > 80
    assert len(named) == text.count("::") == len(windows()) + 1
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


def test_times_are_those_of_the_defaults() -> None:
    quoted = 0
    for _, _, _, duration, _ in windows():
        for seconds, formula in re.findall(r"([\d,.]+) s\b(?: = `([^`]+)`)?", duration):
            assert formula, f"{duration} has no formula"
            assert float(seconds.replace(",", "")) == round(value_of(formula), 1), duration
            quoted += 1
    assert quoted > 40


def test_fixed_intervals_are_those_of_the_code() -> None:
    shown = {row[0].strip("`"): float(row[1]) for row in rows(PAGE, "## Fixed intervals")}
    assert shown == FIXED
    assert FIXED["beat_retry"] == children_of_block.AGAIN_AFTER
    assert {pruner.JITTER, nursery_sweeper.JITTER, unstarted_jobs.JITTER} == {FIXED["jitter"]}
