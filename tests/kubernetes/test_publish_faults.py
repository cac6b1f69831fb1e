"""What once went wrong in `publish`: stale labels, secrets in messages, writes that come late."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_bootstate.kubernetes.api import Api
from gpu_bootstate.kubernetes.credentials import NoCredentials, find
from gpu_bootstate.kubernetes.publish import Unanswered
from gpu_bootstate.kubernetes.said import said_now
from gpu_bootstate.lock import acquire
from gpu_bootstate.model import Bdf
from tests.kubernetes.api_server import ApiServer, Trouble
from tests.kubernetes.cluster import DEPLOY, NODE, PLUGIN, REPO, WHOLE, A, B, Cluster
from tests.support.node import config

SECRET = "s3cr3t-t0k3n"


# --------------------------------------------------------------------------- what stays behind


@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/namespaces/default/events"])
def test_a_refusal_does_not_leave_ready_on_a_gate_that_has_closed(
    cluster: Cluster, path: str
) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    cluster.node.fault(f"sriov_manage {A} noop")
    cluster.node.apply(config({A: WHOLE, B: WHOLE}, policy="{gate: any}"))
    cluster.server.trouble(Trouble(path=path, times=99, status=403))
    close = Trouble("PATCH", NODE, after=lambda: cluster.node.paths.ready.unlink())
    cluster.server.trouble(close)
    # The pods are not asked for any more, the events are.
    assert cluster.publish(limit_s=30) is path.endswith("pods")
    assert cluster.says_ready == ("false", "False")


def test_a_node_that_changes_all_the_time_is_told_with_pauses_and_an_end(
    cluster: Cluster,
) -> None:
    cluster.apply()
    ready = cluster.node.paths.ready
    text = ready.read_text()

    def flip() -> None:
        if ready.exists():
            ready.unlink()
        else:
            ready.write_text(text)

    cluster.server.trouble(Trouble("GET", NODE, times=10_000, after=flip))
    assert not cluster.publish(limit_s=30)
    assert 0 < len(cluster.sleeps) < 100
    assert cluster.told[-1] == "given up for now: the node changes all the time"


def test_a_late_condition_is_of_an_old_version(cluster: Cluster) -> None:
    """A write that had no answer is carried out after the next pass: it must not say True."""
    cluster.apply()
    late: list[dict[str, Any]] = []
    patch_node_status = Api.patch_node_status

    def lost(self: Api, body: dict[str, Any]) -> None:
        if not late:
            late.append(body)
            cluster.node.paths.ready.unlink()
            raise Unanswered("no answer")
        patch_node_status(self, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Api, "patch_node_status", lost)
        assert cluster.publish()
    assert cluster.says_ready == ("false", "False")
    with pytest.raises(Unanswered):
        Api(cluster.kubeconfig, "n1").patch_node_status(late[0])
    assert cluster.says_ready == ("false", "False")


def test_one_part_that_fails_does_not_keep_the_label_from_being_taken_back(
    cluster: Cluster,
) -> None:
    cluster.apply()
    cluster.publish()
    cluster.node.reboot()
    cluster.server.trouble(Trouble("PATCH", NODE, times=999, status=500))
    assert not cluster.publish(limit_s=30)
    assert cluster.condition["status"] == "False"


def test_a_gate_that_somebody_closed_has_a_reason_of_its_own(cluster: Cluster) -> None:
    cluster.apply()
    cluster.node.paths.ready.unlink()
    assert cluster.publish()
    assert cluster.condition["reason"] == "GateClosed"
    assert cluster.condition["message"] == (
        "The last run converged, but the gate has been closed since: its file is gone. "
        "`gpu-bootstate gate` verifies afresh and opens it."
    )


# --------------------------------------------------------------------------- operands


def test_a_label_that_was_not_there_is_not_left_there(cluster: Cluster) -> None:
    """`nvidia.com/gpu.deploy.operands=false` takes the operator's labels off the whole node."""
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(operands="false")
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "false"
    cluster.apply()
    assert cluster.publish()
    assert DEPLOY + "sandbox-device-plugin" not in cluster.labels


def test_a_pause_that_became_somebody_elses_false_is_not_opened(cluster: Cluster) -> None:
    cluster.wishes = "{publish: true, operands: [sandbox-device-plugin]}"
    cluster.label(sandbox_device_plugin="true")
    cluster.publish()
    cluster.label(sandbox_device_plugin="paused-for-driver-upgrade")
    cluster.publish()
    cluster.label(sandbox_device_plugin="false")
    cluster.apply()
    assert cluster.publish()
    assert cluster.operand("sandbox-device-plugin") == "false"


def test_what_we_hold_is_no_sign_that_its_owner_is_off(cluster: Cluster) -> None:
    label = "nvidia.com/vgpu.config.state"
    cluster.wishes = f"{{publish: true, operands: [vgpu-device-manager], state-label: {label}}}"
    cluster.label(vgpu_device_manager="true")
    for _ in range(2):
        assert cluster.publish()
    assert cluster.operand("vgpu-device-manager") == "false"
    assert label not in cluster.labels


# --------------------------------------------------------------------------- consumers


def plugin(cluster: Cluster, name: str = "plugin-x", owner: str | None = "DaemonSet") -> None:
    labels = dict([PLUGIN.split("=")])
    started = "2020-01-01T00:00:00Z"
    cluster.server.add_pod("gpu-operator", name, "n1", labels, started, owner)


def test_a_later_change_after_a_clock_that_jumped_back_is_a_release_of_its_own(
    cluster: Cluster,
) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    cluster.server.daemonset_recreates = False
    cluster.apply()
    plugin(cluster)
    assert cluster.publish()
    assert cluster.server.pods == {}
    gate = cluster.node.paths.gpu_gate(Bdf.parse(B))
    earlier = {**json.loads(gate.read_text()), "verified_at": "2021-01-01T00:00:00Z"}
    gate.write_text(json.dumps(earlier))
    plugin(cluster)
    assert cluster.publish()
    assert cluster.server.pods == {}


def test_a_restart_that_was_killed_half_way_is_finished(cluster: Cluster) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    cluster.server.daemonset_recreates = False
    cluster.apply()
    plugin(cluster, "plugin-a")
    plugin(cluster, "plugin-b")
    trouble = Trouble("DELETE", times=99, status=500)
    cluster.server.trouble(trouble)
    assert not cluster.publish(limit_s=10)
    assert cluster.labels.get("gpu-bootstate/ready") != "true", "they have not looked again"
    cluster.server.troubles.clear()
    assert cluster.publish()
    assert cluster.server.pods == {}
    assert cluster.says_ready == ("true", "True")


def test_a_pod_that_comes_after_is_not_deleted_whatever_its_clock_says(cluster: Cluster) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    cluster.server.daemonset_recreates = False
    cluster.apply()
    assert cluster.publish()
    plugin(cluster)
    assert cluster.publish()
    assert len(cluster.server.pods) == 1


@pytest.mark.parametrize("owner", [None])
def test_a_pod_that_nothing_would_make_anew_is_left(cluster: Cluster, owner: str | None) -> None:
    cluster.wishes = f"{{publish: true, restart: [{PLUGIN}]}}"
    plugin(cluster, "plugin", owner)
    cluster.apply()
    assert cluster.publish()
    assert len(cluster.server.pods) == 1
    assert cluster.told == [
        "gpu-operator/plugin read the vGPUs too early, and nothing would make it anew: left"
    ]


@pytest.mark.parametrize("value", [None, 7, "None", "", "yesterday", "9999", [], "2026-13"])
def test_a_gate_without_a_time_is_no_release(cluster: Cluster, value: object) -> None:
    cluster.apply()
    for pf in (A, B):
        gate = cluster.node.paths.gpu_gate(Bdf.parse(pf))
        gate.write_text(json.dumps({**json.loads(gate.read_text()), "verified_at": value}))
    said = said_now(cluster.node.paths, cluster.boot_id)
    assert (said.ready, said.released_at, said.release) == (True, None, None)


# --------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "token", [f"{SECRET}\nX-Evil: 1", f"{SECRET}\x00", f"{SECRET}é€", f"{SECRET}\r\n a"]
)
def test_a_token_that_cannot_be_sent_is_not_shown(tmp_path: Path, token: str) -> None:
    with ApiServer() as server:
        server.add_node("n1")
        path = server.kubeconfig(tmp_path / "kubeconfig", token="t")
        text = yaml.safe_load(path.read_text())
        text["users"][0]["user"]["token"] = token
        path.write_text(yaml.safe_dump(text, allow_unicode=True))
        with pytest.raises(Unanswered) as refused:
            Api(path, "n1").node()
        assert SECRET not in str(refused.value)
        assert str(path) in str(refused.value)


def test_a_token_with_a_line_break_at_its_end_is_as_good_as_one_without(tmp_path: Path) -> None:
    with ApiServer(tokens={"fresh": "system:node:n1"}) as server:
        server.add_node("n1")
        path = server.kubeconfig(tmp_path / "kubeconfig", token="fresh\n")
        assert Api(path, "n1").node()["metadata"]["name"] == "n1"


@pytest.mark.parametrize(
    "damage",
    [
        f"users:\n- name: a\n  user: {{token: {SECRET}\n",
        f"a: b: {SECRET}\n",
        f"\ttoken: {SECRET}\n",
        f'token: "{SECRET}\n',
        f"- {SECRET}\nkey: value\n",
    ],
)
def test_a_damaged_kubeconfig_is_not_quoted(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "etc/kubernetes/kubelet.conf"
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    with pytest.raises(NoCredentials) as refused:
        find(tmp_path)
    assert SECRET not in str(refused.value)
    with pytest.raises(Unanswered) as unanswered:
        Api(path, "n1")
    assert SECRET not in str(unanswered.value)
    assert "cannot be used" in str(unanswered.value)


# --------------------------------------------------------------------------- odd answers


@contextmanager
def odd_server(
    answer: bytes, *, drip: bool = False, asked: threading.Event | None = None
) -> Iterator[int]:
    """Speaks HTTP only so far."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        end = threading.Event()

        def serve() -> None:
            while not end.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)
                    if asked is not None:
                        asked.set()
                    while drip and not end.wait(0.2):
                        try:
                            connection.sendall(b" ")
                        except OSError:
                            break

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            end.set()
            thread.join()


def plain_kubeconfig(path: Path, port: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 4\r\n\r\n\xff\xfe{}",
        HEAD + b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000,
        b"HTTP/1.1 429 No\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 No\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000,
        b"garbage\r\n\r\n",
        b"",
    ],
    ids=["cut", "gzip", "chunks", "bytes", "deep", "retry", "long", "garbage", "nothing"],
)
def test_an_odd_answer_is_one_short_sentence(tmp_path: Path, answer: bytes) -> None:
    with odd_server(answer) as port:
        path = plain_kubeconfig(tmp_path / "kubeconfig", port)
        with pytest.raises(Unanswered) as unanswered:
            Api(path, "n1").node()
    assert "\n" not in str(unanswered.value)
    assert 5 < len(str(unanswered.value)) < 500


# --------------------------------------------------------------------------- the command


def start(tmp_path: Path, wishes: str, *options: str) -> subprocess.Popen[str]:
    (tmp_path / "config.yaml").write_text(config({A: WHOLE}) + f"kubernetes: {wishes}\n")
    words = ["--simulate", "hgx-h200-8", "--sim-dir", str(tmp_path / "sim")]
    words += ["--config", str(tmp_path / "config.yaml"), "publish", *options]
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "gpu_bootstate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPO,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


def kubelet(tmp_path: Path) -> Path:
    path = tmp_path / "sim" / "root" / "etc/kubernetes/kubelet.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_a_feature_file_that_cannot_be_written_keeps_nobody_from_being_told(
    tmp_path: Path,
) -> None:
    with ApiServer() as server:
        server.add_node("n1")
        path = server.kubeconfig(kubelet(tmp_path), node="n1", cert_in_files=False)
        (path.parent / "node-feature-discovery").write_text("a file where a directory belongs")
        process = start(tmp_path, "{publish: true, features: true}")
        said, told = process.communicate()
        assert process.returncode == 1
        assert said == "told: pending, not ready\n"
        assert told.startswith("gpu-bootstate: the feature file cannot be written: ")
        assert told.count("\n") == 1
        assert server.nodes["n1"]["metadata"]["labels"]["gpu-bootstate/ready"] == "false"


def test_a_second_one_at_once_gives_way(tmp_path: Path) -> None:
    from gpu_bootstate.paths import Paths

    with odd_server(HEAD, drip=True) as port:
        plain_kubeconfig(kubelet(tmp_path), port)
        paths = Paths(tmp_path / "sim" / "root")
        with acquire(paths, file=paths.publish_lock):
            process = start(tmp_path, "{publish: true, node-name: n1}")
            _, told = process.communicate()
        assert process.returncode == 3
        assert told == (
            f"gpu-bootstate: another `publish` is at work (pid {os.getpid()}); "
            "it tells what there is\n"
        )


def test_a_server_that_never_ends_its_answer_is_left(tmp_path: Path) -> None:
    """SIGALRM is what the command's own limit sends, after a while longer than a test."""
    asked = threading.Event()
    with odd_server(HEAD + b"Content-Length: 100000\r\n\r\n", drip=True, asked=asked) as port:
        plain_kubeconfig(kubelet(tmp_path), port)
        process = start(tmp_path, "{publish: true, node-name: n1}", "--timeout", "500")
        assert asked.wait(60)
        assert process.poll() is None
        process.send_signal(signal.SIGALRM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert told == (
        "gpu-bootstate: given up for now: the API server, or the program that gets its token, "
        "takes too long\n"
    )


def test_a_stopped_one_leaves_no_key_behind(tmp_path: Path) -> None:
    """The client writes a key that stands in the kubeconfig itself into a file."""
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, ApiServer() as server:
        path = server.kubeconfig(kubelet(tmp_path), node="n1", cert_in_files=False)
        text = yaml.safe_load(path.read_text())
        text["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{silent.getsockname()[1]}"
        path.write_text(yaml.safe_dump(text))
        process = start(tmp_path, "{publish: true}")
        connection, _ = silent.accept()
        with connection:
            keys = [each for each in tmp_path.rglob("tmp*") if each.is_file()]
            assert any(b"PRIVATE KEY" in key.read_bytes() for key in keys)
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (143, "")
    assert not any(key.exists() for key in keys)
