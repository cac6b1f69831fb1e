"""Virtual time that runs for each thread by itself.

A thread's waits and latencies advance only its own time, so eight GPUs that wait side by side
wait eight times at once, as on a real node. A new thread starts where the main thread last was;
the main thread, which works only between barriers, jumps to the farthest that anyone got.
"""

from __future__ import annotations

import threading
import time


class Clock:
    def __init__(self, start_s: float, pace: float) -> None:
        """``pace``: real seconds slept for each virtual second, so that people can watch."""
        self.pace = pace
        self._lock = threading.Lock()
        self._main = threading.current_thread()
        self._epoch = start_s
        self._farthest = start_s
        self._times: dict[threading.Thread, float] = {}
        self._wake = threading.Event()

    def now(self) -> float:
        me = threading.current_thread()
        with self._lock:
            if me is self._main:
                self._epoch = self._farthest
                self._times.clear()  # of threads that have ended
                return self._epoch
            return self._times.setdefault(me, self._epoch)

    def advance(self, seconds: float) -> None:
        """Let that much time pass for this thread."""
        now = self.now() + max(0.0, seconds)
        with self._lock:
            self._times[threading.current_thread()] = now
            self._farthest = max(self._farthest, now)
        if self.pace and seconds > 0:
            self._wake.wait(seconds * self.pace)

    def cancel(self) -> None:
        """No more real sleeping; virtual time goes on."""
        self.pace = 0.0
        self._wake.set()

    @property
    def farthest_s(self) -> float:
        with self._lock:
            return self._farthest

    @staticmethod
    def wall_s() -> float:
        return time.time()
