"""PFs, VFs and vGPU types in sysfs and procfs. Everything hangs off a root directory.

Sources: host-interfaces.md sections 1.3 (unbindLock), 2.2 (vendor VFIO), 3 (mdev); the kernel's
sysfs-bus-pci. Reads of a VF's nvidia/ files and all writes enter the driver and can block, so the
class for one PF is served by that GPU's helper process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.model import PF_DRIVER, STUB_DRIVER, Bdf, Framework, PciFunction, Vf

_NVIDIA = 0x10DE
_DISPLAY_CLASSES = (0x0300, 0x0302)  # VGA controller, 3D controller


def list_pfs(root: Path) -> tuple[PciFunction, ...]:
    """All NVIDIA display PFs, whatever driver they are on, by BDF. Raises HardwareError."""
    devices = root / "sys/bus/pci/devices"
    with _explained("list the PCI devices", None):
        names = sorted(os.listdir(devices)) if devices.is_dir() else []  # noqa: PTH208
    pfs = []
    for name in names:
        with contextlib.suppress(ValueError, FileNotFoundError):
            bdf = Bdf.parse(name)
            if _is_pf(devices / name):
                pfs.append(read_pf(root, bdf))
    return tuple(sorted(pfs, key=lambda pf: pf.bdf))


def _is_pf(device: Path) -> bool:
    if _hex(device / "vendor") != _NVIDIA or (device / "physfn").exists():
        return False
    return _hex(device / "class") >> 8 in _DISPLAY_CLASSES


def read_pf(root: Path, bdf: Bdf) -> PciFunction:
    """Raises HardwareError NOT_FOUND when the device left the bus."""
    device = root / "sys/bus/pci/devices" / str(bdf)
    try:
        return PciFunction(
            bdf=bdf,
            device_id=_hex(device / "device"),
            subsystem_id=_hex(device / "subsystem_device"),
            driver=_link_name(device / "driver"),
            driver_override=_override(device / "driver_override"),
            sriov_totalvfs=_number(device / "sriov_totalvfs"),
            sriov_numvfs=_number(device / "sriov_numvfs"),
            unbind_lock=_unbind_lock(_lock_path(root, bdf)),
        )
    except (OSError, ValueError) as err:
        raise _error("read the PF", bdf, err) from err


class PciGpu:
    """One PF with its VFs. All methods raise HardwareError."""

    def __init__(self, root: Path, pf: Bdf) -> None:
        self._root = root
        self._pf = pf
        self._device = root / "sys/bus/pci/devices" / str(pf)

    # ------------------------------------------------------------------ reads

    def vfs(self) -> tuple[Vf, ...]:
        with _explained("read the VFs", self._pf):
            found = []
            for name in os.listdir(self._device):  # noqa: PTH208
                match = re.fullmatch(r"virtfn(\d+)", name)
                if match:
                    found.append((int(match[1]), self._device / name))
            mdevs = self._mdevs() if found else {}
            # By number: as text virtfn10 comes before virtfn2.
            return tuple(self._vf(index, link, mdevs) for index, link in sorted(found))

    def _vf(self, index: int, link: Path, mdevs: dict[str, tuple[str, int]]) -> Vf:
        target = Path(os.readlink(link)).name  # noqa: PTH115
        bdf = Bdf.parse(target)
        device = self._root / "sys/bus/pci/devices" / target
        driver = _link_name(device / "driver")
        current = device / "nvidia/current_vgpu_type"
        if current.exists():
            return Vf(
                index,
                bdf,
                driver,
                Framework.VENDOR_VFIO,
                vgpu_type_id=_decimal(current),
                gi_id=_decimal(device / "nvidia/gpu_instance_id"),
            )
        if (self._mdev_bus(bdf) / "mdev_supported_types").is_dir():
            uuid, type_id = mdevs.get(target, (None, 0))
            return Vf(index, bdf, driver, Framework.MDEV, vgpu_type_id=type_id, mdev_uuid=uuid)
        return Vf(index, bdf, driver, framework=None, vgpu_type_id=None)

    def _mdev_bus(self, vf: Bdf) -> Path:
        return self._root / "sys/class/mdev_bus" / str(vf)

    def _mdevs(self) -> dict[str, tuple[str, int]]:
        """VF -> UUID and type of the mdev on it."""
        bus = self._root / "sys/bus/mdev/devices"
        if not bus.is_dir():
            return {}
        found = {}
        for name in os.listdir(bus):  # noqa: PTH208
            device = Path(os.path.realpath(bus / name))
            kind = _link_name(device / "mdev_type")
            if kind is not None:
                found[device.parent.name] = (name, int(kind.rpartition("-")[2]))
        return found

    def creatable_vgpu_types(self, vf: Bdf) -> tuple[int, ...]:
        with _explained("read the creatable vGPU types", vf):
            device = self._root / "sys/bus/pci/devices" / str(vf)
            listed = device / "nvidia/creatable_vgpu_types"
            if listed.exists():
                return parse_creatable(listed.read_text(encoding="utf-8", errors="replace"))
            types = self._mdev_bus(vf) / "mdev_supported_types"
            return tuple(
                int(name.rpartition("-")[2])
                for name in sorted(os.listdir(types))  # noqa: PTH208
                if _number(types / name / "available_instances") > 0
            )

    # ------------------------------------------------------------------ changes

    def set_vgpu_type(self, vf: Bdf, vgpu_type_id: int, mdev_uuid: str | None) -> None:
        device = self._root / "sys/bus/pci/devices" / str(vf)
        current = device / "nvidia/current_vgpu_type"
        if current.exists() or not (self._mdev_bus(vf) / "mdev_supported_types").is_dir():
            self._write("write the vGPU type", current, str(vgpu_type_id))
        elif vgpu_type_id == 0:
            path = self._root / "sys/bus/mdev/devices" / str(mdev_uuid) / "remove"
            self._write("remove the mdev", path, "1")
        else:
            types = self._mdev_bus(vf) / "mdev_supported_types"
            create = types / f"nvidia-{vgpu_type_id}" / "create"
            self._write("create the mdev", create, str(mdev_uuid))

    def bind_driver(self) -> None:
        drivers = self._root / "sys/bus/pci/drivers"
        driver = _link_name(self._device / "driver")
        if driver == PF_DRIVER:
            return
        if driver == STUB_DRIVER:
            self._write("unbind from pci-pf-stub", drivers / STUB_DRIVER / "unbind", str(self._pf))
        elif driver is not None:
            # Unbinding from a driver that has clients can block for ever; this one is not ours.
            raise HardwareError(
                ErrorKind.IN_USE, "bind to nvidia", target=self._pf, detail=f"it is on {driver}"
            )
        self._write("bind to nvidia", drivers / PF_DRIVER / "bind", str(self._pf))

    def release_unbind_lock(self) -> None:
        # It acts when the descriptor is closed; the caller reads it back.
        self._write("release the unbindLock", _lock_path(self._root, self._pf), "0")

    def _write(self, operation: str, path: Path, text: str) -> None:
        with _explained(operation, self._pf):
            # One write(2), no truncation, no creation: these are attributes, not files.
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)


def parse_creatable(text: str) -> tuple[int, ...]:
    """`creatable_vgpu_types` in both of its shapes (host-interfaces.md 2.2): a table headed
    ``ID : vGPU Name`` with the id first, and lines ``NVIDIA A40-1Q 557`` with the id last.
    """
    found = []
    for line in text.splitlines():
        head, colon, _ = line.partition(":")
        number = head.strip() if colon else line.strip().rpartition(" ")[2]
        if number.isdigit():
            found.append(int(number))
    return tuple(found)


# --------------------------------------------------------------------------- files


def _lock_path(root: Path, pf: Bdf) -> Path:
    return root / "proc/driver/nvidia/gpus" / str(pf) / "unbindLock"


def _unbind_lock(path: Path) -> bool | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() == "1"
    except FileNotFoundError:
        return None


def _hex(path: Path) -> int:
    return int(path.read_text(encoding="ascii"), 16)


def _number(path: Path) -> int:
    """0 where there is no such attribute: a device without SR-IOV has none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _decimal(path: Path) -> int | None:
    """None where the driver answers with an error (ENXIO before there is a vGPU) or no number."""
    try:
        return int(path.read_text(encoding="ascii", errors="replace"), 10)
    except (OSError, ValueError):
        return None


def _override(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    return None if text in ("", "(null)") else text


def _link_name(path: Path) -> str | None:
    try:
        return Path(os.readlink(path)).name  # noqa: PTH115
    except OSError:
        return None


@contextmanager
def _explained(operation: str, target: Bdf | None) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as err:
        raise _error(operation, target, err) from err


def _error(operation: str, target: Bdf | None, err: OSError | ValueError) -> HardwareError:
    if not isinstance(err, OSError) or err.errno is None:
        return HardwareError(ErrorKind.UNKNOWN, operation, target=target, detail=str(err))
    name = errno.errorcode.get(err.errno, str(err.errno))
    kind = ErrorKind.IO
    if err.errno == errno.EBUSY:
        kind = ErrorKind.IN_USE
    elif err.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        kind = ErrorKind.NO_PERMISSION
    elif err.errno == errno.ENOENT and operation == "read the PF":
        kind = ErrorKind.NOT_FOUND
    detail = f"{name}: {err.strerror}"
    return HardwareError(kind, operation, target=target, detail=detail, errno=err.errno)
