"""NVML for one GPU, through `pynvml`. Runs in that GPU's own helper process, single-threaded.

An NVML session is a client, so it is opened at the first call and shut down on request; handles
die with it. Measured on 580.159.04: nvmlInit opens every GPU's device node, /dev/nvidia-uvm too,
and nvmlShutdown closes them all; with NVML_INIT_FLAG_NO_ATTACH no GPU can be found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint
from typing import Any, NoReturn, TypeVar, cast

import pynvml

from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError
from gpu_bootstate.model import (
    ActiveVgpu,
    Bdf,
    GiProfile,
    GpuFacts,
    GpuInstance,
    HostVgpuMode,
    MigMode,
    Placement,
    RecoveryAction,
    VgpuType,
)

_T = TypeVar("_T")

_KINDS = {
    pynvml.NVML_ERROR_UNINITIALIZED: ErrorKind.NOT_READY,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: ErrorKind.INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_SUPPORTED: ErrorKind.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: ErrorKind.NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND: ErrorKind.NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ErrorKind.NOT_READY,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ErrorKind.NOT_READY,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ErrorKind.NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: ErrorKind.GPU_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: ErrorKind.RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ErrorKind.VERSION_MISMATCH,
    pynvml.NVML_ERROR_IN_USE: ErrorKind.IN_USE,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: ErrorKind.INSUFFICIENT_RESOURCES,
    # A library that does not know the structure, or the call any more, does not have the query.
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: ErrorKind.NOT_SUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: ErrorKind.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_READY: ErrorKind.NOT_READY,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: ErrorKind.NOT_FOUND,
}

_ACTIVATION = {
    pynvml.NVML_SUCCESS: ActivationStatus.SUCCESS,
    pynvml.NVML_ERROR_IN_USE: ActivationStatus.IN_USE,
    pynvml.NVML_ERROR_RESET_REQUIRED: ActivationStatus.RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_SUPPORTED: ActivationStatus.NOT_SUPPORTED,
}

# After these a session is of no use: its list of GPUs is as old as itself, and a GPU that was
# unbound or reset meanwhile (by others) has no good handle in it.
_ENDS_SESSION = frozenset({ErrorKind.GPU_LOST, ErrorKind.NOT_READY, ErrorKind.UNKNOWN})

_NO_GI_PROFILE = 0xFFFFFFFF  # nvml.h, nvmlVgpuTypeGetGpuInstanceProfileId: the type is time-sliced
_MOST_PROFILES = 64  # more than any driver has; ends a search that nothing else ends

# nvml.h: NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RESETLESS_MIG, _RECOVERY_ACTION = 184, 230


def _newer(name: str) -> Callable[..., Any]:
    """A call that pynvml 12.560 lacks: there it is a call that the driver does not have."""

    def absent(*_: Any) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    return cast("Callable[..., Any]", getattr(pynvml, name, absent))


_get_max_instances_per_gi = _newer("nvmlVgpuTypeGetMaxInstancesPerGpuInstance")
_get_gi_mixed_size = _newer("nvmlGpuInstanceGetVgpuHeterogeneousMode")
_set_gi_mixed_size = _newer("nvmlGpuInstanceSetVgpuHeterogeneousMode")


def version_check() -> tuple[str | None, ErrorKind | None, str]:
    """The driver version that the library speaks of, and what keeps NVML from working, with its
    text. Leaves no session behind.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as err:
        return None, _kind(err), str(err)
    try:
        return _text(pynvml.nvmlSystemGetDriverVersion()), None, ""
    except pynvml.NVMLError as err:
        return None, _kind(err), str(err)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class NvmlGpu:
    """Every method raises HardwareError; NOT_FOUND when NVML does not list this GPU."""

    def __init__(self, pf: Bdf) -> None:
        self._pf = pf
        self._open = False
        self._handle: Any = None
        self._profiles: tuple[GiProfile, ...] | None = None
        self._types: tuple[VgpuType, ...] | None = None
        self._compute_profiles: dict[int, list[Any]] = {}  # by GPU instance profile

    # ------------------------------------------------------------------ session

    def close_session(self) -> None:
        self._forget()
        if self._open:
            self._open = False
            with self._explained("shut NVML down"):
                pynvml.nvmlShutdown()

    def _forget(self) -> None:
        self._handle = self._profiles = self._types = None
        self._compute_profiles = {}

    def _drop_session(self) -> None:
        with contextlib.suppress(HardwareError):
            self.close_session()

    def _device(self) -> Any:
        if not self._open:
            with self._explained("start NVML"):
                pynvml.nvmlInit()
            self._open = True
        if self._handle is None:
            # NVML writes PCI domains with eight digits.
            address = f"{self._pf.domain:08x}:{str(self._pf).split(':', 1)[1]}"
            try:
                with self._explained("find the GPU in NVML"):
                    self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
            except HardwareError:
                self._drop_session()
                raise
        return self._handle

    @contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as err:
            kind = _kind(err)
            failure = HardwareError(kind, operation, target=self._pf, detail=str(err))
            if kind in _ENDS_SESSION:
                self._drop_session()
            raise failure from err

    def _ask(self, operation: str, call: Callable[..., _T], *arguments: Any) -> _T:
        with self._explained(operation):
            return call(*arguments)

    def _optional(self, operation: str, call: Callable[..., _T], *arguments: Any) -> _T | None:
        """None where the driver does not have it; every other error is an error."""
        try:
            return self._ask(operation, call, *arguments)
        except HardwareError as err:
            if err.kind is ErrorKind.NOT_SUPPORTED:
                return None
            raise

    # ------------------------------------------------------------------ reads

    def facts(self) -> GpuFacts:
        gpu = self._device()
        ask, optional = self._ask, self._optional
        mig = optional("read MIG mode", pynvml.nvmlDeviceGetMigMode, gpu)
        resetless, recovery = self._fields(gpu)
        virtualization = optional(
            "read the virtualization mode", pynvml.nvmlDeviceGetVirtualizationMode, gpu
        )
        host_mode = optional("read the host vGPU mode", pynvml.nvmlDeviceGetHostVgpuMode, gpu)
        persistence = optional("read persistence mode", pynvml.nvmlDeviceGetPersistenceMode, gpu)
        mixed = optional("read mixed-size mode", pynvml.nvmlDeviceGetVgpuHeterogeneousMode, gpu)
        serial = optional("read the serial", pynvml.nvmlDeviceGetSerial, gpu)
        return GpuFacts(
            nvml_index=ask("read the index", pynvml.nvmlDeviceGetIndex, gpu),
            uuid=_text(ask("read the UUID", pynvml.nvmlDeviceGetUUID, gpu)),
            serial=None if serial is None else _text(serial),
            name=_text(ask("read the name", pynvml.nvmlDeviceGetName, gpu)),
            mig=None if mig is None else MigMode(_on_off(mig[0]), _on_off(mig[1])),
            resetless_mig=resetless,
            recovery_action=recovery,
            host_vgpu_host=virtualization == pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU,
            host_vgpu_mode=_HOST_MODES.get(host_mode),
            persistence=None if persistence is None else bool(persistence),
            mixed_size=None if mixed is None else bool(mixed),
            active_vgpus=self._active_vgpus(gpu),
        )

    def _fields(self, gpu: Any) -> tuple[bool | None, RecoveryAction | None]:
        """NVML fields 184 and 230; each carries its own return code."""
        wanted = [_RESETLESS_MIG, _RECOVERY_ACTION]
        values = self._optional("read field values", pynvml.nvmlDeviceGetFieldValues, gpu, wanted)
        resetless, recovery = map(self._field, values) if values else (None, None)
        known = {action.value for action in RecoveryAction}
        return (
            None if resetless is None else bool(resetless),
            RecoveryAction(recovery) if recovery in known else None,
        )

    def _field(self, value: Any) -> int | None:
        # A field that is newer than the driver is an invalid argument to it.
        if value.nvmlReturn in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        ):
            return None
        with self._explained("read a field value"):
            if value.nvmlReturn != pynvml.NVML_SUCCESS:
                raise pynvml.NVMLError(value.nvmlReturn)
        return _field_number(value)

    def _active_vgpus(self, gpu: Any) -> tuple[ActiveVgpu, ...]:
        active = self._optional("list active vGPUs", pynvml.nvmlDeviceGetActiveVgpus, gpu) or []
        found = []
        for vgpu in active:
            try:
                vm_id, _ = self._ask("read a VM's id", pynvml.nvmlVgpuInstanceGetVmID, vgpu)
                type_id = self._ask("read a vGPU's type", pynvml.nvmlVgpuInstanceGetType, vgpu)
            except HardwareError as err:
                if err.kind is ErrorKind.NOT_FOUND:
                    continue  # its VM ended since the list was made
                raise
            found.append(ActiveVgpu(_text(vm_id), int(type_id)))
        return tuple(found)

    def compute_pids(self) -> tuple[int, ...]:
        """Processes with a CUDA context; NVML does not list other clients."""
        gpu = self._device()
        found = set()
        for call in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            listed = self._optional("list compute processes", call, gpu)
            found |= {int(process.pid) for process in listed or ()}
        return tuple(sorted(found))

    def gi_profiles(self) -> tuple[GiProfile, ...]:
        if self._profiles is None:
            gpu = self._device()
            known = pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT
            infos = self._profile_infos(known, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu)
            self._profiles = tuple(self._profile(gpu, info) for info in infos)
        return self._profiles

    def _profile_infos(self, known: int, call: Callable[..., Any], *of: Any) -> list[Any]:
        """By NVML's enum, which is not the profile id. Profiles newer than pynvml are found too:
        a driver answers INVALID_ARGUMENT behind its last one (nvml.h; measured on an H200).
        """
        found = []
        for number in range(_MOST_PROFILES):
            try:
                info = self._optional("read a MIG profile", call, of[0], number, *of[1:])
            except HardwareError as err:
                if err.kind is not ErrorKind.INVALID_ARGUMENT:
                    raise
                if number >= known:
                    break
            else:
                found += [info] if info is not None else []
        return found

    def _profile(self, gpu: Any, info: Any) -> GiProfile:
        return GiProfile(
            gi_profile_id=info.id,
            name=_text(info.name).removeprefix("MIG "),
            slice_count=info.sliceCount,
            max_instances=info.instanceCount,
            memory_mib=info.memorySizeMB,
            placements=self._placements(gpu, info.id),
        )

    def _placements(self, gpu: Any, gi_profile_id: int) -> tuple[Placement, ...]:
        count = c_uint(0)
        operation = "read placements"
        call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
        self._ask(operation, call, gpu, gi_profile_id, None, byref(count))
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        if count.value:
            self._ask(operation, call, gpu, gi_profile_id, places, byref(count))
        return tuple(Placement(place.start, place.size) for place in places[: count.value])

    def gpu_instances(self) -> tuple[GpuInstance, ...]:
        gpu = self._device()
        found = [
            self._gpu_instance(handle)
            for profile in self.gi_profiles()
            for handle in self._instance_handles(gpu, profile)
        ]
        return tuple(sorted(found, key=lambda gi: gi.gi_id))

    def _gpu_instance(self, handle: Any) -> GpuInstance:
        info = self._ask("read a GPU instance", pynvml.nvmlGpuInstanceGetInfo, handle)
        mixed = self._optional("read an instance's mixed-size mode", _get_gi_mixed_size, handle)
        return GpuInstance(
            gi_id=info.id,
            gi_profile_id=info.profileId,
            placement=Placement(info.placement.start, info.placement.size),
            compute_instances=len(self._compute_instances(handle, info.profileId)),
            mixed_size=None if mixed is None else bool(mixed),
        )

    def _instance_handles(self, gpu: Any, profile: GiProfile) -> list[Any]:
        handles = (pynvml.c_nvmlGpuInstance_t * profile.max_instances)()
        count = c_uint(0)
        listed = self._optional(
            "list GPU instances",
            pynvml.nvmlDeviceGetGpuInstances,
            gpu,
            profile.gi_profile_id,
            handles,
            byref(count),
        )
        return [] if listed is None else list(handles[: count.value])

    def _compute_instances(self, handle: Any, gi_profile_id: int) -> list[Any]:
        found: list[Any] = []
        for info in self._compute_profiles_of(handle, gi_profile_id):
            handles = (pynvml.c_nvmlComputeInstance_t * info.instanceCount)()
            count = c_uint(0)
            self._ask(
                "list compute instances",
                pynvml.nvmlGpuInstanceGetComputeInstances,
                handle,
                info.id,
                handles,
                byref(count),
            )
            found += handles[: count.value]
        return found

    def _compute_profiles_of(self, handle: Any, gi_profile_id: int) -> list[Any]:
        """The same for all GPU instances of one profile, hence asked for once."""
        if gi_profile_id not in self._compute_profiles:
            self._compute_profiles[gi_profile_id] = self._profile_infos(
                pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                handle,
                pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
        return self._compute_profiles[gi_profile_id]

    def vgpu_types(self) -> tuple[VgpuType, ...]:
        if self._types is None:
            gpu = self._device()
            ids = self._optional("list vGPU types", pynvml.nvmlDeviceGetSupportedVgpus, gpu) or []
            self._types = tuple(self._type(gpu, int(type_id)) for type_id in ids)
        return self._types

    def _type(self, gpu: Any, type_id: int) -> VgpuType:
        ask, optional, what = self._ask, self._optional, f"read vGPU type {type_id}"
        profile = optional(what, pynvml.nvmlVgpuTypeGetGpuInstanceProfileId, type_id)
        per_gi = optional(what, _get_max_instances_per_gi, type_id)
        backed = profile is not None and profile != _NO_GI_PROFILE
        framebuffer = ask(what, pynvml.nvmlVgpuTypeGetFramebufferSize, type_id)
        return VgpuType(
            vgpu_type_id=type_id,
            name=_text(ask(what, pynvml.nvmlVgpuTypeGetName, type_id)),
            framebuffer_mib=framebuffer // 2**20,
            max_per_gpu=ask(what, pynvml.nvmlVgpuTypeGetMaxInstances, gpu, type_id),
            # A driver that cannot say holds one vGPU an instance: the sharing came with the call.
            max_per_gi=(per_gi or 1) if backed else 0,
            gi_profile_id=profile if backed else None,
        )

    # ------------------------------------------------------------------ changes

    def set_persistence(self, *, enabled: bool) -> None:
        self._ask(
            "set persistence mode",
            pynvml.nvmlDeviceSetPersistenceMode,
            self._device(),
            int(enabled),
        )

    def set_mig_mode(self, *, enabled: bool) -> ActivationStatus:
        status = self._ask(
            "set MIG mode", pynvml.nvmlDeviceSetMigMode, self._device(), int(enabled)
        )
        # The call may unbind or reset the device; the handle is good no more (nvml.h).
        self._forget()
        return _ACTIVATION.get(status, ActivationStatus.OTHER)

    def create_gpu_instance(self, gi_profile_id: int, placement: Placement) -> int:
        place = pynvml.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = placement.start, placement.size
        what = "create a GPU instance"
        handle = self._ask(
            what,
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement,
            self._device(),
            gi_profile_id,
            byref(place),
        )
        return int(self._ask(what, pynvml.nvmlGpuInstanceGetInfo, handle).id)

    def destroy_gpu_instance(self, gi_id: int) -> None:
        what = "destroy a GPU instance"
        handle, profile = self._instance(gi_id, what)
        for compute in self._compute_instances(handle, profile):
            self._ask("destroy a compute instance", pynvml.nvmlComputeInstanceDestroy, compute)
        self._ask(what, pynvml.nvmlGpuInstanceDestroy, handle)

    def create_compute_instance(self, gi_id: int) -> None:
        what = "create a compute instance"
        handle, profile = self._instance(gi_id, what)
        offered = self._compute_profiles_of(handle, profile)
        if not offered:
            detail = "the driver offers no profile for it"
            raise HardwareError(ErrorKind.NOT_SUPPORTED, what, target=self._pf, detail=detail)
        whole = max(offered, key=lambda info: int(info.sliceCount))
        self._ask(what, pynvml.nvmlGpuInstanceCreateComputeInstance, handle, whole.id)

    def set_mixed_size(self, *, enabled: bool, gi_id: int | None) -> None:
        what = "set mixed-size mode"
        if gi_id is None:
            call = pynvml.nvmlDeviceSetVgpuHeterogeneousMode
            self._ask(what, call, self._device(), int(enabled))
        else:
            handle, _ = self._instance(gi_id, what)
            self._ask(what, _set_gi_mixed_size, handle, int(enabled))

    def _instance(self, gi_id: int, what: str) -> tuple[Any, int]:
        """Its handle and its profile id."""
        handle = self._ask(what, pynvml.nvmlDeviceGetGpuInstanceById, self._device(), gi_id)
        info = self._ask(what, pynvml.nvmlGpuInstanceGetInfo, handle)
        return handle, int(info.profileId)


def _kind(err: Any) -> ErrorKind:
    if isinstance(err, pynvml.NVMLLibraryMismatchError):
        # No NVMLError, and raised instead of "function not found" by the lists of processes.
        return ErrorKind.NOT_SUPPORTED
    return _KINDS.get(err.value, ErrorKind.UNKNOWN)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _on_off(value: int) -> bool | None:
    """Anything but 0 and 1 is a mode that this program does not know."""
    return {0: False, 1: True}.get(value)


_HOST_MODES: dict[int | None, HostVgpuMode] = {
    pynvml.NVML_HOST_VGPU_MODE_NON_SRIOV: HostVgpuMode.NON_SRIOV,
    pynvml.NVML_HOST_VGPU_MODE_SRIOV: HostVgpuMode.SRIOV,
}


def _field_number(value: Any) -> int:
    """A field value by its own type; both fields are unsigned integers of some width."""
    if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
        return int(value.value.ullVal)
    if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG:
        return int(value.value.ulVal)
    return int(value.value.uiVal)
