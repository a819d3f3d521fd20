"""Warnings about names of jobs: one may be misspelt, or paused."""

from __future__ import annotations

from collections.abc import Iterable

from ...diagnosis.reasons import no_instance_runs
from ...error_types import MonqueError
from ..output import since_and_by, warn
from .access import JobsAccess
from .why_not_now import sentence_about_name


def warn_about(access: JobsAccess, names: Iterable[str], *, pauses: bool) -> None:
    """Warn on standard error about each name that no live instance runs, and with `pauses` if it is paused."""
    try:
        instances = access.client.instances()
        paused = {one.name: one for one in access.client.pauses()} if pauses else {}
    except MonqueError as error:
        # What the command was for is done. It must not end as if it were not.
        warn(f"could not check whether an instance runs this name: {error}")
        return
    for name in names:
        if (problem := no_instance_runs(name, instances)) is not None:
            warn(f"warning: {sentence_about_name(problem)}")
        if (pause := paused.get(name)) is not None:
            warn(f"warning: {name!r} is paused{since_and_by(pause.since, pause.by)}: `trio-monque resume {name}`")
