"""Tells the cluster what this node is, until it is told.

Order, so that a label never says more than the node: what takes back goes first and in one patch;
what releases goes last, after the consumers that must look again, and only while the gate is still
open. The Node's resourceVersion is in each patch: who changed it meanwhile is read first.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpu_bootstate.kubernetes.events import NAMESPACE, timestamp, warning
from gpu_bootstate.kubernetes.said import Said, camel
from gpu_bootstate.model import STATE_LABELS, Kubernetes

_PREFIX = "gpu-bootstate/"  # outside kubernetes.io and k8s.io: a kubelet may set it
READY, STATE, BOOT_ID = f"{_PREFIX}ready", f"{_PREFIX}state", f"{_PREFIX}boot-id"
STATUS = f"{_PREFIX}status"  # annotation: the state of each GPU, as JSON
HELD = f"{_PREFIX}held-operands"  # annotation: what we closed, so that a crash forgets nothing
RESTARTED = f"{_PREFIX}restarted-for"  # annotation: a release, and the pods that read before it
CONDITION = "GpuBootstateReady"

_OPERAND = "nvidia.com/gpu.deploy."
_PAUSE_S, _PAUSE_MAX_S = 1.0, 60.0
_OFFLINE_S = 60.0
# What parsing an answer, or a certificate, that makes no sense comes to.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


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
        self._refused = False  # for good, some of what was told last
        self._in_doubt = False

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
                finished = self._tell(self._connect(), said)
                if finished and said == self._look():
                    return not self._refused
                trouble = Unanswered("the node changes all the time")
                pause = _PAUSE_S
            except Conflict as conflict:
                trouble = conflict
            except Unanswered as unanswered:
                trouble = unanswered
                if str(unanswered) != last:
                    last = str(unanswered)
                    self._say(f"{last}; trying again")
            except Forbidden as err:
                self._say(f"the API server refuses: {err}")
                return False
            except Gone as gone:
                trouble = Unanswered(f"the Node is not there ({gone}); the kubelet makes it")
                if str(trouble) != last:
                    last = str(trouble)
                    self._say(last)
            except _NONSENSE as err:
                what = type(err).__name__
                trouble = Unanswered(f"the API server's answer is not understood ({what})")
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
        """Whether all of it has been tried; not so where it stopped being true on the way.

        Each part reads the Node for itself: what the one has written the other's version knows.
        """
        self._refused = False
        if not said.ready:
            # What takes back goes first, and what fails does not hold back the rest.
            parts = [self._patch, self._condition, self._events]
        else:
            parts = [self._restart, self._condition, self._patch, self._events]
        unanswered: Unanswered | None = None
        for part in parts:
            if said.ready and self._look() != said:
                return False  # nothing is released that is not true any more
            try:
                part(api, api.node(), said)
            except Forbidden as err:
                self._say(f"the API server refuses: {err}")
                self._refused = True
            except Unanswered as err:
                if said.ready:
                    raise
                unanswered = unanswered or err
        if unanswered is not None:
            raise unanswered
        return True

    def _write(self, write: Callable[[dict[str, Any]], None], body: dict[str, Any]) -> None:
        """Remembers a write without an answer: it may be carried out later."""
        self._in_doubt = True
        write(body)
        self._in_doubt = False

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
            owner = STATE_LABELS[label]
            # Closed by us it is no sign that its owner is off.
            if labels.get(owner) == "false" and owner.removeprefix(_OPERAND) not in _held(
                annotations
            ):
                wanted_labels[label] = said.three_words
        metadata: dict[str, Any] = {}
        if changed := _differing(labels, wanted_labels):
            metadata["labels"] = changed
        if changed := _differing(annotations, wanted):
            metadata["annotations"] = changed
        if not metadata:
            return
        metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
        self._write(api.patch_node, {"metadata": metadata})

    def _operands(
        self, labels: Mapping[str, str], annotations: Mapping[str, str], said: Said
    ) -> tuple[dict[str, str | None], str | None]:
        """Labels to write, and the annotation that remembers them.

        Only `true` and `false` are written, only `true` (or nothing) is closed, and only what we
        closed is opened: any other value is another tool's pause.
        """
        was = _held(annotations)
        ours = {name: was[name] for name in was if labels.get(_OPERAND + name) == "false"}
        write: dict[str, str | None] = {}
        if said.ready:
            write = {_OPERAND + name: before for name, before in ours.items()}
            ours = {}
        else:
            for name in self._wishes.operands:
                value = labels.get(_OPERAND + name)
                if value in (None, "", "true"):
                    write[_OPERAND + name] = "false"
                    # Of a node on which the operator deploys nothing the label is not there.
                    ours[name] = "true" if value else None
        if not ours:
            return write, None
        held = {"bootId": said.boot_id, "operands": sorted(ours)}
        if absent := sorted(name for name, before in ours.items() if before is None):
            held["absent"] = absent
        return write, json.dumps(held)

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
        # A write that had no answer may still come; this one makes its version an old one.
        if not self._in_doubt and all(there.get(key) == value for key, value in wanted.items()):
            return
        same_status = there.get("status") == wanted["status"]
        since = there.get("lastTransitionTime", now) if same_status else now
        told = {**wanted, "lastTransitionTime": since, "lastHeartbeatTime": now}
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        self._write(api.patch_node_status, {"metadata": version, "status": {"conditions": [told]}})

    def _events(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        """Once for each trouble of a boot: the name is made of what it says."""
        for trouble in said.troubles:
            key = f"{said.boot_id} {trouble.pf} {trouble.reason} {trouble.message}"
            event = warning(node, key, camel(trouble.reason), trouble.message, self._timestamp())
            api.create_event(NAMESPACE, event)

    # ------------------------------------------------------------------ consumers

    def _restart(self, api: NodeApi, node: Mapping[str, Any], said: Said) -> None:
        """A plugin scans once, at its start: one that is older than the release looks again.

        Once for each release, whatever the clocks say: the annotation ends a loop that a clock
        which jumped back would begin.
        """
        if not self._wishes.restart or said.released_at is None:
            return
        found = [pod for selector in self._wishes.restart for pod in api.pods(selector)]
        release = f"{said.boot_id} {said.release}"
        due = _due(_of(node, "annotations"), release)
        if due is None:
            due = {pod["metadata"]["uid"] for pod in found if _older(pod, said.released_at)}
            # Written first: a kill, or a clock that jumped, starts none of them a second time.
            note = json.dumps({"release": release, "pods": sorted(due)})
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            self._write(api.patch_node, {"metadata": {**version, "annotations": {RESTARTED: note}}})
        for pod in found:
            metadata = pod["metadata"]
            if metadata["uid"] not in due or metadata.get("deletionTimestamp"):
                continue
            name = f"{metadata['namespace']}/{metadata['name']}"
            if not any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()):
                self._say(f"{name} read the vGPUs too early, and nothing would make it anew: left")
                continue
            self._say(f"{name} read the vGPUs before {said.released_at}: it is started again")
            with contextlib.suppress(Gone, Conflict):  # that one is away already
                api.delete_pod(metadata["namespace"], metadata["name"], metadata["uid"])

    def _timestamp(self) -> str:
        return timestamp(self._wall_time())


def _of(node: Mapping[str, Any], what: str) -> dict[str, str]:
    found = node.get("metadata", {}).get(what)
    return found if isinstance(found, dict) else {}


def _differing(there: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    """None takes a key away."""
    return {key: value for key, value in wanted.items() if there.get(key) != value}


def _held(annotations: Mapping[str, str]) -> dict[str, str | None]:
    """Operands that we closed, and what their labels were before: `true`, or None."""
    told = _note(annotations, HELD)
    operands, absent = (
        [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
        for found in (told.get("operands"), told.get("absent"))
    )
    return {name: None if name in absent else "true" for name in operands}


def _due(annotations: Mapping[str, str], release: str) -> set[str] | None:
    """The uids of the pods that are to go for this release; None: it has not been looked at."""
    note = _note(annotations, RESTARTED)
    pods = note.get("pods")
    if note.get("release") != release or not isinstance(pods, list):
        return None
    return {uid for uid in pods if isinstance(uid, str)}


def _note(annotations: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """One of ours; anybody may have damaged it."""
    try:
        told = json.loads(annotations.get(name, "{}"))
    except (ValueError, TypeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _older(pod: Mapping[str, Any], released_at: str) -> bool:
    """Whether a container of it has run since before that. Both times end in Z and sort as text."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    running = (each.get("state", {}).get("running") or {} for each in statuses)
    return any(str(each["startedAt"]) <= released_at for each in running if each.get("startedAt"))
