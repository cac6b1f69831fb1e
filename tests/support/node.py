"""Simulated nodes built by sentence, and whole commands run on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import NAMESPACE_OID, uuid5

from gpu_bootstate.cli.apply import Run
from gpu_bootstate.cli.look import View, look
from gpu_bootstate.config import parse
from gpu_bootstate.model import Bdf, DesiredState, HolderKind
from gpu_bootstate.paths import Paths
from gpu_bootstate.progress import Silent
from gpu_bootstate.reasons import Finding
from gpu_bootstate.simulator.faults import parse_fault
from gpu_bootstate.simulator.hardware import SimHardware
from gpu_bootstate.simulator.node import VGPU_MGR, SimNode, new_node
from gpu_bootstate.simulator.state import (
    NEVER,
    ActorState,
    Call,
    GpuState,
    HolderState,
    SimUnit,
    UnitChange,
)

Moment: TypeAlias = "str | tuple[str, int]"  # a verb, or a PF and how many calls on it


@dataclass
class Listened(Silent):
    """Keeps what was said."""

    findings: list[Finding] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def said(self, finding: Finding) -> None:
        self.findings.append(finding)

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        self.waits.append(what)


class Watched(SimHardware):
    """Notes every change that is made while the node's gate is open."""

    def __init__(
        self, node: SimNode, paths: Paths, events: dict[Moment, Callable[[], object]]
    ) -> None:
        super().__init__(node)
        self._gate = paths.ready
        self._events = events
        self.under_an_open_gate: list[Call] = []

    def _note(self, call: Call) -> None:
        if self._gate.exists():
            self.under_an_open_gate.append(call)
        super()._note(call)
        of_target = sum(each.target == call.target for each in self.calls)
        for when in (call.verb, (call.target, of_target)):
            event = self._events.pop(when, None)
            if event is not None:
                event()


class Node:
    """A simulated node, its files, and the calls that were made to it."""

    def __init__(self, board: str, directory: Path) -> None:
        self.sim = new_node(board)
        self.paths = Paths(directory)
        self.calls: list[Call] = []
        self.said: list[Finding] = []
        self.waits: list[str] = []
        self.under_an_open_gate: list[Call] = []
        self._events: dict[Moment, Callable[[], object]] = {}

    def after(self, call: Moment, event: Callable[[], object]) -> Node:
        """Something happens to the node right after the first call of this verb, or the n-th on
        this GPU.
        """
        self._events[call] = event
        return self

    # ------------------------------------------------------------------ how it is

    def gpu(self, pf: str) -> GpuState:
        return next(gpu for gpu in self.sim.state.gpus if gpu.bdf == pf)

    def gpus(self) -> list[GpuState]:
        return self.sim.state.gpus

    def with_mig(self, *pfs: str, current: bool = True, pending: bool = True) -> Node:
        for pf in pfs:
            self.gpu(pf).mig_current, self.gpu(pf).mig_pending = current, pending
        return self

    def with_vfs(self, pf: str, count: int | None = None) -> Node:
        gpu = self.gpu(pf)
        total = self.sim.board_of(gpu).sriov_totalvfs
        self.sim.make_vfs(gpu, total if count is None else count, ready_at=0.0)
        return self

    def with_instances(self, pf: str, *layout: tuple[str, int]) -> Node:
        gpu = self.gpu(pf)
        named = {p.name: p for p in self.sim.profiles(gpu)}
        for name, start in layout:
            profile = named[name]
            place = next(p for p in profile.placements if p.start == start)
            self.sim.create_instance(gpu, profile.gi_profile_id, place)
        return self

    def with_types(self, pf: str, types: Mapping[int, str]) -> Node:
        gpu = self.gpu(pf)
        ids = {t.name.split()[-1]: t.vgpu_type_id for t in self.sim.types(gpu)}
        now = self.sim.state.clock_s
        for index, name in types.items():
            vf = gpu.vfs[index].bdf
            self.sim.set_type(Bdf.parse(vf), ids[name], str(uuid5(NAMESPACE_OID, vf)), now)
        return self

    def with_vm(self, pf: str, vf_index: int, name: str = "db-1") -> Node:
        vf = self.gpu(pf).vfs[vf_index]
        return self._holder(
            pf,
            name="qemu-system-x86",
            kind=HolderKind.VM,
            device="/dev/vfio/devices/vfio3",
            vf=vf.bdf,
            vm=name,
        )

    def with_unseen_vm(self, pf: str, vf_index: int, name: str = "vm-uuid") -> Node:
        """NVML knows of it; its process is in another namespace."""
        vf = self.gpu(pf).vfs[vf_index]
        device = "/dev/vfio/devices/vfio3"
        more = {"vf": vf.bdf, "vm": name, "hidden": True}
        return self._holder(pf, name="qemu", kind=HolderKind.VM, device=device, **more)

    def with_compute(self, pf: str, name: str = "python3") -> Node:
        return self._holder(pf, name=name, kind=HolderKind.COMPUTE, device="/dev/nvidia-uvm")

    def with_client(
        self, pf: str, name: str, unit: str | None = None, *, seconds: float = NEVER
    ) -> Node:
        until = seconds if seconds == NEVER else self.sim.state.clock_s + seconds
        return self._holder(
            pf, name=name, kind=HolderKind.CLIENT, device="/dev/nvidia0", unit=unit, until=until
        )

    def with_hidden_client(self, pf: str, *, seconds: float = NEVER) -> Node:
        """It opens and closes the GPU all the time, so that nobody sees it in /proc."""
        until = seconds if seconds == NEVER else self.sim.state.clock_s + seconds
        return self._holder(
            pf,
            name="dcgm-exporter",
            kind=HolderKind.CLIENT,
            device="/dev/nvidia0",
            until=until,
            hidden=True,
        )

    def with_instance_holder(self, pf: str, gi_id: int, name: str = "mig-watch") -> Node:
        device = "/dev/nvidia-caps/nvidia-cap30"
        return self._holder(pf, name=name, kind=HolderKind.INSTANCE, device=device, gi_id=gi_id)

    def _holder(self, pf: str, *, name: str, kind: HolderKind, device: str, **more: Any) -> Node:
        pid = 4127 + len(self.gpu(pf).holders)
        holder = HolderState(pid, name, f"/usr/bin/{name}", kind.value, device, **more)
        self.gpu(pf).holders.append(holder)
        return self

    def without_holders(self, pf: str) -> Node:
        self.gpu(pf).holders.clear()
        return self

    def without_persistence(self) -> Node:
        for gpu in self.gpus():
            gpu.persistence = False
        return self

    def stranded(self, pf: str, driver: str | None) -> Node:
        self.gpu(pf).driver = driver
        return self

    def removed(self, pf: str) -> Node:
        self.gpu(pf).off_bus = True
        return self

    def replaced(self, pf: str) -> Node:
        """Another card of the same model in the same slot."""
        gpu = self.gpu(pf)
        gpu.uuid, gpu.serial = f"GPU-{uuid5(NAMESPACE_OID, 'new ' + pf)}", "1699999999999"
        return self

    def with_unit(self, name: str, active_state: str, *changes: tuple[float, str]) -> Node:
        """``changes``: (seconds from now, state)."""
        now = self.sim.state.clock_s
        planned = [UnitChange(now + after, state) for after, state in changes]
        ran = active_state == "active"
        self.sim.state.units[name] = SimUnit(active_state, ran=ran, changes=planned)
        return self

    def without_manager(self) -> Node:
        return self.with_unit(VGPU_MGR, "inactive")

    def with_actor(self, kind: str, name: str, detail: str, *, seconds: float = NEVER) -> Node:
        until = seconds if seconds == NEVER else self.sim.state.clock_s + seconds
        self.sim.state.actors.append(ActorState(kind, name, detail, until))
        return self

    def fault(self, text: str) -> Node:
        self.sim.state.faults.append(parse_fault(text))
        return self

    def without_faults(self) -> Node:
        self.sim.state.faults.clear()
        return self

    def reboot(self) -> Node:
        import shutil

        self.sim.reboot()
        shutil.rmtree(self.paths.run_dir, ignore_errors=True)
        return self

    # ------------------------------------------------------------------ what is done to it

    def apply(self, config: str | DesiredState) -> dict[str, Any]:
        """A whole run; returns what status.json has. ``calls`` then has this run's changes."""
        hw = Watched(self.sim, self.paths, self._events)
        listened = Listened()
        run = Run(self.paths, hw, _desired(config), listened)
        try:
            return run.whole()
        finally:
            self.calls = hw.calls
            self.under_an_open_gate = hw.under_an_open_gate
            self.said = listened.findings
            self.waits = listened.waits
            hw.close()

    def look(self, config: str | DesiredState) -> View:
        hw = SimHardware(self.sim)
        try:
            return look(hw, _desired(config), {})
        finally:
            self.calls = hw.calls
            hw.close()

    # ------------------------------------------------------------------ what it became

    def verbs(self, pf: str | None = None) -> list[str]:
        return [call.verb for call in self.calls if pf in (None, call.target)]

    def touched(self) -> set[str]:
        return {call.target for call in self.calls}

    def types(self, pf: str) -> dict[int, str]:
        """VF index -> short name of its type, VFs without one left out."""
        gpu = self.gpu(pf)
        names = {t.vgpu_type_id: t.name.split()[-1] for t in self.sim.types(gpu)}
        return {vf.index: names[vf.type_id] for vf in gpu.vfs if vf.type_id}

    def layout(self, pf: str) -> list[tuple[str, int]]:
        gpu = self.gpu(pf)
        names = {p.gi_profile_id: p.name for p in self.sim.profiles(gpu)}
        return sorted(
            ((names[gi.gi_profile_id], gi.start) for gi in gpu.instances), key=lambda each: each[1]
        )

    @property
    def ready(self) -> bool:
        return self.paths.ready.exists()

    def gpu_ready(self, pf: str) -> bool:
        return self.paths.gpu_gate(Bdf.parse(pf)).exists()


def _desired(config: str | DesiredState) -> DesiredState:
    return config if isinstance(config, DesiredState) else parse(config, "config.yaml")


def config(
    gpus: Mapping[str, str] | Sequence[tuple[str, str]], policy: str = "", gate: str = ""
) -> str:
    """A configuration: match (YAML flow mapping, or a PCI address) -> profile (flow mapping)."""
    items = gpus.items() if isinstance(gpus, Mapping) else gpus
    lines = ["version: v1", "gpus:"]
    for match, profile in items:
        where = match if match.startswith("{") else f'{{pci: "{match}"}}'
        lines += [f"  - match: {where}", f"    profile: {profile}"]
    if policy:
        lines.append(f"policy: {policy}")
    if gate:
        lines.append(f"gate: {gate}")
    return "\n".join(lines) + "\n"


NodeMaker = Callable[[str], Node]
