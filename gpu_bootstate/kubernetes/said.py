"""What the cluster is to be told of this node: from our own files, without any hardware. Pure data.

Everything carries the id of the boot that it was true in: a label outlives a reboot in the API
server, and a reader compares it with the Node's ``status.nodeInfo.bootID``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gpu_bootstate.files import read_json
from gpu_bootstate.lock import holder_pid
from gpu_bootstate.paths import Paths
from gpu_bootstate.reasons import Condition

PENDING = "pending"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MESSAGE = 1000  # the API server takes 32768 for a Condition, 1024 for an Event


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of one GPU, or of the node where ``pf`` is None."""

    pf: str | None
    reason: str  # a reason code
    message: str  # with the remedy


@dataclass(frozen=True, slots=True)
class Said:
    boot_id: str
    ready: bool  # the node's gate is open, released in this boot
    state: str  # pending, or the condition in which the last run of this boot ended
    reason: str
    message: str
    released_at: str | None  # ISO 8601; when the newest of the open gate's GPUs was verified
    release: str | None  # another one for every change of what is open, whatever the clocks say
    gpus: tuple[tuple[str, str], ...]  # PF -> its condition
    troubles: tuple[Trouble, ...]

    @property
    def three_words(self) -> str:
        """As vgpu-device-manager and mig-manager say it: pending, success, failed."""
        if self.state == PENDING:
            return PENDING
        return "success" if self.ready else "failed"


def said_now(paths: Paths, boot_id: str) -> Said:
    """Files that are damaged, or of another boot, count as not there."""
    # The lock is asked first: a run that ends in between has its result written by then.
    alive = holder_pid(paths) is not None
    status = read_json(paths.status) or {}
    if status.get("boot_id") != boot_id:
        status = {}
    ready = read_json(paths.ready) or {}
    is_ready = ready.get("boot_id") == boot_id
    gpus = _dicts(status.get("gpus"))
    troubles = _troubles(status, gpus)
    if status.get("progress") == "done" and _is_condition(status.get("condition")):
        state = str(status["condition"])
        reason = troubles[0].reason if troubles and not is_ready else state
        message = str(status.get("summary", ""))
        if troubles and not is_ready:
            message = f"{message} {troubles[0].message}"
        elif state == Condition.CONVERGED.value and not is_ready:
            reason = "gate-closed"
            message = (
                "The last run converged, but the gate has been closed since: its file is gone. "
                "`gpu-bootstate gate` verifies afresh and opens it."
            )
    elif status.get("progress") == "running" and not alive:
        state, reason = Condition.FAILED.value, "run-died"
        message = "The run of this boot was killed; start gpu-bootstate.service again."
    else:
        state = reason = PENDING
        message = "gpu-bootstate is at work." if alive else "Nothing has run in this boot yet."
    verified = _verified(paths, ready, boot_id) if is_ready else {}
    return Said(
        boot_id=boot_id,
        ready=is_ready,
        state=state,
        reason=reason,
        message=message[:_MESSAGE],
        released_at=max(verified.values(), default=None),
        release=sha256(repr(sorted(verified.items())).encode()).hexdigest()[:16]
        if verified
        else None,
        gpus=tuple((str(gpu.get("pf")), str(gpu.get("condition"))) for gpu in gpus),
        troubles=troubles,
    )


def _troubles(
    status: Mapping[str, Any], gpus: tuple[Mapping[str, Any], ...]
) -> tuple[Trouble, ...]:
    converged = Condition.CONVERGED.value
    found = [_trouble(gpu, str(gpu.get("pf"))) for gpu in gpus if gpu.get("reason")]
    findings = _dicts(status.get("findings"))
    found += [_trouble(each, None) for each in findings if each.get("condition") != converged]
    return tuple(found)


def _trouble(told: Mapping[str, Any], pf: str | None) -> Trouble:
    message = f"{told.get('message') or ''} {told.get('remedy') or ''}".strip()
    return Trouble(pf, str(told.get("reason")), message[:_MESSAGE])


def _verified(paths: Paths, ready: Mapping[str, Any], boot_id: str) -> dict[str, str]:
    """PF -> when; a GPU's gate is written anew only after a change of it, or where it was gone."""
    names = ready.get("open")
    verified = {}
    for pf in names if isinstance(names, list) else []:
        record = (isinstance(pf, str) and read_json(paths.run_dir / "gpus" / f"{pf}.json")) or {}
        when = record.get("verified_at")
        if record.get("boot_id") == boot_id and isinstance(when, str) and _TIME.fullmatch(when):
            verified[pf] = when
    return verified


def _dicts(value: object) -> tuple[Mapping[str, Any], ...]:
    return (
        tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
    )


def _is_condition(value: object) -> bool:
    return isinstance(value, str) and value in {condition.value for condition in Condition}


def camel(word: str) -> str:
    """``in-use`` -> ``InUse``, as reasons are written in Kubernetes."""
    return "".join(part.capitalize() for part in word.split("-"))
