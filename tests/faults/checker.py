"""Whether what was promised was kept: from what was told, what the handlers wrote down, and what is stored.

Knows nothing of the library: documents are plain ones, and field names are those of the format.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .load import Ledger, Managed, Told
from .records import Record, Span, by_job, spans

Document = Mapping[str, Any]


def violations(ledger: Ledger, records: Sequence[Record], documents: Sequence[Document]) -> Sequence[str]:
    """One line for each promise that was broken."""
    return [
        *_enqueued(ledger, [one for one in documents if one["name"] == "counts"]),
        *_run(records, [one for one in documents if one["name"] == "counts"]),
        *_told(records, {str(one["_id"]): one for one in documents}),
        *_keys(ledger, [one for one in documents if one["name"] == "keyed"]),
        *_managed(ledger, {str(one["_id"]): one for one in documents if one["name"] == "managed"}),
    ]


def _enqueued(ledger: Ledger, documents: Sequence[Document]) -> Iterator[str]:
    """Nothing that was acknowledged is missing, and nothing is there that was refused."""
    found: dict[int, list[str]] = defaultdict(list)
    for document in documents:
        found[document["data"]["n"]].append(str(document["_id"]))
    for number, sent in ledger.sent.items():
        there = found.pop(number, [])
        if len(there) > 1:
            yield f"enqueued twice: number {number}"
        elif sent.told is Told.DONE and there != [sent.job]:
            yield f"acknowledged and lost: number {number}"
        elif sent.told is Told.REFUSED and there:
            yield f"told as refused, and there: number {number}"
        elif sent.told is Told.UNKNOWN and sent.job and there not in ([], [sent.job]):
            yield f"told under another id: number {number}"
    for number in found:
        yield f"nobody enqueued it: number {number}"


def _run(records: Sequence[Record], documents: Sequence[Document]) -> Iterator[str]:
    """Each job has ended, by its last run; runs do not overlap; attempts grow; each failure was counted once."""
    starts = Counter((one.job, one.attempt) for one in records if one.what == "start")
    for (job, attempt), count in starts.items():
        if count > 1:
            yield f"one attempt was started {count} times: {attempt} of job {job}"
    runs = {of_job[0].job: of_job for of_job in by_job(spans(records))}
    for document in documents:
        job = str(document["_id"])
        if document["status"] != "completed":
            yield f"not ended: job {job} is {document['status']}"
            continue
        yield from _runs_of(job, runs.pop(job, ()), document)
    for job in runs:
        yield f"run, and not stored: job {job}"


def _runs_of(job: str, runs: Sequence[Span], document: Document) -> Iterator[str]:
    if not runs:
        yield f"completed without a run: job {job}"
        return
    latest, until = runs[0], runs[0].end
    for run in runs[1:]:
        if run.start <= until:
            yield f"two runs at once: attempts {latest.attempt} and {run.attempt} of job {job}"
        if run.attempt <= latest.attempt:
            yield f"attempts do not grow: {latest.attempt}, then {run.attempt} of job {job}"
        latest, until = run, max(until, run.end)
    # A claim that was lost, or given back before it was run, counts as well.
    if document["attempts"] != latest.attempt:
        yield f"completed by no run: attempt {document['attempts']} of job {job}, last run {latest.attempt}"
    if document.get("failCount", 0) != document["data"]["fails"]:
        yield f"failures were miscounted: {document.get('failCount')} of job {job}"


def _told(records: Sequence[Record], documents: Mapping[str, Document]) -> Iterator[str]:
    """No event tells of what was rolled back."""
    last_start: dict[str, int] = {}
    for record in records:
        if record.what == "start":
            last_start[record.job] = max(record.attempt, last_start.get(record.job, 0))
    told = Counter((one.job, one.what, one.detail) for one in records if one.what.startswith("told"))
    for (job, what, fail_count), count in told.items():
        if count > 1:
            yield f"{what} {count} times: job {job}, after {fail_count} failures"
        if what == "told failed" and int(fail_count) > documents.get(job, {}).get("failCount", 0):
            yield f"told failed, and not stored: job {job}"
    for record in records:
        document = documents.get(record.job, {})
        if record.what == "told completed":
            if document.get("status") != "completed" or document.get("attempts") != record.attempt:
                yield f"told completed, and not so stored: attempt {record.attempt} of job {record.job}"
            if last_start.get(record.job) != record.attempt:
                yield f"told completed, and run again: attempt {record.attempt} of job {record.job}"


def _keys(ledger: Ledger, documents: Sequence[Document]) -> Iterator[str]:
    """One live job a key, and it is the one that everybody was told."""
    live: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        live[document["uniqueKey"]].add(str(document["_id"]))
    for key, jobs in live.items():
        if len(jobs) > 1:
            yield f"{len(jobs)} jobs have key {key}"
    for key, jobs in ledger.keyed.items():
        if jobs != live[key]:
            yield f"key {key}: told {sorted(jobs)}, stored {sorted(live[key])}"


def _managed(ledger: Ledger, documents: Mapping[str, Document]) -> Iterator[str]:
    for job, managed in ledger.managed.items():
        is_done = _is_done(managed, documents.get(job))
        if (managed.told is Told.DONE and not is_done) or (managed.told is Told.REFUSED and is_done):
            yield f"{managed.what} was told as {managed.told.name}: job {job} is {documents.get(job)}"
        if managed.what != "delete" and job not in documents:
            yield f"acknowledged and lost: managed job {job}"


def _is_done(managed: Managed, document: Document | None) -> bool:
    if managed.what == "delete":
        return document is None
    if document is None:
        return False
    if managed.what == "cancel":
        return bool(document["status"] == "cancelled")
    return bool(document["nextRunAt"] == managed.moment)
