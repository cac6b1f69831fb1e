"""Field cases V1 to V10, N1, N2, N5: VFs and the vendor tool."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.node import Node, NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
WHOLE = "{vgpus: {H200X-141C: 1}}"


def _tool(node: Node, pf: str) -> list[str]:
    return [c.arguments for c in node.calls if c.verb == "sriov_manage" and c.target == pf]


def _step(result: dict[str, object], action: str) -> dict[str, object]:
    gpus = result["gpus"]
    assert isinstance(gpus, list)
    return next(step for step in gpus[0]["steps"] if step["action"] == action)


def test_V1_exit_0_without_vfs_is_no_success_and_the_attempts_are_told(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} times=2 noop")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], _tool(made, A)) == (0, ["-e"] * 3)
    assert _step(result, "enable-vfs")["attempts"] == 3
    assert [f["reason"] for f in result["gpus"][0]["findings"]].count("retried") == 2


def test_V2_a_poller_that_lets_go_is_waited_out(node: NodeMaker) -> None:
    made = node("hgx-h200-8").without_persistence().with_hidden_client(A, seconds=3.0)
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    assert len(_tool(made, A)) > 1


def test_V2_one_that_is_seen_and_lets_go_is_waited_out_too(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_client(A, "dcgm-exporter", seconds=3.0)
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0


def test_V2_one_that_stays_is_named_and_nothing_is_changed(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_client(A, "dcgm-exporter", "dcgm-exporter.service")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (3, [])
    assert result["gpus"][0]["reason"] == "held"
    assert "dcgm-exporter (pid 4127, dcgm-exporter.service)" in result["gpus"][0]["message"]


def test_V2_a_hidden_one_that_stays_ends_in_the_lock_being_busy(node: NodeMaker) -> None:
    made = node("hgx-h200-8").without_persistence().with_hidden_client(A)
    result = made.apply(config({A: WHOLE}, policy="{attempts: 3}"))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "unbind-lock-busy")
    assert _tool(made, A) == ["-e"] * 3


@pytest.mark.parametrize("where", ["leave-on-stub", "leave-unbound"])
def test_V3_a_pf_that_the_tool_left_is_bound_back_and_tried_again(
    node: NodeMaker, where: str
) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} times=1 {where}")
    result = made.apply(config({A: SEVEN, B: WHOLE}))
    assert result["exit_code"] == 0
    assert made.verbs(A).count("bind_driver") == 1
    assert "pf-bound-back" in [f["reason"] for f in result["gpus"][0]["findings"]]


def test_V3_one_that_cannot_be_bound_is_failed_with_its_state_told(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} leave-on-stub")
    made.fault(f"bind_driver {A} noop")
    result = made.apply(config({A: SEVEN, B: WHOLE}))
    assert result["exit_code"] == 2
    first, second = result["gpus"]
    assert (first["reason"], second["condition"]) == ("pf-bind-failed", "converged")
    assert "it is on pci-pf-stub" in first["message"]


@pytest.mark.parametrize("driver", [None, "pci-pf-stub"])
def test_V4_a_pf_found_without_its_driver_is_bound_and_said(
    node: NodeMaker, driver: str | None
) -> None:
    made = node("hgx-h200-8").stranded(A, driver)
    result = made.apply(config({A: SEVEN}))
    assert result["exit_code"] == 0
    assert made.verbs(A)[0] == "bind_driver"
    assert "pf-bound-back" in [finding.code.value for finding in made.said]


def test_V5_vf_directories_that_come_late_are_waited_for(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} late:6")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], _tool(made, A)) == (0, ["-e"])
    assert any("32 VFs to offer vGPU types" in what for what in made.waits)


def test_V6_seven_types_land_on_the_first_seven_vfs_by_number(node: NodeMaker) -> None:
    made = node("hgx-a100-8")
    profile = "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 7}}"
    assert made.apply(config({A: profile}))["exit_code"] == 0
    assert len(made.gpu(A).vfs) == 20
    assert sorted(made.types(A)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia 0000:17:00.0: not enough MMIO resources for SR-IOV",
        "nvidia 0000:17:00.0: SR-IOV: bus number out of range",
        "nvidia 0000:17:00.0: can't enable 32 VFs (bus 1a out of range of [bus 17-19])",
        "nvidia 0000:17:00.0: SR-IOV: IOV BARS not allocated",
    ],
)
def test_V7_what_firmware_did_not_reserve_is_not_tried_again(node: NodeMaker, line: str) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} log:{line}")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "vfs-no-resources")
    assert _tool(made, A) == ["-e"]
    assert "above-4G" in result["gpus"][0]["remedy"]
    assert line in result["gpus"][0]["message"]


def test_V8_a_gpu_in_non_sriov_mode_sees_no_call_whatever_vfs_it_shows(node: NodeMaker) -> None:
    made = node("t4-and-a100")
    result = made.apply(config({"0000:65:00.0": "{vgpus: {T4-4Q: 4}}"}))
    assert (result["exit_code"], made.calls) == (1, [])
    assert result["gpus"][0]["reason"] == "non-sriov-mode"


def test_V9_a_lock_that_a_crash_left_is_released_and_said(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.gpu(A).unbind_lock = True
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    assert made.verbs(A)[0] == "release_unbind_lock"
    assert "unbind-lock-left" in [finding.code.value for finding in made.said]


def test_V9_not_while_the_tool_is_still_at_work(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_actor("process", "sriov-manage", "pid 77")
    made.gpu(A).unbind_lock = True
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert (result["gpus"][0]["condition"], made.calls) == ("refused", [])
    assert "pid 77" in result["gpus"][0]["message"]


def test_V10_fewer_vfs_than_there_should_be_is_a_failure(node: NodeMaker) -> None:
    made = node("hgx-a100-8").fault(f"sriov_manage {A} partial:16")
    profile = "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 7}}"
    result = made.apply(config({A: profile}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "vfs-too-few")
    assert "16 of 20 VFs came up" in result["gpus"][0]["message"]


def test_V10_unless_the_config_allows_it_and_they_are_enough(node: NodeMaker) -> None:
    made = node("hgx-a100-8").fault(f"sriov_manage {A} partial:16")
    policy = "{allow-fewer-vfs: true}"
    profile = "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 7}}"
    assert made.apply(config({A: profile}, policy=policy))["exit_code"] == 0
    assert made.apply(config({A: profile}, policy=policy))["exit_code"] == 0
    assert made.calls == []
    pinned = "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: [17]}}"
    assert made.apply(config({A: pinned}, policy=policy))["exit_code"] != 0


def test_N1_cards_of_one_model_never_have_the_tool_at_the_same_time(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    pfs = [gpu.bdf for gpu in made.gpus()]
    assert made.apply(config(dict.fromkeys(pfs, WHOLE)))["exit_code"] == 0
    starts = sorted(call.time_s for call in made.calls if call.verb == "sriov_manage")
    assert len(starts) == 8
    assert all(later - earlier >= 4.0 for earlier, later in pairwise(starts))


def test_N2_a_driverless_card_of_the_model_that_is_not_ours_stops_the_tool(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").stranded(B, None)
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (1, [])
    assert result["gpus"][0]["reason"] == "sibling-driverless"
    assert B in result["gpus"][0]["message"]


def test_N2_one_that_is_ours_is_bound_first(node: NodeMaker) -> None:
    made = node("hgx-h200-8").stranded(B, None)
    assert made.apply(config({A: WHOLE, B: WHOLE}))["exit_code"] == 0
    order = [
        (call.verb, call.target)
        for call in made.calls
        if call.verb in ("bind_driver", "sriov_manage")
    ]
    assert order == [("bind_driver", B), ("sriov_manage", A), ("sriov_manage", B)]


def test_N5_vfs_that_never_offer_types_are_cycled_once(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} times=1 never")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], _tool(made, A)) == (0, ["-e", "-d", "-e"])
    assert "vfs-cycled" in [f["reason"] for f in result["gpus"][0]["findings"]]


def test_N5_and_only_once(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} never")
    result = made.apply(config({A: WHOLE}, policy="{vf-wait: 5}"))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "vfs-no-types")
    assert _tool(made, A) == ["-e", "-d", "-e"]


def test_N5_in_the_next_run_too_with_all_that_holds_the_gpu(node: NodeMaker) -> None:
    """That run only waits at first: no service was to be stopped, persistence mode stays on."""
    made = node("hgx-h200-8").with_unit("nvidia-dcgm.service", "active")
    made.with_client(A, "nv-hostengine", "nvidia-dcgm.service")
    text = config({A: WHOLE}, policy="{vf-wait: 5, holders: {stop: [nvidia-dcgm.service]}}")
    made.fault(f"sriov_manage {A} never")
    assert made.apply(text)["gpus"][0]["reason"] == "vfs-no-types"
    made.without_faults()
    result = made.apply(text)
    assert result["exit_code"] == 0, result["gpus"]
    assert result["units_stopped"] == ["nvidia-dcgm.service"]
    assert "vfs-cycled" in [f["reason"] for f in result["gpus"][0]["findings"]]
    assert made.gpu(A).persistence is True
    assert not made.paths.owed.exists()


def test_N5_a_client_that_may_not_be_stopped_is_named(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} never")
    text = config({A: WHOLE}, policy="{vf-wait: 5}")
    assert made.apply(text)["exit_code"] == 1
    made.without_faults().with_client(A, "nv-hostengine")
    result = made.apply(text)
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (3, "held")
    assert "nv-hostengine" in result["gpus"][0]["message"]
    assert made.gpu(A).persistence is True


def test_N5_not_while_a_vm_uses_another_vf(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    made.gpu(A).vfs[9].ready_at = 1e18
    made.with_vm(A, 0)
    result = made.apply(config({A: WHOLE}, policy="{vf-wait: 5}"))
    assert (result["exit_code"], made.calls) == (3, [])
