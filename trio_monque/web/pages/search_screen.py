"""The search box: an id or the one job with a key leads to the job, a name to its jobs; anything else to a choice.

The choice has the names that contain the text, and the jobs whose keys begin with it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from ...error_types import BrokenDocumentError
from ...jobs.job_query import JobFilter
from ...jobs.job_selector import LONGEST_TEXT
from ...store.driver.types import ObjectId
from ..api.query import is_possible_name
from ..hooks import READ
from .jobs_screen import NO_JOBS, state_of
from .screen import PageCall, RedirectTo, View

MOST_NAMES_ASKED: Final = 100
"""A key belongs to a name. Without one, it is looked for under this number of names, by one query."""
MOST_FOUND: Final = 20


async def search_facts(call: PageCall) -> View:
    """Ask for what the text may mean."""
    text = (call.query("q") or "").strip()[:LONGEST_TEXT]
    if not text:
        return View(
            "search.html", "Search", {"text": "", "jobs": [], "names": [], "has_more": False, "is_capped": False}
        )
    if ObjectId.is_valid(text) and await _is_there(call, text):
        raise RedirectTo(f"jobs/{text.lower()}")
    overview = await call.monque.get_overview()
    # Another program may have written names that are none.
    possible = [name for name in overview.names if is_possible_name(name)]
    names = sorted(possible, key=lambda name: (-overview.names[name].running, name))
    found = NO_JOBS
    if names:
        wanted = JobFilter(name=names[:MOST_NAMES_ASKED], unique_key=text)
        found = await call.monque.get_jobs_with_cursor(limit=MOST_FOUND, filter=wanted)
    jobs = found.jobs
    if text in overview.names and not jobs:
        raise RedirectTo(f"jobs?name={quote(text, safe='', errors='replace')}")
    if len(jobs) == 1 and text not in overview.names:
        raise RedirectTo(f"jobs/{jobs[0].id}")
    if names and not jobs:
        wanted = JobFilter(name=names[:MOST_NAMES_ASKED], unique_key_prefix=text)
        found = await call.monque.get_jobs_with_cursor(limit=MOST_FOUND, filter=wanted)
        jobs = found.jobs
    alike = [name for name in sorted(names) if text.casefold() in name.casefold()][:MOST_FOUND]
    return View(
        "search.html",
        f"Search for {text}",
        {
            "text": text,
            "jobs": [(job, state_of(job, call.now)) for job in jobs],
            "names": [(name, overview.names[name]) for name in alike],
            "has_more": found.has_next_page or found.is_capped,
            "is_capped": len(names) > MOST_NAMES_ASKED or overview.is_capped,
            "filters_data": any(one.startswith("data.") for one in call.dashboard.surface.filters),
        },
    )


async def _is_there(call: PageCall, text: str) -> bool:
    try:
        job = await call.monque.get_job(text)
    except BrokenDocumentError:  # Its page says what is wrong with it.
        return True
    # Asked in any case, as by the page of the job: a job that the caller may not see is as good as none.
    return await call.may(READ, job) and job is not None
