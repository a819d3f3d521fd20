"""Codec options of a caller whose values are none of ours."""

from __future__ import annotations

from typing import Any, Final

from bson import Decimal128
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, TypeEncoder, TypeRegistry


class Money:
    """What only this codec can encode."""

    def __init__(self, amount: str) -> None:
        self.amount = amount


class _MoneyEncoder(TypeEncoder):
    python_type = Money

    def transform_python(self, value: Money) -> Decimal128:
        return Decimal128(value.amount)


CALLERS_OPTIONS: Final[CodecOptions[Any]] = CodecOptions(
    uuid_representation=UuidRepresentation.PYTHON_LEGACY, type_registry=TypeRegistry([_MoneyEncoder()])
)
