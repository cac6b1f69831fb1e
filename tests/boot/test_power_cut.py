"""The power goes in each phase of a run; the next boot converges."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.boot.node import HARDWARE_PHASES, US, A, Node, Shows, assert_converged, simulated_node

pytestmark = pytest.mark.boot


# In each phase a call that does not come back, so that there is time to cut the power in it.
HANGS = {
    "mig-mode": "set_mig_mode",
    "vfs": "sriov_manage",
    "gpu-instances": "create_gpu_instance",
    "vgpu-types": "set_vgpu_type",
}


@pytest.mark.parametrize("phase", [*HARDWARE_PHASES, "gate"])
def test_power_cut(phase: str, node: Node, shows: Shows) -> None:
    hang = f"{HANGS[phase]} {A} hang" if phase in HANGS else ""
    if phase == "mig-mode":
        node.machine.power_cut()
        node.machine.boot(simulated_node(pace=1.0, faults=[hang]))
    else:
        # A later run in a boot that is up, on GPUs that have lost their state: as good, and faster.
        node.be_up()
        node.check("systemctl stop gpu-bootstate-regate.path gpu-bootstate-regate.service")
        node.check("gpu-bootstate gate --close; rm -rf /run/gpu-bootstate/gpus")
        if hang:
            node.check(f"echo 1 >/etc/boot-test/pace; echo '{hang}' >/etc/boot-test/faults")
        node.check(f"/usr/lib/boot-test/make-node; systemctl --no-block restart {US}")
    if hang:
        node.machine.wait_for(
            lambda: f"phase {phase}: 2 GPUs" in last_run(node.said(US)), 200, phase
        )
    else:
        # Opened within milliseconds: the process is stopped as soon as one of the files is there.
        node.check(
            f"until pid=$(systemctl show -P MainPID {US}) && [ $pid != 0 ]; do :; done; "
            "while [ ! -d /run/gpu-bootstate/gpus ]; do :; done; kill -STOP $pid",
            300,
        )
    assert node.show(US, "ActiveState") == "activating"
    node.check("journalctl --sync")  # or the next boot could not tell what was cut
    assert node.boot(simulated_node()) == "running"
    entries = node.machine.journal("-b", "-1", "-u", US)
    cut = last_run(str(entry["MESSAGE"]) for entry in entries)
    if hang:
        assert f"phase {phase}: 2 GPUs" in cut
        assert f"phase {phase}: over" not in "\n".join(cut)
    else:
        assert "phase vgpu-types: over" in "\n".join(cut)
    assert f"Finished {US}" not in "\n".join(cut)
    assert_converged(node)
    shows(f"power cut in phase {phase}: the next boot converges")


def last_run(said: Iterable[str]) -> list[str]:
    texts = list(said)
    starts = [i for i, text in enumerate(texts) if text.startswith(f"Starting {US}")]
    return texts[starts[-1] :] if starts else []
