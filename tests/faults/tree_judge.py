"""Judges trees of job nurseries that are over, by what is stored of them. Knows nothing of the library."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .records import Record
from .trees import BELOW, fails, has_effect, has_failing_block, has_seal, result_of

Document = Mapping[str, Any]


def wrong_records(written: Iterable[Record]) -> Sequence[str]:
    """No later run of a job goes on in another way, or gets another result of a step."""
    ways: dict[tuple[str, str], set[str]] = defaultdict(set)
    for record in written:
        if record.what in ("went on", "planned"):
            ways[record.job, record.what].add(record.detail)
    return [f"{job} {what} by {sorted(ways)}" for (job, what), ways in ways.items() if len(ways) > 1]


def wrong_in_trees(documents: Sequence[Document], fruits: Sequence[Any]) -> Sequence[str]:
    """What of these jobs is not as their places demand, a line each; `fruits` are the jobs that had an effect."""
    below: dict[Any, list[Document]] = defaultdict(list)
    for one in documents:
        below[one.get("parent")].append(one)
    wrong = [f"{one['name']} {one['data']} {line}" for one in documents for line in _wrong(one, below[one["_id"]])]
    wanted = Counter(one["_id"] for one in documents if _has_effect(one))
    return [*wrong, *_wrong_effects(wanted, Counter(fruits))]


def _has_effect(one: Document) -> bool:
    return one["name"] in BELOW and one["status"] == "completed" and has_effect(one["data"])


def _wrong_effects(wanted: Counter[Any], seen: Counter[Any]) -> Iterator[str]:
    for job in wanted | seen:
        if wanted[job] != seen[job]:
            yield f"{job} had {seen[job]} effects instead of {wanted[job]}"


def _wrong(one: Document, children: Sequence[Document]) -> Iterator[str]:
    name, place, status = one["name"], one["data"], one["status"]
    if "parent" not in one and status != "completed":
        yield f"is {status}: {one.get('failReason')}"
    if status == "cancelled":
        return
    if name in ("prune", "seal"):
        if status != "completed":
            yield f"is {status}"
        return
    expected = "failed" if fails(place) else "completed"
    if status != expected:
        yield f"is {status} instead of {expected}: {one.get('failReason')}"
    elif status == "completed":
        if one.get("result") != result_of(place):
            yield f"has the result {one.get('result')} instead of {result_of(place)}"
        if name in BELOW:
            yield from _wrong_children(place, BELOW[name][1], children)


def _wrong_children(place: Sequence[int], count: int, children: Sequence[Document]) -> Iterator[str]:
    """Of a job that has completed."""
    seen = Counter((child["block"], child["name"], child["status"]) for child in children)
    first = {status: count for (block, _, status), count in seen.items() if block == "place"}
    later = {one: count for one, count in seen.items() if one[0] != "place"}
    if has_failing_block(place):
        wanted = {("undo", "prune", "completed"): 1}
        if not first.get("failed"):
            yield f"has no failed child: {seen}"
    else:
        wanted = {("ship", "seal", "completed"): 1} if has_seal(place) else {}
        if first != {"completed": count}:
            yield f"has not {count} completed children: {seen}"
    if later != wanted:
        yield f"has in its later blocks {later} instead of {wanted}"
