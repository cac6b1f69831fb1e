"""The rules of a node: who may do what when, and what it wipes. Not kinder than hardware.

Each rule names its place in host-interfaces.md (HI) or systemd-facts.md (SF). Times are virtual
seconds, handed in by the caller.
"""

from __future__ import annotations

import errno
import uuid

from gpu_bootstate.catalog.reader import Board, NodeSpec, board, node_spec
from gpu_bootstate.hardware.protocol import (
    ActivationStatus,
    ErrorKind,
    HardwareError,
    ToolResult,
)
from gpu_bootstate.model import (
    PF_DRIVER,
    STUB_DRIVER,
    Bdf,
    GiProfile,
    HolderKind,
    Placement,
    RecoveryAction,
    VgpuType,
)
from gpu_bootstate.simulator.state import (
    NEVER,
    GiState,
    GpuState,
    HolderState,
    LogState,
    NodeState,
    SimUnit,
    ToolRun,
    VfState,
)

PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
VGPUD = "nvidia-vgpud.service"
VGPU_MGR = "nvidia-vgpu-mgr.service"
OURS = "gpu-bootstate.service"
DCGM = "nvidia-dcgm.service"

# Handles of the vGPU stack itself do not keep the tool or a reset away.
_STACK = ("nvidia-vgpu-mgr", "nvidia-vgpud", "nv-fabricmanager")

_PERSISTENCED_PID = 880

_STOPPED = ("inactive", "dead")


def new_node(name: str) -> SimNode:
    """A node that has just booted: no VFs, no instances, MIG off, managers up."""
    spec = node_spec(name)
    state = NodeState(board=name, nvswitch=spec.nvswitch)
    for number, (pf, model) in enumerate(spec.gpus):
        identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{name}/{pf}")
        state.gpus.append(
            GpuState(
                bdf=str(pf),
                model=model.model,
                uuid=f"GPU-{identity}",
                serial=f"16512230{number:05d}",
            )
        )
    state.units = {
        PERSISTENCED: SimUnit("active"),
        VGPUD: SimUnit("inactive", sub_state="dead"),
        VGPU_MGR: SimUnit("active"),
        OURS: SimUnit("inactive", ran=False),
        DCGM: SimUnit("inactive", enabled=False, sub_state="dead", ran=False),
    }
    if spec.nvswitch:
        state.units[FABRIC_MANAGER] = SimUnit("active")
        state.fabric_mode = 2
    return SimNode(state, spec)


class SimNode:
    """One node. Not thread-safe: SimHardware holds the lock."""

    def __init__(self, state: NodeState, spec: NodeSpec | None = None) -> None:
        self.state = state
        self.spec = spec or node_spec(state.board)
        self._boards = {gpu.model: board(gpu.model) for gpu in state.gpus}

    # ------------------------------------------------------------------ finding

    def gpu(self, pf: Bdf, operation: str) -> GpuState:
        for gpu in self.state.gpus:
            if gpu.bdf == str(pf) and not gpu.off_bus:
                return gpu
        raise HardwareError(ErrorKind.NOT_FOUND, operation, target=pf, detail="no such PCI device")

    def is_on_bus(self, pf: Bdf) -> bool:
        return any(gpu.bdf == str(pf) and not gpu.off_bus for gpu in self.state.gpus)

    def board_of(self, gpu: GpuState) -> Board:
        return self._boards[gpu.model]

    def in_nvml(self, pf: Bdf, operation: str, now: float) -> GpuState:
        """The GPU, if NVML can read it now."""
        self.nvml_answers(operation, now)
        gpu = self.gpu(pf, operation)
        if gpu.lost:
            raise HardwareError(ErrorKind.GPU_LOST, operation, target=pf)
        if gpu.driver != PF_DRIVER:
            detail = "NVML does not list it"
            raise HardwareError(ErrorKind.NOT_FOUND, operation, target=pf, detail=detail)
        if gpu.unbind_lock:  # HI 1.3: opening the device fails while the lock is held
            detail = "the device cannot be opened: locked for unbind"
            raise HardwareError(ErrorKind.NOT_FOUND, operation, target=pf, detail=detail)
        return gpu

    def nvml_answers(self, operation: str, now: float) -> None:
        if self.state.module_version is None or now < self.state.nvml_ready_at:
            raise HardwareError(ErrorKind.NOT_READY, operation, detail="Driver Not Loaded")
        if self.state.module_version != self.state.library_version:
            raise HardwareError(ErrorKind.VERSION_MISMATCH, operation)

    def nvml_index(self, gpu: GpuState) -> int:
        visible = [g for g in self.state.gpus if g.driver == PF_DRIVER and not g.off_bus]
        return visible.index(gpu)

    def vf(self, bdf: Bdf, operation: str) -> tuple[GpuState, VfState]:
        for gpu in self.state.gpus:
            for vf in gpu.vfs:
                if vf.bdf == str(bdf) and not gpu.off_bus:
                    return gpu, vf
        raise HardwareError(ErrorKind.NOT_FOUND, operation, target=bdf, detail="no such VF")

    def profiles(self, gpu: GpuState) -> tuple[GiProfile, ...]:
        return self.board_of(gpu).gi_profiles

    def types(self, gpu: GpuState) -> tuple[VgpuType, ...]:
        shift = self.state.type_id_shift
        return tuple(
            VgpuType(
                t.vgpu_type_id + shift,
                t.name,
                t.framebuffer_mib,
                t.max_per_gpu,
                t.max_per_gi,
                t.gi_profile_id,
            )
            for t in self.board_of(gpu).vgpu_types
        )

    # ------------------------------------------------------------------ who is on the GPU

    def unit(self, name: str, now: float) -> SimUnit | None:
        unit = self.state.units.get(name)
        while unit is not None and unit.changes and unit.changes[0].at <= now:
            change = unit.changes.pop(0)
            unit.active_state, unit.result = change.active_state, change.result
            unit.sub_state = "running" if change.active_state == "active" else "dead"
            unit.ran = unit.ran or change.active_state == "active"
            if name == PERSISTENCED:
                self._persistenced_became(change.active_state)
        return unit

    def _persistenced_became(self, active_state: str) -> None:
        """HI 6: the daemon opens all GPUs when it starts, and lets go of them when it ends."""
        for gpu in self.state.gpus:
            if active_state == "active":
                gpu.persistence = gpu.driver == PF_DRIVER
            elif active_state in ("inactive", "failed"):
                gpu.persistence = False

    def is_active(self, name: str, now: float) -> bool:
        unit = self.unit(name, now)
        return unit is not None and unit.active_state == "active"

    def persistence(self, gpu: GpuState, now: float) -> bool:
        self.unit(PERSISTENCED, now)
        return gpu.persistence

    def holders(self, gpu: GpuState, now: float) -> list[HolderState]:
        """Everyone with a handle on it, seen in /proc or not."""
        found = [
            holder
            for holder in gpu.holders
            if holder.until > now and (holder.unit is None or self._unit_holds(holder.unit, now))
        ]
        daemon = self._unit_holds(PERSISTENCED, now)
        if gpu.persistence and gpu.driver == PF_DRIVER and daemon:
            found.append(
                HolderState(
                    pid=_PERSISTENCED_PID,
                    name="nvidia-persistenced"[:15],
                    command="/usr/bin/nvidia-persistenced --user nvidia-persistenced",
                    kind=HolderKind.CLIENT.value,
                    device=f"/dev/nvidia{self.state.gpus.index(gpu)}",
                    unit=PERSISTENCED,
                )
            )
        return found

    def _unit_holds(self, name: str, now: float) -> bool:
        """A unit that is being stopped has its processes until it is stopped."""
        unit = self.unit(name, now)
        return unit is None or unit.active_state not in ("inactive", "failed")

    def _is_held(self, gpu: GpuState, now: float) -> bool:
        """HI 1.3, 5.4: any client keeps unbindLock, reset and the MIG mode's own reset away."""
        others = [h for h in self.holders(gpu, now) if h.name not in _STACK]
        return bool(others) or self.persistence(gpu, now)

    def _vm_on(self, gpu: GpuState, vf: VfState, now: float) -> bool:
        return any(h.vf == vf.bdf for h in self.holders(gpu, now))

    # ------------------------------------------------------------------ MIG mode and reset

    def set_mig_mode(self, gpu: GpuState, *, enabled: bool, now: float) -> ActivationStatus:
        """HI 5.1, 5.2. The caller's own session is not in the way."""
        model, what = self.board_of(gpu), "setting MIG mode"
        pf = Bdf.parse(gpu.bdf)
        if not model.mig:
            raise HardwareError(ErrorKind.NOT_SUPPORTED, what, target=pf)
        if gpu.vfs:
            detail = "VFs are enabled"
            raise HardwareError(ErrorKind.IN_USE, what, target=pf, detail=detail)
        if gpu.instances:
            detail = "GPU instances exist"
            raise HardwareError(ErrorKind.IN_USE, what, target=pf, detail=detail)
        held = self._is_held(gpu, now)
        if model.resetless_mig:
            if held and gpu.mig_current != enabled:
                return ActivationStatus.IN_USE
            gpu.mig_current = gpu.mig_pending = enabled
            return ActivationStatus.SUCCESS
        gpu.mig_pending = enabled
        if held and gpu.mig_current != enabled:
            return ActivationStatus.IN_USE
        gpu.mig_current = enabled
        return ActivationStatus.SUCCESS

    def reset(self, gpu: GpuState, *, now: float) -> ToolResult:
        """HI 5.2-5.5: commits a pending mode, wipes everything volatile."""
        command = ("nvidia-smi", "--gpu-reset", "-i", gpu.bdf)
        refused = (
            f"The following GPUs could not be reset:\n  GPU {gpu.bdf}: In use by another client\n"
        )
        if gpu.lost:  # the manual's code 15: fallen off the bus or otherwise inaccessible
            return ToolResult(command, 15, "", f"GPU {gpu.bdf}: GPU is lost\n")
        if gpu.driver != PF_DRIVER or gpu.unbind_lock:
            return ToolResult(command, 6, "", f"No devices were found for {gpu.bdf}\n")
        if gpu.vfs or self._is_held(gpu, now):
            return ToolResult(command, 255, refused, "")
        ampere = not self.board_of(gpu).resetless_mig
        if ampere and self.state.nvswitch and not self.is_active(FABRIC_MANAGER, now):
            text = f"GPU {gpu.bdf}: NVLink peers must be reset together\n"
            return ToolResult(command, 255, text, "")
        gpu.mig_current = gpu.mig_pending
        if gpu.recovery_action == RecoveryAction.RESET.value:
            gpu.recovery_action = RecoveryAction.NONE.value
        self._wipe(gpu)
        return ToolResult(command, 0, f"GPU {gpu.bdf} was successfully reset.\nAll done.\n", "")

    def _wipe(self, gpu: GpuState) -> None:
        gpu.instances.clear()
        gpu.mixed_size = False
        for vf in gpu.vfs:
            vf.type_id, vf.gi_id, vf.mdev_uuid = 0, None, None

    # ------------------------------------------------------------------ sriov-manage

    def sriov_manage(self, gpu: GpuState, *, enable: bool, start: float, end: float) -> ToolResult:
        """HI 1.2-1.6, SF 9."""
        model = self.board_of(gpu)
        command = ("sriov-manage", "-e" if enable else "-d", gpu.bdf)
        if gpu.driver != PF_DRIVER:
            return ToolResult(command, 1, "", f"Cannot unbind {gpu.bdf} from nvidia\n")
        if model.host_vgpu_mode != "sriov":
            return ToolResult(command, 1, "", f"{gpu.bdf} does not support SR-IOV\n")
        if bool(gpu.vfs) == enable:
            return ToolResult(command, 0, "", "")  # HI 1.6: a no-op
        # A lost GPU and a lock that a crash left: what the tool does with these is not published.
        if gpu.lost or gpu.unbind_lock or self._is_held(gpu, start):
            return ToolResult(command, 1, "", f"Cannot obtain unbindLock for {gpu.bdf}\n")
        self._capture_driverless(gpu, model.device_id)
        if self._overlaps(gpu, model.device_id, start, end):
            # SF 9: the other run's remove_id has taken the id away before our bind.
            self.strand(gpu, None)
            return ToolResult(command, 1, "", "bash: echo: write error: No such device\n")
        self._detach(gpu)
        gpu.vfs.clear()
        if enable and not self.is_active(VGPU_MGR, start):
            self.log(end, "NVRM: Timeout occurred in event processing by vgpu_mgr daemon")
            return ToolResult(command, 0, f"Enabling VFs on {gpu.bdf}\n", "")
        if enable:
            self.make_vfs(gpu, model.sriov_totalvfs, ready_at=end + self.state.vf_ready_s)
        return ToolResult(command, 0, f"{'En' if enable else 'Dis'}abling VFs on {gpu.bdf}\n", "")

    def _detach(self, gpu: GpuState) -> None:
        """HI 9: unbinding the PF takes instances, types, mixed-size mode and VFs' registration.

        Whether persistence mode comes back is unknown there; here it does not.
        """
        self._wipe(gpu)
        gpu.persistence = False
        gpu.registration_broken = False

    def strand(self, gpu: GpuState, driver: str | None) -> None:
        """The tool has ended midway: the PF is off nvidia, and its VFs stay as they are (SF 9)."""
        self._detach(gpu)
        gpu.driver = driver

    def bind(self, gpu: GpuState) -> None:
        what, pf = "bind the driver", Bdf.parse(gpu.bdf)
        if gpu.driver not in (None, STUB_DRIVER):
            raise HardwareError(ErrorKind.IN_USE, what, target=pf, detail=f"it is on {gpu.driver}")
        if gpu.driver_override not in (None, PF_DRIVER):  # the kernel matches no other driver
            gpu.driver = None
            raise self._errno(what, pf, errno.ENODEV)
        gpu.driver, gpu.unbind_lock = PF_DRIVER, False  # the lock goes with the old attachment

    def _capture_driverless(self, gpu: GpuState, device_id: int) -> None:
        for other in self.state.gpus:
            same = other is not gpu and self.board_of(other).device_id == device_id
            if same and other.driver is None and not other.driver_override and not other.off_bus:
                other.driver = STUB_DRIVER

    def _overlaps(self, gpu: GpuState, device_id: int, start: float, end: float) -> bool:
        clash = any(
            run.device_id == device_id and run.pf != gpu.bdf and start < run.end and run.start < end
            for run in self.state.tool_runs
        )
        self.state.tool_runs = self.state.tool_runs[-32:]
        self.state.tool_runs.append(ToolRun(gpu.bdf, device_id, start, end))
        return clash

    def make_vfs(self, gpu: GpuState, count: int, *, ready_at: float) -> None:
        pf = Bdf.parse(gpu.bdf)
        for index in range(count):
            # Eight functions make a device number (HI 1.7).
            number = self.board_of(gpu).vf_offset + index
            bdf = Bdf(pf.domain, pf.bus, pf.device + number // 8, number % 8)
            gpu.vfs.append(VfState(index=index, bdf=str(bdf), ready_at=ready_at))

    # ------------------------------------------------------------------ GPU instances

    def create_instance(self, gpu: GpuState, gi_profile_id: int, placement: Placement) -> int:
        what, pf = "creating a GPU instance", Bdf.parse(gpu.bdf)
        if not gpu.mig_current:
            raise HardwareError(ErrorKind.NOT_SUPPORTED, what, target=pf, detail="MIG mode is off")
        profiles = {p.gi_profile_id: p for p in self.profiles(gpu)}
        profile = profiles.get(gi_profile_id)
        if profile is None or placement not in profile.placements:
            raise HardwareError(ErrorKind.INVALID_ARGUMENT, what, target=pf)
        present = [Placement(gi.start, gi.size) for gi in gpu.instances]
        used = sum(profiles[gi.gi_profile_id].slice_count for gi in gpu.instances)
        most = max(p.slice_count for p in profiles.values())
        same = sum(gi.gi_profile_id == gi_profile_id for gi in gpu.instances)
        if (
            any(placement.overlaps(other) for other in present)
            or used + profile.slice_count > most
            or same >= profile.max_instances
        ):
            raise HardwareError(ErrorKind.INSUFFICIENT_RESOURCES, what, target=pf)
        # The driver numbers by size and place: a whole GPU is 0, seven small ones are 7 to 13.
        base = {8: 0, 4: 1, 2: 3, 1: 7}.get(profile.placements[0].size, 7)
        taken = {gi.gi_id for gi in gpu.instances}
        gi_id = base + placement.start // placement.size
        while gi_id in taken:
            gi_id += 1
        gpu.instances.append(GiState(gi_id, gi_profile_id, placement.start, placement.size))
        gpu.instances.sort(key=lambda gi: gi.gi_id)
        return gi_id

    def instance(self, gpu: GpuState, gi_id: int, what: str) -> GiState:
        for gi in gpu.instances:
            if gi.gi_id == gi_id:
                return gi
        raise HardwareError(ErrorKind.NOT_FOUND, what, target=Bdf.parse(gpu.bdf))

    def destroy_instance(self, gpu: GpuState, gi_id: int, now: float) -> None:
        what, pf = "destroying a GPU instance", Bdf.parse(gpu.bdf)
        gi = self.instance(gpu, gi_id, what)
        typed = any(vf.type_id and vf.gi_id == gi_id for vf in gpu.vfs)
        opened = any(h.gi_id == gi_id for h in self.holders(gpu, now))
        if typed or opened:
            raise HardwareError(ErrorKind.IN_USE, what, target=pf)
        gpu.instances.remove(gi)

    # ------------------------------------------------------------------ vGPU types

    def set_mixed_size(self, gpu: GpuState, *, enabled: bool, gi_id: int | None) -> None:
        """HI 2.5: volatile, needs VFs and no vGPU; GPU-wide only without MIG."""
        what, pf = "setting mixed-size mode", Bdf.parse(gpu.bdf)
        if gi_id is None:
            if gpu.mig_current or not gpu.vfs:
                raise HardwareError(ErrorKind.NOT_SUPPORTED, what, target=pf)
            if any(vf.type_id for vf in gpu.vfs):
                raise HardwareError(ErrorKind.IN_USE, what, target=pf)
            gpu.mixed_size = enabled
            return
        gi = self.instance(gpu, gi_id, what)
        if not gpu.vfs or not self.time_slices(gpu, gi.gi_profile_id):
            raise HardwareError(ErrorKind.NOT_SUPPORTED, what, target=pf)
        if any(vf.type_id and vf.gi_id == gi_id for vf in gpu.vfs):
            raise HardwareError(ErrorKind.IN_USE, what, target=pf)
        gi.mixed_size = enabled

    def time_slices(self, gpu: GpuState, gi_profile_id: int) -> bool:
        """Whether an instance of this profile can hold several vGPUs."""
        return any(t.gi_profile_id == gi_profile_id and t.max_per_gi > 1 for t in self.types(gpu))

    def set_type(self, vf_bdf: Bdf, type_id: int, mdev_uuid: str | None, now: float) -> None:
        """HI 2.3, 2.4 and 3: not idempotent, and the driver picks the GPU instance."""
        what = "writing the vGPU type"
        gpu, vf = self.vf(vf_bdf, what)
        if not vf_is_ready(gpu, vf, now):
            raise self._errno(what, vf_bdf, errno.ENOENT)
        if self._vm_on(gpu, vf, now) or bool(type_id) == bool(vf.type_id):
            raise self._errno(what, vf_bdf, errno.EPERM)
        if type_id == 0:
            vf.type_id, vf.gi_id, vf.mdev_uuid = 0, None, None
            return
        wanted = next((t for t in self.types(gpu) if t.vgpu_type_id == type_id), None)
        if wanted is None:
            self.log(now, "NVRM: Failed to add vgpu create request: 0x57")
            raise self._errno(what, vf_bdf, errno.EIO)
        if self.state.framework == "mdev":
            self._check_uuid(vf_bdf, mdev_uuid)
        status, gi = self._seat(gpu, wanted)
        if not self.is_active(VGPU_MGR, now):
            self.log(now, "NVRM: kvgpumgrCreateRequestVgpu: GPU is not initialized yet")
            status = "0x66"
        if status:
            self.log(now, f"NVRM: Failed to add vgpu create request: {status}")
            raise self._errno(what, vf_bdf, errno.EIO)
        vf.type_id, vf.gi_id = type_id, gi.gi_id if gi else None
        vf.mdev_uuid = mdev_uuid if self.state.framework == "mdev" else None

    def _check_uuid(self, vf: Bdf, mdev_uuid: str | None) -> None:
        """HI 3: an mdev has the UUID that was written; the kernel takes each once on a host."""
        if mdev_uuid is None:
            raise self._errno("creating the mdev", vf, errno.EINVAL)
        if any(other.mdev_uuid == mdev_uuid for gpu in self.state.gpus for other in gpu.vfs):
            raise self._errno("creating the mdev", vf, errno.EEXIST)

    def _seat(self, gpu: GpuState, wanted: VgpuType) -> tuple[str, GiState | None]:
        """The RM status that refuses this type now ("" if none), and the instance it would get."""
        types = {t.vgpu_type_id: t for t in self.types(gpu)}
        placed = [(vf, types[vf.type_id]) for vf in gpu.vfs if vf.type_id in types]
        same = sum(t.vgpu_type_id == wanted.vgpu_type_id for _, t in placed)
        if same >= wanted.max_per_gpu:
            return "0x1a", None
        if wanted.gi_profile_id is None:
            return self._seat_time_sliced(gpu, wanted, [t for _, t in placed]), None
        if not gpu.mig_current or not gpu.instances:
            return "0x38", None
        for gi in gpu.instances:  # ascending ids, the exact profile, with room (HI 2.4)
            if gi.gi_profile_id != wanted.gi_profile_id:
                continue
            there = [t for vf, t in placed if vf.gi_id == gi.gi_id]
            sizes = {t.framebuffer_mib for t in there} - {wanted.framebuffer_mib}
            if len(there) < wanted.max_per_gi and (not sizes or gi.mixed_size):
                return "", gi
        return "0x40", None

    def _seat_time_sliced(self, gpu: GpuState, wanted: VgpuType, there: list[VgpuType]) -> str:
        if gpu.mig_current:
            return "0x38"
        if any(t.framebuffer_mib != wanted.framebuffer_mib for t in there) and not gpu.mixed_size:
            return "0x56"
        used = sum(t.framebuffer_mib for t in there) + wanted.framebuffer_mib
        return "0x1a" if used > self.board_of(gpu).framebuffer_mib else ""

    def creatable(self, vf_bdf: Bdf, now: float) -> tuple[int, ...]:
        gpu, vf = self.vf(vf_bdf, "reading the creatable vGPU types")
        if vf.type_id or not vf_is_ready(gpu, vf, now):
            return ()
        return tuple(t.vgpu_type_id for t in self.types(gpu) if not self._seat(gpu, t)[0])

    @staticmethod
    def _errno(what: str, target: Bdf, number: int) -> HardwareError:
        name = errno.errorcode[number]
        return HardwareError(ErrorKind.IO, what, target=target, detail=name, errno=number)

    # ------------------------------------------------------------------ from outside

    def log(self, at: float, text: str) -> None:
        self.state.log.append(LogState(at, text))

    def reboot(self) -> None:
        """HI 9: what a reboot takes."""
        self.state.boot += 1
        self.state.boot_id = ""
        self.state.reboot_asked = False
        self.state.clock_s = 20.0
        self.state.nvml_ready_at = 0.0
        self.state.log.clear()
        self.state.tool_runs.clear()
        for actor in [a for a in self.state.actors if a.kind == "process"]:
            self.state.actors.remove(actor)
        for name, unit in self.state.units.items():
            unit.changes.clear()
            unit.ran, unit.result = unit.enabled, "success"
            runs = unit.enabled and name != VGPUD  # which ends at once (design 2)
            unit.active_state, unit.sub_state = ("active", "running") if runs else _STOPPED
        for gpu in self.state.gpus:
            gpu.driver = gpu.driver_override or PF_DRIVER
            gpu.recovery_action = RecoveryAction.NONE.value
            gpu.vfs.clear()
            self._reload(gpu)
            gpu.persistence = self.state.units[PERSISTENCED].enabled

    def reload_driver(self) -> None:
        """A driver-pod restart: the same boot, and the state is gone all the same (HI 0, 9).

        Whoever had a GPU open is gone too: the module does not unload before. It takes driverless
        cards when it loads; what sits on pci-pf-stub stays there, VFs and all.
        """
        for gpu in self.state.gpus:
            if gpu.driver != STUB_DRIVER:
                gpu.vfs.clear()
            if gpu.driver is None and not gpu.driver_override:
                gpu.driver = PF_DRIVER
            self._reload(gpu)

    def _reload(self, gpu: GpuState) -> None:
        self._detach(gpu)
        gpu.unbind_lock = False
        gpu.holders.clear()
        if self.board_of(gpu).mig_mode_survives_reboot:
            gpu.mig_current = gpu.mig_pending
        else:
            gpu.mig_current = gpu.mig_pending = False


def vf_is_ready(gpu: GpuState, vf: VfState, now: float) -> bool:
    return (
        vf.ready_at <= now
        and vf.ready_at < NEVER
        and not gpu.registration_broken
        and vf.driver == PF_DRIVER
        and gpu.driver == PF_DRIVER
    )
