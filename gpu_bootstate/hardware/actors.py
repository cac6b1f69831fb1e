"""Other software that changes vGPU state on this host (host-interfaces.md 1.8, 11).

Two callers of sriov-manage corrupt each other's work, and no lock of ours can keep a stranger
away: it can only be seen and said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from gpu_bootstate.model import Actor

_UNIT_DIRS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_MIG_MANAGER = "nvidia-mig-manager.service"
_OURS = "gpu-bootstate"
_TOOL = "sriov-manage"
_CONTAINER_DRIVER = "run/nvidia/driver"


def find_actors(root: Path, *, ours: Collection[int]) -> tuple[Actor, ...]:
    """``ours`` are the programs that we run ourselves: our own call of the tool is no stranger."""
    return (*_units(root), *_processes(root, ours), *_container_driver(root))


def _units(root: Path) -> list[Actor]:
    enabled = _enabled(root)
    texts: dict[str, str] = {}
    for directory in reversed(_UNIT_DIRS):  # what is in /etc wins
        folder = root / directory
        if folder.is_dir():
            for path in sorted(folder.glob("*.service")):
                with contextlib.suppress(OSError):
                    texts[path.name] = path.read_text(encoding="utf-8", errors="replace")
    found = []
    for unit in sorted(enabled):
        template = f"{unit.partition('@')[0]}@.service" if "@" in unit else unit
        text = texts.get(unit, texts.get(template, ""))
        if unit.startswith(_OURS):
            continue
        if _TOOL in text:
            found.append(Actor("unit", unit, "is enabled and calls sriov-manage"))
        elif unit == _MIG_MANAGER:
            found.append(Actor("unit", unit, "is enabled and changes MIG mode and instances"))
    return found


def _enabled(root: Path) -> set[str]:
    """Units that something pulls in: links in *.wants and *.requires."""
    found: set[str] = set()
    for directory in _UNIT_DIRS:
        folder = root / directory
        for kind in ("*.wants", "*.requires"):
            found |= {path.name for path in folder.glob(f"{kind}/*.service")}
    return found


def _processes(root: Path, ours: Collection[int]) -> list[Actor]:
    found = []
    proc = root / "proc"
    names = os.listdir(proc) if proc.is_dir() else []  # noqa: PTH208
    for name in names:
        if not name.isdigit() or int(name) in ours:
            continue
        with contextlib.suppress(OSError):
            words = (proc / name / "cmdline").read_bytes().split(b"\0")
            # A script shows its interpreter first, then itself.
            if any(Path(os.fsdecode(word)).name == _TOOL for word in words[:2]):
                found.append(Actor("process", _TOOL, f"pid {name}"))
    return found


def _container_driver(root: Path) -> list[Actor]:
    """The GPU Operator's driver container runs `sriov-manage -e ALL` at start, `-d ALL` at stop."""
    driver = root / _CONTAINER_DRIVER
    with contextlib.suppress(OSError):
        if os.listdir(driver):  # noqa: PTH208
            detail = "a containerised vGPU driver; it toggles all VFs when it starts and stops"
            return [Actor("container driver", f"/{_CONTAINER_DRIVER}", detail)]
    return []
