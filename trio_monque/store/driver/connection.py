"""Checks the database that a caller passes, connects to a URI, and measures the clock of the server."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo import MongoClient
from pymongo import errors as driver
from pymongo.collection import Collection as PyMongoCollection
from pymongo.database import Database as PyMongoDatabase

from ...clock import steady_clock
from ...error_types import InvalidDatabaseError, InvalidOptionError, MonqueConnectionError
from ...log import logger_of
from ...safe_text import one_line, uri_without_secrets, without_secrets_of
from ..codec import OWN_OPTIONS
from .commands import Reaching, command
from .driver_errors import translated
from .types import Collection, Database

logger = logger_of("store")

CLOSING_TIMEOUT = 1.0
"""Seconds that closing a client may take. If the server is gone, the driver would look for it for half a minute."""

# Seconds. A slower sample is useless: the offset may be wrong by half of its duration.
LONGEST_ROUND_TRIP = 0.5

# Seconds. A sample that is this fast is good enough. The first of a client never is: it opens the connection.
GOOD_ROUND_TRIP = 0.005

# The number of samples at most; the fastest counts.
SAMPLES = 3


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
    """Return what to pass instead."""
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
    """Return the seconds from the steady clock to the primary's clock; None if every sample was too slow."""
    fastest, offset = LONGEST_ROUND_TRIP, None
    for _ in range(SAMPLES):
        # Not time.monotonic(): a sample during which the machine was suspended must count as slow.
        sent = steady_clock()
        # On the primary: a command ignores the read preference of the handle.
        answer = reaching.collection.database.command("hello", codec_options=OWN_OPTIONS)
        took = steady_clock() - sent
        if took <= fastest:
            fastest, offset = took, float(answer["localTime"].timestamp() - sent - took / 2)
        if took <= GOOD_ROUND_TRIP or took > LONGEST_ROUND_TRIP:
            break
    return offset


@contextmanager
def connect(uri: str, *, database: str, timeout: float = 5.0) -> Iterator[Database]:
    """Connect to a server at once; yield the database, and close the client at the end.

    Args:
        uri: A MongoDB connection string.
        database: Which database, where the string does not say.
        timeout: Seconds in which the server must have answered.

    Raises:
        MonqueConnectionError: The string is wrong, or the server does not answer; says which.
    """
    milliseconds = round(timeout * 1000)
    client = client_of(
        uri,
        serverSelectionTimeoutMS=milliseconds,
        connectTimeoutMS=milliseconds,  # It bounds the DNS query of mongodb+srv, too: by default 20 s.
        appname="trio_monque",
    )
    try:
        try:
            with pymongo.timeout(timeout):
                client.admin.command("ping")
        except driver.PyMongoError as error:
            raise translated(error, f"reach {uri_without_secrets(uri)}") from error
        yield client.get_default_database(database)
    finally:
        client.close()


@contextmanager
def open_database(uri: str, name: str | None) -> Iterator[Database]:
    """Yield a database of a server, and close the client at the end. The client connects when it is used first.

    Args:
        uri: A MongoDB connection string. Its options hold as they are.
        name: Which database; None for the one that the string names.

    Raises:
        MonqueConnectionError: The string is wrong.
        InvalidOptionError: There is no database of this name, or no name.
    """
    client = client_of(uri)
    try:
        try:
            database = client.get_default_database() if name is None else client[name]
            database.name.encode()  # An argument of a command that is not UTF-8 has lone surrogates.
        except driver.ConfigurationError:
            raise InvalidOptionError(
                "database",
                name,
                "name one, by --database or in the connection string, as in mongodb://localhost:27017/shop",
            ) from None
        except (driver.InvalidName, UnicodeEncodeError) as error:
            raise InvalidOptionError("database", name, str(error)) from None
        yield database
    finally:
        with pymongo.timeout(CLOSING_TIMEOUT):
            client.close()


def collection_of(database: Database, name: str) -> Collection:
    """Return a collection of the database. Raises InvalidOptionError if MongoDB does not allow the name."""
    try:
        return database[name]
    except driver.InvalidName as error:
        raise InvalidOptionError("collection", name, str(error).partition(":")[0]) from None


def client_of(uri: str, **options: Any) -> MongoClient[Any]:
    """Return a client of these servers. Raises MonqueConnectionError, without secrets, if the string is wrong."""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            client: MongoClient[Any] = MongoClient(uri, **options)
        # The driver ignores wrong options with a warning, which may repeat a secret value of one.
        for text in dict.fromkeys(str(one.message) for one in warned):
            logger.warning("ignored a part of the connection string: %s", one_line(without_secrets_of(uri, text)))
        return client
    except (driver.PyMongoError, ValueError, TypeError, OSError) as error:  # OSError: a missing certificate file.
        problem = one_line(without_secrets_of(uri, str(error)))
        # What the driver says may repeat a part of the password, and a traceback shows the cause, too.
        cause = error if problem == str(error) else None
    # Raised outside of the `except` block: inside, the driver's error would be the context of this one all the same.
    raise MonqueConnectionError(
        f"{uri_without_secrets(uri)!r} cannot be used as a MongoDB connection string ({problem}): "
        "one looks like mongodb://localhost:27017"
    ) from cause
