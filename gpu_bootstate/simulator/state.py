"""What a simulated node is at a moment: plain mutable data that goes to JSON and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

NEVER = 1e18  # a time that does not come; JSON has no infinity


@dataclass
class VfState:
    index: int
    bdf: str
    ready_at: float  # when its nvidia/ directory (or its mdev types) appears
    driver: str | None = "nvidia"
    type_id: int = 0
    gi_id: int | None = None
    mdev_uuid: str | None = None


@dataclass
class GiState:
    gi_id: int
    gi_profile_id: int
    start: int
    size: int
    compute_instances: int = 0
    mixed_size: bool = False


@dataclass
class HolderState:
    pid: int
    name: str
    command: str
    kind: str
    device: str
    unit: str | None = None
    vf: str | None = None
    gi_id: int | None = None
    vm: str | None = None
    until: float = NEVER
    hidden: bool = False  # blocks, but is not to be seen in /proc: it opens and closes all the time


@dataclass
class GpuState:
    bdf: str
    model: str
    uuid: str
    serial: str
    driver: str | None = "nvidia"
    driver_override: str | None = None
    mig_current: bool = False
    mig_pending: bool = False
    persistence: bool = True
    unbind_lock: bool = False
    mixed_size: bool = False
    recovery_action: int = 0
    lost: bool = False  # NVML: "GPU is lost"
    off_bus: bool = False
    registration_broken: bool = False  # VFs never offer types until they are off and on again
    vfs: list[VfState] = field(default_factory=list)
    instances: list[GiState] = field(default_factory=list)
    holders: list[HolderState] = field(default_factory=list)


@dataclass
class UnitChange:
    at: float
    active_state: str
    result: str = "success"


@dataclass
class SimUnit:
    active_state: str
    enabled: bool = True
    sub_state: str = "running"
    result: str = "success"
    ran: bool = True
    changes: list[UnitChange] = field(default_factory=list)


@dataclass
class ActorState:
    kind: str
    name: str
    detail: str
    until: float = NEVER


@dataclass
class LogState:
    at: float
    text: str


@dataclass
class ToolRun:
    """One run of sriov-manage, for the overlap that corrupts pci-pf-stub's list."""

    pf: str
    device_id: int
    start: float
    end: float


@dataclass
class FaultState:
    verb: str
    pf: str | None
    nth: int  # from this occurrence on
    times: int  # for so many
    effect: str
    seen: int = 0


@dataclass
class NodeState:
    board: str
    boot: int = 1
    boot_id: str = ""  # of this boot, where it is not simply numbered
    reboot_asked: bool = False  # in this boot
    clock_s: float = 20.0  # the kernel has been up for a moment
    pace: float = 0.0
    latency: str = "field"
    framework: str = "vendor-vfio"
    module_version: str | None = "580.159.04"
    library_version: str = "580.159.04"
    nvml_ready_at: float = 0.0
    type_id_shift: int = 0  # a driver upgrade renumbered the vGPU types
    fabric_mode: int | None = None
    nvswitch: bool = False
    vf_ready_s: float = 2.0
    gpus: list[GpuState] = field(default_factory=list)
    units: dict[str, SimUnit] = field(default_factory=dict)
    actors: list[ActorState] = field(default_factory=list)
    log: list[LogState] = field(default_factory=list)
    tool_runs: list[ToolRun] = field(default_factory=list)
    faults: list[FaultState] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changes something, as it was made; ``ok`` False when it raised."""

    time_s: float
    verb: str
    target: str
    arguments: str
    ok: bool


def to_json(state: NodeState) -> dict[str, Any]:
    return dataclasses.asdict(state)


def from_json(data: Any) -> NodeState:
    """Raises TypeError, KeyError or ValueError when the data is not such a state."""
    return _build(NodeState, data)


def _build(kind: type[_T], data: Any) -> _T:
    hints = typing.get_type_hints(kind)
    values = {name: _value(hints[name], value) for name, value in data.items()}
    return kind(**values)


def _value(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is types.UnionType or origin is typing.Union:
        return value
    if origin is list:
        return [_value(typing.get_args(hint)[0], item) for item in value]
    if origin is dict:
        return {key: _value(typing.get_args(hint)[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build(hint, value)  # type: ignore[arg-type]  # is_dataclass narrows too little
    return value
