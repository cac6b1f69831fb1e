"""What systemd and the journal are told, by their own protocols."""

from __future__ import annotations

import contextlib
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
_SEND_S = 1.0  # how long one entry may wait for a journal that does not read


def message_id(event: str) -> str:
    """The MESSAGE_ID of an event or of a reason code, 32 hex digits."""
    return uuid.uuid5(MESSAGE_NAMESPACE, event).hex


class Notifier:
    """sd_notify; does nothing where systemd does not listen, and never fails.

    For the main process alone: with NotifyAccess=main systemd drops what a child says
    (systemd-facts.md section 8.1).
    """

    def __init__(self, *, patience_s: float = 0.0) -> None:
        """``patience_s``: how long a message may wait for a manager that is slow to read."""
        self._sd = None
        self._last = ""
        if os.environ.get("NOTIFY_SOCKET"):
            import sdnotify

            self._sd = sdnotify.SystemdNotifier()
            if self._sd.socket is not None:
                # A manager that does not read must not hold the GPUs up; a lost message is
                # made good by the next one, and only the last has reason to wait.
                self._sd.socket.settimeout(patience_s)

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        text = " ".join(text.split())
        if text != self._last:
            self._last = text
            self._send(f"STATUS={text}")

    def extend(self, seconds: float) -> None:
        """Ask for that much more start time, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def ready(self) -> None:
        """No effect on Type=oneshot; for units of Type=notify."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The run was asked to stop and is on its way out."""
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._sd is not None and self._sd.socket is not None:
            self._sd.socket.close()
        self._sd = None

    def _send(self, text: str) -> None:
        if self._sd is not None:
            # The library sends Latin-1, of which systemd takes only what is UTF-8 too.
            self._sd.notify(text.encode("ascii", "replace").decode("ascii"))


class Journal:
    """Lines with fields. Natively where the stream is the journal, else plain lines on it.

    Never fails: a journal or a terminal that is gone is no reason to leave GPUs half done.
    """

    def __init__(self, stream: TextIO | None = None, *, path: str = _JOURNAL_SOCKET) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        if _is_journal(self._stream):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(_SEND_S)
            try:
                self._socket.connect(path)
            except OSError:
                self.close()

    def close(self) -> None:
        """Entries after this are plain lines. Not before the end of the process, please: one that
        ends at once can lose its unit's name on its last entries.
        """
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def send(self, text: str, *, event: str, priority: int = 6, **fields: str) -> None:
        """``priority`` as in syslog: 3 error, 4 warning, 5 notice, 6 info."""
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
                    pass  # full or being restarted: the line goes the other way
                else:
                    return
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{text}\n")
                self._stream.flush()


def _field(name: str, value: str) -> bytes:
    """One field of the native protocol; a value of several lines goes with its length before it."""
    data = value.encode(errors="replace")
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
