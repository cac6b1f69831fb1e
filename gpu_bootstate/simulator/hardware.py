"""The Hardware protocol over a simulated node: sessions, latencies, faults, a trace of changes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gpu_bootstate.hardware.protocol import (
    ActivationStatus,
    CallLimits,
    ErrorKind,
    HardwareError,
    ToolResult,
)
from gpu_bootstate.model import (
    PF_DRIVER,
    STUB_DRIVER,
    ActiveVgpu,
    Actor,
    Bdf,
    DriverInfo,
    Framework,
    GiProfile,
    GpuFacts,
    GpuInstance,
    Holder,
    HolderKind,
    HostVgpuMode,
    KernelLine,
    MigMode,
    PciFunction,
    Placement,
    RecoveryAction,
    UnitState,
    Vf,
    VgpuType,
)
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.simulator.clock import Clock
from gpu_bootstate.simulator.faults import READS, TOOLS, activation_status, due, error_kind
from gpu_bootstate.simulator.node import SimNode, vf_is_ready
from gpu_bootstate.simulator.state import NEVER, Call, GpuState, HolderState, UnitChange, VfState

if TYPE_CHECKING:
    from gpu_bootstate.simulator.store import Store

_T = TypeVar("_T")

# Virtual seconds a call takes (host-interfaces.md section 10; where that says unknown, a guess
# that is long enough to show). Reads by NVML take a fifth of a millisecond.
LATENCY_S = {
    "set_mig_mode": 1.0,
    "set_persistence": 0.1,
    "reset_gpu": 5.0,
    "sriov_manage": 4.0,
    "bind_driver": 1.0,
    "release_unbind_lock": 0.01,
    "create_gpu_instance": 0.3,
    "destroy_gpu_instance": 0.3,
    "create_compute_instance": 0.1,
    "set_mixed_size": 0.1,
    "set_vgpu_type": 0.2,
    "stop_unit": 0.1,
    "start_unit": 0.1,
    "reload_unit": 0.1,
    "reboot": 0.1,
}
_READ_S = 0.0002

_UNIT_STOPS_S = 0.5


class Killed(BaseException):
    """The process has been killed; nothing that it does afterwards reaches the node."""


class SimHardware:
    def __init__(
        self, node: SimNode, store: Store | None = None, *, limits: CallLimits | None = None
    ) -> None:
        self._node = node
        self._store = store
        self._limits = limits or CallLimits()
        self._lock = threading.RLock()
        self._clock = Clock(node.state.clock_s, node.state.pace)
        self._hung: set[str] = set()
        self._dead = False
        self._cancelled = False
        self.calls: list[Call] = []

    # ------------------------------------------------------------------ time

    def now(self) -> float:
        return self._clock.now()

    def wall_time(self) -> float:
        return self._clock.wall_s()

    def sleep(self, seconds: float) -> None:
        self._clock.advance(0.0 if self._cancelled else seconds)

    def wait_for_event(self, timeout_s: float) -> None:
        now = self.now()
        with self._lock:
            self._refresh()
            # Only what changes on the bus: units and processes that come and go announce nothing.
            events = [vf.ready_at for gpu in self._node.state.gpus for vf in gpu.vfs]
            events.append(self._node.state.nvml_ready_at)
        coming = [at for at in events if now < at < now + timeout_s]
        self.sleep(min(coming) - now if coming else timeout_s)

    def cancel_waits(self) -> None:
        self._cancelled = True
        self._clock.cancel()

    # ------------------------------------------------------------------ how a call is made

    def _read(
        self,
        verb: str,
        pf: Bdf | None,
        what: Callable[[float], _T],
        *,
        unreadable: Callable[[_T], _T] | None = None,
    ) -> _T:
        """``unreadable`` takes out of an answer what the driver does not say under that fault."""
        now = self._took(_READ_S)
        with self._lock:
            self._refresh()
            # Meeting a fault changes the node: it is counted.
            with self._alone() if self._node.state.faults else nullcontext():
                self._refresh()
                effect = self._meet(verb, pf)
                result = what(now)
        return unreadable(result) if effect and unreadable else result

    def _change(
        self,
        verb: str,
        target: Bdf | str,
        arguments: str,
        what: Callable[[float, float], _T],
        *,
        instead: Callable[[str, float, float], _T],
        timeout_s: float = NEVER,
    ) -> _T:
        """``what(start, end)`` does it; ``instead(effect, start, end)`` does what a fault says.

        ``target`` is a PF, or the name of a unit. A tool that needs longer than ``timeout_s`` is
        ended midway, as one that hangs.
        """
        start = self.now()
        end = self._took(min(LATENCY_S[verb], timeout_s))
        cut_short = self._latency(LATENCY_S[verb]) > timeout_s
        pf = target if isinstance(target, Bdf) else None
        with self._lock, self._alone():
            self._refresh()
            ok = False
            try:
                effect = self._meet(verb, pf)
                if effect is None and cut_short:
                    effect = "hang"
                if effect is None or effect == "kill-after":
                    result = what(start, end)
                else:
                    result = instead(effect, start, end)
                ok = True
            finally:
                if not self._dead:
                    self._note(Call(start, verb, str(target), arguments, ok))
            if effect == "kill-after":
                self._die()
            return result

    def _took(self, seconds: float) -> float:
        """Let a call's own time pass; returns the time at its end."""
        self._clock.advance(self._latency(seconds))
        return self.now()

    def _latency(self, seconds: float) -> float:
        return seconds if self._node.state.latency == "field" else 0.0

    def _alone(self) -> AbstractContextManager[None]:
        """Other processes are kept off the node."""
        return self._store.alone() if self._store else nullcontext()

    def _refresh(self) -> None:
        if self._dead:
            raise Killed
        if self._store is not None:
            self._node = self._store.read()

    def _note(self, call: Call) -> None:
        self.calls.append(call)
        if self._store is not None:
            self._node.state.clock_s = max(self._node.state.clock_s, self._clock.farthest_s)
            self._store.write(self._node, call)

    def _die(self) -> NoReturn:
        self._dead = True
        if self._store is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed

    def _meet(self, verb: str, pf: Bdf | None) -> str | None:
        """Run into the fault that is due, if one is; returns an effect that the call handles."""
        # What sysfs itself says of a PF does not go through the driver.
        if pf is not None and str(pf) in self._hung and verb != "pf":
            raise self._hang(verb, pf, waited_s=0.0)
        effect = due(self._node.state.faults, verb, str(pf) if pf else None)
        if effect is None:
            return None
        if self._store is not None:
            self._store.write(self._node, None)  # the occurrence is counted
        name, _, argument = effect.partition(":")
        if name == "kill-before":
            self._die()
        if name == "error":
            raise HardwareError(error_kind(argument), verb.replace("_", " "), target=pf)
        if name == "io":
            number = int(getattr(errno, argument))
            raise HardwareError(
                ErrorKind.IO, verb.replace("_", " "), target=pf, detail=argument, errno=number
            )
        if pf is not None and name in ("lose", "lost"):
            gpu = self._node.gpu(pf, verb)
            gpu.off_bus, gpu.lost = name == "lose", True
            self._save()
            raise HardwareError(ErrorKind.GPU_LOST, verb.replace("_", " "), target=pf)
        if name == "hang" and verb not in TOOLS:
            limit = self._limits.read_s if verb in READS else self._limits.call_s
            raise self._hang(verb, pf, waited_s=limit)
        return effect

    def _hang(self, verb: str, pf: Bdf | None, *, waited_s: float) -> HardwareError:
        self._clock.advance(waited_s)
        if pf is not None:
            self._hung.add(str(pf))
        return HardwareError(
            ErrorKind.HUNG,
            verb.replace("_", " "),
            target=pf,
            waited_s=waited_s or self._limits.read_s,
        )

    # ------------------------------------------------------------------ the node

    def boot_id(self) -> str:
        state = self._node.state
        return state.boot_id or f"00000000-0000-4000-8000-{state.boot:012d}"

    def driver_info(self) -> DriverInfo:
        def info(now: float) -> DriverInfo:
            module, library = self._node.state.module_version, self._node.state.library_version
            problem = None
            if module is None:
                detail = "there is no module"
                problem = Finding.of(Code.DRIVER_NOT_LOADED, detail=detail)
            elif module != library:
                problem = Finding.of(Code.VERSION_MISMATCH, module=module, library=library)
            elif now < self._node.state.nvml_ready_at:
                problem = Finding.of(Code.NVML_UNAVAILABLE, detail="Driver Not Loaded")
            return DriverInfo(module, library, problem)

        return self._read("driver_info", None, info)

    def kernel_log(self) -> tuple[KernelLine, ...]:
        return self._read(
            "kernel_log",
            None,
            lambda now: tuple(
                KernelLine(line.at, line.text) for line in self._node.state.log if line.at <= now
            ),
        )

    def fabric_mode(self) -> int | None:
        return self._read("fabric_mode", None, lambda _: self._node.state.fabric_mode)

    def actors(self) -> tuple[Actor, ...]:
        return self._read(
            "actors",
            None,
            lambda now: tuple(
                Actor(actor.kind, actor.name, actor.detail)
                for actor in self._node.state.actors
                if actor.until > now
            ),
        )

    def unit_state(self, unit: str) -> UnitState:
        def state(now: float) -> UnitState:
            found = self._node.unit(unit, now)
            if found is None:
                return UnitState(
                    name=unit,
                    exists=False,
                    active_state="inactive",
                    sub_state="dead",
                    result="success",
                    exit_status=0,
                    ran=False,
                )
            return UnitState(
                name=unit,
                exists=True,
                active_state=found.active_state,
                sub_state=found.sub_state,
                result=found.result,
                exit_status=0 if found.result == "success" else 1,
                ran=found.ran,
            )

        return self._read("unit_state", None, state)

    def stop_unit(self, unit: str) -> None:
        self._unit_job("stop_unit", unit, "deactivating", "inactive")

    def start_unit(self, unit: str) -> None:
        self._unit_job("start_unit", unit, "activating", "active")

    def reload_unit(self, unit: str) -> None:
        self._unit_job("reload_unit", unit, "reloading", "active")

    def _unit_job(self, verb: str, unit: str, during: str, after: str) -> None:
        def act(start: float, end: float) -> None:
            found = self._node.unit(unit, start)
            if found is None:
                detail = f"Unit {unit} not loaded."
                raise HardwareError(ErrorKind.NOT_FOUND, verb.replace("_", " "), detail=detail)
            # A start of what is active, and the like, is done at once and changes nothing.
            if found.active_state != after or during == "reloading":
                found.active_state = during
                found.changes = [UnitChange(end + _UNIT_STOPS_S, after)]

        self._change(verb, unit, "", act, instead=_nothing)

    def reboot(self) -> None:
        """Only asked for; the reboot itself comes from outside, as `simulate reboot`."""

        def act(_start: float, _end: float) -> None:
            self._node.state.reboot_asked = True

        self._change("reboot", "node", "", act, instead=_nothing)

    def _save(self) -> None:
        if self._store is not None:
            self._store.write(self._node, None)

    # ------------------------------------------------------------------ the bus

    def pfs(self) -> tuple[PciFunction, ...]:
        return self._read(
            "pfs",
            None,
            lambda _: tuple(self._pci(gpu) for gpu in self._node.state.gpus if not gpu.off_bus),
        )

    def pf(self, pf: Bdf) -> PciFunction:
        return self._read("pf", pf, lambda _: self._pci(self._node.gpu(pf, "reading the PF")))

    def _pci(self, gpu: GpuState) -> PciFunction:
        model = self._node.board_of(gpu)
        loaded = self._node.state.module_version is not None
        return PciFunction(
            bdf=Bdf.parse(gpu.bdf),
            device_id=model.device_id,
            subsystem_id=model.subsystem_id,
            driver=gpu.driver,
            driver_override=gpu.driver_override,
            sriov_totalvfs=model.sriov_totalvfs,
            sriov_numvfs=len(gpu.vfs),
            unbind_lock=gpu.unbind_lock if loaded and gpu.driver == PF_DRIVER else None,
        )

    def vfs(self, pf: Bdf) -> tuple[Vf, ...]:
        def read(now: float) -> tuple[Vf, ...]:
            gpu = self._node.gpu(pf, "reading the VFs")
            return tuple(self._vf(gpu, vf, now) for vf in sorted(gpu.vfs, key=lambda v: v.index))

        def unreadable(vfs: tuple[Vf, ...]) -> tuple[Vf, ...]:
            return tuple(replace(vf, vgpu_type_id=None, gi_id=None) for vf in vfs)

        return self._read("vfs", pf, read, unreadable=unreadable)

    def _vf(self, gpu: GpuState, vf: VfState, now: float) -> Vf:
        ready = vf_is_ready(gpu, vf, now)
        return Vf(
            index=vf.index,
            bdf=Bdf.parse(vf.bdf),
            driver=vf.driver,
            framework=Framework(self._node.state.framework) if ready else None,
            vgpu_type_id=vf.type_id if ready else None,
            gi_id=vf.gi_id if ready else None,
            mdev_uuid=vf.mdev_uuid,
        )

    def creatable_vgpu_types(self, vf: Bdf) -> tuple[int, ...]:
        return self._read(
            "creatable_vgpu_types", self._pf_of(vf), lambda now: self._node.creatable(vf, now)
        )

    def _pf_of(self, vf: Bdf) -> Bdf:
        with self._lock:
            gpu, _ = self._node.vf(vf, "finding the VF")
            return Bdf.parse(gpu.bdf)

    def holders(self, pf: Bdf) -> tuple[Holder, ...]:
        def read(now: float) -> tuple[Holder, ...]:
            gpu = self._node.gpu(pf, "reading the holders")
            return tuple(
                Holder(
                    pid=h.pid,
                    name=h.name,
                    command=h.command,
                    kind=HolderKind(h.kind),
                    device=h.device,
                    unit=h.unit,
                    vf=Bdf.parse(h.vf) if h.vf else None,
                    gi_id=h.gi_id,
                    vm=h.vm,
                )
                for h in self._node.holders(gpu, now)
                if not h.hidden
            )

        return self._read("holders", pf, read)

    # ------------------------------------------------------------------ NVML reads

    def _nvml(
        self,
        verb: str,
        pf: Bdf,
        what: Callable[[GpuState, float], _T],
        *,
        unreadable: Callable[[_T], _T] | None = None,
    ) -> _T:
        def read(now: float) -> _T:
            gpu = self._node.in_nvml(pf, verb.replace("_", " "), now)
            return what(gpu, now)

        return self._read(verb, pf, read, unreadable=unreadable)

    def facts(self, pf: Bdf) -> GpuFacts:
        def unreadable(facts: GpuFacts) -> GpuFacts:
            return replace(facts, mig=MigMode(None, None), recovery_action=None)

        return self._nvml("facts", pf, self._facts, unreadable=unreadable)

    def _facts(self, gpu: GpuState, now: float) -> GpuFacts:
        model = self._node.board_of(gpu)
        vms = [h for h in self._node.holders(gpu, now) if h.kind == HolderKind.VM.value]
        return GpuFacts(
            nvml_index=self._node.nvml_index(gpu),
            uuid=gpu.uuid,
            serial=gpu.serial,
            name=model.name,
            mig=MigMode(gpu.mig_current, gpu.mig_pending) if model.mig else None,
            resetless_mig=model.resetless_mig,
            recovery_action=RecoveryAction(gpu.recovery_action),
            host_vgpu_host=True,
            host_vgpu_mode=HostVgpuMode(model.host_vgpu_mode),
            persistence=self._node.persistence(gpu, now),
            mixed_size=gpu.mixed_size if not gpu.mig_current else None,
            active_vgpus=tuple(
                ActiveVgpu(h.vm or str(h.pid), vf.type_id)
                for h in vms
                for vf in gpu.vfs
                if vf.bdf == h.vf
            ),
        )

    def gi_profiles(self, pf: Bdf) -> tuple[GiProfile, ...]:
        return self._nvml("gi_profiles", pf, lambda gpu, _: self._node.profiles(gpu))

    def gpu_instances(self, pf: Bdf) -> tuple[GpuInstance, ...]:
        def read(gpu: GpuState, _: float) -> tuple[GpuInstance, ...]:
            return tuple(
                GpuInstance(
                    gi.gi_id,
                    gi.gi_profile_id,
                    Placement(gi.start, gi.size),
                    gi.compute_instances,
                    gi.mixed_size if self._node.time_slices(gpu, gi.gi_profile_id) else None,
                )
                for gi in gpu.instances
            )

        return self._nvml("gpu_instances", pf, read)

    def vgpu_types(self, pf: Bdf) -> tuple[VgpuType, ...]:
        return self._nvml("vgpu_types", pf, lambda gpu, _: self._node.types(gpu))

    # ------------------------------------------------------------------ changes

    def set_persistence(self, pf: Bdf, *, enabled: bool) -> None:
        def act(_: float, end: float) -> None:
            gpu = self._node.in_nvml(pf, "set persistence", end)
            gpu.persistence = enabled

        self._change("set_persistence", pf, f"enabled={enabled}", act, instead=_nothing)

    def set_mig_mode(self, pf: Bdf, *, enabled: bool) -> ActivationStatus:
        def act(start: float, end: float) -> ActivationStatus:
            gpu = self._node.in_nvml(pf, "set MIG mode", end)
            return self._node.set_mig_mode(gpu, enabled=enabled, now=start)

        def instead(effect: str, _start: float, _end: float) -> ActivationStatus:
            name, _, argument = effect.partition(":")
            if name == "status":
                return activation_status(argument)
            return ActivationStatus.SUCCESS

        return self._change("set_mig_mode", pf, f"enabled={enabled}", act, instead=instead)

    def reset_gpu(self, pf: Bdf, *, timeout_s: float) -> ToolResult:
        command = ("nvidia-smi", "--gpu-reset", "-i", str(pf))

        def act(start: float, _: float) -> ToolResult:
            if not self._node.is_on_bus(pf):
                return ToolResult(command, 6, "", f"No devices were found for {pf}\n")
            return self._node.reset(self._node.gpu(pf, "reset"), now=start)

        def instead(effect: str, start: float, end: float) -> ToolResult:
            return self._tool_fault(command, effect, timeout_s - (end - start))

        return self._change("reset_gpu", pf, "", act, instead=instead, timeout_s=timeout_s)

    def sriov_manage(self, pf: Bdf, *, enable: bool, timeout_s: float) -> ToolResult:
        command = ("sriov-manage", "-e" if enable else "-d", str(pf))

        def act(start: float, end: float) -> ToolResult:
            if not self._node.is_on_bus(pf):
                return ToolResult(command, 1, "", f"{pf}: No such file or directory\n")
            gpu = self._node.gpu(pf, "sriov-manage")
            return self._node.sriov_manage(gpu, enable=enable, start=start, end=end)

        def instead(effect: str, start: float, end: float) -> ToolResult:
            if not self._node.is_on_bus(pf):
                return act(start, end)
            gpu = self._node.gpu(pf, "sriov-manage")
            name, _, argument = effect.partition(":")
            if name in ("partial", "late", "never"):
                result = act(start, end)
                self._spoil_vfs(gpu, name, argument, end)
                return result
            if name == "unbind-lock-busy":
                gpu.holders.append(_passing_client(end + float(argument)))
                return act(start, end)
            if name in ("leave-on-stub", "leave-unbound"):
                self._node.strand(gpu, STUB_DRIVER if name == "leave-on-stub" else None)
                text = f"Cannot unbind {pf} from {STUB_DRIVER}\n"
                return ToolResult(command, 1, "", text)
            if name == "hang":
                gpu.unbind_lock = True  # it was killed between taking and releasing it
            return self._tool_fault(command, effect, timeout_s - (end - start))

        return self._change(
            "sriov_manage", pf, command[1], act, instead=instead, timeout_s=timeout_s
        )

    @staticmethod
    def _spoil_vfs(gpu: GpuState, effect: str, argument: str, end: float) -> None:
        if effect == "partial":
            del gpu.vfs[int(argument) :]
        elif effect == "late":
            for vf in gpu.vfs:
                vf.ready_at = end + float(argument)
        else:
            gpu.registration_broken = bool(gpu.vfs)

    def _tool_fault(self, command: tuple[str, ...], effect: str, left_s: float) -> ToolResult:
        """``left_s``: what is left of the tool's time."""
        name, _, argument = effect.partition(":")
        if name == "missing":
            detail = f"{command[0]}: No such file or directory"
            raise HardwareError(ErrorKind.TOOL_MISSING, command[0], detail=detail)
        if name == "hang":
            self._clock.advance(left_s)
            return ToolResult(command, -9, "", "", timed_out=True)
        if name == "log":
            self._node.log(self.now(), argument)
            return ToolResult(command, 1, "", "write error: Cannot allocate memory\n")
        if name == "exit":
            code, _, text = argument.partition(":")
            return ToolResult(command, int(code), "", text)
        return ToolResult(command, 0, "", "")

    def bind_driver(self, pf: Bdf) -> None:
        def act(_: float, __: float) -> None:
            self._node.bind(self._node.gpu(pf, "bind the driver"))

        self._change("bind_driver", pf, "", act, instead=_nothing)

    def release_unbind_lock(self, pf: Bdf) -> None:
        def act(_: float, __: float) -> None:
            self._node.gpu(pf, "release the unbindLock").unbind_lock = False

        self._change("release_unbind_lock", pf, "", act, instead=_nothing)

    def create_gpu_instance(self, pf: Bdf, gi_profile_id: int, placement: Placement) -> int:
        def act(_: float, end: float) -> int:
            gpu = self._node.in_nvml(pf, "create a GPU instance", end)
            return self._node.create_instance(gpu, gi_profile_id, placement)

        text = f"{gi_profile_id} at {placement}"
        return self._change("create_gpu_instance", pf, text, act, instead=lambda *_: 0)

    def destroy_gpu_instance(self, pf: Bdf, gi_id: int) -> None:
        def act(start: float, end: float) -> None:
            gpu = self._node.in_nvml(pf, "destroy a GPU instance", end)
            self._node.destroy_instance(gpu, gi_id, start)

        self._change("destroy_gpu_instance", pf, str(gi_id), act, instead=_nothing)

    def create_compute_instance(self, pf: Bdf, gi_id: int) -> None:
        def act(_: float, end: float) -> None:
            gpu = self._node.in_nvml(pf, "create a compute instance", end)
            gi = self._node.instance(gpu, gi_id, "create a compute instance")
            if gi.compute_instances:
                raise HardwareError(
                    ErrorKind.INSUFFICIENT_RESOURCES, "create a compute instance", target=pf
                )
            gi.compute_instances = 1

        self._change("create_compute_instance", pf, str(gi_id), act, instead=_nothing)

    def set_mixed_size(self, pf: Bdf, *, enabled: bool, gi_id: int | None) -> None:
        def act(_: float, end: float) -> None:
            gpu = self._node.in_nvml(pf, "set mixed-size mode", end)
            self._node.set_mixed_size(gpu, enabled=enabled, gi_id=gi_id)

        text = f"enabled={enabled} gi={gi_id}"
        self._change("set_mixed_size", pf, text, act, instead=_nothing)

    def set_vgpu_type(self, vf: Bdf, vgpu_type_id: int, *, mdev_uuid: str | None) -> None:
        pf = self._pf_of(vf)

        def act(_: float, end: float) -> None:
            self._node.set_type(vf, vgpu_type_id, mdev_uuid, end)

        def instead(effect: str, _start: float, end: float) -> None:
            name, _, argument = effect.partition(":")
            if name == "log":
                self._node.log(end, argument)
                raise HardwareError(
                    ErrorKind.IO, "writing the vGPU type", target=vf, detail="EIO", errno=errno.EIO
                )

        self._change("set_vgpu_type", pf, f"{vf} {vgpu_type_id}", act, instead=instead)

    def close(self) -> None:
        if self._dead:
            return
        with self._lock, self._alone():
            self._refresh()
            state = self._node.state
            state.clock_s = max(state.clock_s, self._clock.farthest_s)
            self._save()


def _passing_client(until: float) -> HolderState:
    """Something that opens and closes the GPU all the time, so that /proc does not show it."""
    return HolderState(
        pid=5210,
        name="dcgm-exporter",
        command="/usr/bin/dcgm-exporter",
        kind=HolderKind.CLIENT.value,
        device="/dev/nvidia0",
        until=until,
        hidden=True,
    )


def _nothing(*_: Any) -> None:
    """The call reports success and has done nothing."""
