"""Checks and encodes the data of a job, its result, progress and checkpoint: form, size and depth. Pure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeGuard, TypeVar

import bson
from bson import Code, DBRef
from bson.codec_options import CodecOptions

from ..error_types import InvalidPayloadError, PayloadTooLargeError
from ..options_and_defaults import LARGEST_PAYLOAD
from ..payloads.payload_type import BUILTINS, stored_instance
from ..payloads.problems import ValueProblem, why_misread, why_unstorable
from ..safe_text import LONGEST_TEXT, one_line, without_secrets

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

# A document's length (4), the value's type and empty key (2), and the document's end (1).
_ENVELOPE: Final = 7

DEEPEST: Final = 178
"""How many levels of documents and arrays a stored value may have, the outermost one included.

The server stores 180 levels, the job itself included. But its `findAndModify` refuses to change a document that has
all of them: such a job could be enqueued, but never be claimed by its id (measured with MongoDB 6.0).
"""

# Each level is an element of one of these types: a document, an array, code with a scope. To count bytes is cheap, so
# only data that may be too deep are walked.
_TYPES_WITH_PARTS: Final = (b"\x03", b"\x04", b"\x0f")
_DATE: Final = b"\x09"
_REFERENCE: Final = b"$ref\0"
"""The type of a date, and a key of a reference. Only data with these bytes are walked for what would be misread."""
_CONTAINERS: Final = frozenset({dict, list, DBRef, Code})


class TypedWorker(Protocol[T]):
    """A Worker, or another object that knows the type of its jobs' data `T`."""

    @property
    def name(self) -> str: ...

    def stored(self, data: T, /) -> Any:
        """Converts data to the stored form. Raises InvalidPayloadError."""
        ...

    def loaded(self, stored: Any, /) -> T:
        """Converts the stored form back to data. Raises UnreadablePayloadError."""
        ...


class WorkerHere(Protocol):
    """A worker of this process, for data that are enqueued by its name."""

    def check_stored(self, stored: Any, /) -> None:
        """Raises InvalidPayloadError if the worker cannot read the stored form."""
        ...


class AsyncWorker(TypedWorker[T], Protocol[T, R_co]):
    """A Worker with an async handler: the result of its jobs is an `R`."""

    def __call__(self, job: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R_co]: ...


class PlainWorker(TypedWorker[T], Protocol[T, R_co]):
    """A Worker with a plain handler."""

    def __call__(self, job: Any, /, *args: Any, **kwargs: Any) -> R_co: ...


def takes_data(worker: object) -> TypeGuard[TypedWorker[Any]]:
    """Whether an object is a TypedWorker. Every enqueue asks this, and isinstance with a Protocol takes 35 µs."""
    return callable(getattr(type(worker), "stored", None))


def result_reader_of(worker: object) -> Callable[[Any], Any] | None:
    """What makes the declared type of a result from what is stored; None if the worker declares none."""
    read: Callable[[Any], Any] | None = getattr(worker, "result_reader", None)
    return read


def plain_data(worker: object, data: Any) -> Any:
    """Converts data to the stored form: an instance of a class with fields becomes a document of these fields.

    Raises:
        InvalidPayloadError: `worker` takes data of another type, or a value cannot be stored; the message has its path.
    """
    if takes_data(worker):
        return worker.stored(data)
    if type(data) in BUILTINS:  # The usual case for jobs that are enqueued by name: it must be fast.
        return data
    with storing(f"this {type(data).__name__} cannot be stored"):
        return stored_instance(data)


@contextmanager
def storing(what_is_wrong: str) -> Iterator[None]:
    """Turns errors in its body, which converts a value to its stored form, into InvalidPayloadError."""
    try:
        yield
    except ValueProblem as error:
        raise InvalidPayloadError(f"{what_is_wrong}: {one_line(without_secrets(str(error)))}") from error
    except RecursionError as error:
        raise InvalidPayloadError(f"{what_is_wrong}: it contains itself, or is nested too deeply") from error
    except Exception as error:
        # A property, a serializer or an annotation of the caller may raise anything.
        problem = one_line(without_secrets(f"{type(error).__name__}: {error}"))
        raise InvalidPayloadError(f"{what_is_wrong}: {problem}") from error


def check_payload(data: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str = "data") -> bytes:
    """Returns the data as the BSON document `{"": data}`: encoded once, both to check its size and to send it.

    Args:
        data: The value. Its size is the size of the document without the few bytes around the value.
        maximum: Bytes; None for the most that fits into a document.
        codec_options: The caller's codec options for writing.
        what: The caller's word for the value in messages: "data", "result", "progress".

    Raises:
        InvalidPayloadError: The value cannot be stored, or not be read again; `__cause__` is the encoder's or the
            decoder's error.
        PayloadTooLargeError: The value is larger than `maximum`.
    """
    return _stored_and_read(data, maximum, codec_options, what)[0]


def snapshot(value: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str = "data") -> Any:
    """A copy of the value as it will be stored: later changes of the caller's object do not affect it.

    Raises:
        InvalidPayloadError, PayloadTooLargeError: As `check_payload` does.
    """
    return _stored_and_read(value, maximum, codec_options, what)[1]


def unpacked(payload: bytes, codec_options: CodecOptions[Any]) -> Any:
    """Decodes the result of `check_payload`, as a worker will read it."""
    return bson.decode(payload, codec_options=_reading(codec_options))[""]


def _reading(codec_options: CodecOptions[Any]) -> CodecOptions[Any]:
    """The codec options for reading: plain dicts and strict text, as for the job's own fields."""
    if codec_options.document_class is dict and codec_options.unicode_decode_error_handler == "strict":
        return codec_options  # To make another one would take longer than to read most data.
    return codec_options.with_options(document_class=dict, unicode_decode_error_handler="strict")


def _stored_and_read(data: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str) -> tuple[bytes, Any]:
    """The encoded data, and the data as a worker reads them."""
    try:
        encoded = bson.encode({"": data}, codec_options=codec_options)
    except Exception as error:
        problem = _problem(error, data, what, codec_options)
        raise InvalidPayloadError(f"the job's {what} cannot be stored as BSON: {problem}") from error
    size = len(encoded) - _ENVELOPE
    limit = LARGEST_PAYLOAD if maximum is None else maximum
    if size > limit:
        raise PayloadTooLargeError(size, limit, what, can_be_raised=limit < LARGEST_PAYLOAD)
    try:
        read = unpacked(encoded, codec_options)
    except Exception as error:
        # The encoder accepts more than the decoder: dates that Python cannot represent, and a `RawBSONDocument` with
        # any content. No worker could run such a job.
        problem = _problem(error, data, what, codec_options)
        raise InvalidPayloadError(f"the job's {what} can be stored as BSON, but not read back: {problem}") from error
    if (_DATE in encoded or _REFERENCE in encoded) and (misread := why_misread(data, what, codec_options)):
        raise InvalidPayloadError(f"the job's {what} would not be read back as it is: {misread}")
    if sum(map(encoded.count, _TYPES_WITH_PARTS)) > DEEPEST and _is_too_deep(read):
        raise InvalidPayloadError(
            f"the job's {what} is nested more than {DEEPEST} levels deep, which MongoDB cannot store: flatten it"
        )
    return encoded, read


def _problem(error: Exception, data: Any, what: str, codec_options: CodecOptions[Any]) -> str:
    return one_line(why_unstorable(data, what, codec_options) or without_secrets(str(error)[:LONGEST_TEXT]))


def _is_too_deep(value: Any) -> bool:
    """Whether documents and arrays are nested deeper than `DEEPEST`."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _parts(outer) if type(inner) in _CONTAINERS]
        if not level:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if type(value) is dict:
        return value.values()
    if type(value) is list:
        return value
    if type(value) is DBRef:
        return value.as_doc().values()
    return value.scope.values() if type(value) is Code and value.scope is not None else ()
