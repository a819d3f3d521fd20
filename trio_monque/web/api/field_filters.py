"""Filters of a list by fields of the meta and of the data, as a query spells them: `meta.tenant=acme`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ...jobs.field_conditions import FieldValue, is_field_path, is_field_value
from ...jobs.field_readings import DATA, readings_of
from ...jobs.job_query import JobFilter
from ..answers import INVALID_INPUT, RefusedRequestError
from ..hooks import Hooks

NOT_A_FILTER: Final = "Jobs cannot be filtered by {} here: list it in `filters` of the application"
HIDDEN_DATA: Final = "Data is serialized here, so jobs cannot be filtered by it"
NAME_NEEDED: Final = "The data of some names is serialized here: give another name to filter by data"

_PREFIXES: Final = ("meta.", DATA)


def is_field_key(key: str) -> bool:
    """Return whether the key of a query begins as one of a field."""
    return key.startswith(_PREFIXES)


def fields_in(pairs: Iterable[tuple[str, str]]) -> Mapping[str, tuple[FieldValue, ...]] | None:
    """Return the values that each field may have; None if the query names no field.

    Raises:
        RefusedRequestError: A key is not a path, or comes twice, or a value cannot be one (400).
    """
    found: dict[str, tuple[FieldValue, ...]] = {}
    for key, text in pairs:
        if key in found or not is_field_path(key) or not is_field_value(text):
            raise RefusedRequestError(400, INVALID_INPUT)
        found[key] = readings_of(key, text)
    return found or None


def check_fields(hooks: Hooks, filters: Collection[str], asked: JobFilter | None) -> None:
    """Refuse fields that are not among those of the application, and data that the caller may not see as they are.

    A hook hides or changes these, and the number of jobs that match would show them.
    """
    if asked is None or not asked.field_conditions:
        return
    for path, _ in asked.field_conditions:
        if path not in filters:
            raise RefusedRequestError(400, NOT_A_FILTER.format(path))
    if not any(path.startswith(DATA) for path, _ in asked.field_conditions):
        return
    if hooks.serialize_payload is not None:
        raise RefusedRequestError(400, HIDDEN_DATA)
    hidden = hooks.serialize_payload_by_name.keys()
    if hidden and (asked.names is None or not hidden.isdisjoint(asked.names)):
        raise RefusedRequestError(400, NAME_NEEDED)
