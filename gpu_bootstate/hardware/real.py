"""The Hardware protocol over a real host: helpers for each GPU, sysfs, vendor tools, systemd."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from gpu_bootstate.hardware import actors, holders, kernel, pci, units
from gpu_bootstate.hardware.isolation import Worker
from gpu_bootstate.hardware.protocol import (
    ActivationStatus,
    CallLimits,
    ErrorKind,
    HardwareError,
    ToolResult,
)
from gpu_bootstate.hardware.runner import Runner
from gpu_bootstate.model import (
    Actor,
    Bdf,
    DriverInfo,
    GiProfile,
    GpuFacts,
    GpuInstance,
    Holder,
    KernelLine,
    PciFunction,
    Placement,
    UnitState,
    Vf,
    VgpuType,
)
from gpu_bootstate.reasons import Code, Finding

_T = TypeVar("_T")

_EVENT_POLL_S = 0.5  # without uevents, look again after this long
_FABRIC_CONFIG = "usr/share/nvidia/nvswitch/fabricmanager.cfg"


class _Gpu:
    """What the helper process of one GPU serves: NVML and the blocking part of sysfs."""

    def __init__(self, root: Path, pf: Bdf) -> None:
        from gpu_bootstate.hardware.nvml import NvmlGpu

        self._nvml = NvmlGpu(pf)
        self._pci = pci.PciGpu(root, pf)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pci if hasattr(self._pci, name) else self._nvml, name)


class _Library:
    """What one more helper serves: whether NVML works at all."""

    def version_check(self) -> tuple[str | None, ErrorKind | None, str]:
        from gpu_bootstate.hardware.nvml import version_check

        return version_check()


class _Sessions:
    """Many may have NVML sessions, or one may have the GPUs without any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True  # from here on nobody new comes in
            self._changed.wait_for(lambda: self._users == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class RealHardware:
    """Make it, and call `pfs` first, before threads are started: helpers are forked then."""

    def __init__(
        self,
        root: Path,
        *,
        limits: CallLimits,
        sriov_manage: str,
        nvidia_smi: str = "nvidia-smi",
    ) -> None:
        # Imported before the helpers are forked, so that it is read once and not by each.
        import pynvml  # noqa: F401

        self._root = root
        self._limits = limits
        self._sriov_manage = sriov_manage
        self._nvidia_smi = nvidia_smi
        self._runner = Runner()
        self._woken, self._wake = os.pipe()
        self._monitor: Any = None
        self._workers: dict[Bdf, Worker] = {}
        self._fork_lock = threading.Lock()
        self._sessions = _Sessions()
        self._library = Worker(None, _Library)
        self.pfs()

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        return time.monotonic()

    def wall_time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self._pause(seconds, [])

    def wait_for_event(self, timeout_s: float) -> None:
        monitor = self._uevents()
        if monitor is None:
            self._pause(min(timeout_s, _EVENT_POLL_S), [])
            return
        self._pause(timeout_s, [monitor.fileno()])
        while monitor.poll(timeout=0) is not None:
            pass  # what changed is read from sysfs; here only that something did

    def _pause(self, seconds: float, also: list[int]) -> None:
        import select

        select.select([self._woken, *also], [], [], max(0.0, seconds))

    def _uevents(self) -> Any:
        """The kernel's own uevents; udev's stay silent where the unit has a network of its own."""
        if self._monitor is None:
            try:
                import pyudev

                monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
                monitor.filter_by("pci")
                monitor.start()
                self._monitor = monitor
            except (ImportError, OSError):
                self._monitor = False
        return self._monitor or None

    def cancel_waits(self) -> None:
        os.write(self._wake, b"x")  # never read: every later pause ends at once, too
        self._runner.cancel()

    # ------------------------------------------------------------------ the node

    def boot_id(self) -> str:
        path = self._root / "proc/sys/kernel/random/boot_id"
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError as err:
            raise HardwareError(ErrorKind.IO, "read the boot id", detail=str(err)) from err

    def driver_info(self) -> DriverInfo:
        module = self._module_version()
        if module is None:
            finding = Finding.of(Code.DRIVER_NOT_LOADED, detail="see the kernel log")
            return DriverInfo(None, None, finding)
        try:
            library, kind, text = self._library.call("version_check", timeout_s=self._limits.read_s)
        except HardwareError as err:
            return DriverInfo(module, None, Finding.of(Code.NVML_UNAVAILABLE, detail=err.detail))
        problem = None
        if kind is ErrorKind.VERSION_MISMATCH:
            mine = library or self._library_file_version()
            problem = Finding.of(Code.VERSION_MISMATCH, module=module, library=mine)
        elif kind is not None:
            problem = Finding.of(Code.NVML_UNAVAILABLE, detail=text)
        return DriverInfo(module, library, problem)

    def _module_version(self) -> str | None:
        for name in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
            try:
                text = (self._root / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            match = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text)
            return match[0] if match else text.strip()
        return None

    def _library_file_version(self) -> str:
        """From the name of the file behind libnvidia-ml.so.1: NVML itself does not say here."""
        for name in (
            "usr/lib/x86_64-linux-gnu",
            "usr/lib64",
            "usr/lib",
            "usr/lib/aarch64-linux-gnu",
        ):
            link = self._root / name / "libnvidia-ml.so.1"
            if link.exists():
                return Path(os.path.realpath(link)).name.removeprefix("libnvidia-ml.so.")
        return "another"

    def kernel_log(self) -> tuple[KernelLine, ...]:
        return kernel.kernel_log(self._root)

    def fabric_mode(self) -> int | None:
        try:
            text = (self._root / _FABRIC_CONFIG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(r"^\s*FABRIC_MODE\s*=\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0  # the product's own default

    def actors(self) -> tuple[Actor, ...]:
        return actors.find_actors(self._root, ours=self._runner.pids)

    def unit_state(self, unit: str) -> UnitState:
        return units.unit_state(self._runner, unit, timeout_s=self._limits.read_s)

    def stop_unit(self, unit: str) -> None:
        units.queue_job(self._runner, "stop", unit, timeout_s=self._limits.call_s)

    def start_unit(self, unit: str) -> None:
        units.queue_job(self._runner, "start", unit, timeout_s=self._limits.call_s)

    def reload_unit(self, unit: str) -> None:
        units.queue_job(self._runner, "reload-or-restart", unit, timeout_s=self._limits.call_s)

    def reboot(self) -> None:
        units.reboot(self._runner, timeout_s=self._limits.call_s)

    # ------------------------------------------------------------------ the bus

    def pfs(self) -> tuple[PciFunction, ...]:
        found = pci.list_pfs(self._root)
        with self._fork_lock:
            for pf in found:
                if pf.bdf not in self._workers:
                    self._workers[pf.bdf] = Worker(pf.bdf, self._maker(pf.bdf))
        return found

    def _maker(self, pf: Bdf) -> Callable[[], object]:
        return lambda: _Gpu(self._root, pf)

    def pf(self, pf: Bdf) -> PciFunction:
        return pci.read_pf(self._root, pf)

    def vfs(self, pf: Bdf) -> tuple[Vf, ...]:
        return cast("tuple[Vf, ...]", self._read(pf, "vfs"))

    def creatable_vgpu_types(self, vf: Bdf) -> tuple[int, ...]:
        pf = self._pf_of(vf)
        return cast("tuple[int, ...]", self._read(pf, "creatable_vgpu_types", vf))

    def holders(self, pf: Bdf) -> tuple[Holder, ...]:
        vfs = tuple(vf.bdf for vf in self.vfs(pf))
        nodes = holders.device_nodes(self._root, pf, vfs)
        # A helper that hangs keeps its session, and with it the GPU: it is named like a stranger.
        helpers = (self._library, *self._workers.values())
        ours = {os.getpid(), *(worker.pid for worker in helpers if not worker.is_hung)}

        def compute_pids() -> tuple[int, ...]:
            try:
                return cast("tuple[int, ...]", self._nvml(pf, "compute_pids"))
            except HardwareError:
                return ()  # who has it open is known all the same, and that is enough to refuse

        return holders.find_holders(self._root, nodes, compute_pids=compute_pids, ours=ours)

    def _pf_of(self, vf: Bdf) -> Bdf:
        link = self._root / "sys/bus/pci/devices" / str(vf) / "physfn"
        try:
            return Bdf.parse(Path(os.readlink(link)).name)  # noqa: PTH115
        except (OSError, ValueError) as err:
            raise HardwareError(
                ErrorKind.NOT_FOUND, "find the PF of a VF", target=vf, detail=str(err)
            ) from err

    # ------------------------------------------------------------------ through the helpers

    def _nvml(self, pf: Bdf, method: str, *arguments: Any) -> Any:
        with self._sessions.shared():
            return self._read(pf, method, *arguments)

    def _nvml_change(self, pf: Bdf, method: str, *arguments: Any, **named: Any) -> Any:
        with self._sessions.shared():
            return self._change(pf, method, *arguments, **named)

    @contextmanager
    def _without_sessions(self) -> Iterator[None]:
        """No NVML session of ours exists in here, and none opens: each has every GPU open."""
        with self._sessions.alone():
            for worker in self._workers.values():
                with contextlib.suppress(HardwareError):  # one that hangs has been killed
                    worker.call("close_session", timeout_s=self._limits.call_s)
            yield

    def _worker(self, pf: Bdf, operation: str) -> Worker:
        worker = self._workers.get(pf)
        if worker is None:
            raise HardwareError(ErrorKind.NOT_FOUND, operation, target=pf)
        return worker

    def _read(self, pf: Bdf, method: str, *arguments: Any) -> Any:
        worker = self._worker(pf, method)
        return worker.call(method, *arguments, timeout_s=self._limits.read_s)

    def _change(self, pf: Bdf, method: str, *arguments: Any, **named: Any) -> Any:
        worker = self._worker(pf, method)
        return worker.call(method, *arguments, timeout_s=self._limits.call_s, **named)

    def facts(self, pf: Bdf) -> GpuFacts:
        return cast("GpuFacts", self._nvml(pf, "facts"))

    def gi_profiles(self, pf: Bdf) -> tuple[GiProfile, ...]:
        return cast("tuple[GiProfile, ...]", self._nvml(pf, "gi_profiles"))

    def gpu_instances(self, pf: Bdf) -> tuple[GpuInstance, ...]:
        return cast("tuple[GpuInstance, ...]", self._nvml(pf, "gpu_instances"))

    def vgpu_types(self, pf: Bdf) -> tuple[VgpuType, ...]:
        return cast("tuple[VgpuType, ...]", self._nvml(pf, "vgpu_types"))

    # ------------------------------------------------------------------ changes

    def set_persistence(self, pf: Bdf, *, enabled: bool) -> None:
        self._nvml_change(pf, "set_persistence", enabled=enabled)

    def set_mig_mode(self, pf: Bdf, *, enabled: bool) -> ActivationStatus:
        # The driver changes the mode (and on Ampere resets the GPU for it) only while nobody else
        # has the GPU open, and the session of any other helper has.
        with self._without_sessions():
            return cast("ActivationStatus", self._change(pf, "set_mig_mode", enabled=enabled))

    def reset_gpu(self, pf: Bdf, *, timeout_s: float) -> ToolResult:
        address = f"{pf.domain:08x}:{str(pf).split(':', 1)[1]}"
        command = [self._nvidia_smi, "--gpu-reset", "-i", address]
        with self._without_sessions():
            return self._runner.run(command, timeout_s=timeout_s)

    def sriov_manage(self, pf: Bdf, *, enable: bool, timeout_s: float) -> ToolResult:
        command = [self._sriov_manage, "-e" if enable else "-d", str(pf)]
        with self._without_sessions():
            return self._runner.run(command, timeout_s=timeout_s)

    def bind_driver(self, pf: Bdf) -> None:
        with self._without_sessions():
            self._change(pf, "bind_driver")

    def release_unbind_lock(self, pf: Bdf) -> None:
        self._change(pf, "release_unbind_lock")

    def create_gpu_instance(self, pf: Bdf, gi_profile_id: int, placement: Placement) -> int:
        return int(self._nvml_change(pf, "create_gpu_instance", gi_profile_id, placement))

    def destroy_gpu_instance(self, pf: Bdf, gi_id: int) -> None:
        self._nvml_change(pf, "destroy_gpu_instance", gi_id)

    def create_compute_instance(self, pf: Bdf, gi_id: int) -> None:
        self._nvml_change(pf, "create_compute_instance", gi_id)

    def set_mixed_size(self, pf: Bdf, *, enabled: bool, gi_id: int | None) -> None:
        self._nvml_change(pf, "set_mixed_size", enabled=enabled, gi_id=gi_id)

    def set_vgpu_type(self, vf: Bdf, vgpu_type_id: int, *, mdev_uuid: str | None) -> None:
        self._change(self._pf_of(vf), "set_vgpu_type", vf, vgpu_type_id, mdev_uuid)

    def close(self) -> None:
        for worker in (self._library, *self._workers.values()):
            worker.close()
        self._workers.clear()
        os.close(self._woken)
        os.close(self._wake)
