"""What a run has taken down for the time of its work and has to put back: persistence mode, units.

Written before it is taken down and struck out once it is back, so that the run after one that was
killed pays the debt. It lies in /run: a reboot starts both afresh.
"""

from __future__ import annotations

import contextlib
import threading

from gpu_bootstate.files import read_json, write_json
from gpu_bootstate.model import Bdf
from gpu_bootstate.paths import Paths


class Owed:
    """Of one boot; the methods may be called from any thread."""

    def __init__(self, paths: Paths, boot_id: str) -> None:
        self._path = paths.owed
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._persistence: list[Bdf] = []
        self._units: list[str] = []
        record = read_json(self._path) or {}
        if record.get("boot_id") == boot_id:
            # A file that somebody damaged is no reason not to work.
            with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
                self._persistence = [Bdf.parse(text) for text in record["persistence"]]
                self._units = [name for name in record["units"] if name.endswith(".service")]

    def __bool__(self) -> bool:
        return bool(self._persistence or self._units)

    @property
    def persistence(self) -> tuple[Bdf, ...]:
        """GPUs whose persistence mode was on."""
        return tuple(self._persistence)

    @property
    def units(self) -> tuple[str, ...]:
        """Services that were running, in the order in which they were stopped."""
        return tuple(self._units)

    def lowers_persistence(self, pf: Bdf) -> None:
        with self._lock:
            if pf not in self._persistence:
                self._persistence.append(pf)
                self._write()

    def persistence_is_back(self, pf: Bdf) -> None:
        with self._lock:
            self._persistence.remove(pf)
            self._write()

    def stops(self, unit: str) -> None:
        with self._lock:
            if unit not in self._units:
                self._units.append(unit)
                self._write()

    def unit_is_back(self, unit: str) -> None:
        with self._lock:
            self._units.remove(unit)
            self._write()

    def _write(self) -> None:
        # A full /run costs what only the run after a killed one would need.
        with contextlib.suppress(OSError):
            if not self:
                self._path.unlink(missing_ok=True)
                return
            persistence = [str(pf) for pf in self._persistence]
            record = {"boot_id": self._boot_id, "persistence": persistence, "units": self._units}
            write_json(self._path, record)
