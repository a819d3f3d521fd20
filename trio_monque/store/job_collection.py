"""The jobs collection: the handle that every command works on, and which documents in it are skipped."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from ..error_types import BrokenDocumentError
from ..jobs.cron import lack_of_zone
from ..jobs.job import Job
from ..log import logger_of
from .codec import LENIENT, Codec
from .driver.commands import Interference
from .driver.types import Collection, Database
from .fields import FIELD
from .skipped_documents import PagingPlace, SkippedDocuments

logger = logger_of("store")


@dataclass(frozen=True, slots=True)
class JobCollection:
    """The jobs collection as every command here uses it.

    Reads and writes go to the primary, with the write concern that the guarantees need, whatever the options of the
    caller's handle are: a secondary may return old data, and no decision may depend on that.

    All threads of a client share one handle, and copies of it (with another timeout) share the same memories. The
    attributes say what each thread may do with these.

    Attributes:
        collection: The handle.
        raw: The same handle with documents as bytes: one that cannot be decoded then does not spoil the whole read.
        codec: Reads the documents that the handle returns.
        operation_timeout: Seconds that one call may take.
        has_indexes: The indexes were created. Commands may name one as a hint, and fail if it is gone.
        broken: Documents that are not jobs, and that a look has met. As the next three, it has a lock of its own.
        left_over: Pending jobs that have an owner, and that a look has met.
        unclaimable: Jobs on which the server refuses every claim.
        elsewhere: Jobs that this machine cannot run, and that another one may.
        refused: Jobs to which the server has refused a write. Only so that each is logged once.
        missed: Candidates that the last claims have missed, each with the past that its pins had. Only claims touch
            it, in two threads at once: each access is one operation on the dict, and none expects what the one before
            it saw. An entry that is lost costs one more claim that misses.
        paging: For each name with many skipped documents: how far the looks have come. See `due_behind_skipped.py`.
            Only the look for due jobs touches it. There is one at a time, in changing threads.
        interference: What a test has put in the way of the next commands; otherwise empty. The tests change it, under
            a lock of theirs, and commands read a copy.
    """

    collection: Collection
    codec: Codec
    operation_timeout: float
    has_indexes: bool = False
    broken: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    left_over: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    unclaimable: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    elsewhere: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    refused: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    missed: dict[object, object] = field(default_factory=dict, compare=False)
    paging: dict[str, PagingPlace] = field(default_factory=dict, compare=False)
    interference: list[Interference] = field(default_factory=list, compare=False)
    raw: Collection = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", self.collection.with_options(codec_options=self.codec.raw))

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

    def decoded(self, read: Callable[[Collection], Iterable[Any]]) -> list[Job]:
        """Return the jobs among the documents that `read` finds. Other documents are left out, and logged once."""
        return self.sorted_out(read)[0]

    def sorted_out(self, read: Callable[[Collection], Iterable[Any]]) -> tuple[list[Job], list[BrokenDocumentError]]:
        """Return the jobs among the documents that `read` finds, and what is wrong with the other documents."""
        try:
            documents = list(read(self.collection))
        # If the driver cannot decode one document (a date beyond the year 9999, bytes that are not UTF-8), it raises
        # for the whole batch. Then they are read again as bytes, and decoded one by one.
        except (BSONError, UnicodeDecodeError):
            documents = list(read(self.raw))
        return self._sorted_out(documents)

    def decoded_batch(self, batch: bytes) -> list[Job]:
        """Return the jobs in a batch of `find_raw_batches`. Other documents are left out, and logged once."""
        try:
            documents: list[Any] = bson.decode_all(batch, self.codec.reading)
        except (BSONError, UnicodeDecodeError):
            documents = bson.decode_all(batch, self.codec.raw)
        return self._sorted_out(documents)[0]

    def _sorted_out(self, documents: Iterable[Any]) -> tuple[list[Job], list[BrokenDocumentError]]:
        jobs, broken = [], []
        for document in documents:
            try:
                jobs.append(self.codec.decode(document))
            except BrokenDocumentError as error:
                broken.append(error)
                if self.report_broken(error.document_id, error.problem, name_in(document)):
                    logger.warning("%s; it is skipped until then", error)
        return jobs, broken

    def report_broken(self, document_id: object, problem: str, name: str | None = None) -> bool:
        """Remember a document that is not a job; return whether to log it."""
        return self.broken.add(document_id, problem, name)

    def can_be_claimed(self, job: Job, names: Container[str]) -> bool:
        """Return whether a claim on these names takes a pending job that a look has found. If not, skip the job."""
        # The server found the document under one of the names, so it has two names: the server compares the first, and
        # the driver reads the last.
        if job.name not in names:
            problem = f"it has two fields called {FIELD['name']}"
            if self.report_broken(job.id, problem):  # Under no name: looks for either name may meet it.
                logger.warning("%s; it is skipped until then", BrokenDocumentError(job.id, problem))
            return False
        if job.claim is not None and job.claim.by is not None:
            self.skip_left_over(job, job.claim.by)
            return False
        return self.can_run_here(job)

    def can_run_here(self, job: Job) -> bool:
        """Return whether this machine can run a job. If not, leave it to others, and log that once."""
        if job.id in self.elsewhere:
            return False
        if job.schedule is None or (lack := lack_of_zone(job.schedule.timezone)) is None:
            return True
        self.leave_to_others(job, lack)
        return False

    def leave_to_others(self, job: Job, lack: str) -> None:
        """Skip a job for a minute, because this machine lacks what it needs; then it is tried again."""
        self.elsewhere.add(job.id, lack, job.name)
        # `elsewhere` forgets the job after a minute. `refused` keeps it: it is logged once.
        if self.refused.add(job.id, lack):
            logger.warning("left job %s to other instances: %s", job, lack)

    def skip_left_over(self, job: Job, owner: str) -> None:
        """Skip a pending job that has an owner: no claim takes it."""
        if self.left_over.add(job.id, "", job.name):
            logger.warning(
                "job %s is pending but still has claimedBy=%r; it is not claimed until that field is unset "
                "(`trio-monque repair ID --unset claimedBy`)",
                job,
                owner,
            )

    def report_refused(self, document_id: object) -> bool:
        """Remember a job whose end or release the server refuses; return whether to log it."""
        return self.refused.add(document_id)

    def pass_over(self, job: Job, reason: str) -> bool:
        """Remember a job on which the server refuses every claim; return whether to log it."""
        # `unclaimable` forgets the job after a minute, and it is tried again. `refused` keeps it: it is logged once.
        self.unclaimable.add(job.id, reason, job.name)
        return self.refused.add(job.id, reason)

    @property
    def skipped(self) -> Sequence[SkippedDocuments]:
        """The documents that the looks leave out."""
        return self.broken, self.left_over, self.unclaimable, self.elsewhere

    def forget_skipped(self, name: str) -> None:
        """Forget the skipped documents of a name. The looks meet those that are still broken again."""
        for known in self.skipped:
            known.forget(name)

    def is_skipped(self, document_id: object) -> bool:
        return any(document_id in known for known in self.skipped)

    def count_skipped(self, name: str | None = None) -> int:
        """Return how many documents the looks have met and skip, of one name or of all."""
        return sum(len(known) if name is None else known.count(name) for known in self.skipped)


def name_in(document: Any) -> str | None:
    """Return the name in a document that is not a job; None if it has none that is text."""
    if isinstance(document, RawBSONDocument):
        try:
            document = bson.decode(document.raw, codec_options=LENIENT)
        except BSONError:
            return None
    name = document.get(FIELD["name"])
    return name if type(name) is str else None
