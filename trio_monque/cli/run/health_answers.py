"""The health of a worker process as a value, and the pages of `--health` that show it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...host.health import Health
from ...safe_text import without_secrets
from .http_server import Page, page_of

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

LIVE_WITHIN: Final = 5.0
"""Seconds. A worker process whose event loop does not answer for longer is not live. Probes ask several times before
they have a container restarted, so this is not the whole time that a handler may block the loop."""

_BAD: Final = "503 Service Unavailable"


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """The health of one worker process, or of several. It consists of plain values: processes send it to each other.

    Attributes:
        not_live: Why a restart would help; empty if it is live.
        unhealthy: Why it does not work as it should; empty if it is healthy.
        not_ready: Why it claims no jobs, or works not as it should; empty if it is ready.
        details: For JSON.
    """

    not_live: tuple[str, ...]
    unhealthy: tuple[str, ...]
    not_ready: tuple[str, ...]
    details: Mapping[str, Any]


def report_of_worker(instance: str | None, health: Health | None, silent_for: float) -> HealthReport:
    """Return the report of one worker process.

    Args:
        instance: The id of its scheduler; None before the start.
        health: The health of its scheduler; None before the start.
        silent_for: Seconds since the event loop of the handlers has answered; 0 while no scheduler runs in it.
    """
    not_live: tuple[str, ...] = ()
    if silent_for > LIVE_WITHIN:
        not_live = (f"the event loop has not answered for {silent_for:.1f} s",)
    unhealthy = ("the scheduler has not started",) if health is None else health.reasons
    is_draining = health is not None and health.draining
    details = {"instance": instance, "draining": is_draining, "health": None if health is None else plain(health)}
    unhealthy = (*not_live, *map(without_secrets, unhealthy))
    return HealthReport(
        not_live=not_live,
        unhealthy=unhealthy,
        not_ready=(*unhealthy, *(("the scheduler is draining",) if is_draining else ())),
        details=details,
    )


@dataclass(frozen=True)
class ProcessReport:
    """What a parent knows of one worker process.

    Attributes:
        number: Its place, from 1.
        pid: Its process id; None while none runs in this place.
        report: Its answer; None if it has not come in time.
        silent_for: Seconds for which a question waits for its answer; None if it has never answered.
    """

    number: int
    pid: int | None = None
    report: HealthReport | None = None
    silent_for: float | None = None

    def known(self) -> HealthReport:
        """Return its answer, or what follows from the fact that there is none."""
        if self.report is not None:
            return self.report
        not_live: tuple[str, ...] = ()
        if self.pid is None:
            reason = "the process is not running"
        elif self.silent_for is None:
            reason = "the process is starting"
        else:
            reason = f"the process has not answered for {self.silent_for:.1f} s"
            not_live = (reason,) if self.silent_for > LIVE_WITHIN else ()
        return HealthReport(not_live=not_live, unhealthy=(reason,), not_ready=(reason,), details={})


def report_of_processes(processes: Sequence[ProcessReport]) -> HealthReport:
    """Return the report of several worker processes: good if it is good for each of them."""
    known = [(one.number, one.pid, one.known()) for one in processes]

    def each(reasons: Callable[[HealthReport], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(f"process {number}: {reason}" for number, _, report in known for reason in reasons(report))

    return HealthReport(
        not_live=each(lambda report: report.not_live),
        unhealthy=each(lambda report: report.unhealthy),
        not_ready=each(lambda report: report.not_ready),
        details={"processes": [{"number": number, "pid": pid, **_as_object(report)} for number, pid, report in known]},
    )


def plain(health: Health) -> Mapping[str, Any]:
    """Return the health as values of JSON: moments in ISO format, and null for infinity."""
    return {name: _plain(value) for name, value in asdict(health).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def health_pages(report: Callable[[], HealthReport]) -> Mapping[str, WSGIApplication]:
    """Return the pages, by their paths. `report` is called for each request, in any thread."""
    as_json = page_of(lambda: _as_json(report()))
    return {
        "/livez": page_of(lambda: _as_text("live", report().not_live)),
        "/readyz": page_of(lambda: _as_text("ready", report().not_ready)),
        "/healthz": as_json,
        "/health": as_json,
    }


def _as_text(good: str, reasons: tuple[str, ...]) -> Page:
    return Page(_BAD if reasons else "200 OK", "text/plain; charset=utf-8", "\n".join(reasons or (good,)) + "\n")


def _as_json(report: HealthReport) -> Page:
    return Page(_BAD if report.unhealthy else "200 OK", "application/json", _on_lines(_as_object(report)) + "\n")


def _as_object(report: HealthReport) -> dict[str, Any]:
    # In the order in which a person reads it: the answer ends with a dozen loops for each process.
    return {
        "healthy": not report.unhealthy,
        "reasons": report.unhealthy,
        "ready": not report.not_ready,
        "live": not report.not_live,
        **report.details,
    }


def _on_lines(value: Any, indent: str = "") -> str:
    """Return JSON with a loop on each line: with a value on each, the reasons would leave the screen."""
    deeper = f"{indent}  "
    if isinstance(value, Mapping) and any(map(_is_container, value.values())):
        lines = [f"{json.dumps(name)}: {_on_lines(one, deeper)}" for name, one in value.items()]
        return _bracketed("{}", lines, indent)
    if not isinstance(value, Mapping) and _is_container(value) and value:
        return _bracketed("[]", [_on_lines(one, deeper) for one in value], indent)
    return json.dumps(value)


def _bracketed(brackets: str, lines: Sequence[str], indent: str) -> str:
    inside = ",\n".join(f"{indent}  {line}" for line in lines)
    return f"{brackets[0]}\n{inside}\n{indent}{brackets[1]}"


def _is_container(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple)
