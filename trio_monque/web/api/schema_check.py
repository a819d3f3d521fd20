"""Whether a value of JSON is as a schema of the tables says. Pure."""

from __future__ import annotations

from typing import Any

from .added_schemas import ALL_SCHEMAS
from .moments import moment_in
from .schemas import JsonSchema


def is_valid(value: Any, schema: JsonSchema) -> bool:
    """Return whether a value of JSON is as the schema says. It knows what the tables use."""
    if "$ref" in schema:
        return is_valid(value, ALL_SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(is_valid(value, one) for one in schema["anyOf"])
    kinds = schema.get("type")
    if kinds is not None and not _is_of_kind(value, [kinds] if isinstance(kinds, str) else kinds):
        return False
    if "const" in schema and value is not schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and schema.get("format") == "date-time" and moment_in(value) is None:
        return False
    if isinstance(value, list):
        return _has_length(value, schema) and all(is_valid(one, schema.get("items", {})) for one in value)
    return not isinstance(value, dict) or _has_fields(value, schema)


def _has_length(value: list[Any], schema: JsonSchema) -> bool:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    return bool(least <= len(value) <= most)


def _has_fields(value: dict[str, Any], schema: JsonSchema) -> bool:
    if not set(schema.get("required", ())) <= value.keys():
        return False
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, one in value.items():
        allowed = properties.get(key, others)
        if allowed is False or not is_valid(one, allowed):
            return False
    return True


def _is_of_kind(value: Any, kinds: list[str]) -> bool:
    kind = _kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
