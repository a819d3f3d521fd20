"""Values of every BSON type, for hypothesis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import strategies as st

KEYS: Final = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
    st.sampled_from(["$x", "a.b", "", "_id", "$literal", "$$ROOT", "$ref", "$id", "$db", "result", "0", "__proto__"]),
)
SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.sampled_from([0, 0.0, -0.0, 1, 1.0, True, Int64(1), Decimal128("1"), Decimal128("1.0")]),
    st.decimals(places=3, min_value=-(10**12), max_value=10**12).map(Decimal128),
    st.sampled_from([Decimal128("NaN"), Decimal128("-0"), Decimal128("Infinity"), Decimal128("1E+10")]),
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.sampled_from(["$name", "$$ROOT", "$$REMOVE", "a\0b"]),
    st.binary(max_size=6),
    st.builds(Binary, st.binary(max_size=6), st.sampled_from([1, 5, 6, 128])),
    st.uuids().map(Binary.from_uuid),
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda one: one.replace(tzinfo=UTC)),  # noqa: DTZ001
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([Timestamp(0, 0), MinKey(), MaxKey(), Code("f()"), Code("f()", {"$x": 1})]),
    st.sampled_from([Regex("^a", "im"), DBRef("c", 1), DBRef("c", ObjectId(), "d", extra=1)]),
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
ABSENT: Final = object()
NOTHING: Final = st.just(ABSENT)
