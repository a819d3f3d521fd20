"""Writes the tables of the HTTP API into its page: `python -m docs.http_api`. A test compares the two.

They are made from the tables that check requests and write the OpenAPI document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trio_monque.web.api.added_schemas import ADDED_SCHEMAS, ALL_SCHEMAS
from trio_monque.web.api.added_table import ALL_ROUTES
from trio_monque.web.api.route import Route
from trio_monque.web.api.schemas import SCHEMAS

PAGE = Path(__file__).parent / "reference" / "http-api.md"


def routes(are_ours: bool) -> Iterator[str]:  # noqa: FBT001
    yield "| Request | Does | Query | Body | Answer | Errors |"
    yield "|---|---|---|---|---|---|"
    for route in (one for one in ALL_ROUTES if one.is_ours is are_ours):
        cells = (
            f"`{route.method} {route.path}`",
            route.summary,
            ", ".join(f"`{one['name']}`" for one in route.parameters),
            "" if route.body is None else _linked(route.body),
            _answers(route),
            ", ".join(map(str, route.statuses)),
        )
        yield f"| {' | '.join(cell or '—' for cell in cells)} |"


def _answers(route: Route) -> str:
    full = "" if route.full_answer is None else f"; with `view=full` {_linked(route.full_answer)}"
    return _linked(route.answer) + full


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def schemas(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        schema = ALL_SCHEMAS[name]
        yield f"### {name}\n"
        if "properties" not in schema:
            yield f"{schema['description']}\n"
            continue
        yield "| Field | Type | Always there |"
        yield "|---|---|---|"
        required = schema.get("required", ())
        for field, kind in schema["properties"].items():
            yield f"| `{field}` | {kind_of(kind)} | {'yes' if field in required else 'no'} |"
        yield ""


def kind_of(schema: Any) -> str:
    """Return the type of a field in words."""
    if "$ref" in schema:
        return _linked(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(kind_of(one) for one in schema["anyOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    kinds = schema.get("type", "any value")
    several = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(_one_kind(kind, schema) for kind in several)


def _one_kind(kind: str, schema: Any) -> str:
    if "enum" in schema and kind == "string":
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("format") == "date-time" and kind == "string":
        return "moment"
    if kind == "array":
        return f"list of {kind_of(schema['items'])}"
    if kind == "object" and "properties" in schema:
        return "{" + ", ".join(f"`{name}`: {kind_of(one)}" for name, one in schema["properties"].items()) + "}"
    if kind == "object":
        return f"object of {kind_of(schema['additionalProperties'])}"
    return kind


PARTS = {
    "routes of the contract": lambda: routes(are_ours=False),
    "our routes": lambda: routes(are_ours=True),
    "schemas of the contract": lambda: schemas(SCHEMAS),
    "our schemas": lambda: schemas(ADDED_SCHEMAS),
}


def updated(page: str) -> str:
    """Return the page with the tables of today between each `<!-- PART -->` and `<!-- end -->`."""
    return re.sub(
        rf"(<!-- ({'|'.join(PARTS)}) -->\n\n).*?(?=^<!-- end -->$)",
        lambda found: found[1] + "\n".join(PARTS[found[2]]()).rstrip("\n") + "\n\n",
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
