"""A Debian machine with a real systemd, in QEMU without KVM.

`make-image` makes the images. A `Machine` has a disk of its own, which outlives reboots and power
cuts; tests talk to the running system through the QEMU guest agent, which answers while the boot
is still in progress.

`python -m tests.boot.machine IMAGE_DIR` boots one, cuts its power, boots it again and prints how
long each step took.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Completed", "Machine", "MachineError", "Symlink", "make_overlay"]

_KERNEL_ARGS = (
    "root=/dev/vda",
    "rw",
    "console=ttyS0",
    "quiet",
    "systemd.show_status=no",
    "mitigations=off",
    # Emulated clocks fail the kernel's checks at random, which costs time or picks another clock.
    "tsc=reliable",
    "no_timer_check",
    "random.trust_cpu=on",
    "panic=-1",
)
_AGENT_PORT = "org.qemu.guest_agent.0"
_POLL_S = 0.1


class MachineError(Exception):
    """The machine did not do what it should; the end of its console is in the message."""


class Completed(NamedTuple):
    """What a command in the machine returned."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Symlink:
    """An overlay entry that is a symbolic link to `target`."""

    target: str


OverlayEntry = str | bytes | Symlink


def _overlay_path(path: str) -> str:
    """The path in the overlay, on a merged /usr: a /lib directory cannot replace the link."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not parts or ".." in parts:
        message = f"not a path in the machine: {path!r}"
        raise ValueError(message)
    if parts[0] in {"bin", "sbin", "lib", "lib64"}:
        parts.insert(0, "usr")
    return "/".join(parts)


def _is_executable(path: str, content: bytes) -> bool:
    return path.startswith("usr/lib/gpu-bootstate/") or content.startswith(b"#!")


def _cpio_entry(inode: int, mode: int, name: str, content: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    name_padding = b"\0" * (-(len(header) + len(encoded)) % 4)
    return header + encoded + name_padding + content + b"\0" * (-len(content) % 4)


def make_overlay(entries: Mapping[str, OverlayEntry]) -> bytes:
    """A newc archive that holds the entries under /overlay, with the directories they need."""
    files = {_overlay_path(path): entry for path, entry in entries.items()}
    parents = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    # The initramfs copies modes onto directories that exist: these two are not 0755.
    special = {"root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777}
    inodes = itertools.count(1)
    archive = [_cpio_entry(next(inodes), 0o040755, "overlay", b"")]
    for parent in sorted(parents):
        mode = 0o040000 | special.get(parent, 0o755)
        archive.append(_cpio_entry(next(inodes), mode, f"overlay/{parent}", b""))
    for path, entry in sorted(files.items()):
        if isinstance(entry, Symlink):
            mode, content = 0o120777, entry.target.encode()
        else:
            content = entry.encode() if isinstance(entry, str) else entry
            mode = 0o100755 if _is_executable(path, content) else 0o100644
        archive.append(_cpio_entry(next(inodes), mode, f"overlay/{path}", content))
    archive.append(_cpio_entry(0, 0, "TRAILER!!!", b""))
    return b"".join(archive)


class _Agent:
    """The host's end of the guest agent's channel."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._buffer = b""
        self._ids = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    def _line(self, deadline: float) -> bytes | None:
        """The next line, without its end; None when none came before the deadline."""
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            self._socket.settimeout(remaining)
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                return None
            if not data:
                message = "the guest agent's channel is closed"
                raise ConnectionError(message)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _send(self, command: str, arguments: Mapping[str, object], prefix: bytes = b"") -> None:
        request = {"execute": command, "arguments": arguments}
        self._socket.settimeout(10)
        self._socket.sendall(prefix + json.dumps(request).encode() + b"\n")

    def sync(self, timeout_s: float) -> bool:
        """Whether the agent answers in time. Answers to earlier requests are dropped."""
        sync_id = next(self._ids)
        deadline = time.monotonic() + timeout_s
        # 0xFF makes the agent drop half a request that an earlier connection left behind; it may
        # complain about it, ahead of its answer.
        self._send("guest-sync-delimited", {"id": sync_id}, prefix=b"\xff")
        while (line := self._line(deadline)) is not None:
            with contextlib.suppress(ValueError):
                if json.loads(line.lstrip(b"\xff")).get("return") == sync_id:
                    return True
        return False

    def call(self, command: str, arguments: Mapping[str, object], timeout_s: float = 30) -> Any:
        """Sends a request and returns what the agent answers."""
        self._send(command, arguments)
        line = self._line(time.monotonic() + timeout_s)
        if line is None:
            message = f"{command}: no answer within {timeout_s} s"
            raise TimeoutError(message)
        answer = json.loads(line.lstrip(b"\xff"))
        if "error" in answer:
            message = f"{command}: {answer['error'].get('desc')}"
            raise MachineError(message)
        return answer["return"]


class Machine:
    """A machine with a disk of its own in `workdir`. A context manager: leaves no QEMU behind."""

    def __init__(
        self,
        image_dir: Path,
        workdir: Path,
        *,
        cpus: int = 2,
        memory_mib: int = 1024,
        kernel_args: Sequence[str] = (),
    ) -> None:
        self.image_dir = image_dir
        self.workdir = workdir
        self.disk = workdir / "root.img"
        self.cpus = cpus
        self.memory_mib = memory_mib
        self.kernel_args = (*_KERNEL_ARGS, *kernel_args)
        self._boots = 0
        self._qemu: subprocess.Popen[bytes] | None = None
        self._agent: _Agent | None = None
        # A socket's path has at most 107 bytes, which a test's directory may exceed.
        self._sockets = Path(tempfile.mkdtemp(prefix="boot-machine-"))
        workdir.mkdir(parents=True, exist_ok=True)
        if not self.disk.exists():
            subprocess.run(  # noqa: S603
                ["cp", "--sparse=always", str(image_dir / "root.img"), str(self.disk)],  # noqa: S607
                check=True,
            )

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.power_cut()
        shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether QEMU runs. It ends when the machine powers off or reboots."""
        return self._qemu is not None and self._qemu.poll() is None

    @property
    def console_log(self) -> Path:
        """The serial console of the latest boot; each boot has a file of its own."""
        return self.workdir / f"console-{self._boots}.log"

    def console(self) -> str:
        """What the latest boot wrote to its serial console."""
        if not self.console_log.exists():
            return ""
        return self.console_log.read_bytes().decode(errors="replace")

    def start(
        self, overlay: Mapping[str, OverlayEntry] | None = None, extra_qemu: Sequence[str] = ()
    ) -> None:
        """Starts QEMU and returns at once. The overlay stays on the disk for later boots."""
        if self.running:
            message = "the machine already runs"
            raise MachineError(message)
        self._boots += 1
        initrd = self.workdir / "initrd.img"
        # The kernel unpacks concatenated archives, each compressed or not, one after the other;
        # an uncompressed one must start at a multiple of four bytes.
        base = (self.image_dir / "initrd.cpio.gz").read_bytes()
        initrd.write_bytes(base + b"\0" * (-len(base) % 4) + make_overlay(overlay or {}))
        agent_socket = self._sockets / "agent"
        agent_socket.unlink(missing_ok=True)
        command = [
            # QEMU goes with this process, even when that is killed.
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("qemu-system-x86_64", "-machine", "q35", "-cpu", "max"),
            *("-accel", "tcg,thread=multi,tb-size=256"),
            *("-smp", str(self.cpus), "-m", str(self.memory_mib)),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.image_dir / "vmlinuz"), "-initrd", str(initrd)),
            *("-append", " ".join(self.kernel_args)),
            *("-chardev", f"file,id=console,path={self.console_log}"),
            *("-serial", "chardev:console"),
            # What the guest has written is in the host's page cache, and so outlives QEMU; its
            # flushes need not reach the host's disk.
            *("-drive", f"file={self.disk},format=raw,if=none,id=root,cache=unsafe"),
            *("-device", "virtio-blk-pci,drive=root"),
            *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,path={agent_socket},server=on,wait=off"),
            *("-device", f"virtserialport,chardev=agent,name={_AGENT_PORT}"),
            *extra_qemu,
        ]
        log = self.workdir / "qemu.log"
        with log.open("ab") as output:
            self._qemu = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def boot(
        self,
        overlay: Mapping[str, OverlayEntry] | None = None,
        extra_qemu: Sequence[str] = (),
        timeout_s: float = 120,
    ) -> None:
        """Starts the machine and waits until its guest agent answers."""
        self.start(overlay, extra_qemu)
        self.wait_agent(timeout_s)

    def wait_agent(self, timeout_s: float = 120) -> None:
        """Waits until the guest agent answers, which it does before the boot is complete."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._require_running()
            try:
                if self._agent is None:
                    self._agent = _Agent(self._sockets / "agent")
                if self._agent.sync(1):
                    return
            except TimeoutError:
                # Nobody reads the port yet and the channel is full: start afresh.
                self._drop_agent()
            except (FileNotFoundError, ConnectionError):
                self._drop_agent()
                time.sleep(_POLL_S)
        raise self._error(f"the guest agent did not answer within {timeout_s} s")

    def run(
        self, argv: Sequence[str], timeout_s: float = 60, stdin: str | None = None
    ) -> Completed:
        """Runs a command as root in the machine. One that a signal ends has rc 128 + signal."""
        agent = self._require_agent()
        arguments: dict[str, object] = {
            "path": argv[0],
            "arg": list(argv[1:]),
            "capture-output": True,
        }
        if stdin is not None:
            arguments["input-data"] = base64.b64encode(stdin.encode()).decode()
        deadline = time.monotonic() + timeout_s
        pause = 0.02
        try:
            pid = agent.call("guest-exec", arguments)["pid"]
            while True:
                status = agent.call("guest-exec-status", {"pid": pid})
                if status["exited"]:
                    break
                if time.monotonic() > deadline:
                    message = f"{' '.join(argv)}: not done within {timeout_s} s"
                    raise self._error(message)
                time.sleep(pause)
                pause = min(2 * pause, 0.25)
        except (OSError, binascii.Error, json.JSONDecodeError) as error:
            # The next command must not read an answer to this one.
            self._drop_agent()
            message = f"{' '.join(argv)}: {error}"
            raise self._error(message) from error
        rc = status["exitcode"] if "exitcode" in status else 128 + int(status["signal"])
        return Completed(rc, _text(status.get("out-data")), _text(status.get("err-data")))

    def check(self, argv: Sequence[str], timeout_s: float = 60) -> str:
        """Runs a command that must succeed and returns what it printed."""
        completed = self.run(argv, timeout_s)
        if completed.rc != 0:
            message = f"{' '.join(argv)}: exit status {completed.rc}: {completed.stderr.strip()}"
            raise self._error(message)
        return completed.stdout

    def read(self, path: str) -> str:
        """The content of a file in the machine; FileNotFoundError when there is none."""
        completed = self.run(["cat", "--", path])
        if completed.rc != 0:
            raise FileNotFoundError(completed.stderr.strip())
        return completed.stdout

    def journal(self, *args: str) -> list[dict[str, Any]]:
        """The entries that `journalctl ARGS` selects: "-b", "-u", "a.service", ..."""
        output = self.check(["journalctl", "--no-pager", "--quiet", "-o", "json", *args])
        return [json.loads(line) for line in output.splitlines() if line]

    def wait_for(
        self,
        predicate: Callable[[], bool],
        timeout_s: float = 60,
        what: str = "the condition",
        interval_s: float = 0.5,
    ) -> None:
        """Waits until the predicate holds."""
        deadline = time.monotonic() + timeout_s
        while not predicate():
            self._require_running()
            if time.monotonic() > deadline:
                message = f"{what}: not within {timeout_s} s"
                raise self._error(message)
            time.sleep(interval_s)

    def wait_booted(self, timeout_s: float = 120) -> str:
        """Waits until the boot is complete and returns the state: "running" or "degraded"."""
        state = ""
        deadline = time.monotonic() + timeout_s

        def complete() -> bool:
            nonlocal state
            # --wait blocks in the machine: polling would take time from the boot.
            remaining = max(1.0, deadline - time.monotonic())
            argv = ["systemctl", "is-system-running", "--wait"]
            state = self.run(argv, remaining).stdout.strip()
            # Empty, "offline" or "unknown" means that systemd does not answer yet.
            return state in {"running", "degraded", "maintenance", "stopping"}

        self.wait_for(complete, timeout_s, "the end of the boot")
        return state

    def power_cut(self) -> None:
        """Takes the power away: what the guest has not written to its disk is lost."""
        if self._qemu is not None:
            self._qemu.send_signal(signal.SIGKILL)
            self._qemu.wait()
        self._qemu = None
        self._drop_agent()

    def shutdown(self, timeout_s: float = 90) -> None:
        """Shuts the system down in order and waits for the end; `boot` starts it again."""
        self.check(["systemctl", "--no-block", "poweroff"])
        self.wait_off(timeout_s)

    def wait_off(self, timeout_s: float = 90) -> None:
        """Waits until the machine has powered off (a reboot ends QEMU too)."""
        if self._qemu is None:
            return
        try:
            self._qemu.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise self._error(f"still on after {timeout_s} s") from error
        self._qemu = None
        self._drop_agent()

    def _drop_agent(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent = None

    def _require_agent(self) -> _Agent:
        self._require_running()
        if self._agent is None:
            self.wait_agent()
        if self._agent is None:
            message = "no guest agent"
            raise MachineError(message)
        return self._agent

    def _require_running(self) -> None:
        if not self.running:
            message = "the machine is off"
            raise self._error(message)

    def _error(self, message: str) -> MachineError:
        tail = self.console()[-3000:]
        log = self.workdir / "qemu.log"
        qemu = log.read_bytes().decode(errors="replace")[-2000:] if log.exists() else ""
        return MachineError(f"{message}\n--- console:\n{tail}\n--- qemu:\n{qemu}")


def _text(encoded: str | None) -> str:
    return base64.b64decode(encoded).decode(errors="replace") if encoded else ""


def _prove(image_dir: Path, workdir: Path) -> None:
    """Boots, cuts the power, boots again and shuts down; prints how long each step took."""

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    started = time.monotonic()

    def step(name: str) -> None:
        nonlocal started
        say(f"{time.monotonic() - started:6.1f} s  {name}")
        started = time.monotonic()

    with Machine(image_dir, workdir) as machine:
        step("disk copied")
        machine.boot({"/etc/proof": "one\n", "/etc/proof-link": Symlink("proof")})
        step("guest agent answers")
        step(f"boot complete: {machine.wait_booted()}")
        say(machine.check(["systemd-analyze"]).strip())
        say(machine.check(["systemd-analyze", "blame", "--no-pager"]).strip())
        say(machine.check(["systemctl", "--failed", "--no-legend", "--no-pager"]).strip())
        if machine.read("/etc/proof-link") != "one\n":
            message = "the overlay is not on the disk"
            raise MachineError(message)
        machine.check(["logger", "-t", "proof", "before the power cut"])
        machine.check(["sh", "-c", "echo two > /var/lib/kept && sync /var/lib/kept"])
        time.sleep(2)
        step("commands run")
        machine.power_cut()
        step("power cut")
        machine.boot()
        step("guest agent answers")
        step(f"boot complete: {machine.wait_booted()}")
        say(machine.check(["systemd-analyze"]).strip())
        messages = [entry["MESSAGE"] for entry in machine.journal("-b", "-1", "-t", "proof")]
        if messages != ["before the power cut"] or machine.read("/var/lib/kept") != "two\n":
            message = f"lost in the power cut: {messages}"
            raise MachineError(message)
        step("journal and file outlived the power cut")
        machine.shutdown()
        step("shut down")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image_dir", type=Path, help="what make-image made")
    parser.add_argument("--workdir", type=Path, help="keeps the disk and the console logs here")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="boot-proof-") as temporary:
        _prove(args.image_dir, args.workdir or Path(temporary))


if __name__ == "__main__":
    main()
