"""Bulk actions of many jobs, for clients that need not wait: the answer comes first, and the work after it.

`long_answer.py` says whose task the work is in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Final

from ...client.monque import announce, forget_statistics_of
from ...error_types import MonqueConnectionError, PartialBulkError
from ...jobs.bulk_changes import BulkResult
from ...store.reads.selection_counts import SelectionCount
from ..answers import RefusedRequestError, as_json, refusal_of
from ..live.background_actions import BackgroundAction, State
from ..live.long_answer import LongAnswer
from .job_shapes import bulk_as_json
from .route import PREFIX, Call, Route

MOST_AT_ONCE: Final = 1000
"""Jobs up to which an action is answered when it is done, whatever the client prefers."""

UNKNOWN_ACTION: Final = "Action not found"

SILENT: Final = "The database stopped answering. Repeat the action to change the remaining jobs."
"""Of a failed action. The numbers beside it say what was done."""

OnProgress = Callable[[BulkResult], None]


def begin(call: Call, action: BackgroundAction, act: Callable[[OnProgress], Awaitable[BulkResult]]) -> LongAnswer:
    """Return the answer that begins it. The turn of the caller ends with the action.

    Raises:
        RefusedRequestError: Too many are under way (503).
    """
    background = call.surface.background
    background.add(action)
    content = {"action": action.id, "count": action.count, "isCapped": action.is_capped}
    headers = {"Preference-Applied": "respond-async"}
    if call.root_path is not None:
        headers["Location"] = f"{call.root_path}{PREFIX}/actions/{action.id}"
    turn = call.turn.pop_all()
    return LongAnswer(as_json(content, 202, headers), lambda: _carry_out(call, action, act, turn))


async def _carry_out(
    call: Call, action: BackgroundAction, act: Callable[[OnProgress], Awaitable[BulkResult]], turn: ExitStack
) -> None:
    background = call.surface.background
    state, problem = State.STOPPED, None
    with turn:
        try:
            action.result = await act(lambda result: background.progress(action, result))
            state = State.DONE
        except Exception as error:  # noqa: BLE001  # The answer was sent: those who ask are shown the error.
            state, problem = State.FAILED, refusal_of(error).message
            if isinstance(error, MonqueConnectionError) and error.transient:
                problem = SILENT
            if isinstance(error, PartialBulkError):
                action.result = BulkResult(error.count, action.result.errors, action.result.refused, error.unknown)
        finally:
            forget_statistics_of(call.surface.monque)
            background.end(action, state, problem)
            call.audit.count = action.result.count
            event = call.audit.conclude(202)
    if event is not None:
        await announce(call.surface.monque, event)


def is_long(counted: SelectionCount) -> bool:
    """Return whether there are enough jobs for a client not to wait."""
    return counted.is_capped or counted.number > MOST_AT_ONCE


async def get_action(call: Call) -> dict[str, Any]:
    """Return how far an action is. For a caller who may not do the same, there is none."""
    action = call.surface.background.get(call.id_text)
    # Asked about one that does not exist, too: with a slow hook, the time would show the difference.
    asked = ("cancelBulk", {}) if action is None else (action.action, action.selector)
    if not await call.may(*asked) or action is None:
        raise RefusedRequestError(404, UNKNOWN_ACTION)
    shown = bulk_as_json(action.result)
    return {
        "id": action.id,
        "action": action.action.removesuffix("Bulk"),
        "state": action.state.value,
        "count": action.count,
        "isCapped": action.is_capped,
        "done": shown["count"],
        "refused": action.result.refused,
        "unknown": action.result.unknown,
        "errors": shown["errors"],
        "error": action.error,
    }


ACTION: Final = Route(
    method="GET",
    path="/actions/{id}",
    operation_id="getAction",
    summary="The progress of a bulk action that continues in the background",
    act=get_action,
    answer="ActionProgress",
    is_ours=True,
    statuses=(400, 403, 404),
)
