"""Tells the cluster what this node is, until it is told.

Order, so that a label never says more than the node: what takes back goes first and in one patch;
what releases goes last, after the consumers that must look again, and only while the gate is still
open. The Node's resourceVersion is in each patch: who changed it meanwhile is read first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any, Protocol

from gpu_bootstate.kubernetes.said import Said, camel
from gpu_bootstate.model import STATE_LABELS, Kubernetes

_PREFIX = "gpu-bootstate/"  # outside kubernetes.io and k8s.io: a kubelet may set it
READY, STATE, BOOT_ID = f"{_PREFIX}ready", f"{_PREFIX}state", f"{_PREFIX}boot-id"
STATUS = f"{_PREFIX}status"  # annotation: the state of each GPU, as JSON
HELD = f"{_PREFIX}held-operands"  # annotation: what we closed, so that a crash forgets nothing
RESTARTED = f"{_PREFIX}restarted-for"  # annotation: the release that consumers were restarted for
CONDITION = "GpuBootstateReady"

_OPERAND = "nvidia.com/gpu.deploy."
_PAUSE_S, _PAUSE_MAX_S = 1.0, 60.0
_OFFLINE_S = 60.0
_EVENT_NAMESPACE = "default"  # where events of Nodes are


class Unanswered(Exception):
    """No answer, or one that may be another one later. ``wait_s``: what the server asks for."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Conflict(Unanswered):
    """Somebody else has changed the object since it was read, or it is there already."""


class Forbidden(Exception):
    """Refused, and waiting will not change it: the credentials may not, or the request is bad."""


class Gone(Exception):
    """The object is not there."""


class NodeApi(Protocol):
    """One Node and the pods on it. Every method may raise Unanswered, Forbidden or Gone."""

    node_name: str

    def node(self) -> dict[str, Any]: ...
    def patch_node(self, body: dict[str, Any]) -> None: ...
    def patch_node_status(self, body: dict[str, Any]) -> None: ...
    def create_event(self, namespace: str, body: dict[str, Any]) -> None: ...
    def pods(self, selector: str) -> list[dict[str, Any]]: ...
    def delete_pod(self, namespace: str, name: str, uid: str) -> None: ...


class Publisher:
    def __init__(
        self,
        wishes: Kubernetes,
        *,
        look: Callable[[], Said],
        connect: Callable[[], NodeApi],
        tell: Callable[[str], None],
        now: Callable[[], float],
        sleep: Callable[[float], None],
        wall_time: Callable[[], float],
        offline: Callable[[Said], None],
    ) -> None:
        """``connect`` raises Unanswered where there are no credentials yet. ``now``: seconds on a
        clock that only goes forward; ``wall_time``: since the epoch. ``offline`` is called once
        when nobody has answered for a minute and the gate is open.
        """
        self._wishes = wishes
        self._look = look
        self._connect = connect
        self._say = tell
        self._now = now
        self._sleep = sleep
        self._wall_time = wall_time
        self._offline = offline

    def until_told(self, limit_s: float) -> bool:
        """True when the cluster has what is true now; False after ``limit_s``, or when it will not
        take it.
        """
        started = self._now()
        until = started + limit_s
        pause, last, alone = _PAUSE_S, "", False
        while True:
            try:
                said = self._look()
                refused = self._tell(self._connect(), said)
                if refused:
                    return False
                if said == self._look():
                    return True
                pause = _PAUSE_S
                continue  # it has changed meanwhile
            except Conflict as conflict:
                trouble: Unanswered = conflict
            except Unanswered as unanswered:
                trouble = unanswered
                if str(unanswered) != last:
                    last = str(unanswered)
                    self._say(f"{last}; trying again")
            except Forbidden as err:
                self._say(f"the API server refuses: {err}")
                return False
            except (AttributeError, KeyError, TypeError) as err:
                trouble = Unanswered(f"the API server's answer is not understood: {err!r}")
            except Gone as gone:
                trouble = Unanswered(f"the Node is not there ({gone}); the kubelet makes it")
            if not alone and self._now() - started >= _OFFLINE_S:
                said = self._look()
                if said.ready:
                    alone = True
                    self._offline(said)
            wait = max(trouble.wait_s, pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
            if self._now() + wait > until:
                self._say(f"given up for now: {trouble}")
                return False
            self._sleep(wait)
            pause = min(2 * pause, _PAUSE_MAX_S)

    def _tell(self, api: NodeApi, said: Said) -> bool:
        """Whether the server refuses some of it for good."""
        node = api.node()
        parts: list[Callable[[], None]] = [
            lambda: self._patch(api, node, said),
            lambda: self._condition(api, node, said),
            lambda: self._events(api, node, said),
        ]
        if said.ready:
            parts = [
                lambda: self._restart(api, node, said),
                *parts[1:],
                lambda: self._patch(api, api.node(), said),
            ]
        refused = False
        for part in parts:
            if said.ready and self._look() != said:
                break  # nothing is released that is not true any more
            try:
                part()
            except Forbidden as err:
                self._say(f"the API server refuses: {err}")
                refused = True
        return refused

    # ------------------------------------------------------------------ labels

    def _patch(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        labels = _of(node, "labels")
        annotations = _of(node, "annotations")
        wanted_labels: dict[str, str | None] = {
            READY: "true" if said.ready else "false",
            STATE: said.state,
            BOOT_ID: said.boot_id,
        }
        gpus = dict(said.gpus)
        wanted: dict[str, str | None] = {
            STATUS: json.dumps({"bootId": said.boot_id, "state": said.state, "gpus": gpus})
        }
        operands, held = self._operands(labels, annotations, said)
        wanted_labels |= operands
        wanted[HELD] = held
        if (label := self._wishes.state_label) is not None:
            other_is_off = labels.get(STATE_LABELS[label]) == "false"
            if other_is_off:
                wanted_labels[label] = said.three_words
        metadata: dict[str, Any] = {}
        if changed := _differing(labels, wanted_labels):
            metadata["labels"] = changed
        if changed := _differing(annotations, wanted):
            metadata["annotations"] = changed
        if not metadata:
            return
        metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        api.patch_node({"metadata": metadata})

    def _operands(
        self, labels: Mapping[str, str], annotations: Mapping[str, str], said: Said
    ) -> tuple[dict[str, str | None], str | None]:
        """Labels to write, and the annotation that remembers them.

        Only `true` and `false` are written, only `true` (or nothing) is closed, and only what we
        closed is opened: any other value is another tool's pause.
        """
        ours = set(_held(annotations))
        write: dict[str, str | None] = {}
        if said.ready:
            for operand in ours:
                if labels.get(_OPERAND + operand) == "false":
                    write[_OPERAND + operand] = "true"
            ours = set()
        else:
            for operand in self._wishes.operands:
                if labels.get(_OPERAND + operand) in (None, "", "true"):
                    write[_OPERAND + operand] = "false"
                    ours.add(operand)
        if not ours:
            return write, None
        return write, json.dumps({"bootId": said.boot_id, "operands": sorted(ours)})

    # ------------------------------------------------------------------ Condition and Events

    def _condition(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        conditions = node.get("status", {}).get("conditions", [])
        ours = (each for each in conditions if each.get("type") == CONDITION)
        there: Mapping[str, Any] = next(ours, {})
        now = self._timestamp()
        wanted = {
            "type": CONDITION,
            "status": "True" if said.ready else "False",
            "reason": camel(said.reason),
            "message": said.message,
        }
        if all(there.get(key) == value for key, value in wanted.items()):
            return
        same_status = there.get("status") == wanted["status"]
        since = there.get("lastTransitionTime", now) if same_status else now
        told = {**wanted, "lastTransitionTime": since, "lastHeartbeatTime": now}
        api.patch_node_status({"status": {"conditions": [told]}})

    def _events(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        """Once for each trouble of a boot: the name is made of what it says."""
        now = self._timestamp()
        reference = {"apiVersion": "v1", "kind": "Node", "name": api.node_name}
        reference["uid"] = node["metadata"].get("uid", api.node_name)
        for trouble in said.troubles:
            what = f"{said.boot_id} {trouble.pf} {trouble.reason} {trouble.message}"
            name = f"{api.node_name}.{sha256(what.encode()).hexdigest()[:16]}"
            body = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": _EVENT_NAMESPACE},
                "involvedObject": reference,
                "reason": camel(trouble.reason),
                "message": trouble.message,
                "type": "Warning",
                "source": {"component": "gpu-bootstate", "host": api.node_name},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
            api.create_event(_EVENT_NAMESPACE, body)

    # ------------------------------------------------------------------ consumers

    def _restart(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        """A plugin scans once, at its start: one that is older than the release looks again.

        Once for each release, whatever the clocks say: the annotation ends a loop that a clock
        which jumped back would begin.
        """
        release = f"{said.boot_id} {said.released_at}"
        if not self._wishes.restart or said.released_at is None:
            return
        if _of(node, "annotations").get(RESTARTED) == release:
            return
        for selector in self._wishes.restart:
            for pod in api.pods(selector):
                metadata = pod["metadata"]
                if metadata.get("deletionTimestamp") or not _older(pod, said.released_at):
                    continue
                name = f"{metadata['namespace']}/{metadata['name']}"
                self._say(f"{name} read the vGPUs before {said.released_at}: it is started again")
                try:
                    api.delete_pod(metadata["namespace"], metadata["name"], metadata["uid"])
                except (Gone, Conflict):
                    continue  # that one is away already
        api.patch_node({"metadata": {"annotations": {RESTARTED: release}}})

    def _timestamp(self) -> str:
        when = datetime.fromtimestamp(self._wall_time(), tz=timezone.utc)
        return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def _of(node: Mapping[str, Any], what: str) -> dict[str, str]:
    found = node.get("metadata", {}).get(what)
    return found if isinstance(found, dict) else {}


def _differing(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """None takes a key away."""
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def _held(annotations: Mapping[str, str]) -> Iterator[str]:
    try:
        told = json.loads(annotations.get(HELD, "{}"))["operands"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if isinstance(told, list):
        yield from (operand for operand in told if isinstance(operand, str))


def _older(pod: Mapping[str, Any], released_at: str) -> bool:
    """Whether a container of it has run since before that. Both times end in Z and sort as text."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    running = (each.get("state", {}).get("running") or {} for each in statuses)
    return any(str(each["startedAt"]) <= released_at for each in running if each.get("startedAt"))
