"""Adoption: configured by hand once, `export`, and every boot after that is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_bootstate.cli.export import config_text
from gpu_bootstate.config import parse
from gpu_bootstate.model import Bdf
from gpu_bootstate.observe import observe
from gpu_bootstate.simulator.hardware import SimHardware
from tests.support.node import Node, NodeMaker

A, B, C = "0000:17:00.0", "0000:3d:00.0", "0000:60:00.0"


def exported(node: Node) -> str:
    hw = SimHardware(node.sim)
    try:
        return config_text(observe(hw))
    finally:
        hw.close()


def geometry(node: Node) -> list[object]:
    """What an operator would call the same; ids of instances are the driver's business."""
    return [
        (
            gpu.bdf,
            gpu.mig_current,
            len(gpu.vfs),
            sorted((gi.gi_profile_id, gi.start, gi.size) for gi in gpu.instances),
            node.types(gpu.bdf),
        )
        for gpu in node.gpus()
    ]


def by_hand_in_odd_places(node: Node) -> None:
    node.with_mig(A).with_vfs(A).with_instances(A, ("3g.71gb", 4), ("1g.18gb", 2), ("1g.18gb", 0))
    node.with_types(A, {3: "H200X-3-71C", 9: "H200X-1-18C"})


def by_hand_with_types_on_late_vfs(node: Node) -> None:
    node.with_vfs(B).with_types(B, {7: "H200X-70C", 31: "H200X-70C"})


def by_hand_two_types_of_instance(node: Node) -> None:
    node.with_mig(A).with_vfs(A).with_instances(A, ("2g.35gb", 2), ("2g.35gb", 0))
    node.with_types(A, {0: "H200X-2-35C", 1: "H200X-2-35C"})


def by_hand_vfs_and_nothing_on_them(node: Node) -> None:
    node.with_vfs(C)


@pytest.mark.parametrize(
    "by_hand",
    [
        by_hand_in_odd_places,
        by_hand_with_types_on_late_vfs,
        by_hand_two_types_of_instance,
        by_hand_vfs_and_nothing_on_them,
    ],
)
def test_what_was_made_by_hand_comes_back_after_a_reboot(
    node: NodeMaker, by_hand: Callable[[Node], None]
) -> None:
    made = node("hgx-h200-8").without_persistence()
    by_hand(made)
    before = geometry(made)
    text = exported(made)
    assert made.look(text).plan.is_empty, text
    made.reboot()
    assert geometry(made) != before
    assert made.apply(text)["condition"] == "converged"
    assert geometry(made) == before
    assert exported(made) == text


@pytest.mark.parametrize("unknown", ["profile", "type"])
def test_what_the_driver_has_no_name_for_is_left_out_with_the_reason(
    node: NodeMaker, unknown: str
) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A).with_instances(A, ("1g.18gb", 0))
    made.with_types(A, {0: "H200X-1-18C"}).with_vfs(B).with_types(B, {0: "H200X-70C"})
    hw = SimHardware(made.sim)
    seen = observe(hw)
    hw.close()
    gpu = seen.gpu(Bdf.parse(A))
    assert gpu is not None
    other = replace(gpu, gi_profiles=()) if unknown == "profile" else replace(gpu, vgpu_types=())
    gpus = tuple(other if each.pf == gpu.pf else each for each in seen.gpus)
    text = config_text(replace(seen, gpus=gpus))
    assert len(parse(text, "exported.yaml").entries) == 1
    assert f"# {A} (NVIDIA H200) is left out: the driver has no name for " in text


PROFILES = {"1g.18gb": 1, "2g.35gb": 2, "3g.71gb": 4, "4g.71gb": 4}
TYPES = {
    "1g.18gb": "H200X-1-18C",
    "2g.35gb": "H200X-2-35C",
    "3g.71gb": "H200X-3-71C",
    "4g.71gb": "H200X-4-71C",
}


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    starts=st.lists(st.tuples(st.sampled_from(sorted(PROFILES)), st.integers(0, 6)), max_size=7),
    vfs=st.permutations(range(32)),
    typed=st.integers(0, 7),
)
def test_any_layout_that_hands_can_make_comes_back(
    node: NodeMaker, starts: list[tuple[str, int]], vfs: list[int], typed: int
) -> None:
    made = node("hgx-h200-8").without_persistence().with_mig(A).with_vfs(A)
    names: list[str] = []
    for name, start in starts:
        try:
            made.with_instances(A, (name, start))
        except (StopIteration, Exception):  # noqa: S112  # no such place, or taken
            continue
        names.append(name)
    made.with_types(A, dict(zip(vfs, (TYPES[name] for name in names[:typed]), strict=False)))
    before, text = geometry(made), exported(made)
    parse(text, "exported.yaml")
    if not names:
        assert f"# {A} (NVIDIA H200) is left out: it is in MIG mode without GPU instances" in text
        return
    made.reboot()
    assert made.apply(text)["condition"] == "converged", text
    assert geometry(made) == before, text
