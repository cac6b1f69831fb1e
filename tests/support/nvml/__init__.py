"""The NVML adapter of one GPU in a process of its own, over the library built from fake_nvml.c.

The process is started afresh (not forked), so that the dynamic loader finds our library for the
unmodified pynvml, and nothing of it stays in the process of the tests.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from gpu_bootstate.hardware.protocol import HardwareError
from gpu_bootstate.model import Bdf
from tests.support.host import Host, nvml_library


class RemoteNvml:
    """Its attributes are the methods of NvmlGpu, and `version_check`."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            return self._call(name, *arguments, **named)

        return call

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._connection.send((name, arguments, named))
        value, error = self._connection.recv()
        if error is not None:
            kind, operation, target, detail = error
            raise HardwareError(kind, operation, target=target, detail=detail)
        return value

    def start_over(self, host: Host, pf: str) -> None:
        """A new adapter, without a session, for a GPU of this host."""
        self._call("start_over", str(host.state), Bdf.parse(pf))

    def has_open(self, host: Host, pf: str) -> bool:
        """Whether it is a client of the GPU now: the library keeps the device node open."""
        node = str(host.state / "gpus" / pf / "node")
        fds = f"/proc/{self.pid}/fd"
        return node in {os.readlink(f"{fds}/{name}") for name in os.listdir(fds)}  # noqa: PTH115, PTH208


@contextmanager
def remote_nvml(*, library: bool = True) -> Iterator[RemoteNvml]:
    """``library`` False: without any, as before the driver is installed."""
    path = str(nvml_library().parent) if library else ""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,))
    with mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": path}):
        process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield RemoteNvml(ours, process.pid)
    finally:
        ours.close()
        process.join()
        process.close()


def _serve(connection: Connection) -> None:
    from gpu_bootstate.hardware import nvml

    gpu: nvml.NvmlGpu | None = None
    while True:
        try:
            name, arguments, named = connection.recv()
        except EOFError:
            return
        try:
            if name == "start_over":
                if gpu is not None:
                    gpu.close_session()
                os.environ["FAKE_NVML_STATE"], gpu = arguments[0], nvml.NvmlGpu(arguments[1])
                value = None
            elif name == "version_check":
                value = nvml.version_check()
            else:
                value = getattr(gpu, name)(*arguments, **named)
            connection.send((value, None))
        except HardwareError as err:
            connection.send((None, (err.kind, err.operation, err.target, err.detail)))
