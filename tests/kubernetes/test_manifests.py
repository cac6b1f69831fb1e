"""What is applied to the cluster: objects that it takes, and scripts that do what they say."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import kubernetes_validate
import pytest
import yaml
from celpy.adapter import json_to_cel

from tests.kubernetes.api_server import ApiServer, Trouble
from tests.kubernetes.chart import CHART, PACKAGING, NotRendered, objects, plain, render

VERSIONS = ("1.26.0", "1.30.0", "1.33.0", kubernetes_validate.latest_version())
SHELLS = [pytest.param(["sh"], id="sh"), pytest.param(["busybox", "sh"], id="busybox")]
PROFILES = {"default": "version: v1\ngpus: []\n", "halves": "version: v1\n"}
EVERYTHING = {
    "profiles": PROFILES,
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "system-node-critical",
    "taint": {"enabled": True},
}


def validate(thing: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(thing, version, strict=True)


def is_valid(thing: dict[str, Any]) -> bool:
    try:
        validate(thing, VERSIONS[-1])
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError):
        return False
    return True


# --------------------------------------------------------------------------- objects


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values", [{}, EVERYTHING, {"taint": {"enabled": True, "admissionPolicy": False}}]
)
def test_every_object_is_one_that_the_published_schema_takes(
    values: dict[str, Any], version: str
) -> None:
    found = objects(render(values))
    assert found
    for thing in found:
        # The policy needs Kubernetes 1.32, as values.yaml says; its schema is there since 1.30.
        if not (thing["kind"].startswith("ValidatingAdmission") and version < "1.30"):
            validate(thing, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["fleet", "profiles", "taint"])
def test_the_plain_manifests_are_valid_too(name: str, version: str) -> None:
    for thing in objects((PACKAGING / f"{name}.yaml").read_text()):
        if not (thing["kind"].startswith("ValidatingAdmission") and version < "1.30"):
            validate(thing, version)


@pytest.mark.parametrize("name", ["fleet", "taint"])
def test_the_plain_manifests_are_what_the_chart_renders(name: str) -> None:
    """`python -m tests.kubernetes.chart` writes them anew."""
    assert (PACKAGING / f"{name}.yaml").read_text() == plain(name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("readOnlyRootFilesystem", "readOnlyRootFileSystem"),
        ("hostPath: {path:", "hostPath: {pathh:"),
        ("runAsUser: 0", "runAsUser: root"),
        ("kind: DaemonSet", "kind: DaemonSets"),
    ],
)
def test_a_broken_template_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart")
    template = chart / "templates" / "fleet.yaml"
    text = template.read_text()
    assert old in text
    template.write_text(text.replace(old, new, 1))
    found = objects(render({}, chart))
    assert sum(not is_valid(thing) for thing in found) == 1


def test_a_template_that_go_does_not_take_is_noticed(tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart")
    (chart / "templates" / "fleet.yaml").write_text("{{ .Values.x | nosuchfunction }}")
    with pytest.raises(NotRendered):
        render({}, chart)


def test_the_values_fit_their_schema_and_a_misspelt_one_does_not() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    jsonschema.validate(EVERYTHING, schema)
    mistakes: tuple[dict[str, object], ...] = (
        {"profile": {}},
        {"taint": {"enable": True}},
        {"profiles": {"a/b": "version: v1"}},
        {"profiles": {"a": {"version": "v1"}}},
    )
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, **wrong}, schema)


def named(things: Sequence[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (t for t in things if (t["kind"], t["metadata"]["name"]) == (kind, name))
    return found


def test_profiles_of_the_values_are_keys_of_the_configmap() -> None:
    found = named(objects(render({"profiles": PROFILES})), "ConfigMap", "gpu-bootstate-fleet")
    assert found["data"] == {f"{name}.yaml": text for name, text in PROFILES.items()}


def test_the_fleet_pod_has_its_directory_and_nothing_else() -> None:
    pod = named(objects(render()), "DaemonSet", "gpu-bootstate-fleet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert not any(pod.get(key) for key in ("hostPID", "hostIPC", "hostNetwork"))
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert paths == ["/etc/gpu-bootstate/fleet"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["privileged"] is False


def test_the_example_profiles_work_on_the_node_that_they_are_for(tmp_path: Path) -> None:
    (profiles,) = objects((PACKAGING / "profiles.yaml").read_text())
    assert "default.yaml" in profiles["data"]
    for name, text in profiles["data"].items():
        (tmp_path / name).write_text(text)
        words = [sys.executable, "-m", "gpu_bootstate", "check", str(tmp_path / name)]
        words += ["--board", "hgx-h200-8"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 0, done.stdout + done.stderr


# --------------------------------------------------------------------------- the taint's policy


class Policy:
    """The admission policy's expressions, evaluated by a CEL library."""

    def __init__(self) -> None:
        things = objects(render({"taint": {"enabled": True}}))
        self._spec = named(things, "ValidatingAdmissionPolicy", "gpu-bootstate-taint")["spec"]
        self._environment = celpy.Environment()

    def refusals(self, old: dict[str, Any], new: dict[str, Any], node: str = "n1") -> list[str]:
        user = {
            "username": "system:serviceaccount:gpu-bootstate:gpu-bootstate-taint",
            "extra": {"authentication.kubernetes.io/node-name": [node]},
        }
        known = {"object": new, "oldObject": old, "request": {"userInfo": user}}
        assert all(self._is(each["expression"], known) for each in self._spec["matchConditions"])
        known["variables"] = {
            each["name"]: self._value(each["expression"], known) for each in self._spec["variables"]
        }
        wrong = (
            each["message"]
            for each in self._spec["validations"]
            if not self._is(each["expression"], known)
        )
        return list(wrong)

    def _value(self, expression: str, known: dict[str, Any]) -> Any:
        program = self._environment.program(self._environment.compile(expression))
        return program.evaluate({name: json_to_cel(value) for name, value in known.items()})

    def _is(self, expression: str, known: dict[str, Any]) -> bool:
        return bool(self._value(expression, known))


def node(*taints: str, unschedulable: bool | None = None, **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"podCIDR": "10.0.0.0/24"}
    if taints:
        spec["taints"] = [{"key": key, "effect": "NoSchedule"} for key in taints]
    if unschedulable is not None:
        spec["unschedulable"] = unschedulable
    return {"metadata": {"name": "n1", **metadata}, "spec": spec}


OURS = "gpu-bootstate/not-ready"


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        (node(), node(OURS), []),
        (node(OURS), node(), []),
        (node("a", OURS), node("a"), []),
        (node("a"), node("a", OURS), []),
        (node(OURS), node(OURS, "a"), ["It may change the taint gpu-bootstate/not-ready alone."]),
        (node("a", OURS), node(OURS), ["It may change the taint gpu-bootstate/not-ready alone."]),
        (node(), node(unschedulable=False), []),
        (node(), node(unschedulable=True), ["It may not cordon."]),
        (node(unschedulable=True), node(OURS), ["It may not cordon."]),
        (node(), node(labels={"a": "b"}), ["It may not change labels."]),
        (node(labels={"a": "b"}), node(labels={"a": "c"}), ["It may not change labels."]),
        (node(), node(annotations={"a": "b"}), ["It may not change annotations."]),
    ],
)
def test_the_taints_account_may_change_that_taint_alone(
    old: dict[str, Any], new: dict[str, Any], wrong: list[str]
) -> None:
    assert Policy().refusals(old, new) == wrong


def test_the_taints_account_may_change_its_own_node_alone() -> None:
    assert Policy().refusals(node(), node(OURS), node="n2") == ["It may change its own node alone."]


# --------------------------------------------------------------------------- sync.sh


class Volume:
    """A ConfigMap as the kubelet mounts it: a link that is swapped, and links through it."""

    def __init__(self, path: Path, **files: str) -> None:
        self.path = path
        path.mkdir()
        self._turn = 0
        self.swap(**files)

    def swap(self, **files: str) -> None:
        self._turn += 1
        directory = self.path / f"..2026_12_0{self._turn}"
        directory.mkdir()
        for name, text in files.items():
            (directory / f"{name.replace('_', '-')}.yaml").write_text(text)
        link = self.path / "..data_tmp"
        link.symlink_to(directory.name)
        link.replace(self.path / "..data")
        for old in self.path.glob("*.yaml"):
            if not (directory / old.name).exists():
                old.unlink()
        for new in directory.iterdir():
            user = self.path / new.name
            if not user.is_symlink():
                user.symlink_to(f"..data/{new.name}")


@contextmanager
def script(
    name: str, shell: Sequence[str], *words: object, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [*shell, str(CHART / "files" / name), *map(str, words)]
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def there(host: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in host.iterdir() if path.is_file()}


@pytest.mark.parametrize("shell", SHELLS)
def test_profiles_come_change_and_go_with_the_configmap(tmp_path: Path, shell: list[str]) -> None:
    volume = Volume(tmp_path / "profiles", default="1", halves="2")
    host = tmp_path / "host"
    host.mkdir()
    with script("sync.sh", shell, volume.path, host, 0.05):
        eventually(lambda: there(host) == {"default.yaml": "1", "halves.yaml": "2"})
        same = (host / "default.yaml").stat().st_ino
        volume.swap(default="1", halves="3")
        eventually(lambda: there(host) == {"default.yaml": "1", "halves.yaml": "3"})
        assert (host / "default.yaml").stat().st_ino == same, "what is right is not written"
        assert (host / "halves.yaml").stat().st_mode & 0o777 == 0o644
        volume.swap()
        eventually(lambda: there(host) == {})


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_mount_what_is_there_stays(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "profiles").mkdir()
    host = tmp_path / "host"
    host.mkdir()
    (host / "default.yaml").write_text("1")
    with script("sync.sh", shell, tmp_path / "profiles", host, 0.01):
        time.sleep(0.5)
    assert there(host) == {"default.yaml": "1"}


@pytest.mark.parametrize("shell", SHELLS)
def test_it_ends_at_once_when_the_pod_is_to_end(tmp_path: Path, shell: list[str]) -> None:
    volume = Volume(tmp_path / "profiles", default="1")
    host = tmp_path / "host"
    host.mkdir()
    with script("sync.sh", shell, volume.path, host, 1000) as process:
        eventually(lambda: there(host) == {"default.yaml": "1"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("to", ["file", "directory", "nothing"])
def test_a_link_on_the_host_is_replaced_and_never_followed(
    tmp_path: Path, shell: list[str], to: str
) -> None:
    volume = Volume(tmp_path / "profiles", default="1")
    host, away = tmp_path / "host", tmp_path / "away"
    host.mkdir()
    if to == "file":
        away.write_text("precious")
    elif to == "directory":
        away.mkdir()
    (host / "default.yaml").symlink_to(away)
    (host / ".default.yaml.tmp").symlink_to(away)
    (host / "old.yaml").symlink_to(away)
    with script("sync.sh", shell, volume.path, host, 0.05):
        eventually(lambda: not (host / "default.yaml").is_symlink())
        eventually(lambda: there(host) == {"default.yaml": "1"})
    if to == "file":
        assert away.read_text() == "precious"
    elif to == "directory":
        assert list(away.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_names_that_are_no_profiles_are_said_and_left(tmp_path: Path, shell: list[str]) -> None:
    volume = Volume(tmp_path / "profiles", **{"default": "1", "_x": "2", "a b": "3"})
    host = tmp_path / "host"
    host.mkdir()
    (host / "blocked.yaml").mkdir()
    with script("sync.sh", shell, volume.path, host, 1000) as process:
        eventually(lambda: there(host) == {"default.yaml": "1"})
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        said = process.stdout.read()
    assert "-x.yaml: no name of a profile, ignored" in said
    assert "a b.yaml: no name of a profile, ignored" in said
    assert (host / "blocked.yaml").is_dir()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_kill_at_any_moment_leaves_whole_files(tmp_path: Path, shell: list[str]) -> None:
    text = "x" * 200_000
    volume = Volume(tmp_path / "profiles", default=text)
    host = tmp_path / "host"
    host.mkdir()
    for turn in range(25):
        (host / "default.yaml").unlink(missing_ok=True)
        with script("sync.sh", shell, volume.path, host, 1000) as process:
            time.sleep(turn * 0.001)
            process.kill()
            process.wait()
        found = host / "default.yaml"
        assert not found.exists() or found.read_text() == text
    with script("sync.sh", shell, volume.path, host, 0.05):
        eventually(lambda: there(host) == {"default.yaml": text})


# --------------------------------------------------------------------------- taint.sh

BOOT = "11111111-0000-4000-8000-000000000001"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("tainted", [False, True])
@pytest.mark.parametrize(
    ("labels", "boot", "wanted"),
    [
        ({"ready": "true", "boot-id": BOOT}, BOOT, False),
        ({"ready": "false", "boot-id": BOOT}, BOOT, True),
        ({"ready": "true", "boot-id": "of-the-boot-before"}, BOOT, True),
        ({"ready": "true"}, BOOT, True),
        ({"ready": "true"}, "", True),
        ({}, BOOT, True),
    ],
)
def test_the_taint_is_there_unless_the_gate_is_open_in_this_boot(
    tmp_path: Path,
    shell: list[str],
    labels: dict[str, str],
    boot: str,
    *,
    tainted: bool,
    wanted: bool,
) -> None:
    account = "system:serviceaccount:gpu-bootstate:gpu-bootstate-taint"
    with ApiServer(tokens={"t": account}) as server:
        made = server.add_node(
            "n1", {f"gpu-bootstate/{key}": value for key, value in labels.items()}
        )
        made["status"]["nodeInfo"] = {"bootID": boot}
        others = {"key": "somebody/else", "effect": "NoExecute", "value": "x"}
        ours = {"key": OURS, "effect": "NoSchedule"}
        made["spec"]["taints"] = [others, ours] if tainted else [others]
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", token="t")
        environment = {"NODE_NAME": "n1", "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        with script("taint.sh", shell, 0.05, environment=environment):
            eventually(lambda: len(server.requests) >= 4)
            eventually(lambda: has_taint(server) is wanted)
        assert others in server.nodes["n1"]["spec"]["taints"]
        writes = [request for request in server.requests if request.method != "GET"]
        assert len(writes) == (tainted is not wanted), "what is right is not written"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_without_an_answer_the_taint_stays_as_it_is(tmp_path: Path) -> None:
    with ApiServer(tokens={"t": "system:serviceaccount:x:y"}) as server:
        server.add_node("n1")
        server.trouble(Trouble("GET", "/api/v1/nodes/n1", times=99, status=500))
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", token="t")
        environment = {"NODE_NAME": "n1", "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        with script("taint.sh", ["sh"], 1000, environment=environment):
            eventually(lambda: any("nodes" in each.path for each in server.requests))
            time.sleep(0.5)
        assert [request.method for request in server.requests if request.method != "GET"] == []


def has_taint(server: ApiServer) -> bool:
    return any(taint["key"] == OURS for taint in server.nodes["n1"]["spec"].get("taints") or [])
