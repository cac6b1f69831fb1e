"""A stand-in for a Kubernetes API server: HTTPS on 127.0.0.1, its state in dicts.

It serves what a program on a node needs (Node, Pod, Event, ConfigMap), holds a kubelet's identity
to what the node authorizer and NodeRestriction allow (rules.py), and makes trouble when told to.

    with ApiServer(tokens={"t": "system:serviceaccount:gpu-bootstate:gpu-bootstate"}) as server:
        server.add_node("n1")
        kubelet = server.kubeconfig(tmp_path / "kubelet.conf", node="n1")
        server.trouble(Trouble("PATCH", "/api/v1/nodes/n1", times=2, status=429, retry_after_s=1))

Not there: watches, dry runs, server-side apply, set-based selectors; asking for them is refused.
`limit` is ignored. Who is no kubelet may do everything (no RBAC). Without any credential the answer
is 401, as where anonymous requests are off.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import select
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trustme
import yaml

from tests.kubernetes.rules import (
    Call,
    Object,
    Refused,
    Request,
    admit_node,
    call_of,
    check_decodes,
    event_problems,
    patched,
    refuse_invalid,
    requirements,
    selects,
    unsupported,
    validate_node,
)

__all__ = ["ApiServer", "Request", "Trouble"]


@dataclass
class Trouble:
    """What goes wrong with the next `times` requests; None matches any method or path.

    In this order: no answer for `hang_s`; then the connection is dropped (`close`) or the request
    refused (`status`); else somebody else changes the object (`conflict`, with `change`), it is
    handled, and `after` runs, before the answer leaves. A server that dies in the middle of an
    answer is `after=server.stop_listening`.
    """

    method: str | None = None
    path: str | None = None
    times: int = 1
    status: int | None = None
    message: str = ""
    retry_after_s: int | None = None
    hang_s: float = 0
    close: bool = False
    conflict: bool = False
    change: Callable[[Object], None] | None = None
    after: Callable[[], object] | None = None


class ApiServer:
    """The server, listening while in its `with` block.

    `nodes`, `pods`, `events` and `configmaps` may be read and changed directly. What breaks inside
    the stand-in, or in a callable of a Trouble, is raised where the `with` block ends.
    """

    def __init__(self, *, tokens: Mapping[str, str] | None = None) -> None:
        self.tokens = dict(tokens or {})
        self.nodes: dict[str, Object] = {}
        self.pods: dict[tuple[str, str], Object] = {}
        self.configmaps: dict[tuple[str, str], Object] = {}
        self.events: list[Object] = []
        self.requests: list[Request] = []
        self.troubles: list[Trouble] = []
        self.daemonset_recreates = True
        self.pods_linger = False  # a deleted pod stays, marked, until finish_deletions()
        self.now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
        self.lock = threading.RLock()
        self.broken: BaseException | None = None
        self._version = 1000
        self._port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._ca = trustme.CA()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert("127.0.0.1", "localhost").configure_cert(self._tls)
        self._ca.configure_trust(self._tls)
        self._tls.verify_mode = ssl.CERT_OPTIONAL
        # X509_V_FLAG_NO_CHECK_TIME: a real server completes the handshake and then answers 401.
        self._tls.verify_flags |= ssl.VerifyFlags(0x200000)

    # The server and its clients

    def __enter__(self) -> ApiServer:
        self.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_listening()
        if self.broken:
            raise self.broken

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def listen(self) -> None:
        """Listens; after a stop on the same port."""
        if self._server:
            return
        self._server = _Server(("127.0.0.1", self._port), self, self._tls)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def stop_listening(self) -> None:
        """Refuses connections from now on; open ones are dropped."""
        server, self._server = self._server, None
        if server and self._thread:
            server.shutdown()
            self._thread.join()
            server.drop_connections()
            server.server_close()

    def trouble(self, trouble: Trouble) -> Trouble:
        with self.lock:
            self.troubles.append(trouble)
        return trouble

    def kubeconfig(
        self,
        path: Path,
        *,
        node: str | None = None,
        token: str | None = None,
        exec_command: Sequence[str] | None = None,
        exec_version: str = "v1",
        cert_in_files: bool = True,
        expired: bool = False,
    ) -> Path:
        """Writes a kubeconfig for a kubelet (`node`), a token or an exec plugin; none: anonymous.

        A certificate goes to PATH.pem with its key, as the kubelet keeps it, or inline.
        """
        user: Object = {}
        if node is not None:
            chain, key = self._client_certificate(node, expired=expired)
            if cert_in_files:
                pem = path.with_name(path.name + ".pem")
                pem.write_bytes(chain + key)
                pem.chmod(0o600)
                user = {"client-certificate": str(pem), "client-key": str(pem)}
            else:
                user = {"client-certificate-data": _base64(chain), "client-key-data": _base64(key)}
        if token is not None:
            user["token"] = token
        if exec_command is not None:
            user["exec"] = {
                "apiVersion": f"client.authentication.k8s.io/{exec_version}",
                "command": exec_command[0],
                "args": list(exec_command[1:]),
                "interactiveMode": "Never",
            }
        cluster = {
            "server": self.url,
            "certificate-authority-data": _base64(self._ca.cert_pem.bytes()),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "default",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def exec_plugin(self, path: Path, token: str, version: str = "v1") -> list[str]:
        """Writes a credential plugin that prints this token; returns its command."""
        credential = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "kind": "ExecCredential",
            "status": {"token": token},
        }
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(credential)}\nEND\n")
        path.chmod(0o755)
        return [str(path)]

    def _client_certificate(self, node: str, *, expired: bool) -> tuple[bytes, bytes]:
        now = datetime.now(timezone.utc)
        certificate = self._ca.issue_cert(
            common_name=f"system:node:{node}",
            organization_name="system:nodes",
            not_before=now - timedelta(days=2),
            not_after=now + timedelta(days=-1 if expired else 1),
        )
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        return chain, certificate.private_key_pem.bytes()

    # The state

    def add_node(self, name: str, labels: Mapping[str, str] | None = None) -> Object:
        now = _rfc3339(self.now())
        standard = {"hostname": name, "os": "linux", "arch": "amd64"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        node = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": self._metadata(
                name=name,
                labels={f"kubernetes.io/{key}": value for key, value in standard.items()}
                | dict(labels or {}),
            ),
            "spec": {},
            "status": {"conditions": [ready]},
        }
        with self.lock:
            self.nodes[name] = node
        return node

    def add_pod(
        self,
        namespace: str,
        name: str,
        node: str,
        labels: Mapping[str, str] | None = None,
        started_at: str | None = None,
        owner: str | None = "DaemonSet",
    ) -> Object:
        """A running, ready pod; its owner has the pod's name less the last part."""
        started_at = started_at or _rfc3339(self.now())
        owner_name = name.rpartition("-")[0] or name
        owned: Object = {}
        if owner:
            reference = {
                "apiVersion": "v1" if owner == "Node" else "apps/v1",
                "kind": owner,
                "name": owner_name,
                "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{owner}.{owner_name}.{namespace}")),
                "controller": True,
            }
            owned = {"generateName": f"{owner_name}-", "ownerReferences": [reference]}
        if labels:
            owned["labels"] = dict(labels)
        metadata = self._metadata(name=name, namespace=namespace, **owned)
        container = {
            "name": "main",
            "image": "registry.example/image:1",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": started_at}},
        }
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": metadata | {"creationTimestamp": started_at},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "registry.example/image:1"}],
            },
            "status": {
                "phase": "Running",
                "startTime": started_at,
                "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": started_at}
                ],
                "containerStatuses": [container],
            },
        }
        with self.lock:
            self.pods[namespace, name] = pod
        return pod

    def add_configmap(self, namespace: str, name: str, data: Mapping[str, str]) -> Object:
        metadata = self._metadata(name=name, namespace=namespace)
        made = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": dict(data)}
        with self.lock:
            self.configmaps[namespace, name] = made
        return made

    def finish_deletions(self) -> None:
        """Pods that linger go now, and their DaemonSets make new ones."""
        with self.lock:
            for pod in list(self.pods.values()):
                if "deletionTimestamp" in pod["metadata"]:
                    self._remove(pod)

    def _next_version(self) -> str:
        with self.lock:
            self._version += 1
            return str(self._version)

    def _metadata(self, **given: Any) -> Object:
        return {
            **given,
            "uid": str(uuid.uuid4()),
            "resourceVersion": self._next_version(),
            "creationTimestamp": _rfc3339(self.now()),
        }

    def _remove(self, pod: Object) -> None:
        meta = pod["metadata"]
        del self.pods[meta["namespace"], meta["name"]]
        self._next_version()
        owners = {owner["kind"] for owner in meta.get("ownerReferences", ())}
        if self.daemonset_recreates and "DaemonSet" in owners:
            name = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
            self.add_pod(meta["namespace"], name, pod["spec"]["nodeName"], meta.get("labels"))

    # Answering

    def take_trouble(self, method: str, path: str) -> Trouble | None:
        with self.lock:
            for trouble in self.troubles:
                if trouble.method in (None, method) and trouble.path in (None, path):
                    trouble.times -= 1
                    if trouble.times <= 0:
                        self.troubles.remove(trouble)
                    return trouble
        return None

    def record(self, request: Request, instead_of: Request | None = None) -> None:
        with self.lock:
            if instead_of is None:
                self.requests.append(request)
            else:
                self.requests[:] = [
                    request if known is instead_of else known for known in self.requests
                ]

    def disturb(self, request: Request, trouble: Trouble) -> None:
        """What a Trouble does before its request is handled."""
        call = call_of(request)
        if trouble.status is not None:
            raise _scripted(request, call, trouble)
        if trouble.conflict and call:
            with self.lock:
                found = self.nodes.get(call.name) or self.pods.get((call.namespace, call.name))
                if found is None:
                    raise LookupError(f"no object to change at {request.path}")
                if trouble.change:
                    trouble.change(found)
                found["metadata"]["resourceVersion"] = self._next_version()

    def handle(self, request: Request) -> tuple[int, Any]:
        """Status and body; text where the body is no JSON. Raises Refused."""
        if request.user is None:
            raise Refused(401, "Unauthorized")
        if request.method == "GET" and (found := _DISCOVERY.get(request.path.rstrip("/"))):
            return 200, found
        call = call_of(request)
        handler = call and _HANDLERS.get((call.resource, call.verb, call.subresource))
        if not call or call.resource not in {resource for resource, _, _ in _HANDLERS}:
            return 404, "404 page not found\n"
        if not handler:
            raise call.refused(
                405, f'{call.verb} is not supported on resources of kind "{call.qualified}"'
            )
        if call.query.get("watch", "false") not in ("false", "0") or "dryRun" in call.query:
            raise call.refused(400, "this stand-in knows no watch and no dry run")
        if call.verb in ("create", "update") and call.content_type not in ("", "application/json"):
            raise unsupported(["application/json"])
        with self.lock:
            if call.node is not None:
                self._authorize_node(call, call.node)
            code, answer = handler(self, call)
            return code, copy.deepcopy(answer)

    def _authorize_node(self, call: Call, node: str) -> None:
        """The node authorizer, with AuthorizeNodeWithSelectors; the rest is the admission's."""
        selected = requirements(call.query.get("fieldSelector", ""))
        unrelated = f"no relationship found between node '{node}' and this object"
        match call.resource, call.verb:
            case "nodes", "get" | "list":
                only = (value for key, equal, value in selected if equal and key == "metadata.name")
                name = call.name or next(only, "")
                what = f"'{name}'" if name else "all nodes"
                if name != node:
                    why = f"node '{node}' cannot read {what}, only its own Node object"
                    raise call.denied(why)
            case "pods", "list":
                if ("spec.nodeName", True, node) not in selected:
                    why = "can only list/watch pods with spec.nodeName field selector"
                    raise call.denied(why)
            case "pods", "get":
                pod = self.pods.get((call.namespace, call.name))
                if not pod or pod["spec"]["nodeName"] != node:
                    raise call.denied(unrelated)
            case "configmaps", _:
                if not call.namespace:
                    raise call.denied("can only read namespaced object of this type")
                raise call.denied(unrelated if call.name else "No Object name found")

    def _found(self, call: Call) -> Object:
        stores: Mapping[str, Mapping[Any, Object]] = {
            "nodes": self.nodes,
            "pods": self.pods,
            "configmaps": self.configmaps,
        }
        key = call.name if call.resource == "nodes" else (call.namespace, call.name)
        if key not in stores[call.resource]:
            raise call.refused(404, f'{call.qualified} "{call.name}" not found')
        return stores[call.resource][key]

    def _get(self, call: Call) -> tuple[int, Object]:
        return 200, self._found(call)

    def _list(self, call: Call) -> tuple[int, Object]:
        kind, known = {
            "nodes": ("NodeList", self.nodes.values()),
            "pods": ("PodList", self.pods.values()),
            "configmaps": ("ConfigMapList", self.configmaps.values()),
        }[call.resource]
        wanted = selects(call)
        items = [
            # The items of a typed list carry neither kind nor version.
            {key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}
            for thing in known
            if call.namespace in ("", thing["metadata"].get("namespace")) and wanted(thing)
        ]
        metadata = {"resourceVersion": str(self._version)}
        return 200, {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}

    def _update_node(self, call: Call) -> tuple[int, Object]:
        """PUT and PATCH of a node and of its status, in the order of the real server."""
        old = self._found(call)
        new = patched(old, call) if call.verb == "patch" else copy.deepcopy(call.body)
        if not isinstance(new, dict) or not isinstance(new.get("metadata", {}), dict):
            raise call.refused(400, "the request is no object")
        meta = new.setdefault("metadata", {})
        if meta.setdefault("name", call.name) != call.name:
            where = f"({meta['name']}) does not match the name on the URL ({call.name})"
            raise call.refused(400, f"the name of the object {where}")
        check_decodes(new, call)
        if call.node is not None:
            admit_node(call, call.node, old, new)
        was = old["metadata"]
        # Without a version a PUT of a node is unconditional.
        if (meta.get("resourceVersion") or was["resourceVersion"]) != was["resourceVersion"]:
            raise call.conflict()
        if (given := meta.get("uid") or was["uid"]) != was["uid"]:
            why = f"UID in precondition: {given}, UID in object meta: {was['uid']}"
            raise call.conflict(f"Precondition failed: {why}")
        # Each endpoint leaves the other's part alone; metadata is written through both: the
        # strategies for the node and for its status restore nothing else.
        part = "spec" if call.subresource == "status" else "status"
        new[part] = copy.deepcopy(old.get(part, {}))
        for key in ("uid", "resourceVersion", "creationTimestamp"):
            meta[key] = was[key]
        new |= {"kind": "Node", "apiVersion": "v1"}
        validate_node(new)
        for empty in [key for key in ("labels", "annotations") if not meta.get(key, True)]:
            del meta[empty]  # Go leaves out what is empty, and JSON patches notice
        if new != old:  # what changes nothing is not stored
            meta["resourceVersion"] = self._next_version()
            self.nodes[call.name] = new
        return 200, new

    def _delete_pod(self, call: Call) -> tuple[int, Object]:
        pod = self._found(call)
        if call.node is not None and pod["spec"]["nodeName"] != call.node:
            raise call.forbidden(
                f'node "{call.node}" can only delete pods with spec.nodeName set to itself'
            )
        return 200, self._delete(call, pod, call.body or {})

    def _evict_pod(self, call: Call) -> tuple[int, Object]:
        pod = self._found(call)
        body = call.body if isinstance(call.body, dict) else {}
        if (body.get("apiVersion"), body.get("kind")) != ("policy/v1", "Eviction"):
            raise call.refused(400, "the object provided is unrecognized: no policy/v1 Eviction")
        if call.node is not None and pod["spec"]["nodeName"] != call.node:
            raise call.forbidden(
                f"node {call.node} can only evict pods with spec.nodeName set to itself"
            )
        self._delete(call, pod, body.get("deleteOptions") or {})
        done = {"metadata": {}, "status": "Success", "code": 201}
        return 201, {"kind": "Status", "apiVersion": "v1", **done}

    def _delete(self, call: Call, pod: Object, options: Object) -> Object:
        meta = pod["metadata"]
        wanted = options.get("preconditions") or {}
        for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if wanted.get(key, meta[key]) != meta[key]:
                raise call.conflict(
                    f"the {word} in the precondition ({wanted[key]}) does not match the {word} in"
                    f" record ({meta[key]}). The object might have been deleted and then recreated"
                )
        if not self.pods_linger:
            self._remove(pod)
        elif "deletionTimestamp" not in meta:
            meta |= {"deletionTimestamp": _rfc3339(self.now()), "deletionGracePeriodSeconds": 30}
            meta["resourceVersion"] = self._next_version()
        return pod

    def _create_event(self, call: Call) -> tuple[int, Object]:
        event = copy.deepcopy(call.body)
        if not isinstance(event, dict) or not isinstance(event.get("metadata"), dict):
            raise call.refused(400, "the request is no object with metadata")
        meta = event["metadata"]
        if meta.setdefault("namespace", call.namespace) != call.namespace:
            where = "does not match the namespace sent on the request"
            raise call.refused(400, f"the namespace of the provided object {where}")
        check_decodes(event, call)
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        refuse_invalid("Event", meta.get("name", ""), event_problems(event, call))
        names = {
            (known["metadata"]["namespace"], known["metadata"]["name"]) for known in self.events
        }
        if (call.namespace, meta["name"]) in names:
            raise call.refused(
                409, f'{call.qualified} "{meta["name"]}" already exists', "AlreadyExists"
            )
        event["metadata"] = self._metadata(**meta)
        version = f"{call.group}/v1" if call.group else "v1"
        self.events.append({"kind": "Event", "apiVersion": version, **event})
        return 201, self.events[-1]


_HANDLERS: Mapping[tuple[str, str, str], Callable[[ApiServer, Call], tuple[int, Object]]] = {
    **{(resource, "get", ""): ApiServer._get for resource in ("nodes", "pods", "configmaps")},
    **{(resource, "list", ""): ApiServer._list for resource in ("nodes", "pods", "configmaps")},
    ("nodes", "get", "status"): ApiServer._get,
    **{("nodes", verb, ""): ApiServer._update_node for verb in ("update", "patch")},
    **{("nodes", verb, "status"): ApiServer._update_node for verb in ("update", "patch")},
    ("pods", "delete", ""): ApiServer._delete_pod,
    ("pods", "create", "eviction"): ApiServer._evict_pod,
    ("events", "create", ""): ApiServer._create_event,
}


def _resource(name: str, kind: str, verbs: str, short: str = "", **more: object) -> Object:
    shared = {"singularName": kind.lower(), "namespaced": kind != "Node", "verbs": verbs.split()}
    names = {"shortNames": [short]} if short else {}
    return {"name": name, "kind": kind, **shared, **names, **more}


_EVENTS_GROUP = {
    "name": "events.k8s.io",
    "versions": [{"groupVersion": "events.k8s.io/v1", "version": "v1"}],
    "preferredVersion": {"groupVersion": "events.k8s.io/v1", "version": "v1"},
}
_DISCOVERY: Mapping[str, Object] = {
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.5", "platform": "linux/amd64"},
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_EVENTS_GROUP]},
    "/apis/events.k8s.io": {"kind": "APIGroup", "apiVersion": "v1", **_EVENTS_GROUP},
    "/apis/events.k8s.io/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "events.k8s.io/v1",
        "resources": [_resource("events", "Event", "create", "ev")],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("nodes", "Node", "get list patch update", "no"),
            _resource("nodes/status", "Node", "get patch update"),
            _resource("pods", "Pod", "delete get list", "po", categories=["all"]),
            _resource("pods/eviction", "Eviction", "create", group="policy", version="v1"),
            _resource("events", "Event", "create", "ev"),
            _resource("configmaps", "ConfigMap", "get list", "cm"),
        ],
    },
}


# Small things


def _scripted(request: Request, call: Call | None, trouble: Trouble) -> Refused:
    code = trouble.status or 500
    if call and not trouble.message and code in (403, 409):
        return call.denied() if code == 403 else call.conflict()
    texts = {
        401: "Unauthorized",
        429: "Too many requests, please try again later.",
        500: "Internal error occurred: etcdserver: request timed out",
        503: "the server is currently unable to handle the request",
    }
    text = trouble.message or texts.get(code, f"scripted for {request.method} {request.path}")
    wait = {} if trouble.retry_after_s is None else {"retryAfterSeconds": trouble.retry_after_s}
    return Refused(code, text, details=wait)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _rfc3339(when: datetime) -> str:
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# HTTP


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], api: ApiServer, tls: ssl.SSLContext) -> None:
        self.api = api
        self.gone = threading.Event()
        self._connections: set[Any] = set()
        super().__init__(address, _Handler)
        # The handshake is left to the connection's own thread: a client that stalls in it would
        # hold up everybody.
        self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        self.gone.set()
        for connection in tuple(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections break here on purpose; what breaks in handling is kept in `broken`."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    connection: ssl.SSLSocket
    protocol_version = "HTTP/1.1"
    # Head and body are written apart; with Nagle's algorithm the second waits for an ACK.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.connection.do_handshake()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Tests read `requests`."""

    def _answer(self) -> None:
        api = self.server.api
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(
            method=self.command,
            path=unquote(url.path),
            query={key: values[0] for key, values in parse_qs(url.query).items()},
            user=self._user(),
            content_type=(self.headers.get("Content-Type") or "").partition(";")[0].strip(),
            body=_decoded(raw),
        )
        api.record(request)
        trouble = api.take_trouble(request.method, request.path) or Trouble()
        if trouble.hang_s and (self.server.gone.wait(trouble.hang_s) or self._client_is_gone()):
            self.close_connection = True
            return
        if trouble.close:
            self.close_connection = True
            return
        try:
            if isinstance(request.body, _NoJson):
                raise Refused(400, "the request body is no JSON")
            api.disturb(request, trouble)
            code, body = api.handle(request)
            if trouble.after:
                trouble.after()
        except Refused as refused:
            code, body = refused.code, refused.status
        except Exception as error:
            api.broken = error
            code, body = 500, f"the stand-in is broken: {error!r}\n"
        api.record(replace(request, status=code), instead_of=request)
        self._send(code, body, trouble.retry_after_s)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _send(self, code: int, body: Any, retry_after_s: int | None) -> None:
        plain = isinstance(body, str)
        text = body if plain else json.dumps(body) + "\n"
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(text.encode())

    def _client_is_gone(self) -> bool:
        # Nobody sends the next request before this one is answered: what can be read is the end.
        return bool(select.select([self.connection], [], [], 0)[0])

    def _user(self) -> str | None:
        """Who asks; a certificate is tried first, as on the real server."""
        certificate: Any = self.connection.getpeercert()
        if certificate:
            start, end = (
                ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter")
            )
            subject = {key: value for part in certificate["subject"] for key, value in part}
            name: str = subject["commonName"]
            if start <= time.time() <= end and subject["organizationName"] == "system:nodes":
                return name
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return self.server.api.tokens.get(token) if kind == "Bearer" else None


class _NoJson(str):
    """A body that could not be read."""


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return _NoJson(raw.decode(errors="replace"))
