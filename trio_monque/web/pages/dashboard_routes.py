"""The paths of the dashboard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .assets import asset
from .claim_source_screen import claim_source_facts
from .claims_screen import claims_facts
from .confirm_screen import action_progress_facts, confirm_facts
from .errors_screen import errors_facts
from .health_screen import health_facts
from .instance_screen import instance_facts
from .instances_screen import instances_facts
from .job_screen import job_facts
from .jobs_screen import jobs_facts
from .overview_screen import overview_facts
from .posted_forms import act
from .schedules_screen import schedules_facts
from .screen import Dashboard, Facts, page, posted
from .search_screen import search_facts


@dataclass(frozen=True, slots=True)
class Screen:
    """A path, and what is shown there.

    Attributes:
        path: Below the dashboard, without a slash at its begin; Starlette's placeholders.
        tab: The path of the tab that it belongs to.
        facts: Asks for what it shows.
    """

    path: str
    tab: str
    facts: Facts


SHOWN: Final[Sequence[Screen]] = (
    Screen("", "", overview_facts),
    Screen("jobs", "jobs", jobs_facts),
    Screen("jobs/{id}", "jobs", job_facts),
    Screen("errors", "errors", errors_facts),
    Screen("schedules", "schedules", schedules_facts),
    Screen("instances", "instances", instances_facts),
    Screen("instances/{id:path}", "instances", instance_facts),
    Screen("claims", "claims", claims_facts),
    Screen("claims/{source}", "claims", claim_source_facts),
    Screen("health", "health", health_facts),
    Screen("search", "search", search_facts),
    Screen("confirm", "jobs", confirm_facts),
    Screen("actions/{id}", "jobs", action_progress_facts),
)
"""All screens."""


@dataclass(frozen=True, slots=True)
class PagePath:
    """A path of the application with its endpoint."""

    path: str
    method: str
    endpoint: Callable[[Request], Awaitable[Response]]

    @property
    def spellings(self) -> Sequence[str]:
        """The path, and the same with a slash at its end."""
        return sorted({self.path, f"{self.path.rstrip('/')}/"})


def dashboard_paths(make: Callable[[frozenset[str]], Dashboard]) -> Sequence[PagePath]:
    """Return the paths of the dashboard.

    Args:
        make: Makes what the screens share, of the tabs that there are.
    """
    dashboard = make(frozenset(screen.tab for screen in SHOWN))

    async def act_on_form(request: Request) -> Response:
        return await posted(request, dashboard, act)

    return [
        PagePath("/static/{file}", "GET", asset),
        PagePath("/act", "POST", act_on_form),
        *(PagePath(f"/{screen.path}", "GET", _endpoint(screen, dashboard)) for screen in SHOWN),
    ]


def _endpoint(screen: Screen, dashboard: Dashboard) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await page(request, dashboard, screen.tab, screen.facts)

    return answer
