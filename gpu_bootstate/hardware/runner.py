"""The only place that starts programs: argument list, no shell, fixed locale, a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError, ToolResult

_GRACE_S = 2.0  # between TERM and KILL
_OUTPUT_BYTES = 64 * 1024


class Runner:
    """`cancel` ends whatever runs; it may be called from a signal handler."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {}), "LC_ALL": "C"}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()

    def run(self, command: Sequence[str], *, timeout_s: float) -> ToolResult:
        """Run to the end, or stop it at the limit. Raises HardwareError TOOL_MISSING when it
        cannot be started: no such file, no permission, or its interpreter is missing.
        """
        # Files, not pipes: a grandchild that keeps a pipe open would hold us after the end.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(  # noqa: S603  # fixed programs, no shell
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise _missing(command[0], error) from error
            with self._lock:
                self._running.add(process)
            timed_out = False
            try:
                process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                self._end(process)
            finally:
                with self._lock:
                    self._running.discard(process)
            # A tool that cannot be killed (it sits in the kernel) has no exit code yet.
            code = process.returncode if process.returncode is not None else -signal.SIGKILL
            return ToolResult(tuple(command), code, _read(out), _read(err), timed_out=timed_out)

    @property
    def pids(self) -> frozenset[int]:
        """Of what runs now."""
        with self._lock:
            return frozenset(process.pid for process in self._running)

    def cancel(self) -> None:
        with self._lock:
            for process in self._running:
                _signal(process, signal.SIGTERM)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """The whole group: sriov-manage is a script and works through children."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)
        _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _read(stream: object) -> str:
    stream.seek(0)  # type: ignore[attr-defined]  # a temporary file; typeshed hides its class
    data: bytes = stream.read(_OUTPUT_BYTES)  # type: ignore[attr-defined]  # the same
    return data.decode(errors="replace")


def _missing(program: str, error: OSError) -> HardwareError:
    detail = f"{program}: {error.strerror}"
    with contextlib.suppress(OSError), open(program, "rb") as stream:  # noqa: PTH123
        first = stream.readline(256).decode(errors="replace").strip()
        if first.startswith("#!"):
            detail += f" (its first line asks for {first[2:].strip()})"
    return HardwareError(ErrorKind.TOOL_MISSING, program, detail=detail, errno=error.errno)
