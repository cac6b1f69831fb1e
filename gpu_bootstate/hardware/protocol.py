"""Everything outside this program, as verbs without policy.

Two implementations: `hardware.real` (NVML, sysfs, vendor tools, systemd, /proc) and the simulated
node. Code above never asks which one it has.

Rules for every implementation:

* Every call is bounded in time: reads by ``CallLimits.read_s``, changes by ``CallLimits.call_s``
  or by the ``timeout_s`` argument. A call that does not come back raises HardwareError with
  ErrorKind.HUNG; after that, every further call that enters the driver for that PF raises the
  same at once.
* Calls for different PFs may be made from different threads at the same time.
* An NVML session of our own is a client of the GPU (of every GPU: nvmlInit attaches them all,
  measured on 580.159.04). ``set_mig_mode``, ``sriov_manage``, ``reset_gpu`` and ``bind_driver``
  end all our sessions first and let no other open while they run; handles die with them, and
  callers hold none.
* A write that returns has been accepted, which proves nothing. The caller reads back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

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

_MESSAGE_LENGTH = 300


class ErrorKind(Enum):
    """What kind of failure, whatever reported it (NVML code, errno, exit status)."""

    NOT_SUPPORTED = "not supported"
    NO_PERMISSION = "no permission"
    IN_USE = "in use"
    INSUFFICIENT_RESOURCES = "insufficient resources"
    INVALID_ARGUMENT = "invalid argument"
    NOT_FOUND = "not found"
    GPU_LOST = "GPU is lost"
    RESET_REQUIRED = "reset required"
    NOT_READY = "not ready"  # driver not loaded, NVML uninitialised: may come
    VERSION_MISMATCH = "driver/library version mismatch"
    IO = "I/O error"  # errno of a sysfs or procfs access
    TOOL_MISSING = "tool missing"
    HUNG = "no answer in time"
    UNKNOWN = "unknown error"


class HardwareError(Exception):
    """A call that failed. Carries facts; sentences are made in `reasons`."""

    def __init__(
        self,
        kind: ErrorKind,
        operation: str,
        *,
        target: Bdf | None = None,
        detail: str = "",
        errno: int | None = None,
        waited_s: float | None = None,
    ) -> None:
        super().__init__(f"{operation}: {detail or kind.value}")
        self.kind = kind
        self.operation = operation
        self.target = target
        self.detail = detail or kind.value
        self.errno = errno
        self.waited_s = waited_s


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Seconds that a single call may take before it counts as hung."""

    read_s: float = 60.0
    call_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A vendor tool that was run to its end, or stopped at its limit."""

    command: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False

    @property
    def text(self) -> str:
        """What it printed, errors first, on one line and not too long for a message."""
        words = " ".join((self.stderr + " " + self.stdout).split())
        return words if len(words) <= _MESSAGE_LENGTH else words[:_MESSAGE_LENGTH] + " ..."


class ActivationStatus(Enum):
    """What nvmlDeviceSetMigMode reports beside its return code; pynvml does not raise it.

    Source: nvml.h, nvmlDeviceSetMigMode (host-interfaces.md section 5.2).
    """

    SUCCESS = "success"
    IN_USE = "in use by another client"
    RESET_REQUIRED = "reset required"
    NOT_SUPPORTED = "not supported"
    OTHER = "other"


class Hardware(Protocol):
    # ------------------------------------------------------------------ time
    def now(self) -> float:
        """Seconds on a clock that only goes forward (CLOCK_MONOTONIC)."""

    def wall_time(self) -> float:
        """Seconds since the epoch, for people; never used for deadlines."""

    def sleep(self, seconds: float) -> None: ...

    def wait_for_event(self, timeout_s: float) -> None:
        """Return when the kernel announces a device change, or after ``timeout_s``."""

    def cancel_waits(self) -> None:
        """End every sleep, wait and running tool soon; safe to call from a signal handler."""

    # ------------------------------------------------------------------ the node
    def boot_id(self) -> str: ...

    def driver_info(self) -> DriverInfo: ...

    def kernel_log(self) -> tuple[KernelLine, ...]:
        """Lines of this boot from NVRM, nvidia and PCI SR-IOV, oldest first."""

    def fabric_mode(self) -> int | None:
        """FABRIC_MODE of fabricmanager.cfg, None where there is no such file."""

    def actors(self) -> tuple[Actor, ...]:
        """Other software that changes vGPU state: units, running tools, container drivers."""

    def unit_state(self, unit: str) -> UnitState: ...

    def stop_unit(self, unit: str) -> None:
        """Queue a stop and return; never blocks on the job. The caller polls unit_state."""

    def start_unit(self, unit: str) -> None:
        """Queue a start and return; the unit may be ordered after us, so nobody waits for it."""

    def reload_unit(self, unit: str) -> None:
        """Queue a reload, or a start where it is not active; does not wait for it."""

    def reboot(self) -> None:
        """Ask systemd for an orderly reboot of the node and return."""

    # ------------------------------------------------------------------ the bus
    def pfs(self) -> tuple[PciFunction, ...]:
        """All NVIDIA display PFs from sysfs, whatever driver they are on, sorted by BDF."""

    def pf(self, pf: Bdf) -> PciFunction:
        """One of them, read again. NOT_FOUND when it left the bus."""

    def vfs(self, pf: Bdf) -> tuple[Vf, ...]:
        """The VFs of a PF by index, with driver, framework, type and GPU instance."""

    def creatable_vgpu_types(self, vf: Bdf) -> tuple[int, ...]:
        """Type ids that this VF accepts now; shrinks as the GPU fills."""

    def holders(self, pf: Bdf) -> tuple[Holder, ...]:
        """Processes with a device node of this GPU, its VFs or its MIG instances open.

        Never names this process or its children.
        """

    # ------------------------------------------------------------------ NVML reads
    def facts(self, pf: Bdf) -> GpuFacts:
        """NOT_FOUND when NVML does not list the GPU; NOT_READY while the driver starts."""

    def gi_profiles(self, pf: Bdf) -> tuple[GiProfile, ...]:
        """Empty where the part has no MIG. Works with MIG off."""

    def gpu_instances(self, pf: Bdf) -> tuple[GpuInstance, ...]:
        """By gi_id; empty while MIG is off."""

    def vgpu_types(self, pf: Bdf) -> tuple[VgpuType, ...]:
        """All types that the driver supports on the GPU (static); empty off a vGPU host."""

    # ------------------------------------------------------------------ changes
    def set_persistence(self, pf: Bdf, *, enabled: bool) -> None: ...

    def set_mig_mode(self, pf: Bdf, *, enabled: bool) -> ActivationStatus: ...

    def reset_gpu(self, pf: Bdf, *, timeout_s: float) -> ToolResult:
        """`nvidia-smi --gpu-reset -i <pf>`, this GPU alone."""

    def sriov_manage(self, pf: Bdf, *, enable: bool, timeout_s: float) -> ToolResult:
        """The vendor tool, ``-e`` or ``-d``. TOOL_MISSING when it cannot be started."""

    def bind_driver(self, pf: Bdf) -> None:
        """Take the PF off pci-pf-stub if it is there, and bind it to nvidia."""

    def release_unbind_lock(self, pf: Bdf) -> None: ...

    def create_gpu_instance(self, pf: Bdf, gi_profile_id: int, placement: Placement) -> int:
        """Returns the gi_id that the driver gave."""

    def destroy_gpu_instance(self, pf: Bdf, gi_id: int) -> None:
        """Destroys the instance's idle compute instances too. IN_USE when one has a client."""

    def create_compute_instance(self, pf: Bdf, gi_id: int) -> None:
        """One compute instance over the whole GPU instance."""

    def set_mixed_size(self, pf: Bdf, *, enabled: bool, gi_id: int | None) -> None:
        """Heterogeneous mode of the GPU, or of one GPU instance."""

    def set_vgpu_type(self, vf: Bdf, vgpu_type_id: int, *, mdev_uuid: str | None) -> None:
        """Write the type (0: none). Where the VF's framework is mdev: create the mdev with
        ``mdev_uuid``, or remove it. Not idempotent on hardware: clear a set type first."""

    def close(self) -> None:
        """End sessions and helpers. Nothing may be called afterwards."""
