"""The GPU Operator's sandbox path on a real systemd: the preset's files, a plugin that waits for
them and scans once, a validator that takes them away; and a cluster that never answers.
"""

from __future__ import annotations

import pytest

from tests.boot.machine import OverlayEntry, Symlink
from tests.boot.node import FEATURES, TWO, US, Node, Shows, simulated_node, stand_in

pytestmark = pytest.mark.boot

VALIDATIONS = "/run/nvidia/validations"
READY = f"{VALIDATIONS}/vgpu-devices-ready"
UNITS = "/etc/systemd/system"
CONFIG = f"""{TWO}
gate: {{preset: gpu-operator}}
kubernetes: {{publish: true, features: true}}
"""

# Its init steps as in operator-path.md 2.3, then what it does once: it looks which VFs have a type.
PLUGIN = f"""#!/bin/sh
until [ -e {VALIDATIONS}/workload-type ]; do sleep 1; done
if [ "$(cat {VALIDATIONS}/workload-type)" = vm-vgpu ]; then
    until [ -e {READY} ]; do sleep 1; done
fi
echo "plugin finds $(python3 -c '
import json
node = json.load(open("/run/sim/node.json"))
print(sum(vf["type_id"] > 0 for gpu in node["gpus"] for vf in gpu["vfs"]))
') vGPUs"
exec sleep infinity
"""
# operator-path.md 2.4: the file goes at each start, and on vendor VFIO there never is an mdev.
VALIDATOR = f"""#!/bin/sh
rm -f {READY}
echo "validator finds no mdev"
exit 1
"""


def overlay() -> dict[str, OverlayEntry]:
    wants = f"{UNITS}/multi-user.target.wants/gpu-bootstate-publish.path"
    timers = f"{UNITS}/timers.target.wants/gpu-bootstate-publish.timer"
    shipped = "/usr/lib/systemd/system"
    return {
        **simulated_node(config=CONFIG),
        "/usr/lib/boot-test/plugin": PLUGIN,
        **stand_in("plugin.service", "/usr/lib/boot-test/plugin"),
        "/usr/lib/boot-test/validator": VALIDATOR,
        f"{UNITS}/validator.service": (
            "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=3\n"
            "ExecStart=/usr/lib/boot-test/validator\n"
        ),
        wants: Symlink(f"{shipped}/gpu-bootstate-publish.path"),
        timers: Symlink(f"{shipped}/gpu-bootstate-publish.timer"),
        "/etc/kubernetes/keep": "",
    }


@pytest.fixture(scope="module")
def up(node: Node) -> Node:
    assert node.boot(overlay()) == "running"
    return node


def found(node: Node) -> list[str]:
    return [text for text in node.said("plugin.service") if "finds" in text]


def test_the_plugin_starts_on_the_last_file_and_finds_every_vgpu(up: Node, shows: Shows) -> None:
    up.machine.wait_for(lambda: bool(found(up)), 60, "the plugin")
    assert found(up) == ["plugin finds 14 vGPUs"]
    assert up.check(f"cat {VALIDATIONS}/workload-type") == "vm-vgpu"
    assert up.exists(f"{VALIDATIONS}/host-vgpu-manager-ready")
    assert up.check(f"stat -c %a {VALIDATIONS} {READY}") == "755\n644"
    shows("preset gpu-operator: the plugin that scans once finds all 14 vGPUs after a cold start")


def test_no_boot_waits_for_a_cluster_that_does_not_answer(up: Node, shows: Shows) -> None:
    """There is no kubelet here with credentials, and no network: it goes on trying by itself."""
    up.machine.wait_for(
        lambda: up.show("gpu-bootstate-publish.service", "ActiveState") == "active", 60, "it"
    )
    assert up.check("systemctl is-system-running") == "running"
    said = " ".join(up.said("gpu-bootstate-publish.service"))
    assert "No running kubelet" in said
    up.machine.wait_for(
        lambda: "gpu-bootstate.ready=true" in up.run(f"cat {FEATURES}").stdout, 120, "the file"
    )
    shows("a cluster that does not answer: the boot is over, publish goes on trying by itself")


def test_a_validator_that_crash_loops_does_not_win(up: Node, shows: Shows) -> None:
    before = up.show("plugin.service", "MainPID")
    up.check("systemctl start --no-block validator.service")
    up.machine.wait_for(
        lambda: up.said("validator.service").count("validator finds no mdev") >= 6, 120, "6 starts"
    )
    up.check("systemctl stop validator.service")
    up.machine.wait_for(lambda: up.exists(READY), 150, "the file")
    assert up.show("plugin.service", "MainPID") == before
    shows("a validator that deletes the file at each of its starts: it is back after each")
    up.check(f"rm -f {VALIDATIONS}/*")  # its preStop hook
    up.machine.wait_for(lambda: up.exists(READY), 150, "the files after a wipe")
    assert up.check(f"cat {VALIDATIONS}/workload-type") == "vm-vgpu"
    up.check(f"rm -rf {VALIDATIONS}")  # CLEANUP_ALL
    up.machine.wait_for(lambda: up.exists(READY), 150, "the directory")
    up.check(f"rm {READY}")
    up.machine.wait_for(lambda: up.exists(READY), 150, "the file in the new directory")
    shows("files wiped, then the directory itself removed: all back, and the new one is watched")


def test_what_is_deleted_stays_away_when_it_is_no_longer_true(up: Node, shows: Shows) -> None:
    up.check("gpu-bootstate simulate reload-driver")  # the vGPUs are gone
    up.check("systemctl start --no-block validator.service")
    up.machine.wait_for(lambda: not up.exists("/run/gpu-bootstate/ready"), 150, "the gate's end")
    up.check("systemctl stop validator.service; systemctl restart plugin.service; sleep 5")
    assert not up.exists(READY)
    assert found(up) == ["plugin finds 14 vGPUs"], "it waits"
    up.check(f"systemctl reload {US}", 300)
    up.machine.wait_for(lambda: len(found(up)) == 2, 60, "the plugin")
    assert found(up)[-1] == "plugin finds 14 vGPUs"
    shows("vGPUs lost: the gate is withdrawn, a plugin started then waits and finds all 14 later")
