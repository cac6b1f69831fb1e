"""What systemd and the journal are told, by their own protocols."""

from __future__ import annotations

import os
import socket
import sys
import threading
import uuid
from typing import TextIO

# MESSAGE_IDs are this namespace and the event's name, so they are fixed and can be looked up.
MESSAGE_NAMESPACE = uuid.UUID("6f1d7a52-2f0b-4bb1-9a43-5d1f3a8c1b77")

_JOURNAL_SOCKET = "/run/systemd/journal/socket"
_IDENTIFIER = "gpu-bootstate"


def message_id(event: str) -> str:
    """The MESSAGE_ID of an event or of a reason code, 32 hex digits."""
    return uuid.uuid5(MESSAGE_NAMESPACE, event).hex


class Notifier:
    """sd_notify of the main process; does nothing where systemd does not listen."""

    def __init__(self) -> None:
        self._sd = None
        self._last = ""
        if os.environ.get("NOTIFY_SOCKET"):
            import sdnotify

            self._sd = sdnotify.SystemdNotifier()

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        if text != self._last:
            self._last = text
            self._send(f"STATUS={text}")

    def extend(self, seconds: float) -> None:
        """Ask for that much more start time, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def ready(self) -> None:
        """No effect on Type=oneshot; for units of Type=notify."""
        self._send("READY=1")

    def _send(self, text: str) -> None:
        if self._sd is not None:
            self._sd.notify(text)


class Journal:
    """Lines with fields. Natively where stderr is the journal, else plain lines on stderr."""

    def __init__(self, stream: TextIO | None = None, *, path: str = _JOURNAL_SOCKET) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        if _is_journal(self._stream):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            try:
                self._socket.connect(path)
            except OSError:
                self._socket = None

    def send(self, text: str, *, event: str, priority: int = 6, **fields: str) -> None:
        """``priority`` as in syslog: 3 error, 5 notice, 6 info."""
        with self._lock:
            if self._socket is not None:
                record = {
                    "MESSAGE": text,
                    "MESSAGE_ID": message_id(event),
                    "PRIORITY": str(priority),
                    "SYSLOG_IDENTIFIER": _IDENTIFIER,
                    **fields,
                }
                try:
                    self._socket.send(b"".join(_field(k, v) for k, v in record.items()))
                except OSError:
                    pass  # a full or restarted journal is no reason to leave GPUs half done
                else:
                    return
            print(text, file=self._stream, flush=True)  # this is the journal's stand-in


def _field(name: str, value: str) -> bytes:
    data = value.encode()
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def _is_journal(stream: TextIO) -> bool:
    """True when systemd has connected this stream to the journal (JOURNAL_STREAM, systemd.exec)."""
    expected = os.environ.get("JOURNAL_STREAM", "")
    try:
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return expected == f"{stat.st_dev}:{stat.st_ino}"
