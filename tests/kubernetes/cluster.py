"""A simulated GPU node, the API server, and a publisher between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_bootstate.config import parse
from gpu_bootstate.kubernetes.api import Api
from gpu_bootstate.kubernetes.publish import Publisher
from gpu_bootstate.kubernetes.said import Said, said_now
from gpu_bootstate.simulator.hardware import SimHardware
from tests.kubernetes.api_server import ApiServer
from tests.support.node import Node, config

REPO = Path(__file__).parents[2]
A, B = "0000:17:00.0", "0000:3d:00.0"
WHOLE = "{vgpus: {H200X-141C: 1}}"
NODE = "/api/v1/nodes/n1"
PLUGIN = "app=nvidia-sandbox-device-plugin-daemonset"
DEPLOY = "nvidia.com/gpu.deploy."


@dataclass
class Cluster:
    """A simulated GPU node, the API server, and a publisher between them on a clock of its own."""

    node: Node
    server: ApiServer
    kubeconfig: Path
    wishes: str = "{publish: true}"
    seconds: float = 0.0
    told: list[str] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)
    offline: list[Said] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def apply(self, profile: str = WHOLE) -> dict[str, Any]:
        return self.node.apply(config({A: profile, B: profile}))

    @property
    def boot_id(self) -> str:
        hw = SimHardware(self.node.sim)
        try:
            return hw.boot_id()
        finally:
            hw.close()

    def publish(self, limit_s: float = 600.0) -> bool:
        desired = parse(f"version: v1\nkubernetes: {self.wishes}\n", "config.yaml")
        boot_id = self.boot_id

        def sleep(seconds: float) -> None:
            self.seconds += seconds
            self.sleeps.append(seconds)
            self.meanwhile()

        return Publisher(
            desired.kubernetes,
            look=lambda: said_now(self.node.paths, boot_id),
            connect=lambda: Api(self.kubeconfig, "n1"),
            tell=self.told.append,
            now=lambda: self.seconds,
            sleep=sleep,
            wall_time=lambda: 1_800_000_000.0 + self.seconds,
            offline=self.offline.append,
        ).until_told(limit_s)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.server.nodes["n1"]["metadata"]["labels"])

    def label(self, **values: str) -> None:
        self.server.nodes["n1"]["metadata"]["labels"].update(
            {DEPLOY + name.replace("_", "-"): value for name, value in values.items()}
        )

    def operand(self, name: str) -> str | None:
        return self.labels.get(DEPLOY + name)

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.server.nodes["n1"]["metadata"].get("annotations") or {})

    @property
    def condition(self) -> dict[str, Any]:
        conditions = self.server.nodes["n1"]["status"]["conditions"]
        return next((each for each in conditions if each["type"] == "GpuBootstateReady"), {})

    @property
    def says_ready(self) -> tuple[str | None, str | None]:
        return self.labels.get("gpu-bootstate/ready"), self.condition.get("status")
