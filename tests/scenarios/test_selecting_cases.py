"""Field cases S1 to S15: selecting GPUs, and refusing what cannot be."""

from __future__ import annotations

import pytest

from gpu_bootstate.config import parse
from gpu_bootstate.problems import ConfigInvalid, Problem
from tests.support.node import NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
BARE = "{mode: none}"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"


def _problems(node: NodeMaker, board: str, text: str) -> list[Problem]:
    """What `apply` refuses with exit 4; nothing is called and nothing is left behind."""
    made = node(board)
    result = made.apply(text)
    assert (result["exit_code"], made.calls, made.ready) == (4, [], False)
    with pytest.raises(ConfigInvalid) as caught:
        made.look(text)
    return list(caught.value.problems)


def test_S1_an_address_that_is_not_there_lists_the_nearest_that_are(node: NodeMaker) -> None:
    (problem,) = _problems(node, "hgx-h200-8", config({"0000:5e:00.0": BARE}))
    assert "0000:5e:00.0, which this node does not have (there are 0000:60:00.0" in str(problem)
    assert (problem.mark and problem.mark.line, problem.path) == (3, "gpus[0].match.pci")


def test_S1_with_degrade_the_others_converge(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({"0000:5e:00.0": BARE, A: SEVEN}).replace(
        "profile: {mode: none}", "profile: {mode: none}\n    on-missing: degrade"
    )
    result = made.apply(text)
    assert (result["exit_code"], result["condition"]) == (2, "degraded")
    assert made.types(A) == dict.fromkeys(range(7), "H200X-1-18C")
    assert [finding["reason"] for finding in result["findings"]] == ["gpu-missing"]
    assert made.gpu_ready(A)
    assert not made.ready


def test_S2_seven_of_eight_cards_are_counted_and_their_slots_told(node: NodeMaker) -> None:
    made = node("hgx-h200-8").removed("0000:ed:00.0")
    text = config({'{device: "0x2335", count: 8}': BARE})
    result = made.apply(text)
    assert (result["exit_code"], made.calls) == (4, [])
    with pytest.raises(ConfigInvalid) as caught:
        made.look(text)
    message = str(caught.value.problems[0])
    assert "expects 8 cards of device 0x2335; 7 are there" in message
    assert "0000:dd:00.0" in message
    assert "0000:ed:00.0" not in message


def test_S3_an_unknown_profile_offers_those_of_the_card(node: NodeMaker) -> None:
    (problem,) = _problems(node, "hgx-h200-8", config({A: "{mig: {9g.1000gb: 1}}"}))
    for name in ("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"):
        assert name in problem.message


@pytest.mark.parametrize(
    "mig",
    ["{4g.71gb: 1, 1g.18gb: 3}", "{1g.18gb: 3, 4g.71gb: 1}"],
    ids=["big-first", "small-first"],
)
def test_S4_the_layout_does_not_depend_on_the_order_in_the_file(node: NodeMaker, mig: str) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: f"{{mig: {mig}}}"}))["exit_code"] == 0
    assert made.layout(A) == [("4g.71gb", 0), ("1g.18gb", 4), ("1g.18gb", 5), ("1g.18gb", 6)]


@pytest.mark.parametrize(
    ("mig", "misfit", "nearest"),
    [
        pytest.param(
            "{4g.20gb: 1, 3g.20gb: 1, 2g.10gb: 1, 1g.5gb: 1}",
            "no room for 2g.10gb",
            "4g.20gb: 1, 3g.20gb: 1",
            id="S5",
        ),
        pytest.param("{1g.10gb: 4, 1g.5gb: 3}", "no room for 1g.5gb", "1g.10gb: 4", id="S6"),
    ],
)
def test_an_impossible_layout_names_what_does_not_fit_and_the_nearest_that_does(
    node: NodeMaker, mig: str, misfit: str, nearest: str
) -> None:
    text = config({"0000:3b:00.0": f"{{mig: {mig}}}"})
    (problem,) = _problems(node, "a100-pcie-2", text)
    assert misfit in problem.message
    assert problem.nearest == nearest


def test_S5_the_old_layout_stays_intact(node: NodeMaker) -> None:
    made = node("a100-pcie-2")
    pf = "0000:3b:00.0"
    assert made.apply(config({pf: "{mig: {3g.20gb: 2}}"}))["exit_code"] == 0
    before = made.layout(pf)
    assert made.apply(config({pf: "{mig: {4g.20gb: 1, 3g.20gb: 2}}"}))["exit_code"] == 4
    assert (made.calls, made.layout(pf), made.ready) == ([], before, True)


def test_S7_one_media_instance_is_all_that_the_card_allows(node: NodeMaker) -> None:
    (problem,) = _problems(node, "hgx-h200-8", config({A: "{mig: {1g.18gb+me: 2}}"}))
    assert "1g.18gb+me" in problem.message
    assert problem.nearest == "1g.18gb+me: 1"


def test_S8_a_profile_key_given_twice_names_both_lines() -> None:
    text = (
        "version: v1\nprofiles:\n  p:\n    mig:\n      1g.18gb: 3\n      1g.18gb: 4\n"
        "gpus: [{match: {index: 0}, profile: p}]\n"
    )
    with pytest.raises(ConfigInvalid) as caught:
        parse(text, "c.yaml")
    message = str(caught.value.problems[0])
    assert message.startswith("c.yaml:6:7:")
    assert "on line 5 and on line 6" in message


def test_S9_two_entries_for_one_gpu_name_both(node: NodeMaker) -> None:
    text = config([(A, BARE), ("{index: 0}", BARE)])
    (problem,) = _problems(node, "hgx-h200-8", text)
    assert "gpus[0] (config.yaml:3:18)" in problem.message
    assert "gpus[1] (config.yaml:5:20)" in problem.message


def test_S10_a_profile_of_the_same_shape_is_taken_and_said(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    result = made.apply(config({A: "{mig: {1g.19gb: 7}}"}))
    assert result["exit_code"] == 0
    assert {name for name, _ in made.layout(A)} == {"1g.18gb"}
    assert "profile-resolved" in [finding.code.value for finding in made.said]


def test_S11_a_t4_beside_two_a100_sees_no_call(node: NodeMaker) -> None:
    made = node("t4-and-a100")
    text = config({'{device: "0x20b2"}': "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 7}}"})
    assert made.apply(text)["exit_code"] == 0
    assert made.touched() == {"0000:3b:00.0", "0000:d8:00.0"}
    assert made.apply(text)["exit_code"] == 0
    assert made.calls == []


def test_S12_a_gpu_in_pci_domain_1_is_one_gpu_in_every_spelling(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.gpu(A).bdf = "0001:04:00.0"
    made.sim.state.gpus.sort(key=lambda gpu: gpu.bdf)
    for spelling in ("0001:04:00.0", "00000001:04:00.0"):
        result = made.apply(config({spelling: SEVEN}))
        assert result["exit_code"] == 0
        assert [gpu["pf"] for gpu in result["gpus"]] == ["0001:04:00.0"]
    assert made.calls == []


def test_S13_a_type_without_an_instance_of_its_exact_profile_is_refused(node: NodeMaker) -> None:
    profile = "{mig: {1g.18gb+me: 1, 1g.18gb: 6}, vgpus: {H200X-1-18C: 7}}"
    (problem,) = _problems(node, "hgx-h200-8", config({A: profile}))
    assert problem.code.value == "type-no-instance"
    assert "7 vGPUs of type" in problem.message
    assert "room for 6" in problem.message


@pytest.mark.parametrize("name", ["NVIDIA H200X-1-18C", "H200X-1-18C"])
def test_S14_a_type_is_known_with_and_without_its_prefix(node: NodeMaker, name: str) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: f'{{vgpus: {{"{name}": 1}}}}'}))["exit_code"] == 0
    assert made.types(A) == {0: "H200X-1-18C"}


def test_S14_grid_names_resolve_and_a_misspelt_one_suggests_the_nearest(node: NodeMaker) -> None:
    made = node("hgx-a100-8")
    assert made.apply(config({A: '{vgpus: {"GRID A100DX-1-10C": 1}}'}))["exit_code"] == 0
    (problem,) = _problems(node, "hgx-h200-8", config({A: "{vgpus: {H200X-1-18D: 1}}"}))
    assert problem.nearest is not None
    assert problem.nearest.endswith("H200X-1-18C")


def test_S15_a_card_on_vfio_pci_that_is_to_be_passed_through_is_left_alone(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").stranded(A, "vfio-pci")
    result = made.apply(config({A: "{mode: passthrough}", B: BARE}))
    assert (result["exit_code"], made.calls) == (0, [])
    refused = made.apply(config({A: SEVEN}))
    assert (refused["exit_code"], made.calls) == (3, [])
    assert refused["gpus"][0]["reason"] == "on-other-driver"
