"""The options that select jobs, for lists and for bulk actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import click

from ...jobs.job import JobStatus
from ...jobs.job_selector import Selection
from ..parameters import AGO, When

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class GivenSelection:
    """What was selected; ages are lengths of time before a moment that is not known yet."""

    names: tuple[str, ...]
    statuses: tuple[str, ...]
    older_than: When | None
    newer_than: When | None
    fail_reason: str | None
    fail_reason_prefix: str | None
    unique_key: str | None = None
    unique_key_prefix: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no option was given."""
        return not any(vars(self).values())

    def at(self, now: Callable[[], datetime]) -> Selection:
        """Return the selection. The server's time is asked for only if an age was given."""
        moments = {"older_than": self.older_than, "newer_than": self.newer_than}
        given = {name: when for name, when in moments.items() if when is not None}
        at = now() if given else None
        selection: Selection = {}
        for name, when in given.items():
            assert at is not None
            selection[name] = when(at)  # type: ignore[literal-required]
        if self.names:
            selection["name"] = self.names
        if self.statuses:
            selection["status"] = self.statuses
        if self.fail_reason is not None:
            selection["fail_reason"] = self.fail_reason
        if self.fail_reason_prefix is not None:
            selection["fail_reason_prefix"] = self.fail_reason_prefix
        if self.unique_key is not None:
            selection["unique_key"] = self.unique_key
        if self.unique_key_prefix is not None:
            selection["unique_key_prefix"] = self.unique_key_prefix
        return selection


Command = Callable[Concatenate[GivenSelection, P], R]


def selection_options(function: Command[P, R]) -> Callable[P, R]:
    """Add the options to a command, which gets a GivenSelection as its first argument."""
    keyed = click.option("--unique-key-prefix", metavar="TEXT", help="Only those whose key begins with this text.")(
        selection_without_keys(function)
    )
    return click.option("--unique-key", metavar="KEY", help="Only pending and running jobs of this key; needs --name.")(
        keyed
    )


def selection_without_keys(function: Command[P, R]) -> Callable[P, R]:
    """The same without the options for unique keys, for a command on jobs that have ended."""

    @click.option("--name", "names", multiple=True, metavar="NAME", help="Only jobs of this name. May be repeated.")
    @click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([str(one) for one in JobStatus]),
        help="Only jobs in this status. May be repeated.",
    )
    @click.option(
        "--older-than", type=AGO, metavar="WHEN", help="Only jobs enqueued before: 2h or 2h ago, or a date and time."
    )
    @click.option(
        "--newer-than", type=AGO, metavar="WHEN", help="Only jobs enqueued after: 2h or 2h ago, or a date and time."
    )
    @click.option("--fail-reason", metavar="TEXT", help="Only jobs whose last failure contains this text.")
    @click.option("--fail-reason-prefix", metavar="TEXT", help="Only jobs whose last failure begins with this text.")
    @wraps(function)
    def command(*args: P.args, **options: P.kwargs) -> R:
        given = {name: options.pop(name) for name in GivenSelection.__dataclass_fields__ if name in options}
        return function(GivenSelection(**given), *args, **options)  # type: ignore[arg-type]

    return command
