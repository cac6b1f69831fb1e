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
from typing import Any, TypeVar

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
    pynvml.NVML_ERROR_NOT_READY: ErrorKind.NOT_READY,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: ErrorKind.NOT_FOUND,
}

_ACTIVATION = {
    pynvml.NVML_SUCCESS: ActivationStatus.SUCCESS,
    pynvml.NVML_ERROR_IN_USE: ActivationStatus.IN_USE,
    pynvml.NVML_ERROR_RESET_REQUIRED: ActivationStatus.RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_SUPPORTED: ActivationStatus.NOT_SUPPORTED,
}

# What a driver answers for a query that it does not have for this GPU.
_ABSENT = frozenset({ErrorKind.NOT_SUPPORTED, ErrorKind.INVALID_ARGUMENT})

_NO_GI_PROFILE = 0xFFFFFFFF  # nvml.h, nvmlVgpuTypeGetGpuInstanceProfileId: the type is time-sliced
_PCI_DEVICE_MAX_INSTANCES = 64


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

    # ------------------------------------------------------------------ session

    def close_session(self) -> None:
        self._handle = None
        self._profiles = self._types = None
        if self._open:
            self._open = False
            with self._explained("shut NVML down"):
                pynvml.nvmlShutdown()

    def _device(self) -> Any:
        if not self._open:
            with self._explained("start NVML"):
                pynvml.nvmlInit()
            self._open = True
        if self._handle is None:
            # NVML writes PCI domains with eight digits.
            address = f"{self._pf.domain:08x}:{str(self._pf).split(':', 1)[1]}"
            with self._explained("find the GPU in NVML"):
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
        return self._handle

    @contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except pynvml.NVMLError as err:
            raise HardwareError(_kind(err), operation, target=self._pf, detail=str(err)) from err

    def _ask(self, operation: str, call: Callable[..., _T], *arguments: Any) -> _T:
        with self._explained(operation):
            return call(*arguments)

    def _optional(self, operation: str, call: Callable[..., _T], *arguments: Any) -> _T | None:
        """None where the driver does not have it; every other error is an error."""
        try:
            return self._ask(operation, call, *arguments)
        except HardwareError as err:
            if err.kind in _ABSENT:
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
        wanted = (
            pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED,
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        )
        values = self._optional(
            "read field values", pynvml.nvmlDeviceGetFieldValues, gpu, list(wanted)
        )
        numbers = [
            _field_number(value) if value.nvmlReturn == pynvml.NVML_SUCCESS else None
            for value in (values or ())
        ]
        resetless, recovery = numbers if len(numbers) == len(wanted) else (None, None)
        known = {action.value for action in RecoveryAction}
        return (
            None if resetless is None else bool(resetless),
            RecoveryAction(recovery) if recovery in known else None,
        )

    def _active_vgpus(self, gpu: Any) -> tuple[ActiveVgpu, ...]:
        active = self._optional("list active vGPUs", pynvml.nvmlDeviceGetActiveVgpus, gpu) or []
        found = []
        for vgpu in active:
            vm_id, _ = self._ask("read a VM's id", pynvml.nvmlVgpuInstanceGetVmID, vgpu)
            type_id = self._ask("read a vGPU's type", pynvml.nvmlVgpuInstanceGetType, vgpu)
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
            found = (
                self._profile(gpu, number)
                for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
            )
            self._profiles = tuple(profile for profile in found if profile is not None)
        return self._profiles

    def _profile(self, gpu: Any, number: int) -> GiProfile | None:
        """``number`` is NVML's enum and not the profile id."""
        info = self._optional(
            "read a GPU instance profile",
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo,
            gpu,
            number,
        )
        if info is None:
            return None
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
        computes = self._compute_instances(gpu)
        found = []
        for profile in self.gi_profiles():
            for handle in self._instance_handles(gpu, profile):
                info = self._ask("read a GPU instance", pynvml.nvmlGpuInstanceGetInfo, handle)
                mixed = self._optional(
                    "read a GPU instance's mixed-size mode",
                    pynvml.nvmlGpuInstanceGetVgpuHeterogeneousMode,
                    handle,
                )
                found.append(
                    GpuInstance(
                        gi_id=info.id,
                        gi_profile_id=info.profileId,
                        placement=Placement(info.placement.start, info.placement.size),
                        compute_instances=computes.count(info.id),
                        mixed_size=None if mixed is None else bool(mixed),
                    )
                )
        return tuple(sorted(found, key=lambda gi: gi.gi_id))

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

    def _compute_instances(self, gpu: Any) -> list[int]:
        """The GPU instance id of every compute instance: each one is a MIG device."""
        most = self._optional("count MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0
        found = []
        for index in range(min(most, _PCI_DEVICE_MAX_INSTANCES)):
            try:
                device = self._ask(
                    "find a MIG device", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index
                )
            except HardwareError as err:
                if err.kind is ErrorKind.NOT_FOUND or err.kind in _ABSENT:
                    continue
                raise
            gi_id = self._ask("read a MIG device", pynvml.nvmlDeviceGetGpuInstanceId, device)
            found.append(int(gi_id))
        return found

    def vgpu_types(self) -> tuple[VgpuType, ...]:
        if self._types is None:
            gpu = self._device()
            ids = self._optional("list vGPU types", pynvml.nvmlDeviceGetSupportedVgpus, gpu) or []
            self._types = tuple(self._type(gpu, int(type_id)) for type_id in ids)
        return self._types

    def _type(self, gpu: Any, type_id: int) -> VgpuType:
        ask, optional, what = self._ask, self._optional, f"read vGPU type {type_id}"
        profile = optional(what, pynvml.nvmlVgpuTypeGetGpuInstanceProfileId, type_id)
        per_gi = optional(what, pynvml.nvmlVgpuTypeGetMaxInstancesPerGpuInstance, type_id)
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
        self._handle = None
        self._profiles = self._types = None
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
        handle = self._instance(gi_id, what)
        for compute in self._computes_of(handle):
            self._ask("destroy a compute instance", pynvml.nvmlComputeInstanceDestroy, compute)
        self._ask(what, pynvml.nvmlGpuInstanceDestroy, handle)

    def create_compute_instance(self, gi_id: int) -> None:
        what = "create a compute instance"
        handle = self._instance(gi_id, what)
        whole = max(self._compute_profiles(handle), key=lambda info: int(info.sliceCount))
        self._ask(what, pynvml.nvmlGpuInstanceCreateComputeInstance, handle, whole.id)

    def set_mixed_size(self, *, enabled: bool, gi_id: int | None) -> None:
        what = "set mixed-size mode"
        if gi_id is None:
            call = pynvml.nvmlDeviceSetVgpuHeterogeneousMode
            self._ask(what, call, self._device(), int(enabled))
        else:
            call = pynvml.nvmlGpuInstanceSetVgpuHeterogeneousMode
            self._ask(what, call, self._instance(gi_id, what), int(enabled))

    def _instance(self, gi_id: int, what: str) -> Any:
        return self._ask(what, pynvml.nvmlDeviceGetGpuInstanceById, self._device(), gi_id)

    def _compute_profiles(self, handle: Any) -> list[Any]:
        """Profiles of compute instances that this GPU instance offers."""
        found = []
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._optional(
                "read a compute instance profile",
                pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                handle,
                number,
                pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
            if info is not None:
                found.append(info)
        if not found:
            operation = "read the compute instance profiles"
            raise HardwareError(ErrorKind.NOT_SUPPORTED, operation, target=self._pf)
        return found

    def _computes_of(self, handle: Any) -> list[Any]:
        computes: list[Any] = []
        for info in self._compute_profiles(handle):
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
            computes += handles[: count.value]
        return computes


def _kind(err: Any) -> ErrorKind:
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
