"""Asks the health endpoints of `trio-monque run`, as Kubernetes does."""

from __future__ import annotations

import re
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.waiting import wait_until

from .run_process import RunProcess


class Probe:
    """Asks the endpoints as Kubernetes does."""

    def __init__(self, worker: RunProcess) -> None:
        line = worker.wait_for_log("serving /livez /readyz /healthz /health")
        (self.url,) = re.findall(r"http://[^\s\"]+", line)  # The log may be JSON.

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        return ask(self.url + path, method)

    def wait_for(self, path: str, status: int) -> str:
        # Not many times a second: each question is work for all processes.
        wait_until(lambda: self.ask(path)[0] == status, f"{path} answers {status}", 40, pause=0.1)
        return self.ask(path)[1]


def ask(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urlopen(Request(url, method=method), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
