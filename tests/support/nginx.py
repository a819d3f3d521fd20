"""Debian's nginx in front of a server, on a socket of its own; no file of the system is read."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.ci_timeouts import is_ci
from tests.support.waiting import wait_until

MISSING: Final = "nginx is not installed: run apt-get install -y --no-install-recommends nginx"
SECONDS: Final = 50.0

CONFIGURATION: Final = """
{user}
daemon off;
master_process on;
worker_processes 1;
pid {folder}/pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen unix:{folder}/socket;
        {port}
        {locations}
    }}
}}
"""


def program() -> str:
    """Return the program. Without it, the test is skipped, and fails in CI."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        (pytest.fail if is_ci() else pytest.skip)(MISSING)
        raise AssertionError
    return found


@contextmanager
def nginx(folder: Path, locations: str, port: int | None = None) -> Iterator[Path]:
    """Run it with these locations; the block gets the socket on which it listens. A browser needs a port besides."""
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    listen = "" if port is None else f"listen 127.0.0.1:{port};"
    written = CONFIGURATION.format(user=user, folder=folder, port=listen, locations=locations)
    configuration.write_text(written, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program(), "-p", str(folder), "-e", "stderr", "-c", str(configuration)], stdout=log, stderr=log
        )
    where = folder / "socket"
    try:
        wait_until(lambda: process.poll() is not None or _answers(where), "nginx listens", SECONDS)
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        yield where
    finally:
        process.terminate()  # Its master ends the workers, and waits for nothing.
        process.wait(SECONDS)


def _answers(where: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(where))
        except OSError:
            return False
    return True
