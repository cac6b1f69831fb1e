"""The nouns: addresses, what a GPU is to be, what it is, a step between the two, and its outcome.

Everything here is frozen data. Nothing here reads or writes anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from gpu_bootstate.reasons import Condition, Finding

# --------------------------------------------------------------------------- addresses


BDF = re.compile(
    r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<dev>[0-9a-f]{2})(?:\.(?P<fn>[0-7]))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, order=True)
class Bdf:
    """A PCI address, shown the way sysfs shows it (``0000:17:00.0``).

    NVML and nvidia-smi print the domain with eight digits, sysfs with four or more; both are
    the same address (host-interfaces.md section 1.1).
    """

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Bdf:
        """Read any of the usual spellings. Raises ValueError when it is none of them."""
        match = BDF.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a PCI address like 0000:17:00.0")
        device = int(match["dev"], 16)
        if device > 0x1F:
            raise ValueError(f"{text!r} has a PCI device number above 1f")
        return cls(
            int(match["domain"] or "0", 16), int(match["bus"], 16), device, int(match["fn"] or "0")
        )

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """Where a GPU instance sits: memory slices from ``start``, ``size`` of them."""

    start: int
    size: int

    def __str__(self) -> str:
        return f"{{{self.start}}}:{self.size}"

    def overlaps(self, other: Placement) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file the user wrote; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


# --------------------------------------------------------------------------- desired


class Mode(Enum):
    """What a GPU is used as. ``none`` and ``passthrough`` both mean bare: no MIG, no VFs."""

    VGPU = "vgpu"
    PASSTHROUGH = "passthrough"
    NONE = "none"


class OnMissing(Enum):
    FAIL = "fail"
    DEGRADE = "degrade"


class GatePolicy(Enum):
    ALL = "all"
    ANY = "any"


class RebootPolicy(Enum):
    """Whether the node may be rebooted for what only a reboot cures."""

    NEVER = "never"
    ONCE = "once"  # for each configuration


class OnConflict(Enum):
    WARN = "warn"
    REFUSE = "refuse"


class MatchKind(Enum):
    PCI = "pci"
    UUID = "uuid"
    SERIAL = "serial"
    DEVICE = "device"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class MatchItem:
    """One way of naming GPUs. ``value`` is a Bdf (pci), a str (uuid, serial) or an int."""

    kind: MatchKind
    value: Bdf | str | int
    mark: Mark
    subsystem: int | None = None  # device only: PCI subsystem device id
    count: int | None = None  # device only: how many cards there must be


@dataclass(frozen=True, slots=True)
class MigRequest:
    """``count`` GPU instances of a profile; ``starts`` pins them (empty: the solver chooses)."""

    profile: str
    count: int
    starts: tuple[int, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class VgpuRequest:
    """``count`` vGPUs of a type; ``vf_indexes`` pins them (empty: next free VFs in order)."""

    type_name: str
    count: int
    vf_indexes: tuple[int, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Profile:
    """A named geometry. ``mig`` None means: derive the instances from the vGPU types."""

    name: str
    mode: Mode
    mig: tuple[MigRequest, ...] | None
    vgpus: tuple[VgpuRequest, ...]
    mixed_size: bool
    compute_instances: bool
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of ``gpus:``: which GPUs, and what they are to be. ``path`` is ``gpus[0]``."""

    match: tuple[MatchItem, ...]
    profile: Profile
    on_missing: OnMissing
    mark: Mark
    path: str


@dataclass(frozen=True, slots=True)
class Policy:
    """How to act. All times are seconds."""

    deadline_s: float = 480.0  # the whole run
    manager_wait_s: float = 90.0  # vGPU manager, Fabric Manager, driver coming up
    vf_wait_s: float = 60.0  # a VF's nvidia/ directory after its PF has VFs
    tool_s: float = 120.0  # one call of sriov-manage
    reset_s: float = 60.0  # one GPU reset
    call_s: float = 30.0  # one NVML call or sysfs write that changes something
    read_s: float = 60.0  # one read; opening a GPU that nobody holds open takes seconds
    attempts: int = 4  # tries of a step that fails for a transient reason
    backoff_s: float = 1.0  # first pause between tries; doubles
    backoff_max_s: float = 8.0
    parallel: int = 8  # GPUs at once within a phase
    stop_units: tuple[str, ...] = ()  # holders that may be stopped; empty: refuse
    on_conflict: OnConflict = OnConflict.WARN  # other software acting on the same GPUs
    gate: GatePolicy = GatePolicy.ALL
    allow_fewer_vfs: bool = False
    reboot: RebootPolicy = RebootPolicy.NEVER
    sriov_manage: str = "/usr/lib/nvidia/sriov-manage"


@dataclass(frozen=True, slots=True)
class GateFile:
    """A file that a consumer waits for; written when the gate opens, removed when it closes."""

    path: str
    content: str
    mark: Mark


# A label of another tool that says pending, success or failed, and the one that switches that tool
# on. No others have these three words (operator-path.md 1.6, 5.6).
STATE_LABELS = {
    "nvidia.com/vgpu.config.state": "nvidia.com/gpu.deploy.vgpu-device-manager",
    "nvidia.com/mig.config.state": "nvidia.com/gpu.deploy.mig-manager",
}


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """What `publish` tells the cluster. None of it decides anything on the node."""

    publish: bool = False  # labels, annotation, Condition and Events through the API server
    features: bool = False  # a feature file for node-feature-discovery
    kubeconfig: str | None = None  # None: the kubelet's
    node_name: str | None = None  # None: the kubelet's
    state_label: str | None = None  # another tool's label that says pending, success or failed
    operands: tuple[str, ...] = ()  # of the GPU Operator: held back while the gate is closed
    restart: tuple[str, ...] = ()  # label selectors of pods that read the vGPUs once, at start


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The parsed configuration. ``digest`` changes with every change of what the node is to be."""

    entries: tuple[Entry, ...]
    policy: Policy
    gate_files: tuple[GateFile, ...]
    kubernetes: Kubernetes
    sources: tuple[str, ...]  # the files read, in order of precedence
    digest: str


# --------------------------------------------------------------------------- observed


PF_DRIVER = "nvidia"
STUB_DRIVER = "pci-pf-stub"  # where sriov-manage parks a PF while it enables VFs


@dataclass(frozen=True, slots=True)
class Card:
    """Which card it was, wherever it sits: what tells a card that moved from one replaced."""

    uuid: str | None
    serial: str | None


class Framework(Enum):
    """How the kernel offers vGPUs on a VF (host-interfaces.md sections 2 and 3)."""

    VENDOR_VFIO = "vendor-vfio"
    MDEV = "mdev"


class HostVgpuMode(Enum):
    """NVML GetHostVgpuMode. Only SRIOV gets VFs: a T4 shows VFs and is NON_SRIOV."""

    NON_SRIOV = "non-sriov"
    SRIOV = "sriov"


class RecoveryAction(Enum):
    """NVML field 230: what the driver itself says the GPU needs."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class HolderKind(Enum):
    VM = "vm"  # has a VF's vfio device or an mdev open
    COMPUTE = "compute"  # a compute process by NVML's list or by an open nvidia-uvm
    INSTANCE = "instance"  # has a MIG capability node open
    CLIENT = "client"  # has only /dev/nvidiaN open: persistenced, DCGM, nvidia-smi, ...


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has one of a GPU's device nodes open."""

    pid: int
    name: str  # comm
    command: str  # whole command line, arguments joined by blanks
    kind: HolderKind
    device: str  # the device node, or what told us
    unit: str | None = None  # systemd unit from the cgroup
    vf: Bdf | None = None
    gi_id: int | None = None
    vm: str | None = None  # guest name, where the command line tells

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid}"
        if self.unit:
            who += f", {self.unit}"
        who += ")"
        if self.vm:
            who = f"VM {self.vm}: " + who
        return who


@dataclass(frozen=True, slots=True)
class PciFunction:
    """An NVIDIA display PF as sysfs shows it, whether or not NVML can see it."""

    bdf: Bdf
    device_id: int
    subsystem_id: int  # PCI subsystem device id
    driver: str | None  # name of the bound driver; None when unbound
    driver_override: str | None
    sriov_totalvfs: int  # 0: no SR-IOV capability
    sriov_numvfs: int
    unbind_lock: bool | None  # None: no such file, hence no vGPU host driver on this GPU


@dataclass(frozen=True, slots=True)
class Vf:
    """A VF of a PF. ``index`` is the N of virtfnN and the only right sort key."""

    index: int
    bdf: Bdf
    driver: str | None
    framework: Framework | None  # None: no vGPU interface (yet) on this VF
    vgpu_type_id: int | None  # 0: none; None: not readable
    gi_id: int | None = None  # of the vGPU on it
    mdev_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class MigMode:
    """None means the driver did not say; it never means off."""

    current: bool | None
    pending: bool | None

    @property
    def is_pending(self) -> bool:
        return self.current != self.pending


@dataclass(frozen=True, slots=True)
class GiProfile:
    """A GPU instance profile of one GPU. ``name`` is without ``MIG ``: ``1g.18gb+me``."""

    gi_profile_id: int
    name: str
    slice_count: int
    max_instances: int
    memory_mib: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class GpuInstance:
    gi_id: int
    gi_profile_id: int
    placement: Placement
    compute_instances: int = 0
    mixed_size: bool | None = None  # heterogeneous mode of this instance; None: unsupported


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A vGPU type that the driver supports on one GPU. ``name`` is as the driver gives it."""

    vgpu_type_id: int
    name: str
    framebuffer_mib: int
    max_per_gpu: int
    max_per_gi: int  # 0 for time-sliced types
    gi_profile_id: int | None  # None: time-sliced, needs MIG off


@dataclass(frozen=True, slots=True)
class ActiveVgpu:
    """A vGPU of a running VM, from NVML GetActiveVgpus."""

    vm_id: str
    vgpu_type_id: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What NVML says of one GPU, in one read. None: the driver does not say."""

    nvml_index: int
    uuid: str
    serial: str | None
    name: str
    mig: MigMode | None  # None: no MIG on this part
    resetless_mig: bool | None  # NVML field 184
    recovery_action: RecoveryAction | None  # NVML field 230
    host_vgpu_host: bool  # NVML virtualization mode is HOST_VGPU
    host_vgpu_mode: HostVgpuMode | None
    persistence: bool | None
    mixed_size: bool | None  # heterogeneous mode of the whole GPU; None: unsupported or MIG on
    active_vgpus: tuple[ActiveVgpu, ...] = ()


@dataclass(frozen=True, slots=True)
class ObservedGpu:
    """One PF and everything known of it. ``facts`` None: NVML cannot see or read it."""

    pci: PciFunction
    facts: GpuFacts | None
    gi_profiles: tuple[GiProfile, ...] = ()
    gpu_instances: tuple[GpuInstance, ...] = ()
    vgpu_types: tuple[VgpuType, ...] = ()
    vfs: tuple[Vf, ...] = ()
    holders: tuple[Holder, ...] = ()
    findings: tuple[Finding, ...] = ()  # reads that failed, and why

    @property
    def pf(self) -> Bdf:
        return self.pci.bdf

    @property
    def framework(self) -> Framework | None:
        return next((vf.framework for vf in self.vfs if vf.framework), None)

    @property
    def is_vgpu_host(self) -> bool:
        """True where a vGPU host driver runs this GPU.

        unbindLock exists only under such a driver; NVML says it too where the GPU is visible
        (host-interfaces.md sections 1.3 and 8).
        """
        return self.pci.unbind_lock is not None or bool(self.facts and self.facts.host_vgpu_host)


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says of a unit (`systemctl show`)."""

    name: str
    exists: bool
    active_state: str  # active, inactive, failed, activating, ...
    sub_state: str
    result: str  # success, exit-code, ...
    exit_status: int  # ExecMainStatus
    ran: bool  # has been started at least once in this boot

    @property
    def is_active(self) -> bool:
        return self.active_state == "active"


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """The kernel module and the library. ``problem`` None: NVML answers."""

    module_version: str | None  # None: module not loaded
    library_version: str | None
    problem: Finding | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Other software that changes the same GPUs: a unit, a process, a mount."""

    kind: str  # "unit", "process", "container driver"
    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A kernel log line of this boot. ``time_s`` is on the clock of Hardware.now()."""

    time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class ObservedNode:
    boot_id: str
    driver: DriverInfo
    vgpud: UnitState
    vgpu_mgr: UnitState
    fabric_manager: UnitState
    fabric_mode: int | None  # FABRIC_MODE of fabricmanager.cfg; None: no such file
    actors: tuple[Actor, ...]
    gpus: tuple[ObservedGpu, ...]  # sorted by BDF

    def gpu(self, pf: Bdf) -> ObservedGpu | None:
        return next((gpu for gpu in self.gpus if gpu.pf == pf), None)


# --------------------------------------------------------------------------- target


@dataclass(frozen=True, slots=True)
class InstanceTarget:
    gi_profile_id: int
    profile_name: str
    start: int | None  # None: any free placement


@dataclass(frozen=True, slots=True)
class VgpuTarget:
    vf_index: int
    vgpu_type_id: int
    type_name: str  # as the driver gives it
    gi_profile_id: int | None
    mdev_uuid: str  # used where the framework is mdev; stable for (PF, VF index, type)


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What one GPU is to be, names resolved against what that GPU offers."""

    pf: Bdf
    mode: Mode
    profile_name: str
    mig: bool
    instances: tuple[InstanceTarget, ...]
    vgpus: tuple[VgpuTarget, ...]  # by vf_index
    mixed_size: bool
    compute_instances: bool
    mark: Mark
    path: str


# --------------------------------------------------------------------------- plan


class Phase(Enum):
    """In the order that the hardware enforces."""

    PREFLIGHT = "preflight"
    REMOVALS = "removals"
    MIG_MODE = "mig-mode"
    VFS = "vfs"
    GPU_INSTANCES = "gpu-instances"
    VGPU_TYPES = "vgpu-types"
    GATE = "gate"


_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one GPU. ``why`` is a clause that completes "because ..."."""

    phase: ClassVar[Phase]
    exclusive: ClassVar[bool] = False  # needs every client off the GPU, ours included

    pf: Bdf
    why: str

    @property
    def action(self) -> str:
        """The kind of step, for machines: ``set-vgpu-type``."""
        return _WORD.sub("-", type(self).__name__).lower()

    @property
    def summary(self) -> str:
        """What is done, in the imperative, without the address of the PF."""
        raise NotImplementedError

    @property
    def before(self) -> str:
        """The precondition, checked again at the moment of acting."""
        raise NotImplementedError

    @property
    def after(self) -> str:
        """The postcondition, read back."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ReleaseUnbindLock(Step):
    phase = Phase.PREFLIGHT
    summary = "release the unbindLock that an earlier crash left"
    before = "unbindLock reads 1 and no sriov-manage runs"
    after = "unbindLock reads 0"


@dataclass(frozen=True, slots=True)
class BindDriver(Step):
    phase = Phase.PREFLIGHT
    before = "the PF has no driver or is on pci-pf-stub, and no VF of it is open"
    after = "the PF's driver is nvidia and NVML sees it"

    from_driver: str | None

    @property
    def summary(self) -> str:
        return f"bind the PF back to nvidia (now: {self.from_driver or 'no driver'})"


@dataclass(frozen=True, slots=True)
class LowerPersistence(Step):
    phase = Phase.REMOVALS
    summary = "lower persistence mode for the time of the change"
    before = "persistence mode is on"
    after = "persistence mode is off; it is restored at the end, also on failure"


@dataclass(frozen=True, slots=True)
class ClearVgpuType(Step):
    phase = Phase.REMOVALS
    before = "the VF has this type and no VM uses it"
    after = "the VF has no type"

    vf: Bdf
    vgpu_type_id: int
    type_name: str
    mdev_uuid: str | None

    @property
    def summary(self) -> str:
        return f"take vGPU type {self.type_name} off VF {self.vf}"


@dataclass(frozen=True, slots=True)
class DestroyGpuInstance(Step):
    phase = Phase.REMOVALS
    before = "the instance is there and nothing uses it"
    after = "the instance is gone, its siblings are not"

    gi_id: int
    profile_name: str
    placement: Placement

    @property
    def summary(self) -> str:
        return f"destroy GPU instance {self.gi_id} ({self.profile_name} at {self.placement})"


@dataclass(frozen=True, slots=True)
class DisableVfs(Step):
    phase = Phase.REMOVALS
    exclusive = True
    before = "no VF has a type or is open, and no client holds the GPU"
    after = "sriov_numvfs is 0 and the PF is bound to nvidia"

    vf_count: int

    @property
    def summary(self) -> str:
        return f"disable {self.vf_count} VFs (sriov-manage -d)"


@dataclass(frozen=True, slots=True)
class SetMigMode(Step):
    phase = Phase.MIG_MODE
    exclusive = True
    before = "VFs are off and no client holds the GPU"

    enabled: bool

    @property
    def summary(self) -> str:
        return f"set MIG mode {'on' if self.enabled else 'off'}"

    @property
    def after(self) -> str:
        return f"pending MIG mode is {'on' if self.enabled else 'off'}"


@dataclass(frozen=True, slots=True)
class ResetGpu(Step):
    """Skipped at the moment of acting when current and pending MIG mode already agree."""

    phase = Phase.MIG_MODE
    exclusive = True
    summary = "reset this GPU alone, only if its MIG mode is still pending"
    before = "MIG mode is pending, VFs are off, no client holds the GPU"
    after = "current and pending MIG mode agree"


@dataclass(frozen=True, slots=True)
class EnableVfs(Step):
    phase = Phase.VFS
    exclusive = True
    before = "VFs are off, no client holds the GPU, no card of this model is without a driver"

    vf_count: int  # sriov_totalvfs

    @property
    def summary(self) -> str:
        return f"enable {self.vf_count} VFs (sriov-manage -e)"

    @property
    def after(self) -> str:
        return f"sriov_numvfs is {self.vf_count} and every VF offers vGPU types"


@dataclass(frozen=True, slots=True)
class AwaitVfs(Step):
    """VFs are on, and some offer no vGPU types: late, or their registration failed. If they
    never do, they are switched off and on once, which registers them anew.
    """

    phase = Phase.VFS
    before = "VFs are on and some of them offer no vGPU types"

    vf_count: int

    @property
    def summary(self) -> str:
        return (
            f"wait until all {self.vf_count} VFs offer vGPU types; else switch them off and on once"
        )

    @property
    def after(self) -> str:
        return f"all {self.vf_count} VFs offer vGPU types"


@dataclass(frozen=True, slots=True)
class CreateGpuInstance(Step):
    phase = Phase.GPU_INSTANCES
    before = "MIG mode is on and the placement is free"

    gi_profile_id: int
    profile_name: str
    placement: Placement

    @property
    def summary(self) -> str:
        return f"create GPU instance {self.profile_name} at {self.placement}"

    @property
    def after(self) -> str:
        return f"an instance of profile {self.gi_profile_id} is at {self.placement}"


@dataclass(frozen=True, slots=True)
class CreateComputeInstance(Step):
    phase = Phase.GPU_INSTANCES
    before = "the GPU instance has no compute instance"
    after = "the GPU instance has one compute instance"

    placement: Placement  # of its GPU instance

    @property
    def summary(self) -> str:
        return f"create the compute instance of the GPU instance at {self.placement}"


@dataclass(frozen=True, slots=True)
class SetMixedSize(Step):
    """``gi_placement`` None: the mode of the whole GPU (MIG off)."""

    phase = Phase.VGPU_TYPES
    before = "VFs are on and no vGPU type is set where the mode is to change"

    enabled: bool
    gi_placement: Placement | None

    @property
    def summary(self) -> str:
        where = f" of the GPU instance at {self.gi_placement}" if self.gi_placement else ""
        return f"turn mixed-size mode{where} {'on' if self.enabled else 'off'}"

    @property
    def after(self) -> str:
        return f"mixed-size mode reads {'on' if self.enabled else 'off'}"


@dataclass(frozen=True, slots=True)
class SetVgpuType(Step):
    phase = Phase.VGPU_TYPES
    before = "the VF has no type and the type can be created on it"

    vf_index: int
    vgpu_type_id: int
    type_name: str
    gi_profile_id: int | None
    mdev_uuid: str

    @property
    def summary(self) -> str:
        return f"set vGPU type {self.type_name} on virtfn{self.vf_index}"

    @property
    def after(self) -> str:
        return f"virtfn{self.vf_index} has type {self.vgpu_type_id}"


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What is to be done on one GPU. With a ``refusal`` there are no steps."""

    pf: Bdf
    profile_name: str
    target: GpuTarget | None  # None: the GPU cannot be read, the refusal says why
    steps: tuple[Step, ...]
    refusal: Finding | None = None
    notes: tuple[Finding, ...] = ()  # said, and nothing done about

    def in_phase(self, phase: Phase) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.phase is phase)


@dataclass(frozen=True, slots=True)
class Plan:
    """All GPUs of the config. ``stop_units`` are stopped before and started again after."""

    gpus: tuple[GpuPlan, ...]
    stop_units: tuple[str, ...] = ()
    refusal: Finding | None = None  # of the whole node: nothing at all is done
    missing: tuple[Finding, ...] = ()  # GPUs named by the config with on-missing: degrade
    notes: tuple[Finding, ...] = ()
    unclaimed: tuple[Bdf, ...] = ()  # carved, but not in the config: left alone

    @property
    def is_empty(self) -> bool:
        return not any(gpu.steps for gpu in self.gpus)

    def gpu(self, pf: Bdf) -> GpuPlan | None:
        return next((gpu for gpu in self.gpus if gpu.pf == pf), None)


# --------------------------------------------------------------------------- outcome


class StepStatus(Enum):
    DONE = "done"
    SKIPPED = "skipped"  # its precondition was gone and so was the need for it
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepOutcome:
    step: Step
    status: StepStatus
    started_s: float  # on Hardware.now()
    duration_s: float
    attempts: int = 1
    finding: Finding | None = None  # why it failed, or what was met on the way


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    pf: Bdf
    profile_name: str
    condition: Condition
    findings: tuple[Finding, ...]  # the first is the cause when the condition is not converged
    steps: tuple[StepOutcome, ...]
    phase_s: tuple[tuple[Phase, float], ...]  # device time by phase
    stopped_in: Phase | None  # the phase that it did not get through


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What `apply` came to. ``gate_open`` is the node's gate when the run ended."""

    condition: Condition
    gpus: tuple[GpuOutcome, ...]
    findings: tuple[Finding, ...]  # of the node as a whole
    gate_open: bool
    started_s: float
    duration_s: float
    phase_s: tuple[tuple[Phase, float], ...]  # wall time by phase
    units_stopped: tuple[str, ...] = field(default=())
    unclaimed: tuple[Bdf, ...] = field(default=())
