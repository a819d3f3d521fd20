"""The route of the metrics: text for Prometheus."""

from __future__ import annotations

import importlib.util
from typing import Final

from starlette.responses import Response

from ..hooks import METRICS
from .route import Call, Route, Surface

MEDIA_TYPE: Final = "text/plain"
CONTENT_TYPE: Final = f"{MEDIA_TYPE}; version=0.0.4; charset=utf-8"
"""The format that every version of Prometheus reads."""


def has_metrics(surface: Surface) -> bool:
    """Return whether prometheus_client is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


async def metrics(call: Call) -> Response:
    """Answer with the page."""
    return Response(await call.surface.metrics.page(), headers={"Content-Type": CONTENT_TYPE})


SHOW_METRICS: Final = Route(
    method="GET",
    path="/metrics",
    operation_id="getMetrics",
    summary="Metrics for Prometheus, where the extra `metrics` is installed",
    act=metrics,
    answer="MetricsText",
    action=METRICS,
    is_supported=has_metrics,
    is_ours=True,
    statuses=(400, 403),
    media_type=MEDIA_TYPE,
)
