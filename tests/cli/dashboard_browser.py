"""A browser for a dashboard that a command serves: it signs in by the link."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


class Browser:
    """A client with the cookie that it was given."""

    def __init__(self, link: str) -> None:
        self.link = urlsplit(link)
        self.cookie = ""

    def ask(self, method: str, path: str, body: str | None = None, host: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.link.hostname or "", self.link.port or 0, timeout=30)
        headers = {"Cookie": self.cookie, "Host": host or self.link.netloc, "Sec-Fetch-Site": "same-origin"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        if (given := answer.getheader("Set-Cookie")) is not None:
            self.cookie = given.partition(";")[0]
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def sign_in(self) -> int:
        return self.ask("POST", "/sign-in", self.link.query)[0]
