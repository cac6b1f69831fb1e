"""Where the host's own Kubernetes credentials are, and which Node they are for.

Sources: operator-path.md section 5.2; k0s `pkg/component/worker/nllb/reconciler.go` (the balanced
file), kubelet `nodeutil.GetHostname` (names are lower case), client-go `clientcmd` (data in the
file goes before a path, relative paths start at the file).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import posixpath
import re
import ssl
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from gpu_bootstate.yaml_marks import MAX_SIZE, abridge

# The first one that is there is taken. OpenShift's /etc/kubernetes/kubeconfig is only for joining.
_KNOWN = (
    ("kubeadm", "/etc/kubernetes/kubelet.conf"),
    ("k3s", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"),
    ("RKE2", "/var/lib/rancher/rke2/agent/kubelet.kubeconfig"),
    ("OpenShift, EKS", "/var/lib/kubelet/kubeconfig"),
    ("MicroK8s", "/var/snap/microk8s/current/credentials/kubelet.config"),
    # With node-local balancing the file on the disk names a server that may be gone.
    ("k0s with node-local load balancing", "/run/k0s/nllb/kubeconfig.yaml"),
    ("k0s", "/var/lib/k0s/kubelet.conf"),
    ("Talos", "/etc/kubernetes/kubeconfig-kubelet"),
    ("others", "/etc/kubernetes/kubelet-kubeconfig"),
)
_KUBELETS = ("kubelet", "kubelite")
_WRAPPERS = ("k3s", "rke2", "k0s")
# `k3s kubectl --kubeconfig ...` is a person's business, and so are the other commands.
_ROLES = ("server", "agent", "controller", "worker")
_NODE_PREFIX = "system:node:"
_COMMON_NAME = bytes.fromhex("550403")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MAX_LINKS = 40  # as the kernel
_REMEDY = "set `kubernetes: kubeconfig:` in the configuration"


@dataclass(frozen=True, slots=True)
class Kubelet:
    """Credentials that are there. ``kubeconfig`` is absolute, under the root, links not followed.

    ``node_name`` is None where nothing says it; ``found_by`` are words for people.
    """

    kubeconfig: Path
    node_name: str | None
    found_by: str


class NoCredentials(Exception):
    """Says what was looked for, where, and what the operator can do."""

    def __init__(self, message: str) -> None:
        super().__init__(abridge(message, 4096))  # paths come from files and command lines


class _Unusable(Exception):
    """Why a file that is there is not used."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    kubeconfig: str  # absolute, or empty
    hostname: str | None


def find(
    root: Path,
    *,
    kubeconfig: str | None = None,
    node_name: str | None = None,
    hostname: str | None = None,
) -> Kubelet:
    """The kubeconfig given, else the running kubelet's, else one in a known place (operator-path.md
    5.2). ``hostname`` is what the Node is called where nothing else says it.

    Raises NoCredentials. A kubelet that says where its file is has the last word: while the file is
    not there yet, what lies in a known place is from another time.
    """
    root = root.absolute()
    running = _kubelets(root)
    asked = next((kubelet for kubelet in running if kubelet.kubeconfig), None)
    if kubeconfig is not None:
        places = {kubeconfig: "the configuration"}
    elif asked:
        places, running = {asked.kubeconfig: f"the running kubelet (pid {asked.pid})"}, [asked]
    else:
        places = {path: f"a known place ({name})" for name, path in _KNOWN}
    missing = []
    for path, found_by in places.items():
        try:
            certified = _certified_name(root, path)
        except FileNotFoundError as err:
            missing.append(str(err))
        except _Unusable as err:
            why = f"The kubeconfig {path} of {found_by} is not used: {err}."
            raise NoCredentials(f"{why} Put that right, or {_REMEDY}.") from err
        else:
            override = next((kubelet.hostname for kubelet in running if kubelet.hostname), None)
            name = node_name or certified or (override or hostname or "").lower()
            return Kubelet(root / path.lstrip("/"), name or None, found_by)
    what = "No running kubelet names its kubeconfig, and none is in a known place"
    if len(places) == 1:
        what = f"The kubeconfig of {found_by} is not there yet"
    raise NoCredentials(f"{what}: {', '.join(missing)}. Start the kubelet, or {_REMEDY}.")


# --------------------------------------------------------------------------- running kubelets


def _kubelets(root: Path) -> list[_Process]:
    """By pid."""
    proc = root / "proc"
    pids: list[int] = []
    with contextlib.suppress(OSError):
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())  # noqa: PTH208
    found = []
    for pid in pids:
        # A process may end while it is being looked at.
        with contextlib.suppress(OSError):
            words = [*os.fsdecode((proc / str(pid) / "cmdline").read_bytes()).split("\0"), ""]
            program = posixpath.basename(words[0])
            if program in _KUBELETS or (program in _WRAPPERS and words[1] in _ROLES):
                path = _option(words, "--kubeconfig") or ""
                hostname = _option(words, "--hostname-override")
                if _is_host(proc / str(pid)):
                    found.append(_Process(pid, path if path.startswith("/") else "", hostname))
    return found


def _is_host(process: Path) -> bool:
    """No stranger's: anybody can call his program `kubelet`. And none of a cluster in a container
    (kind), which has a PID namespace of its own: its paths are not the host's."""
    status = ""
    with contextlib.suppress(FileNotFoundError):
        status = (process / "status").read_text(encoding="utf-8", errors="replace")
    nested = re.search(r"^NSpid:\s*\d+[ \t]+\d", status, re.MULTILINE)
    return process.stat().st_uid in (0, os.geteuid()) and not nested


def _option(words: list[str], name: str) -> str | None:
    """The last one holds, as in the kubelet's own parser."""
    value = None
    for word, after in pairwise(words):
        if word == name:
            value = after
        elif word.startswith(f"{name}="):
            value = word[len(name) + 1 :]
    return value


# --------------------------------------------------------------------------- files of the host


def _read(root: Path, path: str, what: str) -> tuple[bytes, os.stat_result]:
    """Raises FileNotFoundError, _Unusable (``what`` begins the sentence)."""
    try:
        with open(_follow(root, path), "rb", opener=_open_at_once) as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise _Unusable(f"{what} is not a regular file")
            raw = stream.read(MAX_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise FileNotFoundError(path) from err
    except (OSError, ValueError) as err:  # ValueError: NUL in the name
        reason = getattr(err, "strerror", None) or err
        raise _Unusable(f"{what} cannot be read: {reason}") from err
    if len(raw) > MAX_SIZE:
        raise _Unusable(f"{what} is larger than 1 MiB")
    return raw, about


def _open_at_once(path: str, flags: int) -> int:
    # Opening a FIFO would otherwise wait for a writer, for ever.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _follow(root: Path, path: str) -> Path:
    """Links as the host follows them: `kubelet-client-current.pem` is an absolute one."""
    at, links = root, 0
    rest = list(reversed(PurePosixPath(path).parts))
    while rest:
        part = rest.pop()
        if part.startswith("/"):
            at = root
        elif part == "..":
            at = at.parent if at != root else root
        elif (at / part).is_symlink():
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            rest += reversed(PurePosixPath(os.readlink(at / part)).parts)  # noqa: PTH115
        else:
            at /= part
    return at


# --------------------------------------------------------------------------- kubeconfig


def _certified_name(root: Path, path: str) -> str | None:
    """The Node that the client certificate is for. Raises FileNotFoundError, _Unusable."""
    raw, about = _read(root, path, "it")
    # It may name a program that gets us a token, and that runs with our rights.
    if about.st_uid not in (0, os.geteuid()):
        raise _Unusable(f"it belongs to user {about.st_uid}, not to root")
    if about.st_mode & stat.S_IWOTH:
        raise _Unusable("everybody can write it")
    data, file = _certificate_in(raw)
    if data:
        try:
            return _node_of(base64.b64decode("".join(data.split()), validate=True))
        except (ValueError, IndexError) as err:
            raise _Unusable("the client certificate in it is damaged") from err
    if not file:
        return None
    certificate = posixpath.join(posixpath.dirname(path), file)
    what = f"its client certificate {certificate}"
    try:
        return _node_of(_read(root, certificate, what)[0])
    except FileNotFoundError as err:
        # The kubelet gets its certificate when the cluster lets it join.
        raise FileNotFoundError(f"{path} ({what} is missing)") from err
    except (ValueError, IndexError) as err:
        raise _Unusable(f"{what} is damaged") from err


def _certificate_in(raw: bytes) -> tuple[str, str]:
    """Its data and its path, empty where there is none, of the user of the context in use.

    Raises _Unusable.
    """
    try:
        config: Any = yaml.safe_load(raw)
        contexts = {item["name"]: item["context"] for item in config["contexts"]}
        users = {item["name"]: item["user"] for item in config["users"]}
        user = users[contexts[config["current-context"]]["user"]] or {}
        keys = ("client-certificate-data", "client-certificate")
        data, file = (user.get(key) or "" for key in keys)
    except yaml.YAMLError as err:
        # Not its text: that shows the line, and the line may be a key.
        mark = getattr(err, "problem_mark", None)
        where = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _Unusable(f"it is not valid YAML{where}") from None
    # PyYAML's own scanner and constructors, too, let int(), chr() and the like fail on odd values.
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
        data = file = None
    if not (isinstance(data, str) and isinstance(file, str)):
        raise _Unusable("it is damaged, or its current-context leads to no user")
    return data, file


# --------------------------------------------------------------------------- certificate


def _node_of(pem: bytes) -> str | None:
    """From the first certificate, the client's own. Raises ValueError, IndexError."""
    block = _CERTIFICATE.search(pem)  # the key may come before it
    if block is None:
        raise ValueError("no certificate")
    ((_, certificate),) = _elements(ssl.PEM_cert_to_DER_cert(block[0].decode("ascii")))
    # Serial, algorithm, issuer, validity, subject; the version (tag A0) before them may be missing.
    fields = [value for tag, value in _elements(_elements(certificate)[0][1]) if tag != 0xA0]
    name = ""
    for _, together in _elements(fields[4]):
        for _, attribute in _elements(together):
            (_, kind), (_, value) = _elements(attribute)
            if kind == _COMMON_NAME:
                name = value.decode()  # of several the API server takes the last
    return name[len(_NODE_PREFIX) :] or None if name.startswith(_NODE_PREFIX) else None


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of what stands side by side. Raises ValueError, IndexError."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length > 0x7F:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("cut off")
        found.append((tag, der[at : at + length]))
        at += length
    return found
