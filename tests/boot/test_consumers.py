"""What befalls consumers after the boot: nothing that we do restarts them or lets them through."""

from __future__ import annotations

import pytest

from tests.boot.machine import Symlink
from tests.boot.node import GATE, US, A, Node, Shows, held, simulated_node, wait_for_tries

pytestmark = pytest.mark.boot

REGATE = "gpu-bootstate-regate"


@pytest.fixture(scope="module")
def up(node: Node) -> Node:
    """Booted once; each test leaves it with the gate open."""
    # virtqemud is started by its socket, as distributions ship it.
    units = "/etc/systemd/system"
    overlay = {
        **simulated_node(),
        **held("virtqemud"),
        f"{units}/virtqemud.socket": "[Socket]\nListenStream=/run/virtqemud-sock\n",
        f"{units}/virtqemud.service": (
            "[Service]\nExecStart=/usr/lib/boot-test/consumer virtqemud\n"
        ),
        f"{units}/sockets.target.wants/virtqemud.socket": Symlink("../virtqemud.socket"),
    }
    assert node.boot(overlay) == "running"
    return node


def wait_for_start(node: Node, name: str) -> None:
    node.machine.wait_for(
        lambda: node.said(f"{name}.service")[-1] == f"{name} starts: gate open", 60, name
    )


def pids(node: Node) -> tuple[str, str]:
    return node.show("kubelet.service", "MainPID"), node.show("libvirtd.service", "MainPID")


@pytest.mark.parametrize("verb", ["reload", "restart", "try-reload-or-restart"])
def test_consumers_go_on(verb: str, up: Node, shows: Shows) -> None:
    before = pids(up)
    assert "0" not in before
    up.check(f"systemctl {verb} {US}", 300)
    assert pids(up) == before
    assert [text for text in up.said("kubelet.service") if "starts" in text] == [
        "kubelet starts: gate open"
    ]
    assert up.exists(GATE)
    shows(f"systemctl {verb}: main PIDs of the consumers unchanged")


def test_consumers_go_on_when_a_run_fails(up: Node, shows: Shows) -> None:
    before = pids(up)
    up.check(
        f"gpu-bootstate simulate fault set_vgpu_type {A} io:EIO; "
        "gpu-bootstate simulate reload-driver"
    )
    assert up.run(f"systemctl reload {US}", 300).rc != 0
    assert up.show(US, "ActiveState") == "active"  # a failed reload does not stop a unit
    assert not up.exists(GATE)
    up.machine.wait_for(
        lambda: up.show("gpu-bootstate-ready.target", "ActiveState") == "inactive", 60, "the target"
    )
    assert up.run(f"systemctl restart {US}", 300).rc != 0
    assert up.show(US, "ActiveState") == "failed"
    assert pids(up) == before
    shows("reload and restart that fail: gate closed, consumers go on, new ones are held")

    # A consumer that comes now is held, also one that its socket starts; and none is given up.
    up.check("systemctl --no-block restart kubelet.service")
    up.run(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/run/virtqemud-sock\")'"
    )
    wait_for_tries(up, "virtqemud.service", 2)
    for unit in ("kubelet.service", "virtqemud.service"):
        assert up.show(unit, "SubState") in ("auto-restart", "start-pre")
    assert up.show("virtqemud.socket", "ActiveState") == "active"

    up.check(f"gpu-bootstate simulate fault --clear; systemctl restart {US}", 300)
    for name in ("kubelet", "virtqemud"):
        wait_for_start(up, name)
    shows("held consumers start by themselves once the gate is open, also behind a socket")


def test_consumers_go_on_over_a_stop_and_a_start(up: Node, shows: Shows) -> None:
    """systemctl stop leaves the vGPUs and their gate."""
    before = pids(up)
    up.check(f"systemctl stop {US}")
    assert pids(up) == before
    # The watch goes on, and starts the target again; that does not start what was stopped.
    up.check(f"rm {GATE}; systemctl stop gpu-bootstate-ready.target")
    up.machine.wait_for(lambda: up.exists(GATE), 60, "the gate")
    up.machine.wait_for(
        lambda: up.show("gpu-bootstate-ready.target", "ActiveState") == "active", 60, "the target"
    )
    assert up.show(US, "ActiveState") == "inactive"
    assert pids(up) == before
    up.check(f"systemctl start {US}", 300)
    assert pids(up) == before
    assert up.exists(GATE)
    shows("systemctl stop and start: consumers go on, and the watch starts nothing by itself")


def test_fifty_deletions(up: Node, shows: Shows) -> None:
    up.check("for i in $(seq 50); do rm -rf /run/gpu-bootstate/ready; sleep 0.2; done", 120)
    up.machine.wait_for(lambda: up.exists(GATE), 60, "the gate")
    up.machine.wait_for(
        lambda: up.show(f"{REGATE}.service", "ActiveState") == "inactive", 60, "the end of the hold"
    )
    assert up.show(f"{REGATE}.service", "Result") == "success"
    assert up.show(f"{REGATE}.path", "ActiveState") == "active"
    up.check(f"rm {GATE}")
    up.machine.wait_for(lambda: up.exists(GATE), 60, "the gate")
    shows("50 deletions in 10 s: the gate is back, the watch is alive, and it comes back again")


def test_a_deleted_gate_that_is_no_longer_true_stays_away(up: Node, shows: Shows) -> None:
    before = pids(up)
    up.check("gpu-bootstate simulate reload-driver")  # the vGPUs are gone
    up.check(f"rm {GATE}")
    up.machine.wait_for(
        lambda: up.show("gpu-bootstate-ready.target", "ActiveState") == "inactive", 90, "the target"
    )
    assert not up.exists(GATE)
    assert pids(up) == before
    shows("gate deleted after a driver reload: withdrawn, target stopped, consumers go on")
    up.check(f"systemctl reload {US}", 300)
    assert up.exists(GATE)


def test_a_watch_that_was_dead_looks_at_its_own_start(up: Node, shows: Shows) -> None:
    up.check(f"systemctl stop {REGATE}.path {REGATE}.service; rm {GATE}")
    up.check(f"systemctl start {REGATE}.path")
    up.machine.wait_for(lambda: up.exists(GATE), 60, "the gate")
    shows("gate deleted while the watch was stopped: back when it starts")
