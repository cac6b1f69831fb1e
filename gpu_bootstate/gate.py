"""The readiness gate: files that exist only while what they say was verified in this boot.

A GPU has a file of its own; the node's `ready` and the extra files of the configuration follow
from those by the policy. Opening goes inside out (GPU files, ready, extra files in order), closing
outside in, so that nobody sees a release that its ground has already left.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from gpu_bootstate.files import read_json, remove, write_atomic, write_json
from gpu_bootstate.model import Bdf, GateFile, GatePolicy
from gpu_bootstate.paths import Paths
from gpu_bootstate.reasons import Code, Finding

# When something was said is no reason to say it again.
_TIMES = frozenset({"verified_at", "written_at"})


class GateError(Exception):
    """A gate file can be neither written nor removed, or its directory is not ours alone."""

    def __init__(self, path: Path, detail: str) -> None:
        self.path = path
        self.detail = detail
        self.finding = Finding.of(Code.GATE_FAILED, path=path, detail=detail)
        super().__init__(self.finding.message)


class Gate:
    """Of one node in one boot; the methods may be called from any thread and raise GateError."""

    def __init__(
        self,
        paths: Paths,
        boot_id: str,
        *,
        configured: tuple[Bdf, ...],
        files: tuple[GateFile, ...],
        policy: GatePolicy,
        absent: int = 0,
        digest: str | None = None,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        """``absent``: GPUs that the config names and the node has not; under ``all`` they keep
        the node's gate shut. ``digest`` is the configuration's. ``wall_time``: seconds since the
        epoch.
        """
        self._paths = paths
        self._boot_id = boot_id
        self._configured = configured
        self._files = files
        self._policy = policy
        self._absent = absent
        self._digest = digest
        self._wall_time = wall_time
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ asking

    @property
    def is_open(self) -> bool:
        return self._is_ours(self._paths.ready)

    def is_gpu_open(self, pf: Bdf) -> bool:
        return self._is_ours(self._paths.gpu_gate(pf))

    def _is_ours(self, path: Path) -> bool:
        """Written in this boot, and whole."""
        return (read_json(path) or {}).get("boot_id") == self._boot_id

    def _satisfied(self, *, without: Bdf | None = None) -> bool:
        opened = [pf for pf in self._configured if pf != without and self.is_gpu_open(pf)]
        if self._policy is GatePolicy.ANY:
            return bool(opened)
        return len(opened) == len(self._configured) and not self._absent

    def is_disturbed(self, *, released: bool) -> bool:
        """Whether somebody else has changed the files since they were last put right.

        ``released``: that the last run of this boot left the gate open.
        """
        ready = read_json(self._paths.ready)
        if ready is None:
            return released or self._paths.ready.exists()
        told = ready.get("open")
        if ready.get("boot_id") != self._boot_id or not released or not isinstance(told, list):
            return True
        ours = {path.stem for path in self._gpu_files() if self._is_ours(path)}
        return not ours.issuperset(map(str, told)) or not all(
            _has_text(self._paths.at(file.path), file.content) for file in self._files
        )

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """The whole gate, whatever it was."""
        with self._changing():
            self._close_node()
            _remove_all(self._gpu_files())

    def discard_stale(self) -> None:
        """Whatever is not of this boot, or of a GPU that the config no longer names, goes."""
        with self._changing():
            if not self.is_open or not self._satisfied():
                self._close_node()
            names = {self._paths.gpu_gate(pf).name for pf in self._configured}
            _remove_all(
                path
                for path in self._gpu_files()
                if path.name not in names or not self._is_ours(path)
            )

    def close_gpu(self, pf: Bdf) -> None:
        """The GPU is about to be changed, or is not as it should be."""
        with self._changing():
            if not self._satisfied(without=pf):
                self._close_node()
            _remove_all([self._paths.gpu_gate(pf)])
            if self.is_open:
                self._write_ready()  # policy `any`: it says which GPUs are out

    def _close_node(self) -> None:
        extra = [self._paths.at(file.path) for file in reversed(self._files)]
        _remove_all([*extra, *self._no_longer_configured(), self._paths.ready])

    def _no_longer_configured(self) -> list[Path]:
        """Extra files that `ready` was released with and the configuration has not any more.

        Nobody else would ever take them away again.
        """
        told = (read_json(self._paths.ready) or {}).get("files")
        now = {file.path for file in self._files}
        paths = told if isinstance(told, list) else []
        old = [self._paths.at(path) for path in paths if isinstance(path, str) and path not in now]
        return [path for path in old if path.is_file()]  # whatever a damaged file names

    def _gpu_files(self) -> list[Path]:
        directory = self._paths.run_dir / "gpus"
        return sorted(directory.glob("*.json")) if directory.is_dir() else []

    # ------------------------------------------------------------------ opening

    def open_gpu(self, pf: Bdf, verified: Mapping[str, object]) -> None:
        """``verified`` is what was seen of it; the file is not written again if it says so."""
        with self._changing():
            record = {"pf": str(pf), "boot_id": self._boot_id, "verified_at": self._now()}
            _write_if_other(self._paths.gpu_gate(pf), {**record, **verified})

    def update_node(self) -> bool:
        """Open or close the node's gate by the policy; whether it is open now.

        Without any GPU in the configuration nothing is wanted: open under `all`, but `any` asks
        for one.
        """
        with self._changing():
            if not self._satisfied():
                self._close_node()
                return False
            _remove_all(self._no_longer_configured())
            self._write_ready()
            for file in self._files:
                path = self._paths.at(file.path)
                if not _has_text(path, file.content):
                    with _told_as_gate_error(path):
                        write_atomic(path, file.content)
            return True

    def _write_ready(self) -> None:
        opened = [pf for pf in self._configured if self.is_gpu_open(pf)]
        record = {
            "boot_id": self._boot_id,
            "written_at": self._now(),
            "policy": self._policy.value,
            "digest": self._digest,
            "open": [str(pf) for pf in opened],
            "closed": [str(pf) for pf in self._configured if pf not in opened],
            "absent": self._absent,
            "files": [file.path for file in self._files],
        }
        _write_if_other(self._paths.ready, record)

    def _now(self) -> str:
        when = datetime.fromtimestamp(self._wall_time(), tz=timezone.utc)
        return when.isoformat(timespec="seconds").replace("+00:00", "Z")

    # ------------------------------------------------------------------ together

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time, and only in directories where nobody else can put files."""
        with self._lock:
            for directory in (self._paths.run_dir, self._paths.run_dir / "gpus"):
                _check_ours(directory)
            yield


def _check_ours(directory: Path) -> None:
    with _told_as_gate_error(directory):
        try:
            status = directory.lstat()
        except FileNotFoundError:
            return
    if not stat.S_ISDIR(status.st_mode):
        raise GateError(directory, "it is a link or a file, not a directory")
    if status.st_uid not in (0, os.geteuid()):
        raise GateError(directory, f"it belongs to user {status.st_uid}")
    if status.st_mode & stat.S_IWOTH:
        raise GateError(directory, "everybody may write to it")


def _remove_all(paths: Iterable[Path]) -> None:
    """All that can be removed, in this order; raises for the first that cannot."""
    failed: GateError | None = None
    for path in paths:
        try:
            with _told_as_gate_error(path):
                remove(path)
        except GateError as err:
            failed = failed or err
    if failed is not None:
        raise failed


def _write_if_other(path: Path, record: Mapping[str, object]) -> None:
    """A converged node sees no write: watchers of the files are not woken for nothing."""
    there = read_json(path)
    if there is None or _timeless(there) != _timeless(json.loads(json.dumps(record))):
        with _told_as_gate_error(path):
            write_json(path, record)


def _timeless(record: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in record.items() if key not in _TIMES}


def _has_text(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


@contextmanager
def _told_as_gate_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise GateError(path, err.strerror or str(err)) from err
