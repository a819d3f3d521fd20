"""A server that the dynamic loader cannot load: one sentence with the command that installs what is missing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from trio_monque.cli import main
from trio_monque.embedded import embedded_mongod
from trio_monque.embedded.binary import WHAT_TO_DO
from trio_monque.embedded.shared_libraries import loader_advice
from trio_monque.errors import EmbeddedServerError

_CURL_IS_MISSING = (
    "/venv/fiftyone/db/bin/mongod: error while loading shared libraries: libcurl.so.4: "
    "cannot open shared object file: No such file or directory"
)
_HOW_TO_INSTALL_CURL = (
    "the MongoDB server needs libcurl.so.4, which is not installed: "
    "run apt-get install libcurl4 (Fedora, RHEL: dnf install libcurl)"
)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of the test put what is temporary; no server is taken from the environment."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.delenv("MONQUE_MONGODB_URI", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def mongod_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test puts the program that starts as the server."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder / "mongod"


@pytest.fixture
def server_without_curl(mongod_on_path: Path) -> None:
    """A program that prints what the loader prints on an image without libcurl, and ends with the loader's status."""
    mongod_on_path.write_text(f"#!/bin/sh\necho '{_CURL_IS_MISSING}' >&2\nexit 127\n")
    mongod_on_path.chmod(0o755)


@pytest.mark.usefixtures("server_without_curl")
def test_missing_library_is_one_sentence_with_the_command_that_installs_it(temporary_folder: Path) -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        embedded_mongod().__enter__()
    assert str(caught.value) == _HOW_TO_INSTALL_CURL
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.usefixtures("server_without_curl")
@pytest.mark.parametrize("command", ["demo", "server"])
def test_missing_library_is_the_only_line_of_the_error_of_a_command(
    command: str, temporary_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 2
    assert capfd.readouterr().err == f"trio-monque: {_HOW_TO_INSTALL_CURL}\n"
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this loader")
def test_advice_follows_from_the_lines_of_the_real_loader(mongod_on_path: Path) -> None:
    """A copy of a program of this system, changed to need a library that no system has."""
    shell = Path("/bin/sh").read_bytes()
    assert shell.count(b"\0libc.so.6\0") == 1
    mongod_on_path.write_bytes(shell.replace(b"\0libc.so.6\0", b"\0libx.so.9\0"))
    mongod_on_path.chmod(0o755)
    with pytest.raises(EmbeddedServerError) as caught:
        embedded_mongod().__enter__()
    advice = (
        f"the MongoDB server needs libx.so.9, which is not installed: install the package that has it, or {WHAT_TO_DO}"
    )
    assert str(caught.value) == advice


_ABSENT = "cannot open shared object file: No such file or directory"
_DENIED = "cannot open shared object file: Permission denied"
_NO_OPENSSL_3 = (
    "the MongoDB server needs libcrypto.so.3, which is not installed: run apt-get install libssl3 "
    f"(Fedora, RHEL: dnf install openssl-libs); where the system is too old for OpenSSL 3, {WHAT_TO_DO}"
)
_UNREADABLE = f"the MongoDB server cannot load libcurl.so.4 ({_DENIED}): repair that file, or {WHAT_TO_DO}"
_DAMAGED = f"the MongoDB server cannot load /opt/libcurl.so.4 (file too short): repair that file, or {WHAT_TO_DO}"


@pytest.mark.parametrize(
    ("library", "reason", "advice"),
    [
        ("libcurl.so.4", _ABSENT, _HOW_TO_INSTALL_CURL),
        ("libcrypto.so.3", _ABSENT, _NO_OPENSSL_3),
        ("libcurl.so.4", _DENIED, _UNREADABLE),
        ("/opt/libcurl.so.4", "file too short", _DAMAGED),
    ],
)
def test_what_the_loader_printed_decides_the_advice(library: str, reason: str, advice: str) -> None:
    assert loader_advice(f"mongod: error while loading shared libraries: {library}: {reason}") == advice


def test_system_library_that_is_too_old_is_named() -> None:
    printed = "mongod: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by mongod)"
    advice = "the MongoDB server needs a newer libc.so.6 than this system has (GLIBC_2.34 is not in it): " + WHAT_TO_DO
    assert loader_advice(f"{printed}\n{printed.replace('34', '32')}") == advice


def test_end_of_a_server_that_was_loaded_is_not_the_loaders() -> None:
    assert loader_advice('{"t":{"$date":"2026-01-01"},"s":"E","c":"STORAGE","msg":"No such file or directory"}') is None
