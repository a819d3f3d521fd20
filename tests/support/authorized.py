"""A replica set of one member with access control, and users with the roles of a test."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo import errors as driver

from trio_monque.embedded import replica_set, server_start
from trio_monque.embedded.binary import find_binary
from trio_monque.embedded.supervised_servers import ServerCommand, SupervisedServers

SET = "rs0"
ROOT = "root"


class AuthorizedServer:
    """The server.

    Attributes:
        port: Where it listens, on the loopback address.
        root: A client of a user who may do everything.
    """

    def __init__(self, port: int, root: MongoClient[Any]) -> None:
        self.port = port
        self.root = root

    def user_with(self, role: Mapping[str, Any], database: str) -> str:
        """Create the role, and a user who has it and nothing else; return the connection string of that user.

        A role with rights on the whole cluster belongs to the database "admin".
        """
        user, password = f"user-{secrets.token_hex(4)}", secrets.token_hex(8)
        is_of_cluster = any("cluster" in privilege["resource"] for privilege in role["privileges"])
        of = "admin" if is_of_cluster else database
        self.root[of].command("createRole", role["role"], privileges=role["privileges"], roles=role["roles"])
        self.root[database].command("createUser", user, pwd=password, roles=[{"role": role["role"], "db": of}])
        address = f"{replica_set.HOST}:{self.port}"
        return f"mongodb://{user}:{password}@{address}/{database}?replicaSet={SET}&authSource={database}"


@contextmanager
def authorized_server() -> Iterator[AuthorizedServer]:
    """Start the server; it ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="trio-monque-authorized-")).resolve()
    (port,) = server_start.choose_ports(server_start.LaunchOptions(1, None, None))
    data, key = folder / "data", folder / "key"
    data.mkdir()
    key.write_text(secrets.token_hex(32), encoding="ascii")
    key.chmod(0o600)  # Members of a replica set with access control share a key, also if there is one.
    found = server_start.server_command(find_binary(folder), port, data, SET)
    command = ServerCommand([*found.command, "--keyFile", str(key)], found.log)
    server = SupervisedServers([command], shutdown_timeout=0.0, remove=folder)
    try:
        with MongoClient[Any](replica_set.HOST, port, directConnection=True, serverSelectionTimeoutMS=30_000) as first:
            # Before there is a user, this machine may form the set and make the first user.
            members = [{"_id": 0, "host": f"{replica_set.HOST}:{port}"}]
            first["admin"].command("replSetInitiate", {"_id": SET, "members": members})
            deadline = time.monotonic() + 50
            while not first["admin"].command("hello")["isWritablePrimary"]:
                server.check()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            _create_root(first, deadline)
        with MongoClient[Any](replica_set.HOST, port, username=ROOT, password=ROOT, replicaSet=SET) as root:
            yield AuthorizedServer(port, root)
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


def _create_root(first: MongoClient[Any], deadline: float) -> None:
    while True:
        try:
            first["admin"].command("createUser", ROOT, pwd=ROOT, roles=["root"])
        except driver.NotPrimaryError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return
