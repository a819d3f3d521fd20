"""A scrape as Prometheus makes it, parsed."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """What one scrape showed. Metrics are named without the prefix `trio_monque_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = generate_latest(registry).decode()
        self.families: Mapping[str, Metric] = {one.name: one for one in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, metric: str, /, **labels: str) -> float:
        """The one sample that has these labels, whatever other labels it has."""
        (found,) = self.values(metric, **labels)
        return found

    def values(self, metric: str, /, **labels: str) -> list[float]:
        return [
            sample.value
            for sample in self.samples
            if sample.name == f"trio_monque_{metric}" and labels.items() <= sample.labels.items()
        ]

    def by(self, label: str, metric: str, /, **labels: str) -> dict[str, float]:
        """The values of a metric, by one of its labels."""
        return {
            sample.labels[label]: sample.value
            for sample in self.samples
            if sample.name == f"trio_monque_{metric}" and labels.items() <= sample.labels.items()
        }
