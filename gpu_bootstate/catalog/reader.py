"""GPU models and nodes as data. Each board's file says where each of its values comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_bootstate.model import Bdf, GiProfile, Placement, VgpuType

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU model. ``resetless_mig`` None: it has no MIG.

    ``nvswitch`` says that the model is made for NVSwitch baseboards; whether a node has the
    switches is in its NodeSpec. ``sources`` pairs a group of values with where it comes from.
    """

    model: str
    name: str
    device_id: int
    subsystem_id: int
    architecture: str
    mig: bool
    resetless_mig: bool | None
    mig_mode_survives_reboot: bool
    host_vgpu_mode: str  # the value of a HostVgpuMode
    sriov_totalvfs: int
    vf_offset: int  # the first VF is the PF's devfn plus this
    nvswitch: bool
    framebuffer_mib: int
    gi_profiles: tuple[GiProfile, ...]
    vgpu_types: tuple[VgpuType, ...]
    sources: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Which models sit where."""

    name: str
    nvswitch: bool
    gpus: tuple[tuple[Bdf, Board], ...]


class UnknownBoard(ValueError):
    """No such model or node. ``nearest`` is the known name most like it, if one is like it."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        from difflib import get_close_matches  # only a wrong name needs it

        self.name = name
        self.known = tuple(known)
        self.nearest = next(iter(get_close_matches(name.lower()[:100], self.known, n=1)), None)
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        super().__init__(f"there is no board {name!r}{hint} (there are: {', '.join(self.known)})")


def models() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_HERE / "boards").glob("*.json")))


def node_names() -> tuple[str, ...]:
    return tuple(_nodes())


@cache
def node_spec(name: str) -> NodeSpec:
    """Raises UnknownBoard."""
    data = _nodes().get(name)
    if data is None:
        raise UnknownBoard(name, node_names())
    gpus = tuple(sorted((Bdf.parse(pf), board(model)) for pf, model in data["gpus"].items()))
    return NodeSpec(name, data["nvswitch"], gpus)


@cache
def board(model: str) -> Board:
    """Raises UnknownBoard for a model that has no file."""
    known = models()
    if model not in known:
        raise UnknownBoard(model, known)
    data = json.loads((_HERE / "boards" / f"{model}.json").read_text(encoding="utf-8"))
    return Board(
        model=data["model"],
        name=data["name"],
        device_id=int(data["device_id"], 16),
        subsystem_id=int(data["subsystem_id"], 16),
        architecture=data["architecture"],
        mig=data["mig"],
        resetless_mig=data["resetless_mig"],
        mig_mode_survives_reboot=data["mig_mode_survives_reboot"],
        host_vgpu_mode=data["host_vgpu_mode"],
        sriov_totalvfs=data["sriov_totalvfs"],
        vf_offset=data["vf_offset"],
        nvswitch=data["nvswitch"],
        framebuffer_mib=data["framebuffer_mib"],
        gi_profiles=tuple(map(_profile, data["gi_profiles"])),
        vgpu_types=tuple(map(_type, data["vgpu_types"])),
        sources=tuple(data["sources"].items()),
    )


@cache
def _nodes() -> dict[str, Any]:
    nodes = json.loads((_HERE / "nodes.json").read_text(encoding="utf-8"))
    assert isinstance(nodes, dict)  # noqa: S101  # our own file
    return nodes


def _profile(data: dict[str, Any]) -> GiProfile:
    return GiProfile(
        gi_profile_id=data["id"],
        name=data["name"],
        slice_count=data["slices"],
        max_instances=data["max"],
        memory_mib=data["memory_mib"],
        placements=tuple(Placement(start, size) for start, size in data["placements"]),
    )


def _type(data: dict[str, Any]) -> VgpuType:
    return VgpuType(
        vgpu_type_id=data["id"],
        name=data["name"],
        framebuffer_mib=data["framebuffer_mib"],
        max_per_gpu=data["max_per_gpu"],
        max_per_gi=data["max_per_gi"],
        gi_profile_id=data["gi_profile"],
    )
