"""The files of the page on deployment: their options exist, and a worker has enough time to end."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from tests.support.pages import DOCS, rows
from tests.support.programs import ROOT, quoted_blocks, uri_of_database
from trio_monque import Monque
from trio_monque.cli.run.command import run
from trio_monque.cli.run.health_answers import LIVE_WITHIN, HealthReport, health_pages
from trio_monque.cli.run.http_server import Address
from trio_monque.client.event_delivery import STOP_TIMEOUT
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.shutdown import HARD_END_AFTER
from trio_monque.host.host import LAST_WORDS
from trio_monque.options_and_defaults import SchedulerConfig
from trio_monque.store.driver.types import Database

from .probe import Probe
from .run_process import run_process, write_program

FOLDER: Final = ROOT / "examples/deploy"
PAGE: Final = DOCS / "how-to/deploy.md"
PATHS: Final = health_pages(lambda: HealthReport(not_live=(), unhealthy=(), not_ready=(), details={})).keys()
FIXED: Final = HARD_END_AFTER + LAST_WORDS + STOP_TIMEOUT


@dataclass(frozen=True)
class Deployment:
    """A command line of `trio-monque run`, and how many seconds its process manager waits before it kills."""

    command: Sequence[str]
    grace: float

    def options(self, folder: Path) -> Mapping[str, Any]:
        """The parameters of the command, as the command itself reads them."""
        assert Path(self.command[0]).name == "trio-monque"
        assert self.command[1] == "run"
        (folder / "uri").write_text("mongodb://mongo/shop", encoding="utf-8")
        secret = re.compile(r"(?:/run/secrets|\$\{CREDENTIALS_DIRECTORY\})/.*")
        readable = [secret.sub(str(folder / "uri"), one) for one in self.command]
        return run.make_context("run", readable[2:]).params


def service() -> Mapping[str, Mapping[str, str]]:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / "shop-worker.service", encoding="utf-8")
    return {section: dict(parser[section]) for section in parser.sections()}


def documents(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def pod() -> Any:
    return documents("kubernetes.yaml")["spec"]["template"]["spec"]


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text.removesuffix("s"))


def deployments() -> Mapping[str, Deployment]:
    of_systemd, (container,) = service()["Service"], pod()["containers"]
    worker = documents("compose.yaml")["services"]["worker"]
    return {
        "systemd": Deployment(shlex.split(of_systemd["ExecStart"]), float(of_systemd["TimeoutStopSec"])),
        "kubernetes": Deployment(container["command"], pod()["terminationGracePeriodSeconds"]),
        "compose": Deployment(worker["command"], seconds(worker["stop_grace_period"])),
    }


@pytest.mark.parametrize("where", ["systemd", "kubernetes", "compose"])
def test_options_are_those_of_the_command_and_the_grace_period_is_long_enough(where: str, tmp_path: Path) -> None:
    deployment = deployments()[where]
    options = deployment.options(tmp_path)
    assert options["targets"] == ("shop.jobs:open_workers",)
    defaults = SchedulerConfig()
    timeouts = [options[name] for name in ("shutdown_timeout", "cleanup_timeout")]
    shutdown, cleanup = (
        given if given is not None else default
        for given, default in zip(timeouts, (defaults.shutdown_timeout, defaults.cleanup_timeout), strict=True)
    )
    at_last = [int(row[1]) for row in rows("how-to/deploy.md", "## The grace period")[:5]]
    assert at_last == [shutdown, cleanup, FIXED, deployment.grace - shutdown - cleanup - FIXED, deployment.grace]
    assert at_last[3] >= 5


def test_option_that_does_not_exist_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(click.NoSuchOption):
        Deployment(["trio-monque", "run", "shop.jobs:open_workers", "--helth=9000"], 45).options(tmp_path)


def test_page_has_each_file_as_it_is() -> None:
    quoted = dict(quoted_blocks(PAGE))
    files = {f"examples/deploy/{path.name}": path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert quoted == files


def test_probes_of_kubernetes_ask_paths_that_are_served_where_they_can_reach_them(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    options = deployments()["kubernetes"].options(tmp_path)
    (port,) = container["ports"]
    assert options["health"] == options["metrics"] == Address("0.0.0.0", port["containerPort"])
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    asked = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert asked == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    assert set(asked.values()) <= PATHS
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {port["name"]}
    live, started = probes["liveness"], probes["startup"]
    first = LIVE_WITHIN + (live["failureThreshold"] - 1) * live["periodSeconds"]
    at_least = first + live["terminationGracePeriodSeconds"]
    at_most = at_least + live["periodSeconds"]
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{at_least:g} to {at_most:g} seconds after the block began" in text
    # The command gives up by itself before the probe does.
    assert started["failureThreshold"] * started["periodSeconds"] > 2 * SchedulerConfig().start_timeout


def test_service_gives_the_first_signal_to_the_parent_alone_and_keeps_its_children() -> None:
    settings = service()["Service"]
    assert settings["KillMode"] == "mixed"
    assert settings["OOMPolicy"] == "continue"
    assert settings["Restart"] == "always"
    credential = settings["LoadCredential"].partition(":")[0]
    assert f"${{CREDENTIALS_DIRECTORY}}/{credential}" in settings["ExecStart"]


def test_secret_of_kubernetes_is_where_the_command_reads_it() -> None:
    (container,), (volume,) = pod()["containers"], pod()["volumes"]
    (mounted,) = container["volumeMounts"]
    assert mounted["name"] == volume["name"]
    assert f"--uri-file={mounted['mountPath']}/uri" in container["command"]
    header = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    assert f"create secret generic {volume['secret']['secretName']} --from-file=uri=" in header


def test_replica_set_of_compose_has_one_name_and_a_member_that_the_worker_can_reach(tmp_path: Path) -> None:
    services = documents("compose.yaml")["services"]
    mongo, worker = services["mongo"], services["worker"]
    name = mongo["command"][mongo["command"].index("--replSet") + 1]
    assert f"_id: '{name}', members: [{{_id: 0, host: 'mongo:27017'}}]" in mongo["healthcheck"]["test"][-1]
    assert worker["environment"]["MONQUE_URI"] == f"mongodb://mongo:27017/shop?replicaSet={name}"
    assert worker["depends_on"] == {"mongo": {"condition": "service_healthy"}}
    assert all(port.startswith("127.0.0.1:") for port in mongo["ports"])
    address = deployments()["compose"].options(tmp_path)["health"]
    assert f"http://{address}/readyz" in worker["healthcheck"]["test"][-1]
    compile(worker["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_image_starts_the_worker_without_a_shell() -> None:
    (command,) = re.findall(r"^CMD (.*)$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert json.loads(command)[:2] == ["trio-monque", "run"]


@pytest.mark.full
@pytest.mark.parametrize("where", ["systemd", "kubernetes", "compose"])
def test_command_starts_workers_that_answer_and_end_by_a_signal(
    mongod: EmbeddedServer, db: Database, tmp_path: Path, where: str
) -> None:
    write_program(tmp_path)
    uri = uri_of_database(mongod.uri, db.name)
    words = " ".join(deployments()[where].command[2:])
    words = re.sub(r"(--uri-file[= ])\S+", r"\1uri", words).replace("shop.jobs:open_workers", "shop:workers")
    words = re.sub(r"(--(?:health|metrics)[= ]\S*?)9000", r"\g<1>0", words)  # A free port each.
    (tmp_path / "uri").write_text(uri, encoding="utf-8")
    with run_process(tmp_path, *words.split(), **({"MONQUE_URI": uri} if where == "compose" else {})) as worker:
        probe = Probe(worker)
        probe.wait_for("/readyz", 200)
        assert probe.ask("/livez")[0] == 200
        worker.send(signal.SIGTERM)
        assert worker.wait_ended()[0] == 0


@pytest.mark.full
def test_signal_for_each_process_cuts_running_jobs_short(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> None:
    """What KillMode=mixed prevents: a worker process gets the signal of systemd, and that of its parent."""
    write_program(tmp_path)
    Monque(db).sync.enqueue("until-file", "go on")
    uri = uri_of_database(mongod.uri, db.name)
    with run_process(tmp_path, "shop:workers", "--processes", "1", "--health", "0", "--uri", uri) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        parent.wait_for("waiting for a file")
        (child,) = json.loads(probe.ask("/healthz")[1])["processes"]
        os.kill(child["pid"], signal.SIGTERM)
        parent.wait_for_log("draining: SIGTERM was received")
        parent.send(signal.SIGTERM)
        status, _ = parent.wait_ended()
    assert (status, [job["status"] for job in db["monque_jobs"].find()]) == (0, ["pending"])
