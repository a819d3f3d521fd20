"""The context of a handler in run_job: the checks and codec of production, without a database."""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final, NoReturn, cast

from ..client.context import ClientContext
from ..errors import MonqueError
from ..options import ClientConfig
from ..store.codec import Codec
from ..store.job_collection import JobCollection
from ..store.types import CodecOptions, Collection

# As the fixtures of the kit read: datetimes of payloads come back timezone-aware.
AWARE: Final[CodecOptions[Any]] = CodecOptions(tz_aware=True, tzinfo=UTC)


class NoDatabaseError(MonqueError, AttributeError):
    """A handler that `run_job` runs asked for something that only a database has.

    It is an AttributeError too, so that `hasattr` says what is there.
    """

    def __init__(self, asked_for: str) -> None:
        super().__init__(
            f"run_job has no database, so {asked_for} is not there: give run_job a stand-in of your own as "
            "scheduler=, or run the job against a database, with open_test_scheduler"
        )


class _NoCollection:
    """Stands where the jobs collection would; whatever would be sent to it ends here."""

    full_name: Final = "run_job has no collection"

    def __getattr__(self, name: str) -> NoReturn:
        # A session is compared with the client of the collection.
        asked_for = (
            "the database of that session" if name == "database" else f"the collection that {name!r} was asked of"
        )
        raise NoDatabaseError(asked_for)


def context_without_database(config: ClientConfig, codec_options: CodecOptions[Any]) -> ClientContext:
    """Checks and encodes as a client with these options does."""
    collection = cast("Collection", _NoCollection())
    return ClientContext(JobCollection(collection, Codec(codec_options), config.operation_timeout), config)
