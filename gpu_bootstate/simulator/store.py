"""A simulated node in a directory, so that separate commands, and a killed one, see one node.

node.json     what the node is
trace.jsonl   every call that changed something, oldest first
root/         the node's own /etc, /run and /var
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gpu_bootstate.files import write_atomic
from gpu_bootstate.simulator.node import SimNode, new_node
from gpu_bootstate.simulator.state import Call, from_json, to_json


class DamagedStore(Exception):
    """node.json is there and is not a node."""


class Store:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "node.json"
        self._seen: tuple[int, int] | None = None
        self._node: SimNode | None = None

    @classmethod
    def open(cls, directory: Path, board: str) -> Store:
        """Load the node, or make a just booted one. Raises DamagedStore, UnknownBoard."""
        store = cls(directory)
        if not store._file.exists():
            store.write(new_node(board), None)
        return store

    @property
    def node(self) -> SimNode:
        return self.read()

    @property
    def trace(self) -> list[dict[str, object]]:
        path = self._directory / "trace.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def read(self) -> SimNode:
        """The node as it is in the directory now."""
        stat = self._file.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if self._node is None or stamp != self._seen:
            try:
                data = json.loads(self._file.read_text(encoding="utf-8"))
                self._node = SimNode(from_json(data))
            except (ValueError, TypeError, KeyError, AttributeError) as err:
                raise DamagedStore(f"{self._file}: {err}") from err
            self._seen = stamp
        return self._node

    def write(self, node: SimNode, call: Call | None) -> None:
        """On disk before it returns: a process that is killed next leaves it behind."""
        if call is not None:
            line = json.dumps(asdict(call)) + "\n"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._directory / "trace.jsonl", flags, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        write_atomic(self._file, json.dumps(to_json(node.state)))
        stat = self._file.stat()
        self._node, self._seen = node, (stat.st_mtime_ns, stat.st_ino)

    @contextmanager
    def change(self) -> Iterator[SimNode]:
        """Change the node from outside, alone."""
        with self.alone():
            node = self.read()
            yield node
            self.write(node, None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes off the node; they wait."""
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def reboot(self) -> None:
        """The node reboots: its volatile state and its /run are gone."""
        with self.change() as node:
            node.reboot()
            shutil.rmtree(self._directory / "root" / "run", ignore_errors=True)
