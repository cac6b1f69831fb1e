"""A feature file for node-feature-discovery: labels without any credentials of ours.

Source: operator-path.md 5.3. Its worker takes whole regular files, skips names with a dot in front,
and forgets the lines after the expiry when it looks next: so a node on which nobody renews the file
any more stops being called ready. At boot tmpfiles.d removes it before the kubelet starts.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from gpu_bootstate.files import remove, write_atomic
from gpu_bootstate.kubernetes.said import Said
from gpu_bootstate.paths import Paths

# The namespace that every node-feature-discovery accepts; others may be restricted.
_PREFIX = "feature.node.kubernetes.io/gpu-bootstate"
_VALID = timedelta(minutes=15)  # the timer renews it every five


def write_features(paths: Paths, said: Said, wall_s: float) -> None:
    """Raises OSError."""
    until = datetime.fromtimestamp(wall_s, tz=timezone.utc) + _VALID
    lines = [
        f"# +expiry-time={until.isoformat(timespec='seconds').replace('+00:00', 'Z')}",
        f"{_PREFIX}.ready={'true' if said.ready else 'false'}",
        f"{_PREFIX}.state={said.state}",
        f"{_PREFIX}.boot-id={said.boot_id}",
    ]
    write_atomic(paths.feature_file, "\n".join(lines) + "\n")


def remove_features(paths: Paths) -> None:
    """What a configuration without it has left behind. Raises OSError."""
    remove(paths.feature_file)
