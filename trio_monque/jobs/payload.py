"""The data of a job, and what its handler gives to be stored: as BSON can hold it, and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import bson
from bson.codec_options import CodecOptions

from ..errors import InvalidPayloadError, PayloadTooLargeError
from ..options import LARGEST_PAYLOAD
from ..payloads.payload_type import stored_instance
from ..payloads.problem import ValueProblem
from ..safe_text import LONGEST_TEXT, one_line, without_secrets
from .unstorable import why_unstorable

T_contra = TypeVar("T_contra", contravariant=True)

# A document's length (4), the value's type and empty key (2), and the document's end (1).
_ENVELOPE: Final = 7


@runtime_checkable
class Taking(Protocol[T_contra]):
    """What knows which data its jobs have: a Worker."""

    @property
    def name(self) -> str: ...

    def stored(self, data: T_contra, /) -> Any:
        """The data as it is stored. Raises InvalidPayloadError."""


def plain_data(worker: object, data: Any) -> Any:
    """The data as it is stored: an instance of a class with fields becomes a document of them.

    Raises:
        InvalidPayloadError: `worker` takes other data, or a value in it cannot be stored; names where.
    """
    if not isinstance(worker, str | None) and isinstance(worker, Taking):
        return worker.stored(data)
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
        InvalidPayloadError: `data` cannot be stored; the encoder's error is the cause.
        PayloadTooLargeError: It is larger than allowed.
    """
    try:
        encoded = bson.encode({"": data}, codec_options=codec_options)
    except Exception as error:
        problem = one_line(why_unstorable(data, what, codec_options) or without_secrets(str(error)[:LONGEST_TEXT]))
        raise InvalidPayloadError(f"the job's {what} cannot be stored as BSON: {problem}") from error
    size = len(encoded) - _ENVELOPE
    limit = LARGEST_PAYLOAD if maximum is None else maximum
    if size > limit:
        raise PayloadTooLargeError(size, limit, what)
    return encoded


def snapshot(value: Any, maximum: int | None, codec_options: CodecOptions[Any], what: str = "data") -> Any:
    """The value as it will be stored, whatever becomes of the caller's object until then.

    Raises:
        InvalidPayloadError, PayloadTooLargeError: It cannot be stored.
    """
    return unpacked(check_payload(value, maximum, codec_options, what), codec_options)


def unpacked(payload: bytes, codec_options: CodecOptions[Any]) -> Any:
    """What `check_payload` has encoded, as it will be read."""
    return bson.decode(payload, codec_options=codec_options.with_options(document_class=dict))[""]
