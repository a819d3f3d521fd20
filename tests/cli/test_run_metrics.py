"""The endpoint of `trio-monque run --metrics`."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tests.support.programs import uri_of_database
from tests.support.waiting import wait_until
from trio_monque import Monque, Workers, open_scheduler
from trio_monque.cli.run.endpoints import Endpoints
from trio_monque.cli.run.http_server import Address, served
from trio_monque.cli.run.metrics import collected_here, page_of_processes, shown_from_start, together
from trio_monque.cli.run.worker_state import WorkerState
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .demo_process import environment
from .probe import Probe, ask
from .run_process import run_process, write_program

# Its first scrape has a class that only this module knows, all others raise.
FAULTY = """
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily

from shop import workers


class Own(GaugeMetricFamily):
    pass


class Faulty:
    scrapes = 0

    def describe(self):
        return []

    def collect(self):
        self.scrapes += 1
        if self.scrapes > 1:
            raise OSError("no sensor")
        return [Own("own", "Of its own class.", value=3)]


REGISTRY.register(Faulty())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_program(tmp_path)
    counting = (
        "from prometheus_client import Counter\nfrom shop import workers\n\nCounter('mine', 'Of the user.').inc(7)\n"
    )
    (tmp_path / "counting.py").write_text(counting, encoding="utf-8")
    (tmp_path / "faulty.py").write_text(FAULTY, encoding="utf-8")
    return tmp_path


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


def scraped(probe: Probe) -> Mapping[str, Sequence[tuple[Mapping[str, str], float]]]:
    """The labels and the value of each sample, by its name."""
    status, body = probe.ask("/metrics")
    assert status == 200
    found = defaultdict(list)
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            found[sample.name].append((sample.labels, sample.value))
    return found


def total(probe: Probe, metric: str, /, **labels: str) -> float:
    return sum(value for found, value in scraped(probe)[metric] if labels.items() <= found.items())


@pytest.mark.full
def test_metrics_of_all_processes_are_at_the_address_of_their_health(folder: Path, uri: str, db: Database) -> None:
    for number in range(4):
        Monque(db).sync.enqueue("count", number)
    options = ("--processes", "2", "--health", "0", "--metrics", "0", "--uri", uri)
    with run_process(folder, "counting:workers", *options) as parent:
        probe = Probe(parent)
        of_all = json.loads(probe.wait_for("/healthz", 200))["processes"]
        assert [(one["number"], one["healthy"]) for one in of_all] == [(1, True), (2, True)]
        wait_until(lambda: total(probe, "trio_monque_runs_total", verdict="completed") == 4, "4 runs count", pause=0.1)
        found = scraped(probe)
        assert sorted(labels["worker_process"] for labels, _ in found["trio_monque_healthy"]) == ["1", "2"]
        assert found["mine_total"] == [({"worker_process": one}, 7) for one in ("1", "2")]
        # One process asks the database for the numbers of the collection.
        assert {labels["worker_process"] for labels, _ in found["trio_monque_jobs"]} == {"1"}
        assert sum(value for _, value in found["trio_monque_jobs"]) == 4
        parent.send(signal.SIGTERM)
        assert parent.wait_ended()[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_metrics_of_one_process(folder: Path, uri: str, db: Database, loop: str) -> None:
    Monque(db).sync.enqueue("count")
    options = ("--health", "0", "--metrics", "0", "--loop", loop, "--uri", uri)
    with run_process(folder, "counting:workers", *options) as worker:
        probe = Probe(worker)
        wait_until(
            lambda: total(probe, "trio_monque_runs_total", verdict="completed") == 1, "the run counts", pause=0.1
        )
        assert total(probe, "trio_monque_jobs", name="count") == 1
        assert scraped(probe)["mine_total"] == [({}, 7)]
        worker.send(signal.SIGTERM)
        assert worker.wait_ended()[0] == 0


@pytest.mark.full
def test_collector_that_raises_leaves_the_process_healthy(folder: Path, uri: str) -> None:
    options = ("--processes", "1", "--health", "0", "--metrics", "0", "--uri", uri)
    with run_process(folder, "faulty:workers", *options) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        assert scraped(probe)["own"] == [({"worker_process": "1"}, 3)]
        assert scraped(probe) == {}
        parent.wait_for_log("could not send the metrics of this process to its parent")
        assert probe.ask("/readyz")[0] == probe.ask("/livez")[0] == 200
        parent.send(signal.SIGTERM)
        assert parent.wait_ended()[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_signal_during_the_start_ends_a_worker_with_metrics(folder: Path, loop: str) -> None:
    options = ("--metrics", "0", "--loop", loop, "--uri", "mongodb://127.0.0.1:1/shop", "--operation-timeout", "1")
    with run_process(folder, "shop:when_there_is_a_file", *options, "--start-timeout", "50") as worker:
        worker.wait_for("opening")
        (folder / "open").touch()
        worker.wait_for("opened")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    assert status in (0, 130)
    assert "Traceback" not in errors


def test_options_with_different_addresses_have_servers_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_monque.cli")
    with Endpoints(Address("127.0.0.1", 0), Address("localhost", 0)).of_worker(WorkerState()):
        health, metrics = (re.findall(r"http://\S+", message)[0] for message in caplog.messages)
        assert "python_info" in ask(f"{metrics}/metrics")[1]
        assert ask(f"{health}/metrics") == (404, "there is /livez, /readyz, /healthz, /health\n")
        assert ask(f"{metrics}/livez") == (404, "there is /metrics\n")


def test_metrics_of_processes_are_put_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_monque.cli")
    registries = {1: CollectorRegistry(), 2: CollectorRegistry()}
    for place, registry in registries.items():
        Counter("jobs", "Of each.", ["name"], registry=registry).labels("send").inc(place)
    Counter("spent_seconds", "Of one.", unit="seconds", registry=registries[2]).inc()
    found = {place: list(registry.collect()) for place, registry in registries.items()}
    shown = {one.name: (one.type, one.documentation, one.unit, len(one.samples)) for one in together(found)}
    assert shown == {"jobs": ("counter", "Of each.", "", 4), "spent_seconds": ("counter", "Of one.", "seconds", 2)}
    with served({"/metrics": page_of_processes(lambda: found)}, Address("127.0.0.1", 0), "--metrics"):
        (url,) = re.findall(r"http://\S+", caplog.messages[-1])
        lines = ask(f"{url}/metrics")[1].splitlines()
    assert lines.count("# TYPE jobs_total counter") == 1
    assert 'jobs_total{name="send",worker_process="1"} 1.0' in lines
    assert 'jobs_total{name="send",worker_process="2"} 2.0' in lines


class OwnFamily(GaugeMetricFamily):
    """What a target may have: the parent cannot import it."""


class OwnNumber(float): ...


class OwnText(str):
    __slots__ = ()


class OwnCollector(Collector):
    def collect(self) -> list[OwnFamily]:
        family = OwnFamily("own", "Of a target.", labels=["kind"])
        family.add_metric([OwnText("a")], OwnNumber(3))
        return [family]


def test_metrics_for_the_parent_consist_of_plain_values() -> None:
    collector = OwnCollector()
    REGISTRY.register(collector)
    try:
        (found,) = [one for one in collected_here() if one.name == "own"]
    finally:
        REGISTRY.unregister(collector)
    (sample,) = found.samples
    assert (found.documentation, found.type, sample.labels, sample.value) == ("Of a target.", "gauge", {"kind": "a"}, 3)
    assert type(found) is Metric
    assert [type(one) for one in (*sample.labels.values(), sample.value)] == [str, float]


@pytest.mark.full
def test_missing_prometheus_client_ends_in_one_line(folder: Path) -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; from trio_monque.cli import main; sys.exit(main())"
    arguments = ("run", "shop:workers", "--uri", "mongodb://localhost/shop", "--metrics", "0")
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, env=environment(), capture_output=True, text=True
    )
    expected = "trio-monque: --metrics needs prometheus_client: python -m pip install prometheus_client\n"
    assert (ran.returncode, ran.stderr) == (2, expected)


def test_module_that_is_missing_in_the_metrics_themselves_is_not_taken_for_the_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "trio_monque.cli.run.metrics")
    monkeypatch.delattr("trio_monque.cli.run.metrics")
    monkeypatch.setitem(sys.modules, "trio_monque.metrics", None)
    with pytest.raises(ModuleNotFoundError, match="trio_monque.metrics"):
        with Endpoints(None, Address("127.0.0.1", 0)).of_worker(WorkerState()):
            pass


async def test_metrics_of_a_scheduler_are_shown_until_the_end_of_the_block(db: Database) -> None:
    def shown() -> set[str]:
        return {one.name for one in collected_here() if one.name.startswith("trio_monque")}

    async with open_scheduler(db, Workers[None]()) as scheduler:
        with shown_from_start() as show:
            assert shown() == set()
            show(scheduler)
            assert "trio_monque_healthy" in shown()
        assert shown() == set()
