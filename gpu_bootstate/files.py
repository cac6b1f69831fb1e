"""Files that others read while we write them: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any


def make_directory(path: Path) -> None:
    """Make it and what is missing above it, for all to read whatever the umask. Raises OSError."""
    if not path.parent.is_dir():
        make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o755)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write beside the target, sync, rename over it. Makes the directory. Raises OSError."""
    make_directory(path.parent)
    # The name starts with a dot: readers of drop-in style directories skip it. Always the same
    # name: what a killed run has left is taken by the next. Writers are alone, under our lock.
    temporary = path.parent / f".{path.name}.new"
    temporary.unlink(missing_ok=True)
    # O_EXCL: we write as root, in directories that others may reach.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException as err:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(err, OSError) and err.filename is None:
            err.filename = str(path)  # a write that fails for want of room does not say where
        raise


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    write_atomic(path, json.dumps(value, indent=2, sort_keys=False) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """None when the file is not there, not JSON, or not a mapping: never fatal."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def remove(path: Path) -> bool:
    """True when there was something to remove."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
