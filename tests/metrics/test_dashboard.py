"""The page on monitoring and the dashboard name what is exposed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.pages import DOCS, rows
from tests.support.programs import fenced_blocks
from trio_monque.metrics import metric_names_and_buckets
from trio_monque.metrics.metric_names_and_buckets import FAMILIES, Family

PAGE = "how-to/monitor-with-prometheus.md"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS = [one for one in DASHBOARD["panels"] if one["type"] != "row"]

OF_PROMETHEUS = {"instance", "job", "le"}
"""The labels that Prometheus itself adds, and that of the buckets of histograms."""


def series() -> dict[str, Family]:
    """Every name that a query may use."""
    endings = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{one.name}{ending}": one for one in FAMILIES for ending in endings.get(one.kind, ("",))}


def problems_of(query: str, legend: str = "") -> Iterator[str]:
    """What the query names that is not exposed."""
    names = re.findall(r"trio_monque_\w+", query)
    if not names:
        yield f"{query} has no metric"
    yield from (f"{name} is not exposed" for name in names if name not in series())
    known = [series()[name] for name in names if name in series()]
    labels = {"collection", *OF_PROMETHEUS, *(label for family in known for label in family.labels)}
    for selector in re.findall(r"trio_monque_\w+{(.*?)}", query):
        used = re.findall(r'(\w+)(?:=~|!~|!=|=)"', selector)
        yield from (f"{query}: no label {label}" for label in used if label not in labels)
    grouped = re.findall(r"(?:by|without) \((.*?)\)", query)
    by = {label for group in grouped for label in re.split(r", *", group)}
    yield from (f"{query}: no label {label}" for label in by - labels)
    shown = set(re.findall(r"{{(\w+)}}", legend))
    yield from (f"{legend}: the query does not group by {label}" for label in shown - by)


def test_tables_of_the_page_are_those_of_the_code() -> None:
    shown = [tuple(row) for row in rows(PAGE, "## Of the collection")]
    assert shown == [
        (
            f"`{one.name}`",
            one.kind,
            ", ".join(f"`{label}`" for label in ("collection", *one.labels)),
            one.unit,
            one.meaning,
        )
        for one in FAMILIES
    ]


def test_every_family_is_in_the_list_once_and_named_as_prometheus_wants_it() -> None:
    defined = [one for one in vars(metric_names_and_buckets).values() if isinstance(one, Family)]
    assert sorted(one.name for one in defined) == sorted(one.name for one in FAMILIES)
    assert len({one.name for one in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"trio_monque_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.meaning.endswith(".")
        assert family.unit == "seconds" or not re.search(r"age|lag|time|wait_", family.stem), family


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_has_a_title_a_unit_and_queries_of_what_is_exposed(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert list(problems_of(target["expr"], target["legendFormat"])) == []
        metric, *_ = re.findall(r"trio_monque_\w+", target["expr"])
        in_seconds = series()[metric].unit == "seconds" and not metric.endswith("_count")
        assert (unit == "s") == in_seconds, f"{panel['title']}: {unit}"


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    assert len({one["id"] for one in everything}) == len(everything)
    cells = [
        (x, y)
        for one in everything
        for place in [one["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_dashboard_shows_every_metric() -> None:
    queries = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    used = set(re.findall(r"trio_monque_\w+", queries))
    assert [name for name, one in series().items() if one.kind != "histogram" and name not in used] == []
    assert [one.name for one in FAMILIES if one.kind == "histogram" and f"{one.name}_count" not in used] == [
        one.name for one in FAMILIES if one.kind == "histogram" and f"{one.name}_bucket" in used
    ]


def test_variables_of_the_dashboard_and_rules_of_the_page_name_what_is_exposed() -> None:
    variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    for query in variables:
        label = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert label is not None
        assert list(problems_of(f"sum by ({label[2]}) ({label[1]})")) == []
    (page,) = fenced_blocks(DOCS / PAGE, "yaml")
    alerts = {rule["alert"]: rule["expr"] for group in yaml.safe_load(page)["groups"] for rule in group["rules"]}
    explained = [row[0].strip("`") for row in rows(PAGE, "## What to alert on")[: len(alerts)]]
    assert explained == list(alerts)
    assert len(alerts) > 10
    assert [problem for rule in alerts.values() for problem in problems_of(rule)] == []


@pytest.mark.parametrize(
    ("query", "legend", "problem"),
    [
        ("sum(trio_monque_job)", "", "trio_monque_job is not exposed"),
        ('sum(trio_monque_jobs{nam="x"})', "", "no label nam"),
        ("sum by (verdict) (trio_monque_jobs)", "", "no label verdict"),
        ("sum(trio_monque_jobs)", "{{name}}", "does not group by name"),
    ],
)
def test_checker_finds_a_query_of_what_is_not_exposed(query: str, legend: str, problem: str) -> None:
    assert any(problem in found for found in problems_of(query, legend))
