"""URI -> client, what is asked of a caller's database handle, and facts about the server behind it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import bson
import pymongo
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, ReadPreference
from pymongo import errors as driver
from pymongo.collection import Collection as PyMongoCollection
from pymongo.database import Database as PyMongoDatabase
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from ..clock import steady_clock
from ..errors import BrokenDocumentError, InvalidDatabaseError, InvalidOptionError, MonqueConnectionError
from ..jobs.job import Job
from ..log import logger_of
from ..safe_text import one_line, uri_without_secrets, without_secrets_of
from .codec import LENIENT, OWN_OPTIONS, Codec
from .commands import Interference, command
from .driver_errors import translated
from .fields import FIELD
from .known import Crowd, Known
from .types import Collection, Database

logger = logger_of("store")

# A sample that took longer says little about the server's clock: by half of that it may be wrong.
LONGEST_ROUND_TRIP = 0.5

# One that took no longer is good enough. The first of a client is none: its connection is opened meanwhile.
GOOD_ROUND_TRIP = 0.005

# So many are taken at most, and the fastest counts.
SAMPLES = 3


class Reaching(Protocol):
    """By which a server is reached."""

    @property
    def collection(self) -> Collection: ...

    @property
    def operation_timeout(self) -> float: ...


@dataclass(frozen=True, slots=True)
class JobCollection:
    """The jobs collection as every command here uses it.

    Reads and writes go to the primary, with the write concern that the guarantees rest on, whatever
    the caller's handle says: a secondary's stale answer is no state to decide on.

    Attributes:
        collection: The handle.
        codec: Reads what the handle returns.
        operation_timeout: Seconds that one call may take.
        has_indexes: Commands may name the index that serves them: where it is gone, they fail and tell so.
        broken: The ids of documents that are not jobs, as far as they were met.
        left_over: The ids of pending jobs that bore an owner when they were met.
        unclaimable: The ids of jobs on which the server refuses every claim, as far as they were met.
        refused: The ids of jobs to which the server has refused a write.
        missed: The candidates that the last claims did not get, and the past that was pinned of each.
        crowds: Where the looks are at each name with more bad documents than a query may name.
        interference: What a test has put in the way of the next commands; otherwise empty.
    """

    collection: Collection
    codec: Codec
    operation_timeout: float
    has_indexes: bool = False
    broken: Known = field(default_factory=Known, compare=False)
    left_over: Known = field(default_factory=Known, compare=False)
    unclaimable: Known = field(default_factory=Known, compare=False)
    refused: Known = field(default_factory=Known, compare=False)
    missed: dict[object, object] = field(default_factory=dict, compare=False)
    crowds: dict[str, Crowd] = field(default_factory=dict, compare=False)
    interference: list[Interference] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, database: Database, name: str, *, write_concern: str | int, operation_timeout: float) -> JobCollection:
        codec = Codec(database.codec_options)
        collection = database.get_collection(
            name,
            codec_options=codec.reading,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern(write_concern),
        )
        return cls(collection, codec, operation_timeout)

    @property
    def raw(self) -> Collection:
        """The same, for reads in which one document that cannot be decoded must not spoil the others."""
        return self.collection.with_options(codec_options=self.codec.raw)

    def decoded(self, read: Callable[[Collection], Iterable[Any]]) -> list[Job]:
        """The jobs among the documents that `read` finds; what is not a job is left out, and told once.

        A document that the driver cannot even decode (a date beyond the year 9999, bytes that are no
        text) makes it give up the whole batch: then it is read again, raw, and decoded one by one.
        """
        return self.sorted_out(read)[0]

    def sorted_out(self, read: Callable[[Collection], Iterable[Any]]) -> tuple[list[Job], list[BrokenDocumentError]]:
        """The same, and what is wrong with the others."""
        try:
            documents = list(read(self.collection))
        except (BSONError, UnicodeDecodeError):
            documents = list(read(self.raw))
        jobs, broken = [], []
        for document in documents:
            try:
                jobs.append(self.codec.decode(document))
            except BrokenDocumentError as error:
                broken.append(error)
                if self.report_broken(error.document_id, error.problem, name_in(document)):
                    logger.warning("%s; until then it is left alone", error)
        return jobs, broken

    def report_broken(self, document_id: object, problem: str, name: str | None = None) -> bool:
        """Remembers a document that is not a job; whether that is news."""
        return self.broken.add(document_id, problem, name)

    def can_be_claimed(self, job: Job, names: Container[str]) -> bool:
        """Whether a claim on these names takes a pending job that a look has found. What it does not is passed over.

        Of two fields of one name the server compares the first, and the driver reads the last.
        """
        if job.name not in names:
            problem = f"it has two fields called {FIELD['name']}"
            if self.report_broken(job.id, problem):
                logger.warning("%s; until then it is left alone", BrokenDocumentError(job.id, problem))
            return False
        return job.claimed_by is None or self.pass_over_left_over(job)

    def pass_over_left_over(self, job: Job) -> bool:
        """Passes over a pending job that bears an owner: no claim takes it. Always False."""
        if self.left_over.add(job.id, "", job.name):
            logger.warning(
                "job %s is pending and still bears claimedBy=%r: it is not claimed until that is unset",
                job,
                job.claimed_by,
            )
        return False

    def report_refused(self, document_id: object) -> bool:
        """Remembers a job whose end, or whose release, the server refuses; whether that is news."""
        return self.refused.add(document_id)

    def pass_over(self, job: Job, reason: str) -> bool:
        """Remembers a job on which the server refuses every claim; whether that is news."""
        self.unclaimable.add(job.id, reason, job.name)
        return self.refused.add(job.id, reason)

    @property
    def passed_over(self) -> Sequence[Known]:
        """What no look is to bring again."""
        return self.broken, self.left_over, self.unclaimable

    def forget_passed_over(self, name: str) -> None:
        """Forgets what is passed over of a name: what is still there is met again."""
        for known in self.passed_over:
            known.forget(name)

    def is_passed_over(self, document_id: object) -> bool:
        return any(document_id in known for known in self.passed_over)

    def count_passed_over(self, name: str | None = None) -> int:
        """How many documents are passed over, of a name or of all, as far as they were met."""
        return sum(len(known) if name is None else known.count(name) for known in self.passed_over)


def name_in(document: Any) -> str | None:
    """The name of a document that is not a job, as far as it can be read."""
    if isinstance(document, RawBSONDocument):
        try:
            document = bson.decode(document.raw, codec_options=LENIENT)
        except BSONError:
            return None
    name = document.get(FIELD["name"])
    return name if type(name) is str else None


def check_database(database: object) -> Database:
    """Raises InvalidDatabaseError, saying what to pass instead, unless this is a pymongo Database."""
    if isinstance(database, PyMongoDatabase):
        return database
    if type(database).__name__ == "AsyncDatabase":
        raise InvalidDatabaseError(
            "an AsyncDatabase was given: pass a pymongo.database.Database, for example "
            'MongoClient(uri)["name"]. The library runs the blocking driver in threads, so that one '
            "client serves trio, asyncio and plain code"
        )
    raise InvalidDatabaseError(
        f"{type(database).__name__} is not a pymongo.database.Database: pass {_database_of(database)}"
    )


def _database_of(given: object) -> str:
    """What to pass instead."""
    if isinstance(given, MongoClient):
        return "one of this client's, for example client['name']"
    if isinstance(given, PyMongoCollection):
        return "the collection's, collection.database; collection_name= names the one with the jobs"
    if isinstance(given, str):
        return "one, for example MongoClient(connection_string)['name']"
    return "one as the first argument, for example MongoClient(uri)['name']"


def check_collection(collection: object) -> Collection:
    """Raises InvalidDatabaseError, saying what to pass instead, unless this is a pymongo Collection."""
    if isinstance(collection, PyMongoCollection):
        return collection
    if type(collection).__name__ == "AsyncCollection":
        raise InvalidDatabaseError(
            "an AsyncCollection was given: pass a pymongo.collection.Collection, for example "
            'MongoClient(uri)["name"]["messages"]. The library runs the blocking driver in threads'
        )
    instead = (
        "db['messages'] of this database"
        if isinstance(collection, PyMongoDatabase)
        else "MongoClient(uri)['name']['messages']"
    )
    raise InvalidDatabaseError(
        f"{type(collection).__name__} is not a pymongo.collection.Collection: pass one, for example {instead}"
    )


def check_pool(database: Database, needed: int) -> None:
    """Raises InvalidOptionError where the client's pool has fewer connections than are needed at once."""
    size = database.client.options.pool_options.max_pool_size
    if size and size < needed:
        raise InvalidOptionError(
            "maxPoolSize",
            size,
            f"is too small: a scheduler needs {needed} connections, or its renewals would wait behind its "
            f"other commands. Make the client with maxPoolSize={needed} or more",
        )


@command("reach the database", writes=False)
def measure_clock_offset(reaching: Reaching) -> float | None:
    """Seconds to add to the steady clock to have the primary's; None where each sample was too slow to tell."""
    fastest, offset = LONGEST_ROUND_TRIP, None
    for _ in range(SAMPLES):
        # Not time.monotonic(): a sample during which the machine was suspended must count as slow.
        sent = steady_clock()
        # Of the primary: a command has its own default, whatever the read preference of the handle is.
        answer = reaching.collection.database.command("hello", codec_options=OWN_OPTIONS)
        took = steady_clock() - sent
        if took <= fastest:
            fastest, offset = took, float(answer["localTime"].timestamp() - sent - took / 2)
        if took <= GOOD_ROUND_TRIP or took > LONGEST_ROUND_TRIP:
            break
    return offset


def known_primary(reaching: Reaching) -> tuple[str, int] | None:
    """The member that the driver takes for the primary, without asking anybody; None where there is no replica set."""
    return reaching.collection.database.client.primary


@contextmanager
def connect(uri: str, *, database: str, timeout: float = 5.0) -> Iterator[Database]:
    """A database on a server of one's own choice, reached at once; the client is closed at the end.

    Args:
        uri: A MongoDB connection string.
        database: Which database, where the string does not say.
        timeout: Seconds in which the server must have answered.

    Raises:
        MonqueConnectionError: The string is wrong, or the server does not answer; says which.
    """
    milliseconds = round(timeout * 1000)
    client = _client_of(uri, milliseconds)
    try:
        try:
            with pymongo.timeout(timeout):
                client.admin.command("ping")
        except driver.PyMongoError as error:
            raise translated(error, f"reach {uri_without_secrets(uri)}") from error
        yield client.get_default_database(database)
    finally:
        client.close()


def _client_of(uri: str, milliseconds: int) -> MongoClient[Any]:
    try:
        return MongoClient(
            uri,
            serverSelectionTimeoutMS=milliseconds,
            connectTimeoutMS=milliseconds,  # It bounds the DNS query of mongodb+srv, too: by default 20 s.
            appname="trio_monque",
        )
    except (driver.PyMongoError, ValueError, TypeError, OSError) as error:  # OSError: a missing certificate file.
        problem = one_line(without_secrets_of(uri, str(error)))
        # What the driver says may repeat a part of the password, and a traceback shows the cause, too.
        cause = error if problem == str(error) else None
    # Outside of the handler: there, the error of the driver would be the context of this one all the same.
    raise MonqueConnectionError(
        f"{uri_without_secrets(uri)!r} cannot be used as a MongoDB connection string ({problem}): "
        "one looks like mongodb://localhost:27017"
    ) from cause
