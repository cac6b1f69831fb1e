"""Who has a GPU open, from /proc: NVML lists only processes with a CUDA context.

Sources: host-interfaces.md section 5.4; the device node numbers come from the driver's own procfs
(`Device Minor`, and `DeviceFileMinor` of a GPU instance's access file).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpu_bootstate.model import Bdf, Holder, HolderKind

_GUEST = re.compile(r"(?:^|,)guest=([^,]+)|^([^,=]+)")


@dataclass(frozen=True, slots=True)
class Nodes:
    """The device nodes of one GPU: path -> VF or GPU instance that it belongs to."""

    gpu: str | None  # /dev/nvidiaN
    vfio: dict[str, Bdf]
    instances: dict[str, int]


def device_nodes(root: Path, pf: Bdf, vfs: Collection[Bdf]) -> Nodes:
    minor = _minor(root / "proc/driver/nvidia/gpus" / str(pf) / "information")
    vfio: dict[str, Bdf] = {}
    for bdf in (pf, *vfs):
        device = root / "sys/bus/pci/devices" / str(bdf)
        with contextlib.suppress(OSError):
            vfio[f"/dev/vfio/{Path(os.readlink(device / 'iommu_group')).name}"] = bdf  # noqa: PTH115
        with contextlib.suppress(OSError):
            for name in os.listdir(device / "vfio-dev"):  # noqa: PTH208
                vfio[f"/dev/vfio/devices/{name}"] = bdf
    return Nodes(
        gpu=None if minor is None else f"/dev/nvidia{minor}",
        vfio=vfio,
        instances={} if minor is None else _instances(root, minor),
    )


def _minor(information: Path) -> int | None:
    with contextlib.suppress(OSError):
        match = re.search(r"^Device Minor:\s*(\d+)", information.read_text(), re.MULTILINE)
        return int(match[1]) if match else None
    return None


def _instances(root: Path, minor: int) -> dict[str, int]:
    found = {}
    mig = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig"
    with contextlib.suppress(OSError):
        for name in os.listdir(mig):  # noqa: PTH208
            match = re.fullmatch(r"gi(\d+)", name)
            if not match:
                continue
            text = (mig / name / "access").read_text()
            cap = re.search(r"^DeviceFileMinor:\s*(\d+)", text, re.MULTILINE)
            if cap:
                found[f"/dev/nvidia-caps/nvidia-cap{cap[1]}"] = int(match[1])
    return found


def find_holders(
    root: Path,
    nodes: Nodes,
    *,
    compute_pids: Callable[[], Collection[int]],
    ours: Collection[int],
) -> tuple[Holder, ...]:
    """By pid. ``compute_pids`` is asked only when somebody has the GPU open; ``ours`` are this
    process and its helpers, whose sessions are our own business.

    Descriptors of other users' processes are seen only with CAP_SYS_PTRACE.
    """
    known: Collection[int] | None = None
    found = []
    for pid, opened in _open_files(root):
        if pid in ours:
            continue
        if known is None and nodes.gpu in opened:
            known = compute_pids()
        holder = _holder(root, pid, opened, nodes, known or ())
        if holder is not None:
            found.append(holder)
    return tuple(sorted(found, key=lambda holder: holder.pid))


def _open_files(root: Path) -> Iterator[tuple[int, set[str]]]:
    proc = root / "proc"
    for name in os.listdir(proc):  # noqa: PTH208
        if not name.isdigit():
            continue
        opened = set()
        # A process may end while it is being looked at.
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(proc / name / "fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    target = os.readlink(proc / name / "fd" / descriptor)  # noqa: PTH115
                    if target.startswith("/dev/"):
                        opened.add(target)
        yield int(name), opened


def _holder(
    root: Path, pid: int, opened: set[str], nodes: Nodes, compute_pids: Collection[int]
) -> Holder | None:
    kind, device, vf, gi_id = None, "", None, None
    for path in sorted(opened):
        if path in nodes.vfio:
            kind, device, vf = HolderKind.VM, path, nodes.vfio[path]
            break
        if path in nodes.instances:
            kind, device, gi_id = HolderKind.INSTANCE, path, nodes.instances[path]
        elif path == nodes.gpu and kind is None:
            kind, device = HolderKind.CLIENT, path
    # An open /dev/nvidia-uvm tells nothing: every NVML session has it (measured, 580.159.04).
    if kind is HolderKind.CLIENT and pid in compute_pids:
        kind = HolderKind.COMPUTE
    if kind is None:
        return None
    arguments = _arguments(root, pid)
    return Holder(
        pid=pid,
        name=_text(root / "proc" / str(pid) / "comm").strip() or "unknown",
        command=" ".join(arguments),
        kind=kind,
        device=device,
        unit=_unit(_text(root / "proc" / str(pid) / "cgroup")),
        vf=vf,
        gi_id=gi_id,
        vm=_guest(arguments) if kind is HolderKind.VM else None,
    )


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _arguments(root: Path, pid: int) -> list[str]:
    return [word for word in _text(root / "proc" / str(pid) / "cmdline").split("\0") if word]


def _unit(cgroup: str) -> str | None:
    """The innermost service or scope: of a container's process that is the container's scope."""
    for line in cgroup.splitlines():
        for part in reversed(line.rpartition(":")[2].split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return None


def _guest(arguments: list[str]) -> str | None:
    """The name in QEMU's `-name guest=NAME,...` or `-name NAME`."""
    for flag, value in pairwise(arguments):
        if flag == "-name" and (match := _GUEST.search(value)):
            return match[1] or match[2]
    return None
