"""Metrics for Prometheus: the numbers of schedulers, of claims and of the jobs collection.

It needs prometheus_client: `python -m pip install prometheus_client`. The rest of the package imports this
folder only when metrics are asked for, and a program without metrics sends no command for them.
"""

try:
    from .claims_metrics import ClaimsMetrics
    from .collection_metrics import CollectionMetrics
    from .scheduler_metrics import SchedulerMetrics
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "trio_monque.metrics needs prometheus_client: python -m pip install prometheus_client", name="prometheus_client"
    ) from None

__all__ = ["ClaimsMetrics", "CollectionMetrics", "SchedulerMetrics"]
