"""The readiness gate: files that exist only while what they say was verified in this boot.

A GPU has a file of its own; the node's `ready` and the extra files of the configuration follow
from those by the policy. Opening goes inside out (GPU files, ready, extra files in order), closing
outside in, so that nobody sees a release that its ground has already left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gpu_bootstate.files import read_json, remove, write_atomic, write_json
from gpu_bootstate.model import Bdf, GateFile, GatePolicy
from gpu_bootstate.paths import Paths


class Gate:
    """All methods raise OSError when a file can be neither written nor removed."""

    def __init__(
        self,
        paths: Paths,
        boot_id: str,
        *,
        configured: tuple[Bdf, ...],
        files: tuple[GateFile, ...],
        policy: GatePolicy,
        absent: int = 0,
    ) -> None:
        """``absent``: GPUs that the config names and the node has not; under ``all`` they keep
        the node's gate shut.
        """
        self._paths = paths
        self._boot_id = boot_id
        self._configured = configured
        self._files = files
        self._policy = policy
        self._absent = absent

    # ------------------------------------------------------------------ asking

    @property
    def is_open(self) -> bool:
        return self._is_ours(self._paths.ready)

    def is_gpu_open(self, pf: Bdf) -> bool:
        return self._is_ours(self._paths.gpu_gate(pf))

    def _is_ours(self, path: Path) -> bool:
        """Written in this boot, and whole."""
        return (read_json(path) or {}).get("boot_id") == self._boot_id

    # ------------------------------------------------------------------ closing

    def discard_stale(self) -> None:
        """Whatever is not of this boot, or of a GPU that the config no longer names, goes."""
        names = {self._paths.gpu_gate(pf).name for pf in self._configured}
        for path in self._gpu_files():
            if path.name not in names or not self._is_ours(path):
                remove(path)
        if not self._satisfied() or not self.is_open:
            self._close_node()

    def close_gpu(self, pf: Bdf) -> None:
        """The GPU is about to be changed, or is not as it should be."""
        if not self._satisfied(without=pf):
            self._close_node()
        remove(self._paths.gpu_gate(pf))
        if self.is_open:
            self._open_node()  # policy `any`: the file says which GPUs are out

    def _close_node(self) -> None:
        for file in reversed(self._files):
            remove(self._paths.at(file.path))
        remove(self._paths.ready)

    def _gpu_files(self) -> list[Path]:
        directory = self._paths.run_dir / "gpus"
        return sorted(directory.glob("*.json")) if directory.is_dir() else []

    # ------------------------------------------------------------------ opening

    def open_gpu(self, pf: Bdf, verified: Mapping[str, object]) -> None:
        """``verified`` is what was seen of it; the file is not written again if it says so."""
        record = {"pf": str(pf), "boot_id": self._boot_id, **verified}
        _write_if_other(self._paths.gpu_gate(pf), record)

    def update_node(self) -> bool:
        """Open or close the node's gate by the policy; whether it is open now."""
        if not self._satisfied():
            self._close_node()
            return False
        self._open_node()
        return True

    def _open_node(self) -> None:
        open_pfs = [pf for pf in self._configured if self.is_gpu_open(pf)]
        record = {
            "boot_id": self._boot_id,
            "policy": self._policy.value,
            "open": [str(pf) for pf in open_pfs],
            "closed": [str(pf) for pf in self._configured if pf not in open_pfs],
        }
        _write_if_other(self._paths.ready, record)
        for file in self._files:
            path = self._paths.at(file.path)
            if not _has_text(path, file.content):
                write_atomic(path, file.content)

    def _satisfied(self, *, without: Bdf | None = None) -> bool:
        opened = [pf for pf in self._configured if pf != without and self.is_gpu_open(pf)]
        if self._policy is GatePolicy.ANY and self._configured:
            return bool(opened)
        return len(opened) == len(self._configured) and not self._absent


def _write_if_other(path: Path, record: Mapping[str, object]) -> None:
    """A converged node sees no write: watchers of the files are not woken for nothing."""
    if read_json(path) != json.loads(json.dumps(record)):
        write_json(path, record)


def _has_text(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False
