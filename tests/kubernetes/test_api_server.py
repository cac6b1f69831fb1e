"""The stand-in for an API server against clients that are not ours: `kubernetes`, and kubectl."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client, config

from tests.kubernetes.api_server import ApiServer, Trouble

ACCOUNT = "system:serviceaccount:gpu-bootstate:gpu-bootstate"
JSON, MERGE, STRATEGIC = (
    f"application/{kind}-patch+json" for kind in ("json", "merge", "strategic-merge")
)
N1 = "/api/v1/nodes/n1"
STARTED = "2025-03-01T10:00:00Z"

Connect = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(tokens={"good": ACCOUNT}) as made:
        made.add_node("n1", labels={"gpu": "h200"})
        made.add_node("n2")
        made.add_pod("gpu", "plugin-aaaaa", "n1", {"app": "plugin"}, STARTED)
        made.add_pod("gpu", "plugin-bbbbb", "n2", {"app": "plugin"}, STARTED)
        made.add_pod("kube-system", "lone-1", "n1", {"app": "lone"}, STARTED, owner=None)
        made.add_configmap("gpu", "profiles", {"config.yaml": "{}"})
        yield made


def connected(kubeconfig: Path) -> Any:
    """The official client; it asks once and does not retry."""
    load: Any = config.load_kube_config  # it has no types
    configuration = client.Configuration()
    load(str(kubeconfig), client_configuration=configuration)
    configuration.retries = False
    return client.CoreV1Api(client.ApiClient(configuration))


@pytest.fixture
def connect(server: ApiServer, tmp_path: Path) -> Connect:
    """`connect(node="n1")`: a client with a kubeconfig made like that."""
    return lambda **credential: connected(server.kubeconfig(tmp_path / "config", **credential))


@pytest.fixture
def kubelet(connect: Connect) -> Any:
    return connect(node="n1")


@pytest.fixture
def account(connect: Connect) -> Any:
    return connect(token="good")


def refusal(call: Callable[[], object]) -> tuple[int, str]:
    """Code and message of the Status that a call is refused with, checked to be a whole one."""
    with pytest.raises(client.ApiException) as caught:
        call()
    status = json.loads(caught.value.body or "")
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["code"] == caught.value.status
    assert status["reason"]
    return status["code"], status["message"]


def event(namespace: str = "default", **more: object) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "n1.", "namespace": namespace},
        "involvedObject": {"kind": "Node", "name": "n1", "uid": "n1"},
        "reason": "GpusReady",
        "message": "all there",
        "type": "Normal",
        **more,
    }


def new_event(**more: object) -> dict[str, Any]:
    """For events.k8s.io/v1."""
    whole = event() | {
        "apiVersion": "events.k8s.io/v1",
        "eventTime": "2025-03-01T10:00:00.000001Z",
        "reportingController": "gpu-bootstate",
        "reportingInstance": "gpu-bootstate-n1",
        "action": "Apply",
        "note": "all there",
        **more,
    }
    whole["regarding"] = whole.pop("involvedObject")
    del whole["message"]
    return whole


# Credentials


@pytest.mark.parametrize("credential", ["files", "inline", "token", "node token", "exec"])
def test_every_credential_does_every_call(
    server: ApiServer, connect: Connect, tmp_path: Path, credential: str
) -> None:
    server.tokens["node"] = "system:node:n1"
    made: dict[str, dict[str, Any]] = {
        "files": {"node": "n1"},
        "inline": {"node": "n1", "cert_in_files": False},
        "token": {"token": "good"},
        "node token": {"token": "node"},
        "exec": {"exec_command": server.exec_plugin(tmp_path / "plugin", "good")},
    }
    api = connect(**made[credential])

    assert api.read_node("n1").metadata.labels["gpu"] == "h200"
    api.patch_node("n1", {"metadata": {"labels": {"nvidia.com/x": "1"}}}, _content_type=MERGE)
    condition = {"type": "GpusReady", "status": "True", "reason": "Applied", "message": ""}
    api.patch_node_status("n1", {"status": {"conditions": [condition]}}, _content_type=STRATEGIC)
    pods = api.list_pod_for_all_namespaces(
        field_selector="spec.nodeName=n1", label_selector="app=plugin"
    )
    assert [pod.metadata.name for pod in pods.items] == ["plugin-aaaaa"]
    assert api.read_namespaced_pod("plugin-aaaaa", "gpu").status.start_time.hour == 10
    api.delete_namespaced_pod("plugin-aaaaa", "gpu")
    api.create_namespaced_event("default", event())

    node = server.nodes["n1"]
    assert node["metadata"]["labels"]["nvidia.com/x"] == "1"
    assert [one["type"] for one in node["status"]["conditions"]] == ["Ready", "GpusReady"]
    assert ("gpu", "plugin-aaaaa") not in server.pods
    assert [one["reason"] for one in server.events] == ["GpusReady"]
    expected = ACCOUNT if credential in ("token", "exec") else "system:node:n1"
    assert {one.user for one in server.requests} == {expected}
    assert [(one.method, one.path, one.status) for one in server.requests] == [
        ("GET", N1, 200),
        ("PATCH", N1, 200),
        ("PATCH", f"{N1}/status", 200),
        ("GET", "/api/v1/pods", 200),
        ("GET", "/api/v1/namespaces/gpu/pods/plugin-aaaaa", 200),
        ("DELETE", "/api/v1/namespaces/gpu/pods/plugin-aaaaa", 200),
        ("POST", "/api/v1/namespaces/default/events", 201),
    ]
    patch, pods_request = server.requests[1], server.requests[3]
    assert (patch.content_type, patch.body["metadata"]["labels"]) == (MERGE, {"nvidia.com/x": "1"})
    assert pods_request.query == {
        "fieldSelector": "spec.nodeName=n1",
        "labelSelector": "app=plugin",
    }


@pytest.mark.parametrize(
    "credential", [{}, {"token": "strange"}, {"node": "n1", "expired": True}], ids=str
)
def test_nobody_and_strangers_are_told_401(
    server: ApiServer, connect: Connect, credential: dict[str, Any]
) -> None:
    assert refusal(lambda: connect(**credential).read_node("n1")) == (401, "Unauthorized")
    assert (server.requests[0].user, server.requests[0].status) == (None, 401)


def test_a_token_can_expire(server: ApiServer, account: Any) -> None:
    account.read_node("n1")
    del server.tokens["good"]
    assert refusal(lambda: account.read_node("n1")) == (401, "Unauthorized")


def test_a_certificate_goes_before_a_token(server: ApiServer, connect: Connect) -> None:
    connect(node="n1", token="good").read_node("n1")
    assert server.requests[0].user == "system:node:n1"


def test_another_clusters_client_does_not_trust_the_server(
    server: ApiServer, tmp_path: Path
) -> None:
    with ApiServer() as other:
        path = other.kubeconfig(tmp_path / "kubeconfig", node="n1")
        path.write_text(path.read_text().replace(other.url, server.url))
        with pytest.raises(client.ApiException, match="CERTIFICATE_VERIFY_FAILED"):
            connected(path).read_node("n1")


# What a kubelet may do


@pytest.mark.parametrize(
    "label",
    [
        "plain",
        "nvidia.com/vgpu.config",
        "gpu-bootstate.example/state",
        "notkubernetes.io/x",
        "kubernetes.io/arch",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/anything",
        "feature.node.kubernetes.io/pci-10de.present",
        "x.kubelet.kubernetes.io/y",
    ],
)
def test_a_kubelet_may_set_and_remove_a_label(server: ApiServer, kubelet: Any, label: str) -> None:
    for value in ("x", None):
        kubelet.patch_node("n1", {"metadata": {"labels": {label: value}}}, _content_type=MERGE)
        assert server.nodes["n1"]["metadata"]["labels"].get(label) == value


@pytest.mark.parametrize(
    "label",
    [
        "kubernetes.io/x",
        "nvidia.kubernetes.io/x",
        "k8s.io/x",
        "gpu.k8s.io/x",
        "node-role.kubernetes.io/worker",
        "topology.kubernetes.io/rack",
        "node-restriction.kubernetes.io/x",
        "x.node-restriction.kubernetes.io/y",
    ],
)
def test_a_kubelet_may_not_set_a_label(
    server: ApiServer, kubelet: Any, account: Any, label: str
) -> None:
    patch = {"metadata": {"labels": {label: "x", "fine": "x"}}}
    text = f'nodes "n1" is forbidden: is not allowed to modify labels: {label}'
    for call in (kubelet.patch_node, kubelet.patch_node_status):
        assert refusal(partial(call, "n1", patch, _content_type=MERGE)) == (403, text)
    assert "fine" not in server.nodes["n1"]["metadata"]["labels"]
    account.patch_node("n1", patch, _content_type=MERGE)
    assert server.nodes["n1"]["metadata"]["labels"][label] == "x"


def test_a_kubelet_may_not_touch_taints(server: ApiServer, kubelet: Any, account: Any) -> None:
    taint = {"key": "gpu-bootstate/not-ready", "effect": "NoSchedule"}
    patch = {"spec": {"taints": [taint]}}
    text = 'nodes "n1" is forbidden: node "n1" is not allowed to modify taints'
    # Through the status too, though nothing would come of it.
    for call in (kubelet.patch_node, kubelet.patch_node_status):
        assert refusal(partial(call, "n1", patch, _content_type=MERGE)) == (403, text)
    account.patch_node("n1", patch, _content_type=STRATEGIC)
    assert server.nodes["n1"]["spec"]["taints"] == [taint]
    gone: dict[str, Any] = {"spec": {"taints": None}}
    assert refusal(lambda: kubelet.patch_node("n1", gone, _content_type=MERGE)) == (403, text)
    kubelet.patch_node("n1", {"metadata": {"annotations": {"a": "b"}}}, _content_type=MERGE)


def denied(named: str, verb: str, why: str, place: str = 'in the namespace "gpu"') -> str:
    """What the node authorizer says."""
    resource = named.partition(" ")[0]
    return (
        f'{named} is forbidden: User "system:node:n1" cannot {verb} resource "{resource}" in API'
        f' group "" {place}: {why}'
    )


EVERYWHERE = "at the cluster scope"
UNRELATED = "no relationship found between node 'n1' and this object"
SELECT = "can only list/watch pods with spec.nodeName field selector"
MODIFY = 'nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"'
ELSEWHERE = 'pods "plugin-bbbbb" is forbidden: node'
KUBELET_REFUSALS: dict[str, tuple[Callable[[Any], object], str]] = {
    "patch another node": (
        lambda api: api.patch_node("n2", {"metadata": {}}, _content_type=MERGE),
        MODIFY,
    ),
    "replace another node's status": (
        lambda api: api.replace_node_status("n2", {"metadata": {"name": "n2"}}),
        MODIFY,
    ),
    "read another node": (
        lambda api: api.read_node("n2"),
        denied(
            'nodes "n2"', "get", "node 'n1' cannot read 'n2', only its own Node object", EVERYWHERE
        ),
    ),
    "list nodes": (
        lambda api: api.list_node(),
        denied(
            "nodes", "list", "node 'n1' cannot read all nodes, only its own Node object", EVERYWHERE
        ),
    ),
    "list all pods": (
        lambda api: api.list_pod_for_all_namespaces(label_selector="app=plugin"),
        denied("pods", "list", SELECT, EVERYWHERE),
    ),
    "list pods of another node": (
        lambda api: api.list_namespaced_pod("gpu", field_selector="spec.nodeName=n2"),
        denied("pods", "list", SELECT),
    ),
    "read a pod elsewhere": (
        lambda api: api.read_namespaced_pod("plugin-bbbbb", "gpu"),
        denied('pods "plugin-bbbbb"', "get", UNRELATED),
    ),
    "delete a pod elsewhere": (
        lambda api: api.delete_namespaced_pod("plugin-bbbbb", "gpu"),
        f'{ELSEWHERE} "n1" can only delete pods with spec.nodeName set to itself',
    ),
    "evict a pod elsewhere": (
        lambda api: evict(api, "plugin-bbbbb"),
        f"{ELSEWHERE} n1 can only evict pods with spec.nodeName set to itself",
    ),
    "read a ConfigMap": (
        lambda api: api.read_namespaced_config_map("profiles", "gpu"),
        denied('configmaps "profiles"', "get", UNRELATED),
    ),
    "list ConfigMaps": (
        lambda api: api.list_namespaced_config_map("gpu"),
        denied("configmaps", "list", "No Object name found"),
    ),
}


@pytest.mark.parametrize("what", KUBELET_REFUSALS)
def test_a_kubelet_may_not(server: ApiServer, kubelet: Any, account: Any, what: str) -> None:
    call, text = KUBELET_REFUSALS[what]
    before = json.dumps([server.nodes, list(server.pods.values())])
    assert refusal(lambda: call(kubelet)) == (403, text)
    assert json.dumps([server.nodes, list(server.pods.values())]) == before
    call(account)


def evict(api: Any, name: str, **options: Any) -> object:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": "gpu"},
        **options,
    }
    return api.create_namespaced_pod_eviction(name, "gpu", body)


# Nodes


def test_each_endpoint_leaves_the_others_part_alone(server: ApiServer, account: Any) -> None:
    both: dict[str, Any] = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"unschedulable": True},
        "status": {"phase": "Running"},
    }
    account.patch_node("n1", both, _content_type=MERGE)
    node = server.nodes["n1"]
    assert (node["spec"], "phase" in node["status"]) == ({"unschedulable": True}, False)

    both["metadata"]["annotations"] = {"a": "c"}
    both["spec"] = {"unschedulable": False}
    account.patch_node_status("n1", both, _content_type=MERGE)
    node = server.nodes["n1"]
    assert (node["spec"], node["status"]["phase"]) == ({"unschedulable": True}, "Running")
    assert node["metadata"]["annotations"] == {"a": "c"}


def test_conditions_merge_by_type_in_a_strategic_patch_alone(
    server: ApiServer, kubelet: Any
) -> None:
    def patched(kind: str, *conditions: dict[str, str]) -> list[str]:
        body = {"status": {"conditions": list(conditions)}}
        kubelet.patch_node_status("n1", body, _content_type=kind)
        found = server.nodes["n1"]["status"]["conditions"]
        return [f"{one['type']}={one['status']}" for one in found]

    ours = {"type": "GpusReady", "status": "False"}
    assert patched(STRATEGIC, ours) == ["Ready=True", "GpusReady=False"]
    assert patched(STRATEGIC, ours | {"status": "True"}) == ["Ready=True", "GpusReady=True"]
    gone = {"type": "GpusReady", "$patch": "delete"}
    assert patched(STRATEGIC, gone) == ["Ready=True"]
    assert patched(MERGE, ours) == ["GpusReady=False"]


def test_a_json_patch_adds_replaces_removes_and_tests(server: ApiServer, kubelet: Any) -> None:
    label = "/metadata/labels/nvidia.com~1vgpu"
    kubelet.patch_node("n1", [{"op": "add", "path": label, "value": "a"}], _content_type=JSON)
    test = {"op": "test", "path": label, "value": "a"}
    replace = {"op": "replace", "path": label, "value": "b"}
    kubelet.patch_node("n1", [test, replace], _content_type=JSON)
    assert server.nodes["n1"]["metadata"]["labels"]["nvidia.com/vgpu"] == "b"
    kubelet.patch_node("n1", [{"op": "remove", "path": label}], _content_type=JSON)
    assert "nvidia.com/vgpu" not in server.nodes["n1"]["metadata"]["labels"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/metadata/labels/gpu", "value": "other"},
        {"op": "remove", "path": "/metadata/labels/absent"},
        {"op": "replace", "path": "/metadata/labels/absent", "value": "x"},
        {"op": "add", "path": "/metadata/annotations/a", "value": "there are no annotations yet"},
    ],
    ids=lambda operation: str(operation["op"]),
)
def test_a_json_patch_that_does_not_fit_is_refused(kubelet: Any, operation: dict[str, Any]) -> None:
    text = "the server rejected our request due to an error in our request"
    assert refusal(lambda: kubelet.patch_node("n1", [operation], _content_type=JSON)) == (422, text)


def test_an_outdated_version_is_a_conflict(server: ApiServer, kubelet: Any) -> None:
    old = kubelet.read_node("n1")
    kubelet.patch_node("n1", {"metadata": {"labels": {"a": "b"}}}, _content_type=MERGE)
    version = {"metadata": {"resourceVersion": old.metadata.resource_version}}
    text = (
        'Operation cannot be fulfilled on nodes "n1": the object has been modified; please apply'
        " your changes to the latest version and try again"
    )
    replace = {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}
    for call in (
        lambda: kubelet.replace_node("n1", old),
        lambda: kubelet.replace_node_status("n1", old),
        lambda: kubelet.patch_node("n1", version, _content_type=MERGE),
        lambda: kubelet.patch_node_status("n1", version, _content_type=STRATEGIC),
        lambda: kubelet.patch_node("n1", [replace], _content_type=JSON),
    ):
        assert refusal(call) == (409, text)

    new = kubelet.read_node("n1")
    new.metadata.annotations = {"a": "b"}
    kubelet.replace_node("n1", new)
    assert server.nodes["n1"]["metadata"]["annotations"] == {"a": "b"}


def test_what_changes_nothing_keeps_its_version(server: ApiServer, kubelet: Any) -> None:
    patch = {"metadata": {"labels": {"a": "b"}}}
    first = kubelet.patch_node("n1", patch, _content_type=MERGE)
    again = kubelet.patch_node("n1", patch, _content_type=MERGE)
    assert first.metadata.resource_version == again.metadata.resource_version
    assert kubelet.replace_node("n1", again).metadata.resource_version == str(server._version)


def bad_label(value: str) -> str:
    return (
        f'Node "n1" is invalid: metadata.labels: Invalid value: "{value}": a valid label must be'
        " an empty string or consist of alphanumeric characters, '-', '_' or '.'"
    )


@pytest.mark.parametrize(
    ("patch", "code", "text"),
    [
        (
            {"metadata": {"labels": {"a": "two words"}}},
            422,
            bad_label("two words"),
        ),
        (
            {"metadata": {"labels": {"a": "x" * 64}}},
            422,
            bad_label("x" * 64),
        ),
        (
            {"metadata": {"annotations": {"a b": "x"}}},
            422,
            (
                'Node "n1" is invalid: metadata.annotations: Invalid value: "a b": name part must'
                " consist of alphanumeric characters, '-', '_' or '.'"
            ),
        ),
        (
            {"metadata": {"labels": {"a": True}}},
            422,
            (
                ' "" is invalid: patch: Invalid value: json: cannot unmarshal bool into Go struct'
                " field ObjectMeta.metadata.labels of type string"
            ),
        ),
        (
            {"metadata": {"name": "n2"}},
            400,
            "the name of the object (n2) does not match the name on the URL (n1)",
        ),
        (
            {"status": {"conditions": [{"type": "X", "lastTransitionTime": "yesterday"}]}},
            422,
            (
                ' "" is invalid: patch: Invalid value: parsing time "yesterday" as'
                ' "2006-01-02T15:04:05Z07:00": cannot parse'
            ),
        ),
    ],
)
def test_a_patch_that_is_invalid_is_refused(
    kubelet: Any, patch: dict[str, Any], code: int, text: str
) -> None:
    for kind in (MERGE, STRATEGIC):
        for call in (kubelet.patch_node, kubelet.patch_node_status):
            assert refusal(partial(call, "n1", patch, _content_type=kind)) == (code, text)


def test_what_is_not_served_is_refused(server: ApiServer, account: Any) -> None:
    apply = "application/apply-patch+yaml"
    code, _ = refusal(lambda: account.patch_node("n1", {}, _content_type=apply))
    assert code == 415
    assert refusal(lambda: account.read_node("n3")) == (404, 'nodes "n3" not found')
    other = {"metadata": {"uid": "another"}}
    assert refusal(lambda: account.patch_node("n1", other, _content_type=MERGE))[0] == 409
    assert refusal(lambda: account.delete_node("n1"))[0] == 405
    assert refusal(lambda: account.list_node(watch=True, _preload_content=False))[0] == 400
    assert refusal(lambda: account.patch_node("n1", {}, dry_run="All"))[0] == 400
    assert refusal(lambda: account.list_node(label_selector="a in (b)"))[0] == 400
    assert refusal(lambda: account.list_node(field_selector="spec.nodeName=n1")) == (
        400,
        "field label not supported: spec.nodeName",
    )
    with pytest.raises(client.ApiException) as caught:
        account.list_namespaced_secret("gpu")
    assert (caught.value.status, caught.value.body) == (404, "404 page not found\n")


@pytest.mark.parametrize(
    ("body", "content_type", "code", "text"),
    [
        ("{", "application/json", 400, "the request body is no JSON"),
        ("[]", "application/json", 400, "the request is no object with metadata"),
        (
            "{}",
            "application/x-www-form-urlencoded",
            415,
            (
                "the body of the request was in an unknown format - accepted media types include:"
                " application/json"
            ),
        ),
        (
            json.dumps(new_event(eventTime=None)),
            "application/json",
            422,
            'Event "given" is invalid: eventTime: Required value',
        ),
    ],
    ids=["no JSON", "no object", "a form", "no time"],
)
def test_what_the_client_does_not_send_is_refused_too(
    server: ApiServer, kubelet: Any, body: str, content_type: str, code: int, text: str
) -> None:
    answer = kubelet.api_client.rest_client.pool_manager.request(
        "POST",
        f"{server.url}/apis/events.k8s.io/v1/namespaces/default/events",
        body=body.replace('"generateName": "n1."', '"name": "given"'),
        headers={"Content-Type": content_type},
    )
    assert (answer.status, answer.json()["message"]) == (code, text)
    assert server.events == []


# Pods, ConfigMaps and events


def names(pods: Any) -> list[str]:
    return [pod.metadata.name for pod in pods.items]


def test_pods_are_selected_by_namespace_label_and_field(account: Any) -> None:
    everywhere = account.list_pod_for_all_namespaces
    assert names(everywhere()) == ["plugin-aaaaa", "plugin-bbbbb", "lone-1"]
    assert names(everywhere(label_selector="app=plugin,app!=x")) == ["plugin-aaaaa", "plugin-bbbbb"]
    assert names(everywhere(label_selector="app!=plugin")) == ["lone-1"]
    assert names(everywhere(field_selector="spec.nodeName=n1")) == ["plugin-aaaaa", "lone-1"]
    assert names(everywhere(field_selector="metadata.name=lone-1")) == ["lone-1"]
    assert names(account.list_namespaced_pod("gpu", field_selector="spec.nodeName=n2")) == [
        "plugin-bbbbb"
    ]
    assert [one.metadata.name for one in account.list_node(label_selector="gpu=h200").items] == [
        "n1"
    ]


def test_a_daemonset_makes_a_new_pod(server: ApiServer, kubelet: Any) -> None:
    old = kubelet.read_namespaced_pod("plugin-aaaaa", "gpu")
    kubelet.delete_namespaced_pod("plugin-aaaaa", "gpu")
    (new,) = kubelet.list_namespaced_pod("gpu", field_selector="spec.nodeName=n1").items
    assert new.metadata.name.startswith("plugin-")
    assert new.metadata.labels == {"app": "plugin"}
    assert {new.metadata.name, new.metadata.uid} & {old.metadata.name, old.metadata.uid} == set()
    assert new.status.start_time > old.status.start_time
    assert [one.kind for one in new.metadata.owner_references] == ["DaemonSet"]

    kubelet.delete_namespaced_pod("lone-1", "kube-system")
    server.daemonset_recreates = False
    kubelet.delete_namespaced_pod(new.metadata.name, "gpu")
    assert list(server.pods) == [("gpu", "plugin-bbbbb")]
    assert refusal(lambda: kubelet.delete_namespaced_pod("lone-1", "kube-system")) == (
        404,
        'pods "lone-1" not found',
    )


def test_a_deleted_pod_can_linger(server: ApiServer, kubelet: Any) -> None:
    server.pods_linger = True
    kubelet.delete_namespaced_pod("plugin-aaaaa", "gpu")
    (pod,) = kubelet.list_namespaced_pod("gpu", field_selector="spec.nodeName=n1").items
    assert (pod.metadata.name, bool(pod.metadata.deletion_timestamp)) == ("plugin-aaaaa", True)
    server.finish_deletions()
    (pod,) = kubelet.list_namespaced_pod("gpu", field_selector="spec.nodeName=n1").items
    assert (pod.metadata.name == "plugin-aaaaa", pod.metadata.deletion_timestamp) == (False, None)


def test_only_the_pod_that_is_meant_is_deleted(server: ApiServer, kubelet: Any) -> None:
    uid = server.pods["gpu", "plugin-aaaaa"]["metadata"]["uid"]
    other = {"preconditions": {"uid": "other"}}
    text = (
        'Operation cannot be fulfilled on pods "plugin-aaaaa": the UID in the precondition (other)'
        f" does not match the UID in record ({uid}). The object might have been deleted and then"
        " recreated"
    )
    for call in (
        lambda: kubelet.delete_namespaced_pod("plugin-aaaaa", "gpu", body=other),
        lambda: evict(kubelet, "plugin-aaaaa", deleteOptions=other),
    ):
        assert refusal(call) == (409, text)
    evict(kubelet, "plugin-aaaaa", deleteOptions={"preconditions": {"uid": uid}})
    assert ("gpu", "plugin-aaaaa") not in server.pods


def test_an_eviction_is_of_the_right_version(kubelet: Any) -> None:
    assert refusal(lambda: evict(kubelet, "plugin-aaaaa", apiVersion="policy/v1beta1"))[0] == 400


def test_configmaps_are_read(account: Any) -> None:
    assert account.read_namespaced_config_map("profiles", "gpu").data == {"config.yaml": "{}"}
    assert len(account.list_namespaced_config_map("gpu").items) == 1
    assert account.list_namespaced_config_map("default").items == []


def test_both_kinds_of_events_are_taken(server: ApiServer, kubelet: Any) -> None:
    made = kubelet.create_namespaced_event("default", event())
    assert made.metadata.name.startswith("n1.")
    api: Any = client.EventsV1Api(kubelet.api_client)
    api.create_namespaced_event("default", new_event())
    assert [(one["apiVersion"], one["kind"]) for one in server.events] == [
        ("v1", "Event"),
        ("events.k8s.io/v1", "Event"),
    ]
    named = event(metadata={"name": "once"})
    kubelet.create_namespaced_event("default", named)
    assert refusal(lambda: kubelet.create_namespaced_event("default", named)) == (
        409,
        'events "once" already exists',
    )


@pytest.mark.parametrize(
    ("namespace", "body", "code", "text"),
    [
        (
            "gpu",
            event("gpu"),
            422,
            'involvedObject.namespace: Invalid value: "": does not match event.namespace',
        ),
        (
            "gpu",
            event(),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "default",
            event(metadata={}),
            422,
            "metadata.name: Required value: name or generateName is required",
        ),
        (
            "default",
            event(eventTime="2025-03-01T10:00:00Z"),
            400,
            (
                "Event in version v1 cannot be handled as a Event: parsing time"
                ' "2025-03-01T10:00:00+00:00" as "2006-01-02T15:04:05.000000Z07:00": cannot parse'
            ),
        ),
        ("default", new_event(action=None), 422, "action: Required value"),
        (
            "default",
            new_event(type="Odd"),
            422,
            'type: Invalid value: "": has invalid value: Odd',
        ),
        (
            "default",
            new_event(note="x" * 1025),
            422,
            'message: Invalid value: "": can have at most 1024 characters',
        ),
    ],
)
def test_an_event_that_is_invalid_is_refused(
    kubelet: Any, namespace: str, body: dict[str, Any], code: int, text: str
) -> None:
    new = body["apiVersion"] != "v1"
    api: Any = client.EventsV1Api(kubelet.api_client) if new else kubelet
    found, message = refusal(lambda: api.create_namespaced_event(namespace, body))
    assert (found, message.partition("is invalid: ")[2] or message) == (code, text)


# Trouble


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (401, "Unauthorized", "Unauthorized"),
        (
            403,
            "Forbidden",
            (
                'nodes "n1" is forbidden: User "system:node:n1" cannot patch resource "nodes" in'
                ' API group "" at the cluster scope'
            ),
        ),
        (
            409,
            "Conflict",
            (
                'Operation cannot be fulfilled on nodes "n1": the object has been modified; please'
                " apply your changes to the latest version and try again"
            ),
        ),
        (429, "TooManyRequests", "Too many requests, please try again later."),
        (500, "InternalError", "Internal error occurred: etcdserver: request timed out"),
        (503, "ServiceUnavailable", "the server is currently unable to handle the request"),
    ],
)
def test_scripted_refusals_come_as_often_as_asked(
    server: ApiServer, kubelet: Any, status: int, reason: str, text: str
) -> None:
    server.trouble(Trouble("PATCH", N1, times=2, status=status, retry_after_s=7))
    patch = {"metadata": {"labels": {"a": "b"}}}
    kubelet.read_node("n1")
    for _ in range(2):
        with pytest.raises(client.ApiException) as caught:
            kubelet.patch_node("n1", patch, _content_type=MERGE)
        found = json.loads(caught.value.body or "")
        assert (found["code"], found["reason"], found["message"]) == (status, reason, text)
        assert (caught.value.headers or {})["Retry-After"] == "7"
    kubelet.patch_node("n1", patch, _content_type=MERGE)
    assert [one.status for one in server.requests] == [200, status, status, 200]


def test_troubles_of_one_request_come_one_after_another(server: ApiServer, kubelet: Any) -> None:
    server.trouble(Trouble(status=503))
    server.trouble(Trouble(status=429, message="slow down"))
    assert refusal(lambda: kubelet.read_node("n1"))[0] == 503
    assert refusal(lambda: kubelet.read_node("n1")) == (429, "slow down")
    kubelet.read_node("n1")


def test_a_connection_is_dropped(server: ApiServer, kubelet: Any) -> None:
    server.trouble(Trouble("GET", N1, close=True))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        kubelet.read_node("n1")
    kubelet.read_node("n1")
    assert [one.status for one in server.requests] == [None, 200]


def test_a_server_that_hangs_changes_nothing_for_a_client_that_left(
    server: ApiServer, kubelet: Any
) -> None:
    server.trouble(Trouble("PATCH", N1, hang_s=3600))
    patch = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        kubelet.patch_node("n1", patch, _content_type=MERGE, _request_timeout=0.3)
    kubelet.read_node("n1")
    assert "a" not in server.nodes["n1"]["metadata"]["labels"]
    assert [one.status for one in server.requests] == [None, 200]


def test_a_client_that_waits_is_answered_after_a_hang(server: ApiServer, kubelet: Any) -> None:
    server.trouble(Trouble("GET", N1, hang_s=0.01))
    assert kubelet.read_node("n1").metadata.name == "n1"


def test_somebody_else_changes_the_object_just_before(server: ApiServer, kubelet: Any) -> None:
    def change(node: dict[str, Any]) -> None:
        node["metadata"]["labels"]["theirs"] = "1"

    server.trouble(Trouble("PUT", N1, conflict=True, change=change))
    old = kubelet.read_node("n1")
    assert refusal(lambda: kubelet.replace_node("n1", old))[0] == 409
    new = kubelet.read_node("n1")
    assert new.metadata.labels["theirs"] == "1"
    kubelet.replace_node("n1", new)

    server.trouble(Trouble("PATCH", N1, conflict=True))
    kubelet.patch_node("n1", {"metadata": {"labels": {"ours": "1"}}}, _content_type=MERGE)
    assert server.nodes["n1"]["metadata"]["labels"].items() >= {"ours": "1", "theirs": "1"}.items()


def test_something_happens_right_after(server: ApiServer, kubelet: Any) -> None:
    server.trouble(Trouble("GET", N1, after=lambda: server.add_node("n3")))
    kubelet.read_node("n1")
    assert "n3" in server.nodes


def test_a_server_can_die_in_the_middle_of_an_answer(server: ApiServer, kubelet: Any) -> None:
    server.trouble(Trouble("PATCH", N1, after=server.stop_listening))
    patch = {"metadata": {"labels": {"a": "b"}}}
    with pytest.raises(urllib3.exceptions.ProtocolError):
        kubelet.patch_node("n1", patch, _content_type=MERGE)
    assert server.nodes["n1"]["metadata"]["labels"]["a"] == "b"


def test_a_stopped_server_refuses_connections_and_returns(server: ApiServer, kubelet: Any) -> None:
    kubelet.read_node("n1")
    server.stop_listening()
    with pytest.raises(urllib3.exceptions.HTTPError):  # the connection that was kept open
        kubelet.read_node("n1")
    with pytest.raises(urllib3.exceptions.NewConnectionError, match="refused"):
        kubelet.read_node("n1")
    server.listen()
    kubelet.read_node("n1")


def test_a_client_that_stalls_in_the_handshake_holds_up_nobody(
    server: ApiServer, kubelet: Any
) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))):
        kubelet.read_node("n1")


def test_what_breaks_in_the_stand_in_is_raised_at_its_end(tmp_path: Path) -> None:
    def ask(server: ApiServer) -> None:
        with server:
            server.add_node("n1")
            server.trouble(Trouble(after=lambda: [][0]))
            path = server.kubeconfig(tmp_path / "kubeconfig", node="n1")
            with pytest.raises(client.ApiException, match="the stand-in is broken"):
                connected(path).read_node("n1")

    with pytest.raises(IndexError):
        ask(ApiServer())


# The real kubectl


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = shutil.which("kubectl")
    if not program:
        pytest.fail("kubectl is missing: apt-get install --no-install-recommends kubernetes-client")

    def run(*words: str, **credential: Any) -> subprocess.CompletedProcess[str]:
        path = server.kubeconfig(tmp_path / "kubeconfig", **(credential or {"node": "n1"}))
        return subprocess.run(  # noqa: S603
            [program, "--kubeconfig", str(path), *words],
            # Its cache of what the server offers is kept under HOME.
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("credential", ["files", "inline", "token", "exec"])
def test_kubectl_gets_a_node(
    server: ApiServer, kubectl: Kubectl, tmp_path: Path, credential: str
) -> None:
    made: dict[str, dict[str, Any]] = {
        "files": {"node": "n1"},
        "inline": {"node": "n1", "cert_in_files": False},
        "token": {"token": "good"},
        "exec": {
            # Debian 12 has kubectl 1.20, which does not know v1 yet.
            "exec_command": server.exec_plugin(tmp_path / "plugin", "good", version="v1beta1"),
            "exec_version": "v1beta1",
        },
    }
    done = kubectl("get", "node", "n1", "-o", "json", **made[credential])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["metadata"]["labels"]["gpu"] == "h200"


def test_kubectl_labels_and_annotates_a_node(server: ApiServer, kubectl: Kubectl) -> None:
    for done in (
        kubectl("label", "node", "n1", "nvidia.com/vgpu.config=a"),
        kubectl("label", "node", "n1", "--overwrite", "nvidia.com/vgpu.config=b"),
        kubectl("annotate", "node", "n1", "gpu-bootstate/at=two words"),
        kubectl("label", "node", "n1", "gpu-"),
    ):
        assert (done.returncode, done.stderr) == (0, "")
    meta = server.nodes["n1"]["metadata"]
    assert (meta["labels"]["nvidia.com/vgpu.config"], "gpu" in meta["labels"]) == ("b", False)
    assert meta["annotations"] == {"gpu-bootstate/at": "two words"}


def test_kubectl_gets_and_deletes_pods(server: ApiServer, kubectl: Kubectl) -> None:
    listing = ("get", "pods", "-A", "--field-selector", "spec.nodeName=n1", "-o", "name")
    assert kubectl(*listing).stdout == "pod/plugin-aaaaa\npod/lone-1\n"
    done = kubectl("delete", "pod", "-n", "gpu", "plugin-aaaaa")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('pod "plugin-aaaaa" deleted')
    assert ("gpu", "plugin-aaaaa") not in server.pods


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["label", "node", "n1", "kubernetes.io/x=y"],
            (
                'Error from server (Forbidden): nodes "n1" is forbidden: is not allowed to modify'
                " labels: kubernetes.io/x"
            ),
        ),
        (
            ["taint", "node", "n1", "a=b:NoSchedule"],
            (
                'Error from server (Forbidden): nodes "n1" is forbidden: node "n1" is not allowed'
                " to modify taints"
            ),
        ),
        (["get", "pod", "-n", "gpu", "none"], "Error from server (Forbidden): pods"),
        (["delete", "pod", "-n", "gpu", "none"], 'Error from server (NotFound): pods "none" not'),
    ],
)
def test_kubectl_is_refused(kubectl: Kubectl, words: list[str], text: str) -> None:
    done = kubectl(*words)
    assert done.returncode == 1
    assert text in done.stderr


def test_kubectl_shows_a_scripted_refusal(server: ApiServer, kubectl: Kubectl) -> None:
    server.trouble(Trouble("PATCH", N1, status=503))
    done = kubectl("label", "node", "n1", "a=b")
    assert done.returncode == 1
    assert "the server is currently unable to handle the request" in done.stderr
