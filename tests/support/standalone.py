"""A server that is no member of a replica set, and so has no change streams."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from trio_monque.embedded import replica_set, server_start
from trio_monque.embedded.binary import find_binary
from trio_monque.embedded.supervised_servers import ServerCommand, SupervisedServers
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.member_admin import ping

COLLECTIONS = ["monque_jobs", "monque_jobs.instances"]
JOBS_ONLY = ["find", "insert", "update", "remove", "createCollection", "createIndex"]


@contextmanager
def restricted_server() -> Iterator[str]:
    """One where the user of the connection string may use the collections of the jobs in "x", and nothing else."""
    with standalone_server("--auth") as uri:
        with MongoClient[Any](uri) as nobody:  # Before there is a user, this machine may make the first.
            nobody["admin"].command("createUser", "root", pwd="root", roles=["root"])
        with MongoClient[Any](uri, username="root", password="root") as root:
            privileges = [{"resource": {"db": "x", "collection": one}, "actions": JOBS_ONLY} for one in COLLECTIONS]
            root["x"].command("createRole", "worker", privileges=privileges, roles=[])
            root["x"].command("createUser", "worker", pwd="worker", roles=["worker"])
        yield uri.replace("//", "//worker:worker@") + "x?retryWrites=false"


@contextmanager
def standalone_server(*arguments: str) -> Iterator[str]:
    """Its connection string, for as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix="trio-monque-standalone-")).resolve()
    (port,) = server_start.choose_ports(server_start.LaunchOptions(1, None, None))
    data = folder / "data"
    data.mkdir()
    as_member = server_start.server_command(find_binary(folder), port, data, replica_set.DEFAULT_NAME)
    alone = [part for part in as_member.command if part not in ("--replSet", replica_set.DEFAULT_NAME)]
    alone += arguments
    server = SupervisedServers([ServerCommand(alone, as_member.log)], shutdown_timeout=0.0, remove=folder)
    try:
        uri = f"mongodb://{replica_set.HOST}:{port}/"
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            server.check()
            with suppress(MonqueConnectionError):
                ping(uri)
                break
        yield uri
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)
