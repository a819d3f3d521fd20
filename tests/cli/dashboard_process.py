"""`trio-monque dashboard` as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.programs import uri_of_database
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .demo_process import REPOSITORY, environment


@contextmanager
def served(mongod: EmbeddedServer, db: Database, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the link that it has printed."""
    command = [sys.executable, "-m", "trio_monque", "dashboard", "--listen", "127.0.0.1:0", *options]
    command += ["--uri", uri_of_database(mongod.uri, db.name)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert lines[0] == f"{db.name}.monque_jobs is shown at\n", (lines, process.stderr and process.stderr.read())
            yield process, lines[1].strip()
        finally:
            process.kill()
