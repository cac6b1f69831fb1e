"""Where the program's own files live. All hang off one root: a simulated node has its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu_bootstate.model import Bdf


@dataclass(frozen=True, slots=True)
class Paths:
    root: Path = Path("/")

    def at(self, absolute: str) -> Path:
        """A path of the host (``/run/nvidia/validations``) under this root."""
        return self.root / absolute.lstrip("/")

    @property
    def config(self) -> Path:
        return self.at("/etc/gpu-bootstate/config.yaml")

    @property
    def drop_in_dirs(self) -> tuple[Path, ...]:
        """Later ones win, as in systemd."""
        return tuple(
            self.at(f"{top}/gpu-bootstate/config.d") for top in ("/usr/lib", "/run", "/etc")
        )

    @property
    def run_dir(self) -> Path:
        return self.at("/run/gpu-bootstate")

    @property
    def status(self) -> Path:
        return self.run_dir / "status.json"

    @property
    def owed(self) -> Path:
        return self.run_dir / "owed.json"

    @property
    def lock(self) -> Path:
        return self.run_dir / "lock"

    @property
    def publish_lock(self) -> Path:
        return self.run_dir / "publish.lock"

    @property
    def ready(self) -> Path:
        return self.run_dir / "ready"

    def gpu_gate(self, pf: Bdf) -> Path:
        return self.run_dir / "gpus" / f"{pf}.json"

    @property
    def reboots(self) -> Path:
        """On the disk: what one boot has tried the next must know."""
        return self.at("/var/lib/gpu-bootstate/reboots.json")

    @property
    def last_run(self) -> Path:
        return self.at("/var/lib/gpu-bootstate/last-run.json")

    @property
    def feature_file(self) -> Path:
        """For node-feature-discovery."""
        directory = "/etc/kubernetes/node-feature-discovery/features.d"
        return self.at(f"{directory}/gpu-bootstate")

    @property
    def fleet_dir(self) -> Path:
        """The cluster's named profiles, as the DaemonSet copies them."""
        return self.at("/etc/gpu-bootstate/fleet")

    @property
    def fleet_drop_in(self) -> Path:
        """The profile that this node has."""
        return self.at("/etc/gpu-bootstate/config.d/80-fleet.yaml")
