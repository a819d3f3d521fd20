"""The objects of the contract: one table, by which requests are checked, and which OpenAPI documents.

Every object is closed, as those of the original: clients of Monque refuse an answer with a field that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...jobs.job import JobStatus

JsonSchema = Mapping[str, Any]

TEXT: Final[JsonSchema] = {"type": "string"}
WHOLE: Final[JsonSchema] = {"type": "integer", "minimum": 0}
FLAG: Final[JsonSchema] = {"type": "boolean"}
MOMENT: Final[JsonSchema] = {"type": "string", "format": "date-time"}
STATUS: Final[JsonSchema] = {"type": "string", "enum": [status.value for status in JobStatus]}
ANYTHING: Final[JsonSchema] = {}
ID: Final[JsonSchema] = {"type": "string", "pattern": "^[0-9a-fA-F]{24}$"}


def or_null(schema: JsonSchema) -> JsonSchema:
    """Return the schema of a value that may be missing."""
    return {**schema, "type": [schema["type"], "null"]}


def list_of(schema: JsonSchema, **more: Any) -> JsonSchema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema, **more}


def ref(name: str) -> JsonSchema:
    """Return a reference to a schema of the table."""
    return {"$ref": f"#/components/schemas/{name}"}


def closed(required: Mapping[str, JsonSchema], optional: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    """Return the schema of an object with these properties and no others."""
    properties = {**required, **(optional or {})}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


_ACTIONS: Final = ("read", "cancel", "cancelBulk", "retry", "retryBulk", "reschedule", "delete", "deleteBulk")
_COUNTS: Final = {status.value: WHOLE for status in JobStatus} | {"total": WHOLE}
_STATS: Final = closed(_COUNTS, {"avgProcessingDurationMs": {"type": "number"}})
_WORKER: Final = closed({"concurrency": WHOLE, "activeCount": WHOLE})
_JOB: Final[Mapping[str, JsonSchema]] = {
    "id": ID,
    "name": TEXT,
    "status": STATUS,
    "payload": ANYTHING,
    "nextRunAt": MOMENT,
    "lockedAt": or_null(MOMENT),
    "claimedBy": or_null(TEXT),
    "lastHeartbeat": or_null(MOMENT),
    "failCount": WHOLE,
    "failureReason": or_null(TEXT),
    "createdAt": MOMENT,
    "updatedAt": MOMENT,
}
_OF_SOME_JOBS: Final[Mapping[str, JsonSchema]] = {
    "heartbeatInterval": {"type": "number"},
    "repeatInterval": TEXT,
    "uniqueKey": TEXT,
}
_SELECTOR: Final[Mapping[str, JsonSchema]] = {
    "name": TEXT,
    "status": {"anyOf": [STATUS, list_of(STATUS, minItems=1)]},
    "olderThan": MOMENT,
    "newerThan": MOMENT,
    # The rest is ours.
    "key": TEXT,
    "keyPrefix": TEXT,
    "updatedAtFrom": MOMENT,
    "updatedAtTo": MOMENT,
    "due": FLAG,
    "errorContains": TEXT,
    "errorPrefix": TEXT,
}

SCHEMAS: Final[Mapping[str, JsonSchema]] = {
    "BulkActionResult": closed({"count": WHOLE, "errors": list_of(closed({"jobId": TEXT, "error": TEXT}))}),
    "CancelRequest": {
        "description": 'With `{"running": true}`, cancellation of a running job is requested. Other fields are ignored.'
    },
    "Capabilities": closed({"readOnly": FLAG, "actions": closed(dict.fromkeys(_ACTIONS, FLAG))}),
    "DeleteJob": closed({"deleted": {"type": "boolean", "const": True}}),
    "Job": closed(_JOB, _OF_SOME_JOBS),
    "JobCursorPage": closed(
        {"jobs": list_of(ref("Job")), "cursor": or_null(TEXT), "hasNextPage": FLAG, "hasPreviousPage": FLAG}
    ),
    "JobSelector": closed({}, {**_SELECTOR, "everything": {"type": "boolean", "const": True}}),
    "ManagementError": closed({"error": TEXT}),
    "QueueStats": _STATS,
    "QueueViewSummaryList": closed(
        {
            "queueViews": list_of(
                closed(
                    {
                        "name": TEXT,
                        "hasPersistedJobs": FLAG,
                        "hasRegisteredWorker": FLAG,
                        "stats": ref("QueueStats"),
                        "worker": {"anyOf": [_WORKER, {"type": "null"}]},
                    }
                )
            )
        }
    ),
    "RescheduleJobRequest": closed({"nextRunAt": MOMENT}),
    "SchedulerHealth": closed(
        {"status": {"type": "string", "enum": ["ok", "unavailable"]}, "scheduler": closed({"healthy": FLAG})}
    ),
}
"""By name. The names of the original; CancelRequest is ours."""
