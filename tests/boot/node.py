"""A GPU node for the boot tests: simulated GPUs on a real system, and the services around them.

The package is installed and enabled as it is shipped. Two things are put around it: the command
goes to simulated GPUs, which live under /run and so are gone with every boot, and the check for an
NVIDIA card on the PCI bus is answered with yes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.boot.machine import Completed, Machine, OverlayEntry, Symlink

BOARD = "hgx-h200-8"
A, B = "0000:17:00.0", "0000:3d:00.0"
EIGHT = (Path(__file__).parents[2] / "config" / "config.yaml").read_text(encoding="utf-8")
# Two GPUs where the count does not matter: the machine is emulated, and slow.
TWO = f"""version: v1
profiles:
  seven: {{mig: {{1g.18gb: 7}}, vgpus: {{H200X-1-18C: 7}}}}
gpus:
  - match: {{pci: ["{A}", "{B}"]}}
    profile: seven
"""
GATE = "/run/gpu-bootstate/ready"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/gpu-bootstate"
DRIVER_UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-vgpud.service",
    "nvidia-vgpu-mgr.service",
)
US = "gpu-bootstate.service"
HARDWARE_PHASES = ("mig-mode", "vfs", "gpu-instances", "vgpu-types")
Shows = Callable[[str], None]
_UNITS = "/etc/systemd/system"

# In the place of the shipped /usr/bin/gpu-bootstate, so that the shipped units stay as they are.
_COMMAND = f"""#!/bin/sh
exec /usr/bin/python3 -I /usr/lib/gpu-bootstate/python \\
    --simulate {BOARD} --root / --sim-dir /run/sim "$@"
"""

# A node as after a cold start: everything off.
_MAKE_NODE = """#!/bin/sh
set -eu
read -r boot </proc/sys/kernel/random/boot_id
read -r pace </etc/boot-test/pace
gpu-bootstate simulate new --pace "$pace" --boot-id "$boot"
while read -r fault; do
    gpu-bootstate simulate fault $fault
done </etc/boot-test/faults
"""

# Says what it finds at its start, as a device plugin that scans once.
_CONSUMER = f"""#!/bin/sh
read -r boot </proc/sys/kernel/random/boot_id
gate=closed
[ ! -e {GATE} ] || gate=stale
if grep -q "$boot" {GATE} 2>/dev/null; then gate=open; fi
[ ! -e {FEATURES} ] || gate="$gate, stale features"
echo "$1 starts: gate $gate"
exec sleep infinity
"""


def stand_in(name: str, start: str) -> dict[str, OverlayEntry]:
    """A service of that name, started at boot."""
    return {
        f"{_UNITS}/{name}": (
            f"[Unit]\nDescription=Stand-in for {name}\n[Service]\nExecStart={start}\n"
        ),
        f"{_UNITS}/multi-user.target.wants/{name}": Symlink(f"../{name}"),
    }


def consumer(name: str) -> dict[str, OverlayEntry]:
    return stand_in(f"{name}.service", f"/usr/lib/boot-test/consumer {name}")


def held(name: str) -> dict[str, OverlayEntry]:
    """The shipped drop-in for this consumer, linked as the README says."""
    shipped = Symlink("/usr/share/gpu-bootstate/drop-ins/wait-for-gate.conf")
    return {f"{_UNITS}/{name}.service.d/wait-for-gate.conf": shipped}


def shipped_node(*, config: str) -> dict[str, OverlayEntry]:
    """The package as it is shipped and a held kubelet; no GPUs."""
    return {
        "/etc/gpu-bootstate/config.yaml": config,
        "/usr/lib/boot-test/consumer": _CONSUMER,
        **consumer("kubelet"),
        **held("kubelet"),
    }


def simulated_node(
    *, config: str = TWO, pace: float = 0.01, faults: Iterable[str] = (), unit: str = ""
) -> dict[str, OverlayEntry]:
    """Eight H200 that are as after a cold start. The kubelet is held, libvirtd is only ordered.

    ``pace``: real seconds for each second that the hardware takes. ``unit``: lines for [Service].
    """
    files: dict[str, OverlayEntry] = {
        **shipped_node(config=config),
        "/etc/boot-test/pace": f"{pace}\n",
        "/etc/boot-test/faults": "".join(f"{fault}\n" for fault in faults),
        "/usr/bin/gpu-bootstate": _COMMAND,
        "/usr/lib/boot-test/make-node": _MAKE_NODE,
        f"{_UNITS}/boot-test-node.service": (
            "[Unit]\nDescription=Simulated GPUs of this boot\n"
            "Before=gpu-bootstate.service gpu-bootstate-regate.service\n"
            "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/lib/boot-test/make-node\n"
        ),
        f"{_UNITS}/multi-user.target.wants/boot-test-node.service": Symlink(
            "../boot-test-node.service"
        ),
        f"{_UNITS}/gpu-bootstate.service.d/90-boot-test.conf": (
            f"[Service]\nExecCondition=\n{unit}"
        ),
        **consumer("libvirtd"),
    }
    for name in DRIVER_UNITS:
        files |= stand_in(name, "/bin/sleep infinity")
    return files


@dataclass(frozen=True)
class Line:
    """An entry of the journal; `unit` is whom it is about, or who said it."""

    unit: str
    text: str


class Node:
    """One machine over all its boots. What a test does to it, the next test must not see."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def boot(self, overlay: Mapping[str, OverlayEntry]) -> str:
        """Cuts the power, boots and waits for the end of the boot; returns systemd's state."""
        self.machine.power_cut()
        self.machine.boot(overlay)
        return self.machine.wait_booted(300)

    def be_up(self) -> None:
        """Boots two simulated GPUs, unless an earlier test has left a node with its gate open."""
        if not (self.machine.running and self.exists(GATE) and self.exists("/run/sim")):
            assert self.boot(simulated_node()) == "running"

    def run(self, command: str, timeout_s: float = 120) -> Completed:
        return self.machine.run(["/bin/sh", "-c", command], timeout_s)

    def check(self, command: str, timeout_s: float = 120) -> str:
        return self.machine.check(["/bin/sh", "-c", command], timeout_s).strip()

    def show(self, unit: str, name: str) -> str:
        return self.check(f"systemctl show -P {name} {unit}")

    def exists(self, path: str) -> bool:
        return self.run(f"test -e {path}").rc == 0

    def lines(self, *selection: str) -> list[Line]:
        """The journal of this boot, oldest first."""
        found = []
        for entry in self.machine.journal("-b", *selection):
            unit = entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or ""
            found.append(Line(unit, str(entry.get("MESSAGE", ""))))
        return found

    def said(self, unit: str) -> list[str]:
        return [line.text for line in self.lines() if line.unit == unit]


def assert_order(lines: Iterable[Line], *wanted: tuple[str, str]) -> None:
    """Each of these (unit, start of the text) is there, in this order."""
    rest = list(lines)
    for unit, start in wanted:
        at = next(
            (i for i, x in enumerate(rest) if x.unit == unit and x.text.startswith(start)), None
        )
        assert at is not None, f"{unit}: {start!r} is missing, or came too early: {rest[:60]}"
        rest = rest[at + 1 :]


def wait_for_tries(node: Node, unit: str, count: int) -> None:
    """Until the check of a held consumer has said no so often."""

    def said_no() -> bool:
        return sum("gate of this node is closed" in text for text in node.said(unit)) >= count

    node.machine.wait_for(said_no, 120, f"{count} tries of {unit}", interval_s=2)


def assert_converged(node: Node) -> None:
    """The unit, the gate, the target and both consumers are as after a good boot."""
    assert node.show(US, "ActiveState") == "active"
    boot = node.check("cat /proc/sys/kernel/random/boot_id")
    assert json.loads(node.check(f"cat {GATE}"))["boot_id"] == boot
    status = json.loads(node.check("gpu-bootstate status --format json"))
    assert (status["condition"], status["live"]["condition"]) == ("converged", "converged")
    assert node.show("gpu-bootstate-ready.target", "ActiveState") == "active"
    assert node.said("kubelet.service")[-1] == "kubelet starts: gate open"
