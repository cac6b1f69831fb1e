"""Warnings on the Node, as `kubectl describe node` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

NAMESPACE = "default"  # where events of Nodes are


def warning(
    node: Mapping[str, Any], key: str, reason: str, message: str, at: str
) -> dict[str, Any]:
    """An Event. Its name is made of ``key``: what is said twice with one key is one Event.

    ``at`` as `timestamp` gives it; ``reason`` is one CamelCase word.
    """
    name = node["metadata"]["name"]
    # A surrogate, from a file name that is no UTF-8, has no encoding.
    digest = sha256(key.encode(errors="replace")).hexdigest()[:16]
    reference = {"apiVersion": "v1", "kind": "Node", "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{digest}", "namespace": NAMESPACE},
        "involvedObject": {**reference, "uid": node["metadata"].get("uid", name)},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": "gpu-bootstate", "host": name},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def timestamp(wall_time_s: float) -> str:
    """Seconds since the epoch as the API server writes times."""
    when = datetime.fromtimestamp(wall_time_s, tz=timezone.utc)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
