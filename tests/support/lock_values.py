"""Values that may stand in the lock field of a document: those of our locks, and unexpected ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bson import Int64, ObjectId
from hypothesis import strategies as st

NOW = datetime(2026, 1, 1, tzinfo=UTC)

_DATES = st.one_of(
    st.sampled_from([NOW, NOW - timedelta(milliseconds=1), NOW + timedelta(milliseconds=1), NOW - timedelta(days=9)]),
    st.sampled_from(
        [datetime(9000, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)]
    ),
)
_OTHERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**62), 2**62).map(Int64),
    st.floats(),
    st.sampled_from(["", "a", "soon", b"a", ObjectId()]),
)
_ODD = st.one_of(
    _OTHERS, _DATES, st.lists(st.one_of(_OTHERS, _DATES), max_size=2), st.dictionaries(st.just("x"), _OTHERS)
)
_HOLDERS = st.sampled_from([None, None, "a", "b", ""])
_TOKENS = st.sampled_from(["a:1", "b:1", ":", "a"])

_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "by": st.one_of(_HOLDERS, _ODD),
        "until": st.one_of(_DATES, _ODD),
        "every": _ODD,
        "token": st.one_of(_TOKENS, _ODD),
        "tries": st.one_of(st.integers(-1, 5), _ODD),
        "error": _ODD,
        "owner": _OTHERS,
    },
)

LOCKS = st.one_of(_FIELDS, _FIELDS, st.lists(_FIELDS, max_size=2), _ODD)
