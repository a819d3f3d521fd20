"""How the store sends commands: the decorator `command`, and the idioms that the functions with it share.

Each function that talks to the database is one `command`: one round trip where possible, blocking, within the time of
one call. What the driver raises is translated by `driver_errors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import pymongo
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from pymongo import UpdateMany, UpdateOne
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern
from pymongo.results import UpdateResult

from ...error_types import InvalidPayloadError, MonqueConnectionError, ShortageError, is_shortage
from ...safe_text import text_of
from .driver_errors import has_lost_sessions, is_about_document, refused_because_of_documents, translated
from .types import ClientSession, Collection

P = ParamSpec("P")
T = TypeVar("T")


# --- The decorator ---


PURPOSES: Final[set[str]] = set()
"""The purposes of all commands, as the modules with them are loaded. A test names the commands to disturb by these."""


class Interference(Protocol):
    """A fault that a test injects into commands; `inject` raises a driver error. Called in any thread."""

    def takes(self, purpose: str) -> bool:
        """Return whether the call that begins now is the one to be hit."""
        ...

    def inject(self, call: Callable[[], T]) -> T:
        """Run in place of that call, which it may make or not."""
        ...


class HasTimeout(Protocol):
    """What a command works on: it has the time that one call may take, in seconds.

    It may have an attribute `interference`: a sequence of the faults that a test injects.
    """

    @property
    def operation_timeout(self) -> float: ...


class Reaching(HasTimeout, Protocol):
    """A handle by which to reach a server."""

    @property
    def collection(self) -> Collection: ...


def known_primary(reaching: Reaching) -> tuple[str, int] | None:
    """Return the member that the driver takes for the primary; None without a replica set. Sends no command."""
    return reaching.collection.database.client.primary


HandleT = TypeVar("HandleT", bound=HasTimeout)


def command(
    purpose: str, *, writes: bool = True, in_parts: bool = False, aggregates: bool = False
) -> Callable[[Callable[Concatenate[HandleT, P], T]], Callable[Concatenate[HandleT, P], T]]:
    """Mark a function that talks to the database: bound its time, and translate what the driver raises.

    Args:
        purpose: Completes "could not ..." in the error message.
        writes: False for a function that only reads: its outcome is never unknown.
        in_parts: The function writes many documents, so any failure may leave some of them written: its outcome is
            unknown. Leave it out if the caller resends after every transient error anyway.
        aggregates: The server may need longer than the time limit: then AggregationTimeoutError is raised.
    """

    PURPOSES.add(purpose)

    def decorate(function: Callable[Concatenate[HandleT, P], T]) -> Callable[Concatenate[HandleT, P], T]:
        @wraps(function)
        def bounded(handle: HandleT, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with pymongo.timeout(handle.operation_timeout):
                    if interference := getattr(handle, "interference", None):
                        return _interfered(interference, purpose, partial(function, handle, *args, **kwargs))
                    return function(handle, *args, **kwargs)
            except driver.PyMongoError as error:
                if has_lost_sessions(error):
                    _renew_connections(handle)
                ours = translated(error, purpose, writes=writes, aggregates=aggregates)
                if in_parts and isinstance(ours, MonqueConnectionError):
                    ours.unknown_outcome = True
                raise ours from error
            except InvalidDocument as error:
                raise InvalidPayloadError(f"could not {purpose}: {error}") from error
            except (MemoryError, RuntimeError) as error:
                # The driver starts threads, too: those that watch the servers.
                if not is_shortage(error):
                    raise
                raise ShortageError(f"could not {purpose}: {text_of(error)}", unknown_outcome=writes) from error

        return bounded

    return decorate


def _interfered(interferences: Sequence[Interference], purpose: str, call: Callable[[], T]) -> T:
    for interference in tuple(interferences):  # A copy: once used, an interference removes itself, in any thread.
        if interference.takes(purpose):
            return interference.inject(call)
    return call()


def _renew_connections(handle: object) -> None:
    """Close the pooled connections: the driver prefers the latest, and that one does not work (`has_lost_sessions`)."""
    collection = getattr(handle, "collection", None)
    if collection is not None:
        # The driver offers no other way to close a connection that works.
        for server in tuple(collection.database.client._topology._servers.values()):  # noqa: SLF001
            server.pool.reset_without_pause()


# --- Reads that prove something ---


BY_ID: Final = {"_id": 1}
"""The hint for a command that names documents by their ids: no other index may tempt the planner."""


MAJORITY: Final = ReadConcern("majority")


def by_majority(collection: Collection, codec_options: CodecOptions[Any] | None = None) -> Collection:
    """Return the handle for reads of what a majority holds: what they find is not rolled back by an election.

    A local read may find, on a primary that was cut off, a write that is rolled back afterwards.
    """
    return collection.with_options(codec_options=codec_options, read_concern=MAJORITY)


def causal_session(collection: Collection) -> ClientSession:
    """Start a session for a write and the reads behind it: they see what the write left, on any primary.

    Without it, a read may reach a primary that has been replaced and does not know it yet. It would not find what was
    written a moment ago: a claimed job, for example, that nothing would run then.
    """
    return collection.database.client.start_session(causal_consistency=True)


# SnapshotTooOld; SnapshotUnavailable, where the collection or an index was made a moment ago; NotAReplicaSet.
_NO_SNAPSHOT: Final = frozenset({239, 246, 123})


def at_one_moment(collection: Collection, read: Callable[[ClientSession | None], T]) -> T:
    """Read in a session whose reads all see what a majority held at one moment.

    Read without a session where the server has no snapshots: each of the reads may then miss what changes meanwhile.
    """
    if not is_standalone(collection):
        try:
            with collection.database.client.start_session(snapshot=True) as session:
                return read(session)
        except driver.OperationFailure as error:
            if error.code not in _NO_SNAPSHOT:
                raise
    return read(None)


def is_standalone(collection: Collection) -> bool:
    """Return whether the driver takes the server for one without a replica set. Sends no command."""
    servers = collection.database.client.topology_description.server_descriptions().values()
    return any(server.server_type_name == "Standalone" for server in servers)


# --- Writes of many documents ---


@dataclass(frozen=True, slots=True)
class Refusal:
    """A statement that the server refused because of its document.

    Attributes:
        code: The server's code.
        message: The server's message.
    """

    code: int | None
    message: str


@dataclass(frozen=True, slots=True)
class BulkAnswer:
    """What became of the statements that were sent together.

    Attributes:
        matched: How many documents they matched.
        modified: How many documents they changed.
        refused: Which statements the server refused, by place.
        was_broken_off: The server refused a whole command in the middle: it may have written more than it reports.
    """

    matched: int = 0
    modified: int = 0
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    was_broken_off: bool = False

    def refused_among(self, items: Sequence[T]) -> list[tuple[T, Refusal]]:
        """Return the items whose statements the server refused, and why: one item stands for each statement."""
        return [(items[place], refusal) for place, refusal in self.refused.items()]


def _never(_: driver.OperationFailure) -> bool:
    return False


def bulk_write(
    collection: Collection,
    requests: Sequence[UpdateOne | UpdateMany],
    purpose: str,
    session: ClientSession | None = None,
    *,
    is_refusal: Callable[[driver.OperationFailure], bool] = _never,
) -> BulkAnswer:
    """Send the statements in one unordered command; return how many documents matched, and what was refused.

    A statement for many documents stops at the first one that the server refuses to change. The documents before that
    one are written. The caller sends all documents of the statement again, each alone: a refused document must not keep
    the others from being written.

    Args:
        is_refusal: Whether the server refused a whole command because of one statement in it. It does not name that
            statement: it is found by halves.

    Raises:
        MonqueConnectionError: A statement failed for a reason that passes or that asks for a repair. The caller sends
            all of them again.
    """
    if not requests:
        return BulkAnswer()
    try:
        result = collection.bulk_write(requests, ordered=False, session=session)
    except driver.BulkWriteError as error:
        refused = {
            one["index"]: Refusal(one.get("code"), str(one.get("errmsg")))
            for one in refused_because_of_documents(error, purpose)
        }
        return BulkAnswer(error.details["nMatched"], error.details["nModified"], refused)
    except driver.OperationFailure as error:
        if not is_refusal(error):
            raise
        if len(requests) == 1:
            return BulkAnswer(refused={0: Refusal(error.code, str(error))})
    else:
        return BulkAnswer(result.matched_count, result.modified_count)
    half = len(requests) // 2
    first = bulk_write(collection, requests[:half], purpose, session, is_refusal=is_refusal)
    second = bulk_write(collection, requests[half:], purpose, session, is_refusal=is_refusal)
    refused = {**first.refused, **{half + place: refusal for place, refusal in second.refused.items()}}
    return BulkAnswer(first.matched + second.matched, first.modified + second.modified, refused, was_broken_off=True)


def update_unless_refused(
    collection: Collection,
    guard: Mapping[str, Any],
    update: Mapping[str, Any] | list[Any],
    hint: Mapping[str, int] | None = None,
    session: ClientSession | None = None,
) -> UpdateResult | driver.WriteError:
    """Update all documents that the guard matches; return the error where the server refused to change one of them.

    The server stops there, and has written the documents before it: the caller sends each document again, alone.
    """
    try:
        return collection.update_many(guard, update, hint=hint, session=session)
    except driver.WriteError as error:
        if not is_about_document(error.code):
            raise
        return error


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size` at most: what one command may hold."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def in_chunks_by_size(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the items in lists of `most` bytes at most; a larger item goes alone."""
    chunk: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if chunk and total + size > most:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


def of_ids(ids: Iterable[object]) -> dict[str, Any]:
    """Return the condition that a document has one of these ids."""
    return {"_id": {"$in": list(ids)}}
