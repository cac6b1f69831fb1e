"""Chooses the hardware: the real one, or a simulated node kept in a directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_bootstate.hardware.protocol import CallLimits, Hardware
from gpu_bootstate.model import Policy
from gpu_bootstate.paths import Paths

if TYPE_CHECKING:
    from gpu_bootstate.simulator.store import Store


@dataclass(frozen=True, slots=True)
class Where:
    """What the global options say: which node, which files."""

    root: Path | None  # None: the host's own, or the simulated node's
    config: Path | None
    board: str | None
    sim_dir: Path | None
    imported: tuple[Path, str | None] | None = None  # another tool's file, and the layout in it

    @property
    def paths(self) -> Paths:
        if self.root is None and self.board is not None:
            return Paths(self.simulated_dir / "root")
        return Paths(self._root)

    @property
    def _root(self) -> Path:
        return self.root or Path("/")

    @property
    def simulated_dir(self) -> Path:
        if self.sim_dir is not None:
            return self.sim_dir
        # Under a name of the user's own: two people on one machine do not share a node.
        return Path(tempfile.gettempdir()) / f"gpu-bootstate-sim-{os.getuid()}" / str(self.board)

    def store(self) -> Store:
        """The simulated node; made fresh when the directory is empty."""
        from gpu_bootstate.catalog.reader import UnknownBoard
        from gpu_bootstate.simulator.store import Store, StoreError

        try:
            store = Store.open(self.simulated_dir, str(self.board))
            store.read()
        except UnknownBoard as err:
            raise click.BadParameter(str(err), param_hint="--simulate") from None
        except StoreError as err:
            again = "`simulate new` makes a fresh node"
            raise click.ClickException(f"{err}; {again}") from None
        return store

    @contextmanager
    def hardware(self, policy: Policy) -> Iterator[Hardware]:
        limits = CallLimits(read_s=policy.read_s, call_s=policy.call_s)
        hw: Hardware
        if self.board is not None:
            from gpu_bootstate.simulator.hardware import SimHardware

            store = self.store()
            hw = SimHardware(store.node, store, limits=limits)
        else:
            from gpu_bootstate.hardware.real import RealHardware

            hw = RealHardware(self._root, limits=limits, sriov_manage=policy.sriov_manage)
        try:
            yield hw
        finally:
            hw.close()
