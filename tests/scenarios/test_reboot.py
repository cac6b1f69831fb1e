"""`policy: reboot: once`: one reboot for each configuration, where nothing less can help."""

from __future__ import annotations

import json

import pytest

from tests.support.node import Node, NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
WHOLE = "{vgpus: {H200X-141C: 1}}"
LOST = f"set_vgpu_type {A} lost"


def reasons(result: dict[str, object]) -> list[str]:
    findings = result["findings"]
    assert isinstance(findings, list)
    return [finding["reason"] for finding in findings]


def wanted(reboot: str = "once", profile: str = WHOLE) -> str:
    return config({A: profile}, policy=f"{{reboot: {reboot}}}" if reboot else "")


def asked(node: Node) -> int:
    return node.verbs().count("reboot")


@pytest.mark.parametrize("policy", ["", "never"])
def test_without_leave_a_node_is_never_rebooted(node: NodeMaker, policy: str) -> None:
    made = node("hgx-h200-8").fault(LOST)
    assert made.apply(wanted(policy))["exit_code"] == 1
    assert asked(made) == 0
    assert not made.paths.reboots.exists()


def test_once_for_a_configuration_and_again_for_another(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(LOST)
    result = made.apply(wanted())
    assert (result["exit_code"], asked(made)) == (1, 1)
    assert reasons(result) == ["rebooting"]
    assert A in result["findings"][-1]["message"]
    assert not made.ready

    made.reboot()
    result = made.apply(wanted())
    assert (asked(made), reasons(result)) == (0, ["rebooted-before"])
    made.reboot()
    # In other words, the same configuration.
    made.apply(wanted() + "# a comment\n")
    assert asked(made) == 0
    made.apply(wanted(profile="{vgpus: {H200X-70C: 2}}"))
    assert asked(made) == 1
    made.reboot()
    made.apply(wanted())
    assert asked(made) == 0, "the first one is not forgotten over the second"


def test_a_reboot_that_cures_ends_in_a_node_as_configured(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(LOST)
    made.apply(wanted())
    made.without_faults().reboot()
    made.gpu(A).lost = False
    result = made.apply(wanted())
    assert (result["exit_code"], reasons(result), made.ready) == (0, [], True)


@pytest.mark.parametrize("fault", [f"set_vgpu_type {A} io:EIO", f"create_gpu_instance {A} noop"])
def test_what_a_reboot_does_not_cure_is_no_reason(node: NodeMaker, fault: str) -> None:
    made = node("hgx-h200-8").fault(fault)
    result = made.apply(wanted(profile="{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"))
    assert result["exit_code"] == 1
    assert asked(made) == 0


def test_not_while_anybody_uses_a_gpu_of_the_node_named_or_not(node: NodeMaker) -> None:
    for use in ("vm", "compute", "unseen"):
        made = node("hgx-h200-8").with_vfs(B).with_types(B, {0: "H200X-141C"}).fault(LOST)
        if use == "vm":
            made.with_vm(B, 0)
        elif use == "unseen":
            made.with_unseen_vm(B, 0)
        else:
            made.with_compute(B)
        result = made.apply(wanted())
        assert (asked(made), reasons(result)) == (0, ["reboot-held"]), use
        assert B in result["findings"][-1]["message"]
        made.without_holders(B)
        made.apply(wanted())
        assert asked(made) == 1, "it was not the one"


def test_not_where_users_cannot_be_told(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(LOST).fault(f"holders {B} io:EACCES")
    result = made.apply(wanted())
    assert (asked(made), reasons(result)) == (0, ["reboot-held"])


def test_not_where_it_cannot_be_remembered(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(LOST)
    made.paths.reboots.parent.parent.mkdir(parents=True)
    made.paths.reboots.parent.write_text("not a directory", encoding="utf-8")
    result = made.apply(wanted())
    assert (asked(made), reasons(result)) == (0, ["reboot-failed"])


def test_a_refused_reboot_is_told_and_counts(node: NodeMaker) -> None:
    """Better none than one too many: who asked may have been heard all the same."""
    made = node("hgx-h200-8").fault(LOST).fault("reboot error:unknown")
    assert reasons(made.apply(wanted())) == ["reboot-failed"]
    assert json.loads(made.paths.reboots.read_text(encoding="utf-8"))["reboots"]
    made.without_faults().fault(LOST)
    made.apply(wanted())
    assert asked(made) == 0
