"""The data of a job, and what its handler gives to be stored: as BSON can hold it, and how large it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeGuard, TypeVar

import bson
from bson import Code, DBRef
from bson.codec_options import CodecOptions

from ..errors import InvalidPayloadError, PayloadTooLargeError
from ..options import LARGEST_PAYLOAD
from ..payloads.payload_type import BUILTINS, stored_instance
from ..payloads.problems import ValueProblem, why_unstorable
from ..safe_text import LONGEST_TEXT, one_line, without_secrets

T = TypeVar("T")

# A document's length (4), the value's type and empty key (2), and the document's end (1).
_ENVELOPE: Final = 7

DEEPEST: Final = 178
"""How deep documents and arrays may be nested in what is stored; the outermost one counts.

The server stores 180 levels, the job itself included. But its `findAndModify` refuses to change a document that has
all of them: such a job could be enqueued, and never be claimed by its id (measured with MongoDB 6.0).
"""

# Each level is an element of one of these types: a document, an array, code with a scope. Counting bytes is cheap.
_TYPES_WITH_PARTS: Final = (b"\x03", b"\x04", b"\x0f")
_CONTAINERS: Final = frozenset({dict, list, DBRef, Code})


class Taking(Protocol[T]):
    """What knows which data its jobs have: a Worker."""

    @property
    def name(self) -> str: ...

    def stored(self, data: T, /) -> Any:
        """The data as it is stored. Raises InvalidPayloadError."""

    def loaded(self, stored: Any, /) -> T:
        """The data, of what is stored. Raises UnreadablePayloadError."""


def takes_data(worker: object) -> TypeGuard[Taking[Any]]:
    """Whether it is one; asked at each enqueue, where isinstance with a Protocol would take 35 µs."""
    return callable(getattr(type(worker), "stored", None))


def plain_data(worker: object, data: Any) -> Any:
    """The data as it is stored: an instance of a class with fields becomes a document of them.

    Raises:
        InvalidPayloadError: `worker` takes other data, or a value in it cannot be stored; names where.
    """
    if takes_data(worker):
        return worker.stored(data)
    if type(data) in BUILTINS:  # Nearly all that is enqueued by name: it pays for no more than this look.
        return data
    with storing(f"this {type(data).__name__} cannot be stored"):
        return stored_instance(data)


@contextmanager
def storing(what_is_wrong: str) -> Iterator[None]:
    """Raises InvalidPayloadError for what is wrong with a value that is to be stored."""
    try:
        yield
    except ValueProblem as error:
        raise InvalidPayloadError(f"{what_is_wrong}: {one_line(without_secrets(str(error)))}") from error
    except RecursionError as error:
        raise InvalidPayloadError(f"{what_is_wrong}: it holds itself, or is nested too deeply") from error
    except Exception as error:
        # A property, a serializer, an annotation of the caller's.
        problem = one_line(without_secrets(f"{type(error).__name__}: {error}"))
        raise InvalidPayloadError(f"{what_is_wrong}: {problem}") from error


def check_payload(data: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str = "data") -> bytes:
    """Returns the data as the BSON document `{"": data}`: encoded once, for its size and for the sending.

    Args:
        data: The payload; its size is that of the document, less the few bytes around it.
        maximum: Bytes; None for what fits into a document.
        codec_options: The caller's, as they are used for writing.
        what: What the caller knows it as, for messages.

    Raises:
        InvalidPayloadError: `data` cannot be stored, or cannot be read again; the cause is the encoder's or the
            decoder's error.
        PayloadTooLargeError: It is larger than allowed.
    """
    return _stored_and_read(data, maximum, codec_options, what)[0]


def snapshot(value: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str = "data") -> Any:
    """The value as it will be stored, whatever becomes of the caller's object until then.

    Raises:
        InvalidPayloadError, PayloadTooLargeError: As `check_payload` does.
    """
    return _stored_and_read(value, maximum, codec_options, what)[1]


def unpacked(payload: bytes, codec_options: CodecOptions[Any]) -> Any:
    """What `check_payload` has encoded, as it will be read."""
    return bson.decode(payload, codec_options=_reading(codec_options))[""]


def _reading(codec_options: CodecOptions[Any]) -> CodecOptions[Any]:
    """The same, for what is read: plain dicts, and text strictly, as the job's own fields beside it are read."""
    if codec_options.document_class is dict and codec_options.unicode_decode_error_handler == "strict":
        return codec_options  # Another would take longer to make than most data take to be read.
    return codec_options.with_options(document_class=dict, unicode_decode_error_handler="strict")


def _stored_and_read(data: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str) -> tuple[bytes, Any]:
    """The data as it is stored, and as a worker reads it."""
    try:
        encoded = bson.encode({"": data}, codec_options=codec_options)
    except Exception as error:
        problem = _problem(error, data, what, codec_options)
        raise InvalidPayloadError(f"the job's {what} cannot be stored as BSON: {problem}") from error
    size = len(encoded) - _ENVELOPE
    limit = LARGEST_PAYLOAD if maximum is None else maximum
    if size > limit:
        raise PayloadTooLargeError(size, limit, what)
    try:
        read = unpacked(encoded, codec_options)
    except Exception as error:
        # The encoder takes more than the decoder: dates that Python cannot represent, and a `RawBSONDocument` whatever
        # is in it. No worker could run such a job.
        problem = _problem(error, data, what, codec_options)
        raise InvalidPayloadError(
            f"the job's {what} can be stored as BSON, but not be read again: {problem}"
        ) from error
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
