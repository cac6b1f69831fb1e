"""A label of the Node names a profile; the node is brought to it, drained first if it must be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_bootstate.cli.fleet import FleetHost
from gpu_bootstate.config import load
from gpu_bootstate.hardware.protocol import Hardware
from gpu_bootstate.kubernetes.api import Api
from gpu_bootstate.kubernetes.fleet import Fleet, Verdict
from gpu_bootstate.kubernetes.publish import Conflict, Unanswered
from gpu_bootstate.lock import acquire
from gpu_bootstate.model import Policy
from gpu_bootstate.simulator.hardware import SimHardware
from tests.kubernetes.api_server import ApiServer, Trouble
from tests.support.node import Node

A, B = "0000:17:00.0", "0000:3d:00.0"
REPO = Path(__file__).parents[2]
NODE = "/api/v1/nodes/n1"
UNIT = "gpu-bootstate.service"


def profile(types: str, *pfs: str) -> str:
    entries = [f'  - match: {{pci: "{pf}"}}\n    profile: {{vgpus: {types}}}\n' for pf in pfs]
    return "version: v1\ngpus:\n" + "".join(entries)


WHOLE, HALVES = profile("{H200X-141C: 1}", A, B), profile("{H200X-70C: 2}", A, B)


@dataclass
class Fleeted:
    """A simulated GPU node under a fleet; `turn` is one pass of ours and one of the unit."""

    node: Node
    server: ApiServer
    kubeconfig: Path
    told: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    queued: bool = False
    looks: int = 0  # how often the hardware was opened by the host's side

    @contextmanager
    def hardware(self, _: Policy) -> Iterator[Hardware]:
        self.looks += 1
        hw = SimHardware(self.node.sim)
        try:
            yield hw
        finally:
            self.queued |= any(call.verb == "reload_unit" for call in hw.calls)
            hw.close()

    @property
    def boot_id(self) -> str:
        return SimHardware(self.node.sim).boot_id()

    @property
    def host(self) -> FleetHost:
        return FleetHost(self.node.paths, self.hardware, self.boot_id)

    def step(self, host: FleetHost | None = None) -> Verdict:
        return Fleet(
            Api(self.kubeconfig, "n1"),
            host or self.host,
            boot_id=self.boot_id,
            tell=self.told.append,
            now=lambda: 1_800_000_000.0,
        ).step()

    def unit(self) -> None:
        """What systemd does with the job that was queued."""
        if self.queued:
            self.runs.append(self.node.apply(load(self.node.paths)))
        self.queued = False

    def turn(self) -> Verdict:
        verdict = self.step()
        self.unit()
        return verdict

    def settle(self) -> Verdict:
        """To the end of a change that nobody is in the way of."""
        for _ in range(4):
            verdict = self.turn()
            if verdict.state != "pending":
                return verdict
        raise AssertionError(f"still pending: {verdict.message}")

    def offer(self, **profiles: str) -> None:
        directory = self.node.paths.fleet_dir
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in profiles.items():
            (directory / f"{name.replace('_', '-')}.yaml").write_text(text)

    def select(self, name: str) -> None:
        self.metadata["labels"]["gpu-bootstate/config"] = name

    @property
    def metadata(self) -> dict[str, Any]:
        metadata = self.server.nodes["n1"]["metadata"]
        assert isinstance(metadata, dict)
        return metadata

    @property
    def state(self) -> str | None:
        found = self.metadata["labels"].get("gpu-bootstate/config.state")
        assert found is None or isinstance(found, str)
        return found

    @property
    def message(self) -> str:
        return str((self.metadata.get("annotations") or {}).get("gpu-bootstate/config-message"))

    def cordoned(self) -> bool:
        return bool(self.server.nodes["n1"]["spec"].get("unschedulable"))

    def types(self, pf: str) -> list[str]:
        return sorted(self.node.types(pf).values())


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleeted]:
    with ApiServer() as server:
        server.add_node("n1")
        kubeconfig = server.kubeconfig(tmp_path / "kubelet.conf", node="n1")
        node = Node("hgx-h200-8", tmp_path / "root").with_unit(UNIT, "inactive")
        yield Fleeted(node, server, kubeconfig)


def start_pod(fleet: Fleeted, name: str, phase: str, resource: str = "nvidia.com/H200X") -> None:
    pod = fleet.server.add_pod("vms", name, "n1", owner="Node")
    pod["status"]["phase"] = phase
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}


# --------------------------------------------------------------------------- the main road


def test_the_profile_of_the_label_is_installed_applied_and_told(fleet: Fleeted) -> None:
    fleet.offer(default=HALVES, whole=WHOLE)
    fleet.select("whole")
    assert fleet.turn().state == "pending"
    assert fleet.cordoned(), "the change needs idle GPUs: nobody may come meanwhile"
    assert fleet.state == "pending"
    assert fleet.settle() == Verdict("success", "The profile whole is applied.")
    assert (fleet.state, fleet.cordoned()) == ("success", False)
    assert fleet.types(A) == fleet.types(B) == ["H200X-141C"]
    installed = fleet.node.paths.fleet_drop_in.read_text()
    assert installed.endswith(WHOLE)
    assert "profile whole" in installed.lower()


def test_without_the_label_the_profile_is_default(fleet: Fleeted) -> None:
    fleet.offer(default=HALVES, whole=WHOLE)
    assert fleet.settle().state == "success"
    assert fleet.types(A) == ["H200X-70C", "H200X-70C"]


def test_another_label_changes_the_geometry(fleet: Fleeted) -> None:
    fleet.offer(whole=WHOLE, halves=HALVES)
    fleet.select("whole")
    fleet.settle()
    fleet.select("halves")
    assert fleet.settle().state == "success"
    assert fleet.types(A) == ["H200X-70C", "H200X-70C"]


def test_a_profile_that_the_cluster_changes_is_applied_anew(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.offer(default=HALVES)
    assert fleet.settle().state == "success"
    assert fleet.types(A) == ["H200X-70C", "H200X-70C"]


def test_a_settled_node_costs_one_read_and_touches_no_gpu(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    looks, requests, runs = fleet.looks, len(fleet.server.requests), len(fleet.runs)
    assert fleet.turn().state == "success"
    assert {request.method for request in fleet.server.requests[requests:]} == {"GET"}
    assert fleet.looks == looks
    assert len(fleet.runs) == runs


def test_a_change_of_nothing_but_words_drains_nobody(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.node.with_vm(A, 0)
    fleet.offer(default=f"# another comment\n{WHOLE}")
    assert fleet.settle().state == "success"
    assert not any("cordon" in line for line in fleet.told[4:])
    assert fleet.node.touched() == set()


def test_neither_label_nor_default_leaves_everything(fleet: Fleeted) -> None:
    fleet.offer(whole=WHOLE)
    assert fleet.turn() == Verdict(None, "")
    assert (fleet.state, fleet.cordoned()) == (None, False)
    assert not fleet.node.paths.fleet_drop_in.exists()


def test_a_reboot_in_the_middle_goes_on_and_uncordons(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.step()
    fleet.node.reboot().with_unit(UNIT, "inactive")
    assert fleet.cordoned()
    assert fleet.settle().state == "success"
    assert not fleet.cordoned()


# --------------------------------------------------------------------------- who is in the way


def test_a_running_vm_is_waited_for_under_a_cordon(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.node.with_vm(A, 0, name="db-1")
    fleet.offer(default=HALVES)
    for _ in range(3):
        verdict = fleet.turn()
        assert verdict.state == "pending"
        assert A in verdict.message
        assert "qemu-system-x86" in verdict.message
    assert fleet.cordoned()
    assert fleet.state == "pending"
    assert WHOLE in fleet.node.paths.fleet_drop_in.read_text(), "a reboot now changes nothing"
    assert fleet.types(A) == ["H200X-141C"]
    assert fleet.types(B) == ["H200X-141C"], "all change together, once all can"
    fleet.node.without_holders(A)
    assert fleet.settle().state == "success"
    assert not fleet.cordoned()
    assert fleet.types(A) == ["H200X-70C", "H200X-70C"]


@pytest.mark.parametrize(
    ("phase", "resource", "waits"),
    [
        ("Pending", "nvidia.com/H200X-141C", True),
        ("Pending", "cpu", False),
        ("Running", "nvidia.com/H200X-141C", False),
        ("Succeeded", "nvidia.com/H200X-141C", False),
    ],
)
def test_a_pod_that_is_about_to_start_is_waited_for(
    fleet: Fleeted, phase: str, resource: str, *, waits: bool
) -> None:
    fleet.offer(default=WHOLE)
    start_pod(fleet, "virt-launcher-db-1-x", phase, resource)
    verdict = fleet.turn()
    assert fleet.node.paths.fleet_drop_in.exists() is not waits
    if waits:
        assert "The pod vms/virt-launcher-db-1-x is starting." in verdict.message


def test_a_vm_that_comes_before_the_cordon_is_seen_after_it(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.offer(default=HALVES)
    start = Trouble("PATCH", NODE, after=lambda: fleet.node.with_vm(A, 0))
    fleet.server.trouble(start)
    assert "qemu" in fleet.turn().message
    assert WHOLE in fleet.node.paths.fleet_drop_in.read_text()


def test_going_back_to_what_is_applied_uncordons(fleet: Fleeted) -> None:
    fleet.offer(whole=WHOLE, halves=HALVES)
    fleet.select("whole")
    fleet.settle()
    fleet.node.with_vm(A, 0)
    fleet.select("halves")
    fleet.turn()
    assert fleet.cordoned()
    fleet.select("whole")
    assert fleet.turn().state == "success"
    assert not fleet.cordoned()


def test_a_cordon_of_somebody_else_is_his(fleet: Fleeted) -> None:
    fleet.server.nodes["n1"]["spec"]["unschedulable"] = True
    fleet.offer(default=WHOLE)
    assert fleet.settle().state == "success"
    assert fleet.cordoned()


def test_a_vm_that_outruns_the_run_is_waited_for_and_the_run_repeated(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.offer(default=HALVES)
    fleet.step()
    fleet.node.with_vm(A, 0).with_vm(B, 0)
    fleet.unit()
    verdict = fleet.turn()
    assert verdict.state == "pending"
    assert "qemu" in verdict.message
    assert fleet.cordoned()
    fleet.node.without_holders(A).without_holders(B)
    assert fleet.settle().state == "success"
    assert fleet.types(A) == ["H200X-70C", "H200X-70C"]


def test_a_refused_run_that_nobody_ordered_drains_nobody(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    fleet.node.with_vm(A, 0).with_vm(B, 0)
    (fleet.node.paths.fleet_drop_in.parent / "90-by-hand.yaml").write_text(HALVES)
    assert fleet.node.apply(load(fleet.node.paths))["condition"] == "refused"
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert A in verdict.message
    assert not fleet.cordoned()


# --------------------------------------------------------------------------- what is wrong


def test_a_profile_that_is_not_there_names_the_nearest(fleet: Fleeted) -> None:
    fleet.offer(whole=WHOLE, halves=HALVES)
    fleet.select("hole")
    assert fleet.turn() == Verdict(
        "failed",
        "There is no profile hole. Did you mean whole? The cluster has: halves, whole. "
        "Nothing was changed.",
    )
    assert fleet.state == "failed"
    (event,) = fleet.server.events
    assert (event["reason"], event["message"]) == ("ProfileNotApplied", fleet.message)
    fleet.turn()
    assert len(fleet.server.events) == 1


def test_a_wrong_profile_is_refused_with_its_line_before_anything_happens(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE.replace("vgpus", "vgpuz"))
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert "/etc/gpu-bootstate/fleet/default.yaml:4:" in verdict.message
    assert "vgpus" in verdict.message
    assert not fleet.cordoned()
    assert not fleet.node.paths.fleet_drop_in.exists()


@pytest.mark.parametrize(
    "more",
    [
        "policy: {holders: {stop: [kubelet.service]}}",
        "gate: {files: [/run/nvidia/validations/x]}",
        "kubernetes: {kubeconfig: /tmp/mine}",
    ],
)
def test_the_cluster_says_what_gpus_are_to_be_and_nothing_else(fleet: Fleeted, more: str) -> None:
    """Whoever may write the ConfigMap is not root of every host."""
    fleet.offer(default=f"{WHOLE}{more}\n")
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert "unknown key" in verdict.message
    assert not fleet.node.paths.fleet_drop_in.exists()


def test_a_geometry_that_this_node_cannot_have_is_refused(fleet: Fleeted) -> None:
    fleet.offer(default=profile("{H200X-141C: 2}", A))
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert verdict.message.endswith("Nothing was changed.")
    assert not fleet.cordoned()
    assert not fleet.node.paths.fleet_drop_in.exists()


def test_a_wrong_profile_after_a_wait_gives_the_node_back(fleet: Fleeted) -> None:
    fleet.offer(whole=WHOLE, halves=HALVES)
    fleet.select("whole")
    fleet.settle()
    fleet.node.with_vm(A, 0)
    fleet.select("halves")
    fleet.turn()
    assert fleet.cordoned()
    fleet.select("nonsense")
    assert fleet.turn().state == "failed"
    assert not fleet.cordoned(), "it serves what it served"


def test_a_change_that_fails_keeps_the_cordon_until_the_gate_is_open(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE, halves=HALVES)
    fleet.node.fault(f"sriov_manage {A} noop")
    verdict = fleet.settle()
    assert verdict.state == "failed"
    assert A in verdict.message
    assert fleet.cordoned()
    assert [event["reason"] for event in fleet.server.events] == ["ProfileNotApplied"]
    runs = len(fleet.runs)
    fleet.turn()
    assert len(fleet.runs) == runs, "the same is not tried for ever"
    fleet.node.without_faults()
    fleet.select("halves")
    assert fleet.settle().state == "success"
    assert not fleet.cordoned()


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "not UTF-8", "too large"])
def test_what_a_pod_may_have_put_there_is_read_as_a_profile_or_not_at_all(
    fleet: Fleeted, what: str, tmp_path: Path
) -> None:
    fleet.offer()
    path = fleet.node.paths.fleet_dir / "default.yaml"
    (tmp_path / "shadow").write_text("root:secret\n")
    if what == "link":
        path.symlink_to(tmp_path / "shadow")
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "not UTF-8":
        path.write_bytes(b"\xff\xfe")
    else:
        path.write_text("#" * (1 << 20) + "\n")
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert "default.yaml cannot be read" in verdict.message
    assert "secret" not in verdict.message
    assert fleet.state == "failed"


def test_a_label_that_leaves_the_directory_is_no_profile(fleet: Fleeted) -> None:
    """The API server takes no such label; we do not rely on it."""
    fleet.offer(default=WHOLE)
    (fleet.node.paths.fleet_dir.parent / "config.yaml").write_text(WHOLE)
    assert fleet.host.profile("../config") is None
    assert fleet.host.profile("default") == WHOLE


def test_while_a_run_is_at_work_nothing_is_looked_at(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    with acquire(fleet.node.paths):
        assert fleet.step() == Verdict("pending", "gpu-bootstate is at work.")
    assert not fleet.node.paths.fleet_drop_in.exists()


def test_a_broken_main_file_is_told(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.node.paths.config.write_text("version: v1\ngpuz: []\n")
    verdict = fleet.turn()
    assert verdict.state == "failed"
    assert "config.yaml:2:1" in verdict.message


# --------------------------------------------------------------------------- the command


def run_command(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    simulated = ["--simulate", "hgx-h200-8", "--sim-dir", str(tmp_path / "sim")]
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "gpu_bootstate", *simulated, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPO,
    )


def test_the_command_takes_a_step_and_the_unit_does_the_rest(tmp_path: Path) -> None:
    etc = tmp_path / "sim" / "root" / "etc"
    (etc / "gpu-bootstate" / "fleet").mkdir(parents=True)
    (etc / "gpu-bootstate" / "fleet" / "whole.yaml").write_text(WHOLE)
    (etc / "kubernetes").mkdir()
    with ApiServer() as server:
        server.add_node("n1", {"gpu-bootstate/config": "whole"})
        server.kubeconfig(etc / "kubernetes" / "kubelet.conf", node="n1", cert_in_files=False)
        first = run_command(tmp_path, "fleet")
        assert first.stdout == "The profile whole is installed and is being applied.\n"
        assert first.stderr == (
            "gpu-bootstate: cordoned for the profile whole\n"
            "gpu-bootstate: the profile whole is installed; gpu-bootstate.service applies it\n"
            "gpu-bootstate: pending: The profile whole is installed and is being applied.\n"
        )
        assert "reload_unit" in run_command(tmp_path, "simulate", "show", "--trace").stdout
        assert run_command(tmp_path, "apply").returncode == 0
        last = run_command(tmp_path, "fleet")
        assert (last.returncode, last.stdout) == (0, "The profile whole is applied.\n")
        server.nodes["n1"]["metadata"]["labels"]["gpu-bootstate/config"] = "hole"
        assert run_command(tmp_path, "fleet").returncode == 1
    away = run_command(tmp_path, "fleet")
    assert away.returncode == 1
    assert away.stderr.endswith("; the next pass tries again\n")
    assert "Traceback" not in away.stderr


@pytest.mark.parametrize("what", ["condition", "config", "gpus", "boot_id", "progress"])
@pytest.mark.parametrize("value", [None, 7, "x", [7], {"a": 1}], ids=repr)
def test_a_damaged_record_of_the_run_is_no_result(fleet: Fleeted, what: str, value: object) -> None:
    fleet.offer(default=WHOLE)
    fleet.settle()
    status = json.loads(fleet.node.paths.status.read_text())
    fleet.node.paths.status.write_text(json.dumps({**status, what: value}))
    assert fleet.settle().state == "success"


# --------------------------------------------------------------------------- killed anywhere


class Killed(BaseException):
    pass


def test_killed_after_any_request_or_write_the_next_pass_goes_on(tmp_path: Path) -> None:
    """Each point of a change from one profile to another, one after the other."""
    point = 0
    while True:
        with ApiServer() as server:
            server.add_node("n1")
            root = tmp_path / str(point)
            kubeconfig = server.kubeconfig(tmp_path / f"{point}.conf", node="n1")
            node = Node("hgx-h200-8", root).with_unit(UNIT, "inactive")
            fleet = Fleeted(node, server, kubeconfig)
            fleet.offer(whole=WHOLE, halves=HALVES)
            fleet.select("whole")
            fleet.settle()
            fleet.select("halves")
            left = point
            killed = False

            class Counting(FleetHost):
                def __getattribute__(self, name: str) -> Any:
                    nonlocal left
                    if name in ("install", "apply", "outlook", "result", "is_installed"):
                        if left == 0:
                            raise Killed
                        left -= 1
                    return super().__getattribute__(name)

            for _ in range(4):
                host = fleet.host
                host.__class__ = Counting
                try:
                    fleet.step(host)
                except Killed:
                    killed = True
                    break
                fleet.unit()
            assert fleet.settle().state == "success"
            assert not fleet.cordoned()
            assert fleet.types(A) == fleet.types(B) == ["H200X-70C", "H200X-70C"]
        if not killed:
            break
        point += 1
    assert point >= 6


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_a_server_in_trouble_ends_the_pass_and_the_next_goes_on(
    fleet: Fleeted, status: int
) -> None:
    fleet.offer(default=WHOLE)
    for method in ("GET", "PATCH", "PATCH"):
        fleet.server.trouble(Trouble(method, NODE, status=status))
        with pytest.raises((Unanswered, Conflict)):
            fleet.settle()
    assert fleet.settle().state == "success"
    assert not fleet.cordoned()


def test_without_an_answer_nothing_happens_to_the_node(fleet: Fleeted) -> None:
    fleet.offer(default=WHOLE)
    fleet.server.stop_listening()
    with pytest.raises(Unanswered):
        fleet.step()
    assert not fleet.node.paths.fleet_drop_in.exists()
