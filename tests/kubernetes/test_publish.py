"""What the cluster is told: the real client, and a stand-in API server with a kubelet's rights."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpu_bootstate.kubernetes import cri
from gpu_bootstate.kubernetes.api import Api
from gpu_bootstate.kubernetes.publish import Unanswered
from gpu_bootstate.kubernetes.said import said_now
from gpu_bootstate.lock import acquire
from gpu_bootstate.model import Bdf
from tests.kubernetes.api_server import ApiServer, Trouble
from tests.kubernetes.cluster import NODE, PLUGIN, REPO, WHOLE, A, B, Cluster
from tests.support.node import config


def test_a_node_that_came_up_is_called_ready_with_its_boot(cluster: Cluster) -> None:
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")
    assert cluster.labels["gpu-bootstate/state"] == "pending"
    cluster.apply()
    assert cluster.publish()
    assert cluster.says_ready == ("true", "True")
    assert cluster.labels["gpu-bootstate/state"] == "converged"
    assert cluster.labels["gpu-bootstate/boot-id"] == cluster.boot_id
    status = json.loads(cluster.annotations["gpu-bootstate/status"])
    assert status == {
        "bootId": cluster.boot_id,
        "state": "converged",
        "gpus": {A: "converged", B: "converged"},
    }
    assert cluster.condition["reason"] == "Converged"
    assert cluster.server.events == []


def test_what_is_known_already_is_not_written_again(cluster: Cluster) -> None:
    cluster.apply()
    assert cluster.publish()
    before = len(cluster.server.requests)
    assert cluster.publish()
    assert {request.method for request in cluster.server.requests[before:]} == {"GET"}


def test_a_reboot_takes_it_back_whatever_the_label_said(cluster: Cluster) -> None:
    cluster.apply()
    cluster.publish()
    cluster.node.reboot()
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")
    assert cluster.labels["gpu-bootstate/boot-id"] == cluster.boot_id


def test_a_failure_is_an_event_with_the_remedy_once(cluster: Cluster) -> None:
    cluster.node.with_compute(A)
    cluster.apply()
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")
    assert cluster.labels["gpu-bootstate/state"] == "degraded"
    (event,) = cluster.server.events
    assert (event["type"], event["reason"]) == ("Warning", "InUse")
    assert event["involvedObject"]["name"] == "n1"
    assert A in event["message"]
    assert "python3" in event["message"]
    assert cluster.condition["reason"] == "InUse"
    assert cluster.publish()
    assert len(cluster.server.events) == 1


def test_a_refusal_that_leaves_the_gate_open_is_an_event_all_the_same(cluster: Cluster) -> None:
    cluster.apply()
    cluster.node.with_vm(A, 0).with_vm(B, 0)
    cluster.apply("{vgpus: {H200X-70C: 2}}")
    assert cluster.publish()
    assert cluster.says_ready == ("true", "True")
    assert cluster.labels["gpu-bootstate/state"] == "refused"
    assert [event["reason"] for event in cluster.server.events] == ["InUse", "InUse"]


def test_with_policy_any_a_degraded_node_is_ready_and_says_what_failed(cluster: Cluster) -> None:
    cluster.node.fault(f"sriov_manage {A} noop")
    text = config({A: WHOLE, B: WHOLE}, policy="{gate: any}")
    assert cluster.node.apply(text)["exit_code"] == 2
    assert cluster.publish()
    assert cluster.says_ready == ("true", "True")
    assert cluster.labels["gpu-bootstate/state"] == "degraded"
    assert [event["reason"] for event in cluster.server.events] == ["VfsNotCreated"]


def test_a_run_that_died_and_one_that_is_at_work(cluster: Cluster) -> None:
    cluster.apply()
    status = json.loads(cluster.node.paths.status.read_text())
    cluster.node.paths.status.write_text(json.dumps({**status, "progress": "running"}))
    cluster.node.paths.ready.unlink()
    assert cluster.publish()
    assert cluster.condition["reason"] == "RunDied"
    with acquire(cluster.node.paths):
        assert cluster.publish()
    assert cluster.labels["gpu-bootstate/state"] == "pending"
    assert cluster.says_ready == ("false", "False")


# --------------------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(times=3, status=500),
        Trouble(times=3, status=503),
        Trouble(times=3, status=401),
        Trouble("PATCH", NODE, times=3, status=429),
        Trouble("PATCH", NODE, times=3, conflict=True),
        Trouble("PATCH", f"{NODE}/status", times=3, status=504),
        Trouble(times=3, close=True),
    ],
    ids=lambda trouble: str(trouble.status or ("conflict" if trouble.conflict else "closed")),
)
def test_trouble_that_passes_is_outlasted(cluster: Cluster, trouble: Trouble) -> None:
    cluster.apply()
    cluster.server.trouble(trouble)
    assert cluster.publish()
    assert cluster.says_ready == ("true", "True")
    assert len(cluster.sleeps) >= 3


def test_the_pauses_grow_and_have_an_end(cluster: Cluster) -> None:
    cluster.server.stop_listening()
    assert not cluster.publish(limit_s=600)
    assert 8 <= len(cluster.sleeps) <= 30
    assert max(cluster.sleeps) <= 60
    assert cluster.seconds <= 600
    assert "does not answer" in cluster.told[0]
    assert "given up for now" in cluster.told[-1]
    assert len(cluster.told) < 6, "the same trouble is said once"


def test_retry_after_is_respected(cluster: Cluster) -> None:
    cluster.server.trouble(Trouble(status=429, retry_after_s=37))
    assert cluster.publish()
    assert cluster.sleeps[0] >= 37


def test_what_is_forbidden_is_said_and_the_rest_is_done(cluster: Cluster) -> None:
    cluster.apply()
    cluster.server.trouble(Trouble("PATCH", f"{NODE}/status", times=9, status=403))
    assert not cluster.publish()
    assert cluster.labels["gpu-bootstate/ready"] == "true"
    assert cluster.sleeps == [], "waiting does not help"
    assert "refuses" in cluster.told[0]


def test_another_kubelets_identity_writes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    cluster.server.add_node("n2")
    cluster.kubeconfig = cluster.server.kubeconfig(tmp_path / "other.conf", node="n2")
    assert not cluster.publish()
    assert "gpu-bootstate/ready" not in cluster.labels


def test_a_gate_that_closes_while_the_server_is_away_is_never_called_ready(
    cluster: Cluster,
) -> None:
    cluster.apply()
    cluster.server.trouble(Trouble(times=2, status=503))
    cluster.meanwhile = lambda: cluster.node.paths.ready.unlink(missing_ok=True)
    seen: list[tuple[str | None, str | None]] = []
    cluster.server.trouble(Trouble(after=lambda: seen.append(cluster.says_ready), times=20))
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")
    assert all("true" not in pair and "True" not in pair for pair in seen)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_gate_that_closes_at_any_request_ends_as_not_ready(cluster: Cluster, at: int) -> None:
    """It closes while the server answers the n-th request: the end is never a stale `true`."""
    cluster.apply()
    count = 0

    def close() -> None:
        nonlocal count
        count += 1
        if count == at:
            cluster.node.paths.ready.unlink()

    cluster.server.trouble(Trouble(times=100, after=close))
    assert cluster.publish()
    assert count >= at
    assert cluster.says_ready == ("false", "False")


class Kill(Exception):
    pass


@pytest.mark.parametrize("becomes", ["ready", "not ready"])
def test_killed_at_any_request_it_never_says_ready_of_a_node_that_is_not(
    cluster: Cluster, becomes: str
) -> None:
    """Before and after each request; the next one finishes the job."""
    ready = becomes == "ready"
    cluster.wishes = f"{{publish: true, operands: [sandbox-device-plugin], restart: [{PLUGIN}]}}"
    cluster.label(sandbox_device_plugin="true")
    cluster.apply()
    cluster.publish()
    for at in range(1, 12):
        for after in (False, True):
            # The other state has been told of last; now comes a change, and the kill.
            cluster.node.reboot()
            if not ready:
                cluster.apply()
            cluster.publish()
            cluster.node.reboot()
            if ready:
                cluster.apply()
            _publish_killed(cluster, at, after=after)
            if not ready and "true" in cluster.says_ready:
                # Not taken back yet; what it says is of the boot before, and says so.
                assert cluster.labels["gpu-bootstate/boot-id"] != cluster.boot_id
            assert cluster.publish()
            assert cluster.says_ready == (("true", "True") if ready else ("false", "False"))
            assert cluster.operand("sandbox-device-plugin") == ("true" if ready else "false")


def _publish_killed(cluster: Cluster, at: int, *, after: bool) -> None:
    """The process dies before or after its n-th request."""
    count = 0
    ask = Api._ask

    def counted(self: Api, *arguments: Any, **named: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count == at and not after:
            raise Kill
        answer = ask(self, *arguments, **named)
        if count == at:
            raise Kill
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Api, "_ask", counted)
        try:
            cluster.publish()
        except Kill:
            return


# --------------------------------------------------------------------------- operands


def test_an_operand_is_closed_and_opened_by_us_and_remembered_over_a_reboot(
    cluster: Cluster,
) -> None:
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(sandbox_device_plugin="true")
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "false"
    held = json.loads(cluster.annotations["gpu-bootstate/held-operands"])
    assert held == {"bootId": cluster.boot_id, "operands": ["sandbox-device-plugin"]}
    cluster.node.reboot()
    assert cluster.publish()
    cluster.apply()
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "true"
    assert "gpu-bootstate/held-operands" not in cluster.annotations


@pytest.mark.parametrize("value", ["false", "paused-for-vgpu-change", "paused-for-driver-upgrade"])
def test_an_operand_that_somebody_else_holds_is_left(cluster: Cluster, value: str) -> None:
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(sandbox_device_plugin=value)
    cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == value
    cluster.apply()
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == value


def test_a_pause_that_came_over_ours_is_not_opened(cluster: Cluster) -> None:
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(sandbox_device_plugin="true")
    cluster.publish()
    cluster.label(sandbox_device_plugin="paused-for-driver-upgrade")
    cluster.apply()
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "paused-for-driver-upgrade"


def test_the_other_tools_state_is_mirrored_only_while_that_tool_is_off(cluster: Cluster) -> None:
    label = "nvidia.com/vgpu.config.state"
    cluster.wishes = f"{{publish: true, state-label: {label}}}"
    cluster.label(vgpu_device_manager="true")
    cluster.publish()
    assert label not in cluster.labels
    cluster.label(vgpu_device_manager="false")
    cluster.publish()
    assert cluster.labels[label] == "pending"
    cluster.node.fault(f"sriov_manage {A} noop")
    cluster.apply()
    cluster.publish()
    assert cluster.labels[label] == "failed"
    cluster.node.without_faults()
    cluster.apply()
    cluster.publish()
    assert cluster.labels[label] == "success"


# --------------------------------------------------------------------------- consumers


def _plugin(cluster: Cluster, started_at: str) -> None:
    labels = dict([PLUGIN.split("=")])
    cluster.server.add_pod("gpu-operator", "plugin", "n1", labels, started_at)


@pytest.mark.parametrize(
    ("started", "again"), [("2020-01-01T00:00:00Z", 1), ("2999-01-01T00:00:00Z", 0)]
)
def test_a_plugin_older_than_the_release_is_started_again_once(
    cluster: Cluster, started: str, again: int
) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    _plugin(cluster, started)
    cluster.server.daemonset_recreates = False
    assert cluster.publish()
    assert ("gpu-operator", "plugin") in cluster.server.pods, "nothing is released yet"
    cluster.apply()
    assert cluster.publish()
    assert (("gpu-operator", "plugin") in cluster.server.pods) is not bool(again)
    assert sum("started again" in text for text in cluster.told) == again
    # A clock that jumped back makes the new pod look old as well.
    _plugin(cluster, started)
    assert cluster.publish()
    assert ("gpu-operator", "plugin") in cluster.server.pods


def test_a_pod_of_another_node_or_with_another_label_is_not_touched(cluster: Cluster) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    cluster.server.add_node("n2")
    old = "2020-01-01T00:00:00Z"
    cluster.server.add_pod("x", "other", "n2", dict([PLUGIN.split("=")]), old)
    cluster.server.add_pod("x", "vm", "n1", {"app": "virt-launcher"}, old)
    cluster.apply()
    assert cluster.publish()
    assert set(cluster.server.pods) == {("x", "other"), ("x", "vm")}
    assert not [request for request in cluster.server.requests if request.method == "DELETE"]


def test_without_credentials_it_waits_for_them(cluster: Cluster) -> None:
    good = cluster.kubeconfig
    cluster.kubeconfig = good.with_name("not-there-yet")
    cluster.meanwhile = lambda: setattr(cluster, "kubeconfig", good)
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")


def test_a_node_that_is_not_registered_yet_is_waited_for(cluster: Cluster) -> None:
    node = cluster.server.nodes.pop("n1")
    cluster.meanwhile = lambda: cluster.server.nodes.setdefault("n1", node)
    assert cluster.publish()
    assert cluster.says_ready == ("false", "False")


def test_unanswered_is_what_a_damaged_kubeconfig_is(cluster: Cluster) -> None:
    cluster.kubeconfig.write_text("apiVersion: v1\nkind: Config\nusers: 7\n")
    with pytest.raises(Unanswered):
        Api(cluster.kubeconfig, "n1")


def test_when_nobody_answers_for_a_minute_the_runtime_is_asked_once(cluster: Cluster) -> None:
    cluster.apply()
    cluster.server.stop_listening()

    def answer_again() -> None:
        if cluster.offline:
            cluster.server.listen()

    cluster.meanwhile = answer_again
    assert cluster.publish()
    assert [said.ready for said in cluster.offline] == [True]
    assert cluster.seconds >= 60
    assert cluster.says_ready == ("true", "True")


def test_the_runtime_is_left_alone_while_the_gate_is_closed(cluster: Cluster) -> None:
    cluster.server.stop_listening()
    assert not cluster.publish()
    assert cluster.offline == []


# --------------------------------------------------------------------------- the runtime

CRICTL = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
    pods) [ "$3" = app=plugin ] && echo '{pods}' || echo '{{"items": []}}' ;;
    ps) echo '{containers}' ;;
    stop) exit {stop} ;;
esac
"""


@pytest.mark.parametrize(("offset_s", "stop", "stopped"), [(-60, 0, 1), (60, 0, 0), (-60, 1, 1)])
def test_a_container_older_than_the_release_is_stopped_once(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offset_s: int,
    stop: int,
    stopped: int,
) -> None:
    cluster.apply()
    said = said_now(cluster.node.paths, cluster.boot_id)
    assert said.released_at is not None
    released = datetime.fromisoformat(said.released_at.replace("Z", "+00:00")).timestamp()
    created = str(int((released + offset_s) * 1e9))
    pods = {"items": [{"id": "p1", "metadata": {"name": "plugin-x", "namespace": "gpu-operator"}}]}
    containers = {"containers": [{"id": "c1", "createdAt": created}]}
    log = tmp_path / "log"
    text = CRICTL.format(
        log=log, pods=json.dumps(pods), containers=json.dumps(containers), stop=stop
    )
    crictl = tmp_path / "bin" / "crictl"
    crictl.parent.mkdir()
    crictl.write_text(text)
    crictl.chmod(0o755)
    monkeypatch.setattr(cri, "_PATH", str(crictl.parent))
    for _ in range(2):
        cri.stop_older_containers(cluster.node.paths, ("app=plugin",), said, cluster.told.append)
    lines = log.read_text().splitlines()
    tries = 2 if stop else 1  # what failed is tried again, what was done is not
    assert lines.count("stop c1") == stopped * tries
    assert lines[:2] == ["pods --label app=plugin -o json", "ps --pod p1 -o json"]
    assert any("plugin-x" in text for text in cluster.told) is bool(stopped)
    assert any("crictl stop" in text for text in cluster.told) is bool(stop)


# --------------------------------------------------------------------------- the command


def _command(tmp_path: Path, server: ApiServer, wishes: str) -> subprocess.CompletedProcess[str]:
    root = tmp_path / "sim" / "root"
    text = config({A: WHOLE}) + f"kubernetes: {wishes}\n"
    (tmp_path / "config.yaml").write_text(text)
    kubelet = root / "etc/kubernetes/kubelet.conf"
    if not kubelet.exists():
        kubelet.parent.mkdir(parents=True)
        server.kubeconfig(kubelet, node="n1", cert_in_files=False)
    words = [sys.executable, "-m", "gpu_bootstate", "--simulate", "hgx-h200-8"]
    words += ["--sim-dir", str(tmp_path / "sim"), "--config", str(tmp_path / "config.yaml")]
    for command in (["apply"], ["publish", "--timeout", "5"]):
        done = subprocess.run(  # noqa: S603
            [*words, *command], capture_output=True, text=True, check=False, cwd=REPO
        )
    return done


def test_the_command_finds_the_kubelets_credentials_and_writes_the_feature_file(
    tmp_path: Path,
) -> None:
    with ApiServer() as server:
        server.add_node("n1")
        done = _command(tmp_path, server, "{publish: true, features: true}")
        assert done.returncode == 0, done.stderr
        assert "told: converged, ready" in done.stdout
        assert server.nodes["n1"]["metadata"]["labels"]["gpu-bootstate/ready"] == "true"
        features = tmp_path / "sim/root/etc/kubernetes/node-feature-discovery/features.d"
        expiry, *lines = (features / "gpu-bootstate").read_text().splitlines()
        when = datetime.fromisoformat(expiry.removeprefix("# +expiry-time=").replace("Z", "+00:00"))
        assert 0 < (when - datetime.now(timezone.utc)).total_seconds() <= 15 * 60
        boot_id = "00000000-0000-4000-8000-000000000001"
        prefix = "feature.node.kubernetes.io/gpu-bootstate"
        assert lines == [
            f"{prefix}.ready=true",
            f"{prefix}.state=converged",
            f"{prefix}.boot-id={boot_id}",
        ]
        # Without it in the configuration nobody would renew it: it goes.
        done = _command(tmp_path, server, "{publish: false}")
        assert (done.returncode, list(features.iterdir())) == (0, [])
        assert "told nothing" in done.stdout


def test_the_command_gives_up_with_a_sentence(tmp_path: Path) -> None:
    with ApiServer() as server:
        server.add_node("n1")
        server.kubeconfig(tmp_path / "warm.conf", node="n1")
        server.stop_listening()
        done = _command(tmp_path, server, "{publish: true}")
        assert done.returncode == 1
        assert "does not answer" in done.stderr
        assert "Traceback" not in done.stderr
        server.listen()


def test_nothing_on_the_boot_path_loads_the_client() -> None:
    code = "import sys, gpu_bootstate.cli.apply, gpu_bootstate.cli.gate, gpu_bootstate.cli.publish"
    code += "; print([m for m in sys.modules if m.split('.')[0] in ('kubernetes', 'urllib3')])"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO
    )
    assert done.stdout.strip() == "[]"


def test_a_token_from_an_exec_plugin_is_a_kubelet_too(tmp_path: Path) -> None:
    """As on EKS: the kubeconfig names a program that prints a token."""
    with ApiServer(tokens={"fresh": "system:node:n1"}) as server:
        server.add_node("n1")
        plugin = server.exec_plugin(tmp_path / "token", "fresh")
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", exec_command=plugin)
        assert Api(kubeconfig, "n1").node()["metadata"]["name"] == "n1"
        stale = server.exec_plugin(tmp_path / "stale", "expired")
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig2", exec_command=stale)
        with pytest.raises(Unanswered):
            Api(kubeconfig, "n1").node()


def test_a_renewed_client_certificate_is_taken_at_the_next_try(cluster: Cluster) -> None:
    """The kubelet writes the new one to the same file."""
    cluster.server.kubeconfig(cluster.kubeconfig, node="n1", expired=True)
    cluster.meanwhile = lambda: cluster.server.kubeconfig(cluster.kubeconfig, node="n1")
    assert cluster.publish()
    assert len(cluster.sleeps) == 1
    assert cluster.says_ready == ("false", "False")


def test_kubectl_reads_what_was_written(cluster: Cluster) -> None:
    cluster.apply()
    assert cluster.publish()
    path = "{.metadata.labels.gpu-bootstate/ready} {.status.conditions[1].type}"
    words = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "get", "node", "n1"]
    words += ["-o", f"jsonpath={path}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.stdout == "true GpuBootstateReady", done.stderr


# --------------------------------------------------------------------------- damage

NONSENSE: list[object] = [None, 7, "x", [], [None], [[]], {}, {"a": None}, -1.5, True, [{"pf": []}]]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("status", key) for key in ("progress", "condition", "gpus", "findings", "summary")),
        *(("ready", key) for key in ("open", "boot_id")),
        ("gpu", "verified_at"),
    ],
)
def test_damaged_files_are_no_traceback_and_no_release(
    cluster: Cluster, name: str, key: str, value: object
) -> None:
    cluster.apply()
    paths = cluster.node.paths
    path = {
        "status": paths.status,
        "ready": paths.ready,
        "gpu": paths.gpu_gate(Bdf.parse(A)),
    }[name]
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    said = said_now(paths, cluster.boot_id)
    assert said.ready is (key != "boot_id")
    assert json.dumps([said.state, said.reason, said.message, said.gpus])


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("part", ["metadata", "status"])
def test_an_answer_that_makes_no_sense_is_a_sentence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, part: str, value: object
) -> None:
    node = Api.node
    monkeypatch.setattr(Api, "node", lambda self: {**node(self), part: value})
    cluster.publish(limit_s=5)
    assert all("\n" not in text for text in cluster.told)


@pytest.mark.parametrize("value", [json.dumps(each) for each in NONSENSE] + ["{", "[" * 5000])
def test_a_damaged_note_of_what_we_hold_opens_nothing(cluster: Cluster, value: str) -> None:
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(sandbox_device_plugin="false")
    metadata = cluster.server.nodes["n1"]["metadata"]
    metadata["annotations"] = {"gpu-bootstate/held-operands": value}
    cluster.apply()
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "false"


def test_what_the_server_finds_wrong_is_not_asked_over_and_over(cluster: Cluster) -> None:
    cluster.server.trouble(Trouble("PATCH", NODE, times=9, status=422))
    assert not cluster.publish()
    assert cluster.sleeps == []
