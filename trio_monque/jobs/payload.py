"""The data of a job, and what its handler gives to be stored: as BSON can hold it, and how large it is."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions

from ..errors import InvalidPayloadError, PayloadTooLargeError
from ..options import LARGEST_PAYLOAD
from ..safe_text import LONGEST_TEXT, one_line, without_secrets
from .unstorable import why_unstorable

# A document's length (4), the value's type and empty key (2), and the document's end (1).
_ENVELOPE: Final = 7


def plain_data(worker: object, data: Any) -> Any:
    """The data as it is stored: a dataclass instance becomes a document of its fields.

    Raises:
        InvalidPayloadError: `worker` says which type its data has, and it is another; or a field of the
            dataclass cannot be copied.
    """
    expected = getattr(worker, "payload", None)
    if isinstance(expected, type) and not _is_instance(data, expected):
        name = getattr(worker, "name", worker)
        raise InvalidPayloadError(f"worker {name!r} takes {expected.__name__} as its data, not {type(data).__name__}")
    if is_dataclass(data) and not isinstance(data, type):
        try:
            return asdict(data)
        except Exception as error:
            raise InvalidPayloadError(f"the fields of {type(data).__name__} cannot be copied: {error}") from error
    return data


def _is_instance(data: Any, expected: type) -> bool:
    try:
        return isinstance(data, expected)
    except TypeError:  # A TypedDict, or a Protocol that cannot be asked at run time: what decodes the data decides.
        return True


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
