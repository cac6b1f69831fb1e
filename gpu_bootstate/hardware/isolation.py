"""A helper process for each GPU, for every call that can block in the driver or the kernel.

A sick GPU can hold a call for a minute or for ever, at worst where not even SIGKILL reaches. A
thread that hangs so would keep this process from ending; a helper is left behind instead, and the
calls for the other GPUs go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.model import Bdf

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LENGTH = struct.Struct("!I")


class Worker:
    """Serves the methods of one object, made in the child; calls come one after the other.

    Fork it before threads are started: a fork copies only the thread that forks, and locks that
    others hold stay locked for ever in the child.
    """

    def __init__(self, pf: Bdf | None, make: Callable[[], object]) -> None:
        self._pf = pf
        self._lock = threading.Lock()
        self._hung: HardwareError | None = None
        request_read, self._requests = os.pipe()
        self._answers, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(request_read, answer_write, make)
        os.close(request_read)
        os.close(answer_write)

    def call(self, method: str, *arguments: Any, timeout_s: float, **named: Any) -> Any:
        """Raises what the method raised (HardwareError), or HUNG when no answer came in time."""
        # The lock too is waited for at most that long: whoever has it is in a call of its own.
        if not self._lock.acquire(timeout=timeout_s):
            raise self._given_up(method, timeout_s)
        try:
            if self._hung is not None:
                raise self._given_up(method, self._hung.waited_s or timeout_s)
            try:
                _write(self._requests, (method, arguments, named))
                answer = _read(self._answers, time.monotonic() + timeout_s)
            except TimeoutError:
                self._hung = self._given_up(method, timeout_s)
                self._kill()
                raise self._hung from None
            except (OSError, EOFError) as err:
                raise HardwareError(
                    ErrorKind.UNKNOWN, method.replace("_", " "), target=self._pf, detail=str(err)
                ) from err
        finally:
            self._lock.release()
        value, error = answer
        if error is not None:
            raise _revived(error)
        return value

    @property
    def is_hung(self) -> bool:
        return self._hung is not None

    def close(self) -> None:
        """End the child. One that hangs is killed and not waited for."""
        for descriptor in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._hung is None:
            # It ends by itself at the end of its input, as fast as NVML shuts down.
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return
                time.sleep(0.005)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def _given_up(self, method: str, waited_s: float) -> HardwareError:
        return HardwareError(
            ErrorKind.HUNG, method.replace("_", " "), target=self._pf, waited_s=waited_s
        )


def _serve(requests: int, answers: int, make: Callable[[], object]) -> NoReturn:
    """The child: never returns into the code that forked it."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
        # Among the inherited descriptors is the lock of this run, which must end with the parent.
        keep = {0, 1, 2, requests, answers}
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        served = make()
        while True:
            method, arguments, named = _read(requests, deadline_s=None)
            _write(answers, _answer(served, method, arguments, named))
    except (EOFError, OSError):
        pass  # the parent is gone, or done with us
    finally:
        os._exit(0)


def _answer(served: object, method: str, arguments: Any, named: Any) -> tuple[Any, Any]:
    try:
        return getattr(served, method)(*arguments, **named), None
    except HardwareError as err:
        return None, {
            "kind": err.kind,
            "operation": err.operation,
            "target": err.target,
            "detail": err.detail,
            "errno": err.errno,
            "waited_s": err.waited_s,
        }
    except Exception as err:  # the parent must hear of it, whatever it is
        detail = f"{type(err).__name__}: {err}"
        operation = method.replace("_", " ")
        return None, {"kind": ErrorKind.UNKNOWN, "operation": operation, "detail": detail}


def _revived(error: dict[str, Any]) -> HardwareError:
    kind, operation = error.pop("kind"), error.pop("operation")
    return HardwareError(kind, operation, **error)


def _write(descriptor: int, value: object) -> None:
    data = pickle.dumps(value)
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int, deadline_s: float | None) -> Any:
    (length,) = _LENGTH.unpack(_read_bytes(descriptor, _LENGTH.size, deadline_s))
    return pickle.loads(_read_bytes(descriptor, length, deadline_s))  # noqa: S301  # our own child


def _read_bytes(descriptor: int, count: int, deadline_s: float | None) -> bytes:
    data = b""
    while len(data) < count:
        if deadline_s is not None:
            left = max(0.0, deadline_s - time.monotonic())
            if not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
        chunk = os.read(descriptor, count - len(data))
        if not chunk:
            raise EOFError("the helper process ended")
        data += chunk
    return data
