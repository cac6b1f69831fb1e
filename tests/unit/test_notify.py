"""What arrives at systemd and at the journal, byte for byte, at sockets of our own."""

from __future__ import annotations

import io
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpu_bootstate.notify import Journal, Notifier, message_id
from gpu_bootstate.reasons import Code
from tests.scenarios.test_commands import Shell


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(5)
        yield server


def received(server: socket.socket) -> bytes:
    return server.recv(65536)


# --------------------------------------------------------------------------- systemd


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    if request.param == "path":
        named = address = str(tmp_path / "notify")
    else:
        named, address = (f"{lead}gpu-bootstate-test-{os.getpid()}" for lead in ("@", "\0"))
    monkeypatch.setenv("NOTIFY_SOCKET", named)
    with listening(address) as server:
        yield server


def test_systemd_gets_each_message_as_it_understands_it(systemd: socket.socket) -> None:
    with closing(Notifier()) as notifier:
        notifier.status("Phase vfs:\n8 GPUs")
        notifier.extend(12.5)
        notifier.ready()
        notifier.stopping()

    assert [received(systemd) for _ in range(4)] == [
        b"STATUS=Phase vfs: 8 GPUs",
        b"EXTEND_TIMEOUT_USEC=12500000",
        b"READY=1",
        b"STOPPING=1",
    ]


def test_the_same_status_is_sent_once(systemd: socket.socket) -> None:
    with closing(Notifier()) as notifier:
        notifier.status("one")
        notifier.status("one")
        notifier.status("two")

    assert [received(systemd) for _ in range(2)] == [b"STATUS=one", b"STATUS=two"]


def test_status_that_systemd_would_not_take_is_made_one_that_it_does(
    systemd: socket.socket,
) -> None:
    with closing(Notifier()) as notifier:
        notifier.status("waiting for gpu-µ")

    assert received(systemd) == b"STATUS=waiting for gpu-?"


# The library drops its socket unclosed when it cannot connect.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("address", [None, "", "/nonexistent/notify"])
def test_without_systemd_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)

    with closing(Notifier()) as notifier:
        notifier.status("one")
        notifier.extend(1)


def test_systemd_that_does_not_read_holds_nothing_up(systemd: socket.socket) -> None:
    with closing(Notifier()) as notifier:
        for number in range(5000):  # more than the kernel queues for a datagram socket
            notifier.status(f"step {number}")

    assert received(systemd) == b"STATUS=step 0"


# --------------------------------------------------------------------------- the journal


def fields(datagram: bytes) -> dict[str, str]:
    """The native protocol as systemd documents it: NAME=value, or NAME, length, value."""
    found = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(datagram[:8], "little")
            value, datagram = datagram[8 : 8 + size], datagram[8 + size :]
            assert datagram[:1] == b"\n"
            datagram = datagram[1:]
        found[name.decode()] = value.decode()
    return found


def connect(stream: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch, *, inode: int = 0) -> None:
    """As systemd does when it connects a stream to the journal."""
    status = os.fstat(stream.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + inode}")


def test_entry_goes_to_the_journal_with_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "journal")
    with (tmp_path / "stderr").open("w+") as stream, listening(path) as server:
        connect(stream, monkeypatch)
        with closing(Journal(stream, path=path)) as journal:
            journal.send("it is\nso", event="held", priority=4, GPU_BDF="0000:17:00.0")
        stream.seek(0)
        assert stream.read() == ""
        assert fields(received(server)) == {
            "MESSAGE": "it is\nso",
            "MESSAGE_ID": message_id("held"),
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "gpu-bootstate",
            "GPU_BDF": "0000:17:00.0",
        }


@pytest.mark.parametrize("connected", ["not at all", "another stream", "no journal listens"])
def test_plain_lines_where_the_stream_is_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: str
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    with (tmp_path / "stderr").open("w+") as stream:
        if connected != "not at all":
            connect(stream, monkeypatch, inode=1 if connected == "another stream" else 0)
        with closing(Journal(stream, path=str(tmp_path / "nobody"))) as journal:
            journal.send("a line", event="step", priority=3, GPU_BDF="0000:17:00.0")
        stream.seek(0)
        assert stream.read() == "a line\n"


def test_journal_that_goes_away_is_replaced_by_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    with (tmp_path / "stderr").open("w+") as stream:
        with listening(str(path)):
            connect(stream, monkeypatch)
            journal = Journal(stream, path=str(path))
        with closing(journal):
            journal.send("told anyway", event="step")
        stream.seek(0)
        assert stream.read() == "told anyway\n"


def test_closed_terminal_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()

    Journal(stream).send("into the void", event="step")


def test_message_ids_are_fixed_and_one_for_each_reason() -> None:
    assert message_id("vfs-not-created") == "58861c2be40f5e318b58a680218b678a"
    ids = {message_id(code.value) for code in Code}
    assert len(ids) == len(Code)
    assert all(uuid.UUID(hex=text).version == 5 for text in ids)


@pytest.mark.parametrize(
    ("config", "faults", "code", "status", "ready"),
    [
        ("", [], 0, "1 GPU as configured; the gate is open.", True),
        ("", ["set_vgpu_type io:EIO"], 1, "Failed: 0 of 1 GPU as configured, not so ", False),
        ("typo: 1\n", [], 4, "Bad config: ", False),
    ],
)
def test_last_word_of_a_run(
    tmp_path: Path,
    systemd: socket.socket,
    config: str,
    faults: list[str],
    code: int,
    status: str,
    *,
    ready: bool,
) -> None:
    """It stays in `systemctl status`; a shut gate is not ready, whatever the unit's type."""
    path = tmp_path / "config.yaml"
    gpus = 'gpus: [{match: {pci: "0000:17:00.0"}, profile: {vgpus: {H200X-141C: 1}}}]\n'
    path.write_text(f"version: v1\n{gpus}{config}", encoding="utf-8")
    shell = Shell(tmp_path / "sim", "hgx-h200-8", path)
    for fault in faults:
        shell.run("simulate", "fault", *fault.split())
    said: list[str] = []
    ended = threading.Event()

    def listen() -> None:
        systemd.settimeout(0.2)
        while True:
            try:
                said.append(systemd.recv(4096).decode())
            except TimeoutError:
                if ended.is_set():
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    shell.run("apply", code=code)
    ended.set()
    listener.join()
    assert (said[-1] == "READY=1") is ready
    last = [text for text in said if text.startswith("STATUS=")][-1]
    assert last.startswith(f"STATUS={status}")
