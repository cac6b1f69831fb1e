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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gpu_bootstate.files import write_atomic
from gpu_bootstate.simulator.node import SimNode, new_node
from gpu_bootstate.simulator.state import Call, from_json, to_json


class StoreError(Exception):
    """The directory does not hold the node that was asked for. Its text says why."""


class DamagedStore(StoreError):
    """A file of the node is there and is not what it should be, or has gone."""


class WrongBoard(StoreError):
    """The directory holds a node of another board."""


class Store:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "node.json"
        self._seen: tuple[int, int] | None = None
        self._node: SimNode | None = None

    @classmethod
    def open(cls, directory: Path, board: str) -> Store:
        """Load the node, or make a just booted one. Raises StoreError, UnknownBoard."""
        store = cls(directory)
        if not store._file.exists():
            fresh = new_node(board)
            directory.mkdir(parents=True, exist_ok=True)
            with store.alone():
                if not store._file.exists():  # else another process was faster
                    store.write(fresh, None)
        if (found := store.node.state.board) != board:
            raise WrongBoard(f"{directory} holds a node of the board {found}, not of {board}")
        return store

    @property
    def node(self) -> SimNode:
        return self.read()

    @property
    def trace(self) -> list[dict[str, object]]:
        path = self._directory / "trace.jsonl"
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except ValueError as err:
            raise DamagedStore(f"{path}: {err}") from err

    def read(self) -> SimNode:
        """The node as it is in the directory now. Raises DamagedStore."""
        try:
            stamp = self._stamp()
            if self._node is None or stamp != self._seen:
                data = json.loads(self._file.read_text(encoding="utf-8"))
                self._node, self._seen = SimNode(from_json(data)), stamp
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            raise DamagedStore(f"{self._file}: {err}") from err
        return self._node

    def _stamp(self) -> tuple[int, int]:
        stat = self._file.stat()
        return stat.st_mtime_ns, stat.st_ino

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
        # The file system's clock ticks in milliseconds and inodes are used again, so two writes
        # could look alike to another process.
        written_ns = max(time.time_ns(), self._seen[0] + 1 if self._seen else 0)
        os.utime(self._file, ns=(written_ns, written_ns))
        self._node, self._seen = node, self._stamp()

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
