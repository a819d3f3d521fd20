"""The fewest statements that write many ends of claims, and the requests that are sent for each statement.

A thousand jobs may end in the same moment, most of them in the same way. Jobs of one claim cycle that end alike share
one statement. Completed jobs share one also if each has its own result: an aggregation looks the result up by `_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateMany, UpdateOne

from ...jobs.claim_stamps_and_fences import ClaimId
from ...jobs.conditional_write import Transition
from ...jobs.job import JobStatus
from ..codec import filter_of, update_of
from ..driver.commands import BY_ID, in_chunks_by_size, of_ids
from ..driver.joined_update import MOST_BYTES, each_its_own
from ..fields import FIELD


@dataclass(slots=True, eq=False)
class Statement:
    """One transition for the jobs that share it, all of one claim cycle.

    Attributes:
        transition: What is written to each job: without an id in its guard, and without a result if each job has its
            own.
        receipt: Unique to this statement, and the same each time that the statement is sent.
        claims: The claims that this statement ends.
        results: The result of each claim, in the order of the claims; empty if the jobs have no results of their own.
    """

    transition: Transition
    receipt: str
    claims: list[ClaimId] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> list[ObjectId]:
        """The ids of the jobs."""
        return [claim[0] for claim in self.claims]

    @property
    def receipt_otherwise(self) -> str:
        return f"{self.receipt}/otherwise"

    def apart(self) -> list[Statement]:
        """Return one statement for each claim, with the same receipt."""
        return [
            Statement(self.transition, self.receipt, [claim], self.results[place : place + 1])
            for place, claim in enumerate(self.claims)
        ]


# --- Grouping ---


def grouped(transitions: Sequence[Transition], receipt_prefix: str) -> list[Statement]:
    """Return the fewest statements that write these transitions. The guard of each names its claim (id and token)."""
    ends = [((one.guard["id"], one.guard["claim.token"]), one) for one in transitions]
    return list(dict.fromkeys(statements_for(ends, receipt_prefix)))


def statements_for(ends: Sequence[tuple[ClaimId, Transition]], receipt_prefix: str) -> list[Statement]:
    """Return, for each end in order, the statement that writes it: the same one for ends that share it.

    Ends share a statement if their transitions are equal. The ids in their guards may differ: the statement has the ids
    of its claims. The results of completed jobs may differ, too.
    """
    statements: dict[object, Statement] = {}
    # By the identity of the transition: a batch often has one object for all, and no key needs to be made then.
    of_transition: dict[int, tuple[Statement, bool]] = {}
    written_by = []
    for number, (claim, transition) in enumerate(ends):
        # The transitions are alive in `ends` as long as this goes on, so no identity is used twice.
        known = of_transition.get(id(transition))
        if known is None:
            key = _key(transition)
            statement = statements.get(key)
            if statement is None:
                statement = statements[key] = Statement(_shared(transition), f"{receipt_prefix}.{number}")
            known = of_transition[id(transition)] = statement, _has_own_result(transition)
        statement, has_own_result = known
        statement.claims.append(claim)
        if has_own_result:
            statement.results.append(transition.set["result"])
        written_by.append(statement)
    return written_by


def _has_own_result(transition: Transition) -> bool:
    # Only for a completed job. A change stream may report a statement with many results as a replacement of documents,
    # and Monque for Node wakes for updates only: it would sleep through a job that is pending again.
    return "result" in transition.set and transition.set.get("status") is JobStatus.COMPLETED


def _key(transition: Transition) -> object:
    has_own_result = _has_own_result(transition)
    if "result" in transition.set and not has_own_result:
        return id(transition)  # By identity: True, 1 and 1.0 are equal to Python, and differ in the database.
    # Without `otherwise`: it follows from the guard and the dates.
    # Everything that is written or compared must be in the key: two jobs whose ends differ in any of it must not share
    # a statement, or one would get the end of the other.
    key = (
        tuple(item for item in transition.guard.items() if item[0] != "id"),
        tuple(item for item in transition.set.items() if item[0] != "result"),
        has_own_result,
        transition.cleared,
        tuple(transition.added.items()),
        tuple(transition.copied),  # Today its guard differs, too. But transitions of two forms must never share.
    )
    try:
        hash(key)
    except TypeError:
        return id(transition)  # It sets something unhashable, for example a history of errors: it goes alone.
    return key


def _shared(transition: Transition) -> Transition:
    """Return what the transition writes to all jobs of a statement: without the id, and without a job's own result."""
    otherwise = transition.otherwise
    written = transition.set
    if _has_own_result(transition):
        written = {name: value for name, value in written.items() if name != "result"}
    return Transition(
        guard={name: condition for name, condition in transition.guard.items() if name != "id"},
        set=written,
        cleared=transition.cleared,
        added=transition.added,
        copied=transition.copied,
        otherwise=None if otherwise is None else _shared(otherwise),
    )


# --- Sending ---


def requests_of(
    statement: Statement, encoding: CodecOptions[Any]
) -> Iterator[tuple[Statement, UpdateOne | UpdateMany]]:
    """Yield the requests to send, each with the part of the statement that it writes."""
    if len(statement.claims) == 1 or not statement.results:
        yield statement, _plain(statement)
        return
    for part, documents in _in_parts(statement, encoding):
        yield part, _plain(part) if len(documents) == 1 else _with_own_results(part, documents)


def _in_parts(statement: Statement, encoding: CodecOptions[Any]) -> Iterator[tuple[Statement, list[RawBSONDocument]]]:
    """Divide the statement into parts that one request may hold; yield each with its results, encoded as documents."""
    start = 0
    encoded = (bson.encode({FIELD["result"]: result}, codec_options=encoding) for result in statement.results)
    for documents in in_chunks_by_size(encoded, len, MOST_BYTES):
        end = start + len(documents)
        claims, results = statement.claims[start:end], statement.results[start:end]
        yield Statement(statement.transition, statement.receipt, claims, results), list(map(RawBSONDocument, documents))
        start = end


def _plain(statement: Statement) -> UpdateOne | UpdateMany:
    guard, update = filter_of(statement.transition.guard), update_of(statement.transition, statement.receipt)
    ids = statement.ids
    # By `_id`, and named as a hint: the planner must not choose an index that the fence seems to fit.
    if len(ids) > 1:
        return UpdateMany({**of_ids(ids), **guard}, update, hint=BY_ID)
    if statement.results:
        (update["$set"][FIELD["result"]],) = statement.results
    return UpdateOne({"_id": ids[0], **guard}, update, hint=BY_ID)


def _with_own_results(statement: Statement, documents: Sequence[RawBSONDocument]) -> UpdateMany:
    """Make a request that stores its own result in each document."""
    guard, update = filter_of(statement.transition.guard), update_of(statement.transition, statement.receipt)
    assert "$inc" not in update, "a completion counts nothing"
    ids = statement.ids
    place = {"$indexOfArray": [{"$literal": ids}, "$_id"]}
    stages = each_its_own(documents, place, list(update["$unset"]), shared=update["$set"])
    return UpdateMany({**of_ids(ids), **guard}, stages, hint=BY_ID)
