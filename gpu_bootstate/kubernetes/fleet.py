"""Geometry of many nodes: a label of the Node names a profile, this brings the node to it.

One pass looks at everything afresh, takes at most the next step, and never waits: killed anywhere,
or after a reboot, the next pass goes on. A change comes in this order: cordon, wait until nobody
uses a GPU that is to change, install the profile as a drop-in, have the unit apply it, see its
result, uncordon. Only what we cordoned is uncordoned, and only under an open gate.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from gpu_bootstate.kubernetes.events import NAMESPACE, timestamp, warning
from gpu_bootstate.kubernetes.publish import Forbidden, NodeApi
from gpu_bootstate.reasons import Condition

SELECTED = "gpu-bootstate/config"  # label, set by people: the profile's name
STATE = "gpu-bootstate/config.state"  # label, set by us: pending, success, failed
MESSAGE = "gpu-bootstate/config-message"  # annotation: why
CORDONED = "gpu-bootstate/cordoned"  # annotation: it was us, so that no crash forgets it
DEFAULT = "default"  # as with nvidia.com/vgpu.config

_RESOURCES = "nvidia.com/"
_LONGEST = 1000
_UNCHANGED = " Nothing was changed."


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a profile would mean for the node as it is."""

    changes: bool
    in_use: tuple[str, ...] = ()  # sentences: which GPU, by whom
    problem: str | None = None  # why it cannot be applied here at all


@dataclass(frozen=True, slots=True)
class Result:
    """Of the last run of this boot with the installed profile."""

    condition: Condition
    gate_open: bool
    message: str
    refused: bool  # a GPU was left alone because it was in use


@dataclass(frozen=True, slots=True)
class Verdict:
    """``state`` is None where no profile is meant for this node."""

    state: str | None
    message: str


class InvalidProfile(Exception):
    """The profile is wrong wherever it is applied; the text has file, line and key."""


class RunAtWork(Exception):
    """A run holds the GPUs: they are not looked at now."""


class Host(Protocol):
    """The node's side of it."""

    def profile(self, name: str) -> str | None:
        """Its text; None where the cluster has no such profile. Raises InvalidProfile."""

    def profiles(self) -> tuple[str, ...]: ...

    def is_installed(self, name: str, text: str) -> bool: ...

    def outlook(self, name: str, text: str) -> Outlook:
        """Reads the GPUs. Raises InvalidProfile, RunAtWork."""

    def install(self, name: str, text: str) -> None:
        """Raises OSError."""

    def apply(self) -> None:
        """Has the unit apply what is installed, and does not wait for it."""

    def result(self) -> Result | None:
        """None: there is none yet of this boot and of what is installed. Raises RunAtWork."""


class Fleet:
    """``tell`` gets a line for people whenever something has changed."""

    def __init__(
        self,
        api: NodeApi,
        host: Host,
        *,
        boot_id: str,
        tell: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._api = api
        self._host = host
        self._boot_id = boot_id
        self._say = tell
        self._now = now

    def step(self) -> Verdict:
        """One pass. Raises what NodeApi raises: the next pass begins anew."""
        node = self._api.node()
        label = _of(node, "labels").get(SELECTED) or ""
        name = label or DEFAULT
        try:
            text = self._host.profile(name)
            if text is not None:
                verdict = self._bring_to(node, name, text)
            elif label:
                verdict = Verdict("failed", self._unknown(name))
            else:
                # What is installed stays.
                verdict = Verdict(None, "")
        except InvalidProfile as err:
            verdict = Verdict("failed", f"The profile {name} is wrong: {err}{_UNCHANGED}")
        except RunAtWork:
            verdict = Verdict("pending", "gpu-bootstate is at work.")
        except OSError as err:
            message = f"The profile {name} cannot be installed: {err.strerror}: {err.filename}."
            verdict = Verdict("failed", message)
        if verdict.state == "failed" or verdict.state is None:
            self._release(node)
        self._tell(verdict)
        return verdict

    # ------------------------------------------------------------------ towards the profile

    def _bring_to(self, node: Mapping[str, Any], name: str, text: str) -> Verdict:
        if not self._host.is_installed(name, text):
            return self._change(node, name, text)
        result = self._host.result()
        if result is None:
            self._host.apply()
            return Verdict("pending", f"The profile {name} is installed and is being applied.")
        if result.condition is Condition.CONVERGED and result.gate_open:
            self._uncordon(node)
            return Verdict("success", f"The profile {name} is applied.")
        if result.refused and _is_cordoned(node):
            # A user was quicker than the cordon. Without one it is drift, which nobody asked us
            # to drain this node for.
            return self._change(node, name, text)
        return Verdict("failed", f"With the profile {name}: {result.message}")

    def _change(self, node: Mapping[str, Any], name: str, text: str) -> Verdict:
        outlook = self._host.outlook(name, text)
        if outlook.problem is not None:
            message = f"The profile {name} cannot be applied to this node: {outlook.problem}"
            return Verdict("failed", f"{message}{_UNCHANGED}")
        if outlook.changes or outlook.in_use:
            if self._cordon(node, name):
                # Somebody may have come before the scheduler knew.
                outlook = self._host.outlook(name, text)
            waits_for = [*outlook.in_use, *self._starting()]
            if waits_for:
                message = f"The profile {name} waits, with the node cordoned: "
                return Verdict("pending", message + " ".join(waits_for))
        if not self._host.is_installed(name, text):
            self._host.install(name, text)
            self._say(f"the profile {name} is installed; gpu-bootstate.service applies it")
        self._host.apply()
        return Verdict("pending", f"The profile {name} is installed and is being applied.")

    def _unknown(self, name: str) -> str:
        there = self._host.profiles()
        nearest = get_close_matches(name, there, n=1)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        known = ", ".join(there) or "none"
        return f"There is no profile {name}.{hint} The cluster has: {known}.{_UNCHANGED}"

    def _starting(self) -> list[str]:
        """Pods that are bound to this node and will use a GPU as soon as they run."""
        found = []
        for pod in self._api.pods(""):
            if pod.get("status", {}).get("phase") == "Pending" and _asks_for_gpu(pod):
                metadata = pod["metadata"]
                found.append(f"The pod {metadata['namespace']}/{metadata['name']} is starting.")
        return found

    # ------------------------------------------------------------------ cordon

    def _cordon(self, node: Mapping[str, Any], name: str) -> bool:
        """True when it was done now. A cordon that somebody else has made is left as his."""
        if _is_cordoned(node):
            return False
        ours = json.dumps({"bootId": self._boot_id, "profile": name})
        self._patch(node, annotations={CORDONED: ours}, unschedulable=True)
        self._say(f"cordoned for the profile {name}")
        return True

    def _uncordon(self, node: Mapping[str, Any]) -> None:
        if CORDONED not in _of(node, "annotations"):
            return
        self._patch(node, annotations={CORDONED: None}, unschedulable=None)
        self._say("uncordoned")

    def _release(self, node: Mapping[str, Any]) -> None:
        """Where no change is under way any more: a node with an open gate serves, whatever else is
        wrong with it.
        """
        if CORDONED not in _of(node, "annotations"):
            return
        try:
            result = self._host.result()
        except (InvalidProfile, RunAtWork):
            return
        if result is not None and result.gate_open:
            self._uncordon(node)

    # ------------------------------------------------------------------ what is said

    def _tell(self, verdict: Verdict) -> None:
        node = self._api.node()
        labels, annotations = _of(node, "labels"), _of(node, "annotations")
        message = verdict.message[:_LONGEST] or None
        if labels.get(STATE) == verdict.state and annotations.get(MESSAGE) == message:
            return
        if verdict.state == "failed":
            self._event(node, verdict.message)
        self._patch(node, labels={STATE: verdict.state}, annotations={MESSAGE: message})
        if message is not None:
            self._say(f"{verdict.state}: {message}")

    def _event(self, node: Mapping[str, Any], message: str) -> None:
        key = f"{self._boot_id} {message}"
        event = warning(node, key, "ProfileNotApplied", message, timestamp(self._now()))
        with contextlib.suppress(Forbidden):  # the label says it all the same
            self._api.create_event(NAMESPACE, event)

    def _patch(
        self,
        node: Mapping[str, Any],
        *,
        annotations: Mapping[str, str | None],
        labels: Mapping[str, str | None] | None = None,
        **spec: bool | None,
    ) -> None:
        metadata: dict[str, Any] = {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "annotations": annotations,
        }
        if labels:
            metadata["labels"] = labels
        self._api.patch_node({"metadata": metadata, **({"spec": spec} if spec else {})})


def _of(node: Mapping[str, Any], what: str) -> Mapping[str, str]:
    return node["metadata"].get(what) or {}


def _is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _asks_for_gpu(pod: Mapping[str, Any]) -> bool:
    spec = pod.get("spec", {})
    for container in [*spec.get("containers", ()), *spec.get("initContainers", ())]:
        limits = container.get("resources", {}).get("limits") or {}
        if any(resource.startswith(_RESOURCES) for resource in limits):
            return True
    return False
