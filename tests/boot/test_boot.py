"""What a boot does, on a real systemd with simulated GPUs. Each test boots the machine itself."""

from __future__ import annotations

import json

import pytest

from tests.boot.machine import Symlink
from tests.boot.node import (
    DRIVER_UNITS,
    EIGHT,
    FEATURES,
    GATE,
    HARDWARE_PHASES,
    TWO,
    US,
    A,
    B,
    Node,
    Shows,
    assert_converged,
    assert_order,
    shipped_node,
    simulated_node,
    stand_in,
    wait_for_tries,
)

pytestmark = pytest.mark.boot


# The first boot of the disk: nothing is simulated yet.
def test_a_host_without_a_gpu_is_left_in_peace(node: Node, shows: Shows) -> None:
    node.boot(shipped_node(config=TWO))
    assert node.show(US, "ActiveState") == "inactive"
    assert node.show(US, "Result") == "exec-condition"
    # Skipped is not released: whoever took the drop-in waits, and does not wake us at each try.
    wait_for_tries(node, "kubelet.service", 2)
    assert not node.exists(GATE)
    assert not any("starts" in text for text in node.said("kubelet.service"))
    assert node.show("gpu-bootstate-ready.target", "ActiveState") == "inactive"
    shows("unit skipped: a consumer with the drop-in is held")

    said = [line.text for line in node.lines("-t", "is-vgpu-host", "-t", "gpu-bootstate")]
    assert said == ["No NVIDIA driver is installed here; nothing to do."]
    started, ended = (
        int(node.show(US, f"{name}TimestampMonotonic"))
        for name in ("InactiveExit", "InactiveEnter")
    )
    shows(
        f"no GPU: unit skipped with one line, {(ended - started) / 1e6:.1f} s of an emulated boot"
    )

    verified = node.check("systemd-analyze verify --man=no gpu-bootstate.service 2>&1")
    assert "gpu-boot" not in verified
    shows("systemd-analyze verify: clean")
    for unit, limit in (("gpu-bootstate", 3.3), ("gpu-bootstate-regate", 2.7)):
        line = node.check(f"systemd-analyze security --no-pager {unit}.service | tail -n 1")
        assert float(line.split(":")[1].split()[0]) <= limit
        shows(line.strip("→ "))


def test_cold_boot(node: Node, shows: Shows) -> None:
    state = node.boot(simulated_node(config=EIGHT))
    assert state == "running"
    lines = node.lines()
    for unit in DRIVER_UNITS:
        assert_order(lines, (unit, f"Started {unit}"), (US, f"Starting {US}"))
    shows(f"started after {', '.join(name.partition('.')[0] for name in DRIVER_UNITS)}")
    steps = [(US, f"phase {phase}: {word}") for phase in HARDWARE_PHASES for word in ("", "over")]
    assert_order(
        lines,
        (US, f"Starting {US}"),
        *steps,
        (US, "phase gate: opened"),
        (US, "CONVERGED: 8 GPUs as configured"),
        (US, f"Finished {US}"),
        ("gpu-bootstate-ready.target", "Reached target"),
        ("kubelet.service", "Started kubelet.service"),
        ("kubelet.service", "kubelet starts: gate open"),
    )
    assert_order(lines, (US, f"Finished {US}"), ("libvirtd.service", "libvirtd starts: gate open"))
    shows(
        f"cold boot: {', '.join(HARDWARE_PHASES)}, gate, in this order; then target, then kubelet"
    )
    assert_converged(node)
    status = node.check(f"systemctl status --no-pager {US}")
    assert 'Status: "8 GPUs as configured; the gate is open."' in status
    shows(f"gate file there; systemctl status: {node.show(US, 'StatusText')}")
    # Hardening takes nothing away that the run asks the host for: it would have said so.
    assert not [text for text in node.said(US) if "Permission" in text or "not permitted" in text]
    assert node.check("systemctl --failed --no-legend") == ""


def test_reboot_and_what_the_boot_before_has_left(node: Node, shows: Shows) -> None:
    node.be_up()
    assert_converged(node)
    before = node.check("cat /proc/sys/kernel/random/boot_id")
    node.machine.check(["systemctl", "--no-block", "reboot"])
    node.machine.wait_off(120)
    # A leftover in each place where somebody might take it for a release, made before ours are
    # removed, and a consumer that looks as early as one can, without any order against us.
    plant = f"mkdir -p {GATE.rpartition('/')[0]} {FEATURES.rpartition('/')[0]}; echo old >{GATE}"
    early = "[Unit]\nDefaultDependencies=no\nBefore=systemd-tmpfiles-setup.service\n"
    overlay = {
        **simulated_node(),
        "/etc/systemd/system/leftover.service": (
            f"{early}[Service]\nType=oneshot\n"
            f"ExecStart=/bin/sh -c '{plant}; echo old >{FEATURES}; cat {GATE} {FEATURES}'\n"
        ),
        "/etc/systemd/system/sysinit.target.wants/leftover.service": Symlink("../leftover.service"),
        **stand_in("early.service", "/usr/lib/boot-test/consumer early"),
    }
    overlay["/etc/systemd/system/early.service"] = (
        "[Unit]\nDefaultDependencies=no\nAfter=systemd-tmpfiles-setup.service\n"
        "[Service]\nExecStart=/usr/lib/boot-test/consumer early\n"
    )
    node.machine.start(overlay)
    node.machine.wait_booted(300)
    assert node.check("cat /proc/sys/kernel/random/boot_id") != before
    assert_converged(node)
    shows("reboot: the volatile state was gone, and converged again")

    assert node.said("leftover.service").count("old") == 2
    assert_order(
        node.lines(),
        ("early.service", "early starts: gate closed"),
        (US, "phase gate: opened"),
        ("kubelet.service", "kubelet starts: gate open"),
    )
    assert not node.exists(FEATURES)
    shows("a stale gate and a stale feature file were never seen by a consumer")
    node.check(
        "rm /etc/systemd/system/*/leftover.service /etc/systemd/system/*/early.service; sync"
    )


def test_one_bad_gpu_where_one_good_one_is_enough(node: Node, shows: Shows) -> None:
    config = TWO + "policy: {gate: any}\n"
    faults = [f"create_gpu_instance {B} error:insufficient-resources"]
    node.boot(simulated_node(config=config, faults=faults))
    assert (node.show(US, "ActiveState"), node.show(US, "ExecMainStatus")) == ("active", "2")
    status = node.show(US, "StatusText")
    assert status.startswith("Degraded: 1 of 2 GPUs")
    assert B in status
    assert node.said("kubelet.service")[-1] == "kubelet starts: gate open"
    shows(f"one bad GPU, gate: any: boot completes, kubelet starts, unit says: {status}")


def test_one_bad_gpu_where_all_are_needed_and_the_remedy(node: Node, shows: Shows) -> None:
    faults = [f"create_gpu_instance {B} error:insufficient-resources"]
    assert node.boot(simulated_node(faults=faults)) == "degraded"
    assert (node.show(US, "ActiveState"), node.show(US, "Result")) == ("failed", "exit-code")
    status = node.show(US, "StatusText")
    assert status.startswith("Degraded: 1 of 2 GPUs")
    assert not any("starts" in text for text in node.said("kubelet.service"))
    # Who took no drop-in is ordered only: the boot goes on.
    assert node.said("libvirtd.service")[-1] == "libvirtd starts: gate closed"
    shows(f"one bad GPU, gate: all: boot completes, kubelet is held, unit says: {status}")

    wait_for_tries(node, "kubelet.service", 2)
    assert sum(text.startswith("Starting") for text in node.said(US)) == 1
    record = json.loads(node.check("cat /run/gpu-bootstate/status.json"))
    assert record["condition"] == "degraded"
    assert node.show("gpu-bootstate-ready.target", "ActiveState") == "inactive"
    shows("unit failed: its status file is there")

    node.check("gpu-bootstate simulate fault --clear")
    node.check(f"systemctl restart {US}", 300)
    node.machine.wait_for(
        lambda: "kubelet starts: gate open" in node.said("kubelet.service"), 60, "kubelet"
    )
    starts = [text for text in node.said("kubelet.service") if "starts" in text]
    assert starts == ["kubelet starts: gate open"]
    assert_converged(node)
    shows("cause gone, unit started again: kubelet comes up by itself, once")


def test_a_hung_tool(node: Node, shows: Shows) -> None:
    config = TWO + "policy: {deadline: 5min, tool-timeout: 60s}\n"
    assert node.boot(simulated_node(config=config, faults=[f"sriov_manage {A} hang"])) == "degraded"
    record = json.loads(node.check("cat /run/gpu-bootstate/status.json"))
    conditions = {gpu["pf"]: gpu["condition"] for gpu in record["gpus"]}
    assert conditions[B] == "converged"
    assert conditions[A] != "converged"
    assert record["duration_s"] <= 300
    assert not any("starts" in text for text in node.said("kubelet.service"))
    shows(f"hung sriov-manage: over after {record['duration_s']:.0f} s of 300, the other GPU is up")


def test_a_hung_run_meets_the_limit_of_the_unit(node: Node, shows: Shows) -> None:
    """Not even the command answers: systemd ends it, and the net closes the gate."""
    stuck = "ExecStart=\nExecStart=/bin/sleep infinity\nTimeoutStartSec=15s\n"
    assert node.boot(simulated_node(unit=stuck)) == "degraded"
    assert node.show(US, "Result") == "timeout"
    assert not node.exists(GATE)
    assert not any("starts" in text for text in node.said("kubelet.service"))
    shows("hung run: ended at the unit's start limit, boot completes, gate closed")
