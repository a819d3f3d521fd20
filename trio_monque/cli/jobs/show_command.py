"""`trio-monque show`: one job, or one document as it is stored."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import click

from ...error_types import BrokenDocumentError, InvalidOptionError
from ...safe_text import one_line
from ...store.broken.suggested_repairs import suggested_repair
from ...store.driver.types import ObjectId
from ...store.jobs.job_json import job_as_json, value_as_json, value_from_json
from ...store.reads.queries import raw_documents
from ..exit_statuses import CHECK_FAILED, FAILED, SUCCEEDED
from ..output import print_json, warn
from .access import JobsAccess, jobs_options
from .family import family_as_json, family_of
from .show_page import print_job
from .why_not_now import sentences_of

_EXAMPLES: Final = """\b
Examples:
  trio-monque show 65f1c0ffee0123456789abcd
  trio-monque show 65f1c0ffee0123456789abcd --json
  trio-monque show --raw '"order-17"'
"""


@click.command(short_help="Show one job, and why it is not running.", epilog=_EXAMPLES)
@click.argument("job_id", metavar="ID")
@click.option(
    "--raw", is_flag=True, help="Print the document as extended JSON, even if it is not a job. ID may be JSON."
)
@jobs_options
def show(access: JobsAccess, *, job_id: str, raw: bool) -> int:
    """Show a job: its data, dates and results, the tracebacks of its last failures, and why it is not running.

    For a job that has opened a job nursery, it shows the blocks with children that are pending or run, and those that
    have failed. For a child, it shows its parent, and who cancelled it.

    Of each value, it shows 40 lines at most; --json has all of it. There, `why` has the sentences, and data and results
    are extended JSON.

    Of a document that is not a job, it prints what is wrong with it, and the command that repairs it if that is
    evident.

    Exit status: 0 if there is such a job, 1 if not, 2 if it could not be looked for.
    """
    if raw:
        return _show_raw(access, job_id)
    try:
        job = access.client.get_job(job_id)
    except BrokenDocumentError as error:
        return _refuse_broken(access, error)
    if job is None:
        warn(f"no job {one_line(job_id)} in {access.name}")
        return CHECK_FAILED
    sentences = sentences_of(access.client.why_not_now(job), job)
    family = family_of(access.client, job)
    if access.as_json:
        print_json({**job_as_json(job), "why": sentences, **family_as_json(family)})
    else:
        print_job(job, access.now(), sentences, family)
    return SUCCEEDED


def _refuse_broken(access: JobsAccess, error: BrokenDocumentError) -> int:
    """Print what is wrong with a document that is not a job, and the command that repairs it, if that is evident."""
    document = next(iter(raw_documents(access.jobs, [error.document_id])), {})
    options = suggested_repair(document)
    if options is None:
        raise error
    named = one_line(str(error.document_id))
    warn(
        f"trio-monque: document {named} is not a job: {error.problem}. Repair it "
        f"(`trio-monque repair {named} {options}`) or delete it"
    )
    return FAILED


def _show_raw(access: JobsAccess, text: str) -> int:
    """Print the document whose id is this text: 24 digits, extended JSON, or the text itself."""
    ids: list[object] = [ObjectId(text)] if ObjectId.is_valid(text) else []
    with suppress(InvalidOptionError):
        ids.append(value_from_json(text))
    found = raw_documents(access.jobs, [*ids, text])
    if not found:
        warn(f"no document {one_line(text)} in {access.name}")
        return CHECK_FAILED
    for document in found:
        print_json(value_as_json(document))
    return SUCCEEDED
