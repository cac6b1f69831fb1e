"""The boards as data: each consistent in itself, the measured one equal to its capture."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gpu_bootstate.catalog.reader import (
    Board,
    UnknownBoard,
    board,
    models,
    node_names,
    node_spec,
)
from gpu_bootstate.model import Bdf, GiProfile, HostVgpuMode, Placement

CAPTURE = Path(__file__).parent.parent / "fixtures" / "h200-580.159.04.json"

MADE_UP_FROM = 90_000
SOURCED = {
    "gi_profiles",
    "vgpu_types",
    "sriov_totalvfs",
    "resetless_mig",
    "framebuffer_mib",
    "subsystem_id",
    "vf_offset",
}
HGX_SLOTS = tuple(
    Bdf.parse(f"0000:{bus}:00.0") for bus in ("17", "3d", "60", "70", "98", "ba", "dd", "ed")
)


@pytest.fixture(params=models())
def any_board(request: pytest.FixtureRequest) -> Board:
    return board(request.param)


def memory_slices(some: Board) -> int:
    """The slices that the biggest profile takes."""
    return max(place.size for profile in some.gi_profiles for place in profile.placements)


# --------------------------------------------------------------------------- each board


def test_a_board_is_found_under_its_own_name(any_board: Board) -> None:
    assert board(any_board.model) is any_board


def test_ids_and_names_are_unique_within_a_board(any_board: Board) -> None:
    for column in (
        [p.gi_profile_id for p in any_board.gi_profiles],
        [p.name for p in any_board.gi_profiles],
        [t.vgpu_type_id for t in any_board.vgpu_types],
        [t.name for t in any_board.vgpu_types],
    ):
        assert len(column) == len(set(column))


def test_published_type_ids_belong_to_one_name_on_all_boards() -> None:
    named: dict[int, str] = {}
    for model in models():
        for vgpu in board(model).vgpu_types:
            assert named.setdefault(vgpu.vgpu_type_id, vgpu.name) == vgpu.name


def test_a_mig_backed_type_names_a_profile_of_its_board(any_board: Board) -> None:
    profiles = {p.gi_profile_id for p in any_board.gi_profiles}
    backed = {t.gi_profile_id for t in any_board.vgpu_types} - {None}
    assert backed <= profiles


def test_only_mig_backed_types_have_a_maximum_per_instance(any_board: Board) -> None:
    for vgpu in any_board.vgpu_types:
        assert (vgpu.max_per_gi >= 1) == (vgpu.gi_profile_id is not None), vgpu.name


def test_a_mig_backed_type_fills_all_instances_of_its_profile(any_board: Board) -> None:
    most = {p.gi_profile_id: p.max_instances for p in any_board.gi_profiles}
    for vgpu in any_board.vgpu_types:
        if vgpu.gi_profile_id is not None:
            assert vgpu.max_per_gpu == vgpu.max_per_gi * most[vgpu.gi_profile_id], vgpu.name


def test_time_sliced_vgpus_at_their_maximum_fit_the_framebuffer(any_board: Board) -> None:
    for vgpu in any_board.vgpu_types:
        if vgpu.gi_profile_id is None:
            assert vgpu.max_per_gpu * vgpu.framebuffer_mib <= any_board.framebuffer_mib, vgpu.name


def test_there_is_a_vf_for_every_vgpu_of_every_type(any_board: Board) -> None:
    assert any_board.sriov_totalvfs >= max(t.max_per_gpu for t in any_board.vgpu_types)


def test_placements_stay_within_the_memory_slices(any_board: Board) -> None:
    for profile in any_board.gi_profiles:
        for place in profile.placements:
            assert place.start >= 0
            assert place.size >= profile.slice_count
            assert place.start + place.size <= memory_slices(any_board) <= 8


def test_as_many_instances_as_a_profile_promises_have_room(any_board: Board) -> None:
    for profile in any_board.gi_profiles:
        apart = not any(a.overlaps(b) for a, b in combinations(profile.placements, 2))
        assert apart, profile.name
        assert 1 <= profile.max_instances <= len(profile.placements), profile.name


def test_a_bigger_profile_never_has_less_memory(any_board: Board) -> None:
    by_slices = sorted(any_board.gi_profiles, key=lambda p: (p.placements[0].size, p.slice_count))
    memory = [p.memory_mib for p in by_slices]
    assert memory == sorted(memory)
    assert all(0 < mib <= any_board.framebuffer_mib for mib in memory)


def test_a_board_without_mig_has_no_profiles_and_no_reset_rule(any_board: Board) -> None:
    assert bool(any_board.gi_profiles) == any_board.mig
    assert (any_board.resetless_mig is not None) == any_board.mig


def test_only_a_mode_that_needs_a_reset_survives_a_reboot(any_board: Board) -> None:
    assert any_board.mig_mode_survives_reboot == (any_board.resetless_mig is False)


def test_the_host_vgpu_mode_is_one_of_the_model(any_board: Board) -> None:
    assert any_board.host_vgpu_mode in {mode.value for mode in HostVgpuMode}


def test_every_group_of_values_names_its_source(any_board: Board) -> None:
    sources = dict(any_board.sources)
    assert set(sources) == SOURCED
    assert all(sources.values())


def test_made_up_type_ids_are_declared(any_board: Board) -> None:
    made_up = any(t.vgpu_type_id >= MADE_UP_FROM for t in any_board.vgpu_types)
    assert made_up == ("made up" in dict(any_board.sources)["vgpu_types"])


def test_seven_slice_cards_differ_in_names_and_memory_alone() -> None:
    def shape(profile: GiProfile) -> tuple[object, ...]:
        return (
            profile.gi_profile_id,
            profile.slice_count,
            profile.max_instances,
            profile.placements,
        )

    measured = [shape(p) for p in board("h200").gi_profiles]
    for model in ("a100-pcie-40", "a100-sxm4-80", "h100", "b200"):
        assert [shape(p) for p in board(model).gi_profiles] == measured, model


# --------------------------------------------------------------------------- the capture


def captured() -> dict[str, Any]:
    device = json.loads(CAPTURE.read_text(encoding="utf-8"))["device"]
    assert isinstance(device, dict)
    return device


def test_h200_profiles_are_those_of_the_capture() -> None:
    device = captured()
    expected = {
        GiProfile(
            gi_profile_id=info["id"],
            name=info["name"].removeprefix("MIG "),
            slice_count=info["sliceCount"],
            max_instances=info["instanceCount"],
            memory_mib=info["memorySizeMB"],
            placements=tuple(
                Placement(place["start"], place["size"])
                for place in device["placements"][number]["placements"]
            ),
        )
        for number, info in device["gi_profiles_v2"].items()
        if "error" not in info
    }
    assert set(board("h200").gi_profiles) == expected


def test_h200_is_named_as_in_the_capture() -> None:
    device = captured()
    vendor_and_device = device["pci"]["pciDeviceId"]
    assert board("h200").name == device["Name"]
    assert board("h200").device_id == vendor_and_device >> 16


# --------------------------------------------------------------------------- nodes


@pytest.mark.parametrize(
    ("node", "model"),
    [
        ("hgx-h200-8", "h200"),
        ("hgx-h100-8", "h100"),
        ("hgx-b200-8", "b200"),
        ("hgx-a100-8", "a100-sxm4-80"),
    ],
)
def test_an_hgx_node_has_eight_of_one_model_behind_switches(node: str, model: str) -> None:
    spec = node_spec(node)
    assert spec.nvswitch
    assert spec.gpus == tuple((slot, board(model)) for slot in HGX_SLOTS)


@pytest.mark.parametrize("name", node_names())
def test_a_node_lists_its_gpus_in_address_order(name: str) -> None:
    spec = node_spec(name)
    slots = [pf for pf, _ in spec.gpus]
    assert spec.name == name
    assert slots == sorted(set(slots))
    assert all(pf.function == 0 for pf in slots)


@pytest.mark.parametrize("name", node_names())
def test_the_vfs_of_one_gpu_do_not_reach_the_next_bus(name: str) -> None:
    for pf, model in node_spec(name).gpus:
        last = pf.device * 8 + pf.function + model.vf_offset + model.sriov_totalvfs - 1
        assert last <= 0xFF


def test_every_model_sits_in_some_node() -> None:
    used = {model.model for name in node_names() for _, model in node_spec(name).gpus}
    assert used == set(models())


# --------------------------------------------------------------------------- wrong names


def test_a_misspelt_node_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownBoard, match=r"did you mean hgx-h200-8\?") as caught:
        node_spec("HGX-H20O-8")
    assert caught.value.known == node_names()


def test_a_misspelt_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownBoard, match=r"did you mean l40s\?"):
        board("l40")


def test_a_name_like_none_lists_what_there_is() -> None:
    with pytest.raises(UnknownBoard) as caught:
        node_spec("zzz")
    assert caught.value.nearest is None
    assert all(name in str(caught.value) for name in node_names())


def test_a_model_is_a_name_and_not_a_path() -> None:
    with pytest.raises(UnknownBoard):
        board("../nodes")
