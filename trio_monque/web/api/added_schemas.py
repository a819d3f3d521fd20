"""The objects of our own routes, beside those of the contract. Closed likewise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...diagnosis.concerns import MOST_CONCERNS
from ...diagnosis.findings import Severity
from .schemas import ANYTHING, FLAG, ID, MOMENT, SCHEMAS, TEXT, WHOLE, JsonSchema, closed, list_of, or_null, ref

_NUMBER: Final[JsonSchema] = {"type": "number"}
_TEXTS: Final[JsonSchema] = {"type": "object", "additionalProperties": TEXT}
_NUMBERS: Final[JsonSchema] = {"type": "object", "additionalProperties": WHOLE}

MOST_IDS: Final = 100
ACTIONS_BY_ID: Final = ("cancel", "cancelRunning", "retry", "delete")
CONFLICTS: Final = ("keep", "replace")
PERMISSIONS: Final = (
    "read",
    "cancel",
    "cancelRunning",
    "cancelBulk",
    "cancelRunningBulk",
    "retry",
    "retryBulk",
    "reschedule",
    "delete",
    "deleteBulk",
    "enqueue",
    "pause",
    "resume",
    "readmit",
    "metrics",
)
"""All actions that `authorize` is asked about."""

_ERROR: Final = closed(
    {
        "at": or_null(MOMENT),
        "attempt": or_null(WHOLE),
        "by": or_null(TEXT),
        "ran": or_null(WHOLE),
        "error": or_null(TEXT),
        "traceback": or_null(TEXT),
    }
)

# What a job has beside the fields of the contract. Durations are milliseconds, as `heartbeatInterval` is.
_MORE_OF_A_JOB: Final[Mapping[str, JsonSchema]] = {
    "attempts": WHOLE,
    "maxAttempts": or_null(WHOLE),
    "rescues": WHOLE,
    "progress": ANYTHING,
    "result": ANYTHING,
    "saved": ANYTHING,
    "steps": ANYTHING,
    "errors": list_of(_ERROR),
    "timezone": or_null(TEXT),
    "timeout": or_null(_NUMBER),
    "startBy": or_null(MOMENT),
    "meta": _TEXTS,
    "follows": or_null(ID),
    "parent": or_null(ID),
    "block": or_null(TEXT),
    "childKey": or_null(TEXT),
    "cancelledByRun": or_null(WHOLE),
    "failedBlocks": {"type": "object", "additionalProperties": list_of(ID)},
    "cancelRequestedAt": or_null(MOMENT),
    "startedAt": or_null(MOMENT),
    "finishedAt": or_null(MOMENT),
    "leaseUntil": or_null(MOMENT),
}

_ERROR_GROUP: Final = closed(
    {
        "error": or_null(TEXT),
        "prefix": or_null(TEXT),
        "names": _NUMBERS,
        "count": WHOLE,
        "example": TEXT,
        "firstAt": MOMENT,
        "lastAt": MOMENT,
        "byMinute": list_of(WHOLE, minItems=60, maxItems=60),
    }
)

_TIMES: Final = closed(dict.fromkeys(("mean", "p50", "p95", "p99"), or_null(_NUMBER)))
_FIGURES: Final[Mapping[str, JsonSchema]] = {
    "done": WHOLE,
    "failedAttempts": WHOLE,
    "failedForGood": WHOLE,
    "rescued": WHOLE,
    "run": _TIMES,
    "wait": _TIMES,
}

_REASON: Final = closed(
    {"kind": TEXT, "sentence": TEXT, "values": {"type": "object", "additionalProperties": ANYTHING}}
)

_FINDING: Final = closed(
    {
        "kind": TEXT,
        "severity": {"type": "string", "enum": [one.value for one in Severity]},
        "sentence": TEXT,
        "advice": TEXT,
        "values": {"type": "object", "additionalProperties": ANYTHING},
    }
)

_NAME_OVERVIEW: Final = closed(
    {
        "name": TEXT,
        **dict.fromkeys(("due", "later", "running", "stuck", "failed"), WHOLE),
        "capped": list_of({"type": "string", "enum": ["due", "failed", "later"]}),
        "oldestDueAge": or_null(WHOLE),
        "longestRun": or_null(WHOLE),
        **dict.fromkeys(("isPaused", "isServed", "isLate"), FLAG),
        "pausedSince": or_null(MOMENT),
        "pausedBy": or_null(TEXT),
    }
)

_INSTANCE: Final = closed(
    {
        "id": TEXT,
        "host": TEXT,
        "pid": {"type": "integer"},
        "version": TEXT,
        "names": list_of(TEXT),
        "startedAt": MOMENT,
        "lastHeartbeat": MOMENT,
        "heartbeatInterval": _NUMBER,
        "isLive": FLAG,
        "isDraining": FLAG,
        "held": WHOLE,
        "parked": WHOLE,
        "slots": or_null(WHOLE),
        "heldByName": _NUMBERS,
        "overdueByName": _NUMBERS,
        "fullNames": list_of(TEXT),
        "timeLimits": {"type": "object", "additionalProperties": _NUMBER},
        "loopBlocked": WHOLE,
        "lastBlock": or_null(closed({"name": or_null(TEXT), "at": MOMENT, "duration": _NUMBER})),
    }
)


LOCK_STATES: Final = ("free", "waiting", "held", "overdue", "dead", "unreadable")
_LOCK_COUNTS: Final = closed(
    {
        **dict.fromkeys(LOCK_STATES, WHOLE),
        "capped": list_of({"type": "string", "enum": list(LOCK_STATES)}),
        "holders": list_of(closed({"by": TEXT, "held": WHOLE, "until": MOMENT})),
    }
)
_CLAIM_SOURCE: Final = closed(
    {
        "source": TEXT,
        "collection": TEXT,
        "counts": {"anyOf": [_LOCK_COUNTS, {"type": "null"}]},
        "problem": or_null(TEXT),
    }
)
_DEAD_LETTER: Final = closed({"id": TEXT, "attempts": WHOLE, "error": or_null(TEXT)})


def _with_more(name: str, required: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return a closed schema of the contract with more fields."""
    of_contract = SCHEMAS[name]
    properties = {**of_contract["properties"], **required}
    names = dict.fromkeys([*of_contract["required"], *required])
    return {**of_contract, "properties": properties, "required": list(names)}


ADDED_SCHEMAS: Final[Mapping[str, JsonSchema]] = {
    "ActionProgress": closed(
        {
            "id": ID,
            "action": {"type": "string", "enum": list(ACTIONS_BY_ID)},
            "state": {"type": "string", "enum": ["running", "done", "failed", "stopped"]},
            "count": WHOLE,
            "isCapped": FLAG,
            "done": WHOLE,
            "refused": WHOLE,
            "unknown": WHOLE,
            "errors": list_of(closed({"jobId": TEXT, "error": TEXT})),
            "error": or_null(TEXT),
        }
    ),
    "ActionStarted": closed({"action": ID, "count": WHOLE, "isCapped": FLAG}),
    "ClaimSourceList": closed({"sources": list_of(_CLAIM_SOURCE)}),
    "DeadLetterPage": closed({"letters": list_of(_DEAD_LETTER), "cursor": or_null(TEXT), "hasNextPage": FLAG}),
    "EnqueueRequest": closed(
        {"name": TEXT},
        {
            "data": ANYTHING,
            "runAt": MOMENT,
            "uniqueKey": TEXT,
            "onConflict": {"type": "string", "enum": list(CONFLICTS)},
            "meta": _TEXTS,
        },
    ),
    "ErrorGroupList": closed({"groups": list_of(_ERROR_GROUP), "lookedAt": WHOLE, "isCapped": FLAG}),
    "FindingList": closed({"at": MOMENT, "findings": list_of(_FINDING)}),
    "InstanceList": closed({"instances": list_of(_INSTANCE)}),
    "InstanceWithJobs": closed(
        {"instance": {"anyOf": [_INSTANCE, {"type": "null"}]}, "jobs": list_of(ref("JobFull")), "isCapped": FLAG}
    ),
    "JobCount": closed({"count": WHOLE, "isCapped": FLAG}),
    "JobFull": _with_more("Job", _MORE_OF_A_JOB),
    "JobFullList": closed({"jobs": list_of(ref("JobFull")), "isCapped": FLAG}),
    "JobFullPage": _with_more(
        "JobCursorPage",
        {
            "jobs": list_of(ref("JobFull")),
            "previousCursor": or_null(TEXT),
            "isCapped": FLAG,
            "examined": or_null(WHOLE),
        },
    ),
    "JobsByIdRequest": closed(
        {
            "action": {"type": "string", "enum": list(ACTIONS_BY_ID)},
            "ids": list_of(TEXT, minItems=1, maxItems=MOST_IDS),
        }
    ),
    "MetricsText": {**TEXT, "description": "Metrics in the text format of Prometheus."},
    "MinuteList": closed(
        {
            "minutes": list_of(closed({"at": MOMENT, "slots": WHOLE, **_FIGURES})),
            "names": list_of(closed({"name": TEXT, **_FIGURES})),
        }
    ),
    "NameRequest": closed({"name": TEXT}),
    "NameState": closed({"name": TEXT, "isPaused": FLAG, "hasChanged": FLAG}),
    "Overview": closed(
        {
            "at": MOMENT,
            "names": list_of(_NAME_OVERVIEW),
            "isCapped": FLAG,
            "running": WHOLE,
            "slots": WHOLE,
            "longestRun": or_null(WHOLE),
            "instances": closed({"alive": WHOLE, "silent": WHOLE}),
            "upcoming": list_of(closed({"id": TEXT, "name": TEXT, "uniqueKey": or_null(TEXT), "nextRunAt": MOMENT})),
            "concerns": list_of(_REASON, maxItems=MOST_CONCERNS),
            "moreConcerns": WHOLE,
        }
    ),
    "ReadmitRequest": closed(
        {}, {"ids": list_of(TEXT, minItems=1, maxItems=MOST_IDS), "everything": {"type": "boolean", "const": True}}
    ),
    "ReadmitResult": closed({"count": WHOLE}),
    "ReasonList": closed({"reasons": list_of(_REASON)}),
    "StaleRegions": closed({"regions": list_of(TEXT), "at": MOMENT}),
    "Permissions": closed({"readOnly": FLAG, "actions": closed(dict.fromkeys(PERMISSIONS, FLAG))}),
}

ALL_SCHEMAS: Final[Mapping[str, Any]] = {**SCHEMAS, **ADDED_SCHEMAS}
