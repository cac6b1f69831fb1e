"""Wishes, starting states and what a GPU looks like when its wish has come true."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.node import Node, config


@dataclass(frozen=True)
class Wish:
    """A profile as it is written, and what a GPU with it looks like."""

    text: str
    mig: bool = False
    vfs: bool = True
    layout: tuple[tuple[str, int], ...] = ()  # profile -> count
    types: tuple[tuple[int, str], ...] = ()  # VF -> type


def _types(*names: str) -> tuple[tuple[int, str], ...]:
    return tuple(enumerate(names))


BARE = Wish("{mode: none}", vfs=False)

WISHES = {
    "hgx-h200-8": [
        BARE,
        Wish(
            "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}",
            mig=True,
            layout=(("1g.18gb", 7),),
            types=_types(*["H200X-1-18C"] * 7),
        ),
        Wish(
            "{mig: {1g.18gb: 3, 4g.71gb: 1}, vgpus: {H200X-1-18C: 2, H200X-4-71C: [5]}}",
            mig=True,
            layout=(("1g.18gb", 3), ("4g.71gb", 1)),
            types=((0, "H200X-1-18C"), (1, "H200X-1-18C"), (5, "H200X-4-71C")),
        ),
        Wish(
            "{vgpus: {H200X-3-71C: 1, H200X-2-35C: 1}}",
            mig=True,
            layout=(("2g.35gb", 1), ("3g.71gb", 1)),
            types=_types("H200X-3-71C", "H200X-2-35C"),
        ),
        Wish("{vgpus: {H200X-141C: 1}}", types=_types("H200X-141C")),
        Wish(
            "{vgpus: {H200X-35C: 2, H200X-70C: 1}, mixed-size: true}",
            types=_types("H200X-35C", "H200X-35C", "H200X-70C"),
        ),
    ],
    "hgx-a100-8": [
        BARE,
        Wish(
            "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 5}}",
            mig=True,
            layout=(("1g.10gb", 7),),
            types=_types(*["A100DX-1-10C"] * 5),
        ),
        Wish(
            "{mig: {3g.40gb: [4], 2g.20gb: 2}, vgpus: {A100DX-2-20C: 2}}",
            mig=True,
            layout=(("2g.20gb", 2), ("3g.40gb", 1)),
            types=_types("A100DX-2-20C", "A100DX-2-20C"),
        ),
        Wish("{vgpus: {A100DX-40C: 2}}", types=_types("A100DX-40C", "A100DX-40C")),
    ],
    "l40s-4": [
        BARE,
        Wish("{vgpus: {L40S-12Q: 4}}", types=_types(*["L40S-12Q"] * 4)),
        Wish("{vgpus: {L40S-48Q: [7]}}", types=((7, "L40S-48Q"),)),
    ],
}

# How a GPU may be found at the start of a run; each is a state that the hardware allows.
STARTS = [
    "bare",
    "mig on",
    "mig pending",
    "vfs on",
    "some vfs on",
    "vfs on and carved",
    "carved otherwise",
    "stranded on the stub",
    "unbound",
    "lock left",
    "whole card",
]


def bring_to(node: Node, pf: str, start: str) -> None:
    gpu = node.gpu(pf)
    has_mig = node.sim.board_of(gpu).mig
    small = next((p for p in node.sim.profiles(gpu) if p.slice_count == 2), None)
    if start in ("mig on", "vfs on and carved", "carved otherwise") and has_mig:
        node.with_mig(pf)
    if start == "mig pending" and has_mig:
        node.with_mig(pf, current=False, pending=True)
    if start in ("vfs on", "vfs on and carved", "carved otherwise", "whole card"):
        node.with_vfs(pf)
    if start == "some vfs on":
        node.with_vfs(pf, 4)
    if start == "vfs on and carved" and small is not None:
        node.with_instances(pf, (small.name, 0), (small.name, 4))
        kind = next(t for t in node.sim.types(gpu) if t.gi_profile_id == small.gi_profile_id)
        node.with_types(pf, {1: kind.name.split()[-1]})
    if start == "carved otherwise" and small is not None:
        node.with_instances(pf, *((small.name, place.start) for place in small.placements))
    if start == "whole card":
        whole = max(
            (t for t in node.sim.types(gpu) if t.gi_profile_id is None),
            key=lambda t: t.framebuffer_mib,
        )
        node.with_types(pf, {0: whole.name.split()[-1]})
    if start == "stranded on the stub":
        node.stranded(pf, "pci-pf-stub")
    if start == "unbound":
        node.stranded(pf, None)
    if start == "lock left":
        gpu.unbind_lock = True


def made_node(
    board: str, starts: dict[str, str], directory: str, framework: str = "vendor-vfio"
) -> Node:
    node = Node(board, Path(directory))
    node.sim.state.framework = framework
    for pf, start in starts.items():
        bring_to(node, pf, start)
    return node


def written(wishes: dict[str, Wish], policy: str = "") -> str:
    return config({pf: wish.text for pf, wish in wishes.items()}, policy)


def assert_is(node: Node, pf: str, wish: Wish) -> None:
    gpu = node.gpu(pf)
    assert (gpu.driver, gpu.unbind_lock) == ("nvidia", False)
    assert (gpu.mig_current, gpu.mig_pending) == (wish.mig, wish.mig)
    total = node.sim.board_of(gpu).sriov_totalvfs
    assert len(gpu.vfs) == (total if wish.vfs else 0)
    assert sorted(Counter(name for name, _ in node.layout(pf)).items()) == sorted(wish.layout)
    assert node.types(pf) == dict(wish.types)
