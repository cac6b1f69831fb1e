"""The configuration: YAML files to a DesiredState, or everything that is wrong with them.

Which files: ``/etc/gpu-bootstate/config.yaml``, then the drop-ins ``*.yaml`` of
``/usr/lib``, ``/run`` and ``/etc`` ``/gpu-bootstate/config.d``. A drop-in takes the place of one
of the same name in an earlier directory. One that is empty, or a link to /dev/null, takes it away
(masks it). Drop-ins apply in the order of their names, whatever their directory.

How files are put together:

* ``profiles``: by name; a later file's profile replaces the earlier one whole. Entries refer to
  the profiles of all files.
* ``gpus``: entries are added to those before. An entry whose ``match`` names exactly the same as
  an entry of an earlier file (in any order; ``count`` does not matter) replaces that entry whole.
  Any other entry that names a GPU a second time is an error.
* ``policy``: key by key; the later file wins.
* ``gate``: key by key; a later ``files`` replaces the whole list. The files of ``preset`` come
  after those of ``files``.
* ``kubernetes``: key by key; the later file wins.
* ``version``: every file has one.

A value that a later file replaces must be right all the same. Values keep the place in the file
that they came from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import astuple, replace
from enum import Enum
from pathlib import Path
from typing import Any

from gpu_bootstate import config_sections
from gpu_bootstate.config_sections import Draft, MatchKey, match_key, match_text
from gpu_bootstate.config_values import Reader
from gpu_bootstate.model import (
    Bdf,
    DesiredState,
    Entry,
    GateFile,
    Kubernetes,
    Mark,
    MatchItem,
    Policy,
    Profile,
)
from gpu_bootstate.paths import Paths
from gpu_bootstate.problems import ProblemList
from gpu_bootstate.reasons import Code
from gpu_bootstate.yaml_marks import MAX_SIZE, Node, Scalar, Table, abridge, read, shown

VERSION = "v1"

TOP_KEYS = ("version", "profiles", "gpus", "policy", "gate", "kubernetes")
GEOMETRY_KEYS = ("version", "profiles", "gpus")


def parse(text: str, name: str) -> DesiredState:
    """One file's text; ``name`` is how marks call it. Raises ConfigInvalid."""
    assembly = _Assembly()
    assembly.add(text, name, may_be_empty=False)
    return assembly.finish()


def load(paths: Paths, explicit: Path | None = None) -> DesiredState:
    """The configuration of a node; ``explicit`` is read alone, without drop-ins.

    No file at all gives a DesiredState without entries and sources. Raises ConfigInvalid, with
    the problems of all files, those that cannot be read among them.
    """
    assembly = _Assembly()
    if explicit is not None:
        assembly.add_file(explicit, may_be_empty=False)
        return assembly.finish()
    for path in _files(paths, assembly.problems):
        assembly.add_file(path, may_be_empty=path != paths.config)
    return assembly.finish()


def load_with(paths: Paths, drop_in: Path, text: str, name: str) -> DesiredState:
    """What `load` would give with ``text`` in the place of that drop-in of /etc.

    ``name`` is how marks call it. It may say what the GPUs are to be and nothing else: stopping
    units or writing gate files is for this host's root to order. Raises ConfigInvalid.
    """
    assembly = _Assembly()
    files = [path for path in _files(paths, assembly.problems) if path.name != drop_in.name]
    # The main file is first, whatever its name; drop-ins go by name.
    before = [path for path in files if path == paths.config or path.name < drop_in.name]
    for path in before:
        assembly.add_file(path, may_be_empty=path != paths.config)
    assembly.add(text, name, may_be_empty=False, keys=GEOMETRY_KEYS)
    for path in files[len(before) :]:
        assembly.add_file(path, may_be_empty=True)
    return assembly.finish()


def with_geometry(desired: DesiredState, other: DesiredState) -> DesiredState:
    """What the GPUs of ``other`` are to be, with the rest as it is in ``desired``."""
    return replace(
        desired,
        entries=other.entries,
        sources=(*desired.sources, *other.sources),
        digest=_digest(other.entries, desired.policy, desired.gate_files),
    )


def _files(paths: Paths, problems: ProblemList) -> list[Path]:
    found = _drop_ins(paths.drop_in_dirs, problems)
    # A link to nothing is not the same as no file.
    if os.path.lexists(paths.config):
        found.insert(0, paths.config)
    _check_writers(found, problems)
    return found


# --------------------------------------------------------------------------- files


def _drop_ins(directories: Sequence[Path], problems: ProblemList) -> list[Path]:
    """The drop-ins in force, in order."""
    by_name: dict[str, Path] = {}
    for directory in directories:
        try:
            found = sorted(os.listdir(directory))  # noqa: PTH208 -- names are what is compared
        except FileNotFoundError:
            continue
        except OSError as err:
            message = f"the directory cannot be read: {err.strerror}"
            problems.add(Mark(_name(directory), 1, 1), "", message)
            continue
        for name in found:
            if name.startswith("."):
                continue
            if name.endswith(".yaml"):
                by_name[name] = directory / name
            elif name.endswith(".yml"):
                message = "a file of this name is not read"
                mark = Mark(_name(directory / name), 1, 1)
                problems.add(mark, "", message, want="a name that ends in .yaml")
    return [by_name[name] for name in sorted(by_name) if not _is_mask(by_name[name])]


def _check_writers(files: Sequence[Path], problems: ProblemList) -> None:
    """Whoever can write these files or their directories has root do to GPUs what he likes.

    Not for a file that was named on the command line: whoever did that knows whose it is.
    """
    if os.geteuid() != 0:
        return
    for path in dict.fromkeys([*(path.parent for path in files), *files]):
        with contextlib.suppress(OSError):  # reading it will say why
            status = path.stat()
            if status.st_uid != 0:
                who = f"user {status.st_uid}, whose it is,"
            elif status.st_mode & stat.S_IWOTH:
                who = "everybody"
            elif status.st_mode & stat.S_IWGRP and status.st_gid != 0:
                who = f"group {status.st_gid}"
            else:
                continue
            want = f"root alone: chown root:root {path}; chmod go-w {path}"
            problems.add(Mark(_name(path), 1, 1), "", f"{who} can write here", want=want)


def _is_mask(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False  # reading it will say why
    if stat.S_ISREG(status.st_mode):
        return status.st_size == 0
    return os.path.realpath(path) == os.devnull


def _read_text(path: Path, problems: ProblemList) -> str | None:
    """The text of a regular file of bounded size; None when a problem was recorded."""
    mark = Mark(_name(path), 1, 1)
    try:
        with open(path, "rb", opener=_open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                problems.add(mark, "", "is not a regular file")
                return None
            data = stream.read(MAX_SIZE + 1)
    except (OSError, ValueError) as err:  # ValueError: NUL in the name
        reason = getattr(err, "strerror", None) or str(err)
        problems.add(mark, "", f"the file cannot be read: {reason}")
        return None
    try:
        # A byte order mark is what some editors leave; it means nothing.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        if len(data) > MAX_SIZE:  # the cut may have gone through a character
            problems.add(mark, "", "the file is larger than 1 MiB")
            return None
        line = data.count(b"\n", 0, err.start) + 1
        column = err.start - data.rfind(b"\n", 0, err.start)
        message = f"the byte 0x{data[err.start]:02x} is not UTF-8"
        problems.add(Mark(_name(path), line, column), "", message)
        return None


def _name(path: Path) -> str:
    """What marks call a file: printable, even if the name is no UTF-8."""
    return abridge(str(path), 4096)


def _open_at_once(path: str, flags: int) -> int:
    # Opening a FIFO would otherwise wait for a writer, at boot for ever.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


# --------------------------------------------------------------------------- putting together


class _Assembly:
    """What the files read so far come to."""

    def __init__(self) -> None:
        self.problems = ProblemList()
        self._reader = Reader(self.problems)
        self._files: list[str] = []
        self._whole = True  # False: a file was not understood, so names may be missing
        self._profiles: dict[str, Profile | None] = {}  # None: there, and wrong
        self._drafts: list[Draft] = []
        self._policy = Policy()
        self._backoff_mark: Mark | None = None
        self._gate_files: tuple[GateFile, ...] = ()
        self._preset: tuple[GateFile, ...] = ()
        self._kubernetes = Kubernetes()

    def add_file(self, path: Path, *, may_be_empty: bool) -> None:
        text = _read_text(path, self.problems)
        if text is None:
            self._files.append(_name(path))
            self._whole = False
        else:
            self.add(text, _name(path), may_be_empty=may_be_empty)

    def add(
        self, text: str, name: str, *, may_be_empty: bool, keys: Sequence[str] = TOP_KEYS
    ) -> None:
        self._files.append(name)
        root = read(text, name, self.problems)
        if root is None:
            if not may_be_empty:
                self._whole = False
                # An empty main file is what a full disk leaves; it must not look like "nothing
                # to do".
                mark = Mark(name, 1, 1)
                self.problems.add(mark, "", "the file is empty", want=f"version: {VERSION}")
            return
        table = self._reader.table(root, "", keys)
        if table is None or not self._version_is_known(table):
            self._whole = False
            return
        if (node := table.get("profiles")) is not None:
            self._add_profiles(node)
        if (node := table.get("gpus")) is not None:
            self._add_entries(node)
        if (node := table.get("policy")) is not None:
            self._add_policy(node)
        if (node := table.get("gate")) is not None:
            self._add_gate(node)
        if (node := table.get("kubernetes")) is not None:
            self._kubernetes = config_sections.kubernetes(
                self._reader, node, "kubernetes", self._kubernetes
            )

    def finish(self) -> DesiredState:
        """Raises ConfigInvalid."""
        self._check_overlaps()
        policy = self._policy
        if policy.backoff_s > policy.backoff_max_s:
            message = (
                f"backoff ({policy.backoff_s:g} s) is above backoff-max "
                f"({policy.backoff_max_s:g} s)"
            )
            self.problems.add(self._backoff_mark, "policy", message)
        gate_files = self._with_preset()
        entries = tuple(entry for draft in self._drafts if (entry := self._entry(draft)))
        self.problems.raise_if_any(self._files)
        return DesiredState(
            entries=entries,
            policy=policy,
            gate_files=gate_files,
            kubernetes=self._kubernetes,
            sources=tuple(self._files),
            digest=_digest(entries, policy, gate_files),
        )

    def _version_is_known(self, table: Table) -> bool:
        node = table.get("version")
        if node is None:
            message = "the key version is missing"
            self.problems.add(table.mark, "", message, want=f"version: {VERSION}")
            return True
        # Another version's keys may mean something else: the rest is not read then.
        return self._reader.word(node, "version", (VERSION,)) is not None

    def _add_profiles(self, node: Node) -> None:
        for name, profile in config_sections.profiles(self._reader, node, "profiles"):
            self._profiles[name] = profile

    def _add_entries(self, node: Node) -> None:
        replaced = {draft.keys: index for index, draft in enumerate(self._drafts) if draft.match}
        for draft in config_sections.entries(self._reader, node, "gpus"):
            index = replaced.pop(draft.keys, None)
            if index is None:
                self._drafts.append(draft)
            else:
                self._drafts[index] = draft

    def _add_policy(self, node: Node) -> None:
        table = self._reader.table(node, "policy", config_sections.POLICY_KEYS)
        if table is None:
            return
        self._policy = config_sections.policy(self._reader, table, "policy", self._policy)
        for key, _ in table.rows:
            if key.text in ("backoff", "backoff-max"):
                self._backoff_mark = key.mark

    def _add_gate(self, node: Node) -> None:
        table = self._reader.table(node, "gate", ("preset", "files"))
        if table is None:
            return
        if (preset := table.get("preset")) is not None:
            self._preset = config_sections.gate_preset(self._reader, preset, "gate.preset")
        if (files := table.get("files")) is not None:
            self._gate_files = config_sections.gate_files(self._reader, files, "gate.files")

    def _with_preset(self) -> tuple[GateFile, ...]:
        """Own files first: the last one of the preset is what the plugin waits for."""
        of_preset = {file.path: file for file in self._preset}
        for file in self._gate_files:
            if (same := of_preset.get(file.path)) is not None:
                message = f"{shown(file.path)} is written by the preset ({same.mark}) already"
                self.problems.add(file.mark, "gate.files", message, want="each file once")
        return (*self._gate_files, *self._preset)

    def _check_overlaps(self) -> None:
        """The same thing named twice. What only the hardware can tell is found by `resolve`."""
        seen: dict[MatchKey, tuple[Draft, MatchItem]] = {}
        for draft in self._drafts:
            for item in draft.match or ():
                known = seen.setdefault(match_key(item), (draft, item))
                if known[1] is item:
                    continue
                first, place = known
                path = f"{draft.path}.match.{item.kind.value}"
                if first is draft:
                    message = f"{match_text(item)} is named twice, first at {place.mark}"
                    self.problems.add(item.mark, path, message, want="each GPU once")
                else:
                    message = (
                        f"{match_text(item)} is matched by {draft.path} and by {first.path} "
                        f"({place.mark})"
                    )
                    want = "each GPU in one entry"
                    self.problems.add(item.mark, path, message, want=want, code=Code.GPU_OVERLAP)

    def _entry(self, draft: Draft) -> Entry | None:
        profile = draft.profile
        if isinstance(profile, Scalar):
            if profile.text not in self._profiles and self._whole:
                known = list(filter(config_sections.PROFILE_NAME.fullmatch, self._profiles))
                self.problems.add(
                    profile.mark,
                    f"{draft.path}.profile",
                    f"there is no profile {shown(profile.text)}",
                    want="the name of a profile" if known else "an entry of that name in profiles",
                    word=profile.text,
                    known=known,
                )
            profile = self._profiles.get(profile.text)
        if profile is None or draft.match is None:
            return None
        return Entry(draft.match, profile, draft.on_missing, draft.mark, draft.path)


# --------------------------------------------------------------------------- digest


def _digest(entries: Sequence[Entry], policy: Policy, gate: Sequence[GateFile]) -> str:
    """SHA-256 in hexadecimal over what the configuration means.

    Places, comments, names of profiles and the order of things whose order means nothing are left
    out. The order of vGPU types stays: it decides which VF gets which type.
    """
    meaning = [
        sorted([_entry_meaning(entry) for entry in entries], key=json.dumps),
        [_plain(value) for value in astuple(policy)],
        sorted([file.path, file.content] for file in gate),
    ]
    text = json.dumps(meaning, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _entry_meaning(entry: Entry) -> list[Any]:
    profile = entry.profile
    match = [
        [item.kind.value, _plain(item.value), item.subsystem, item.count] for item in entry.match
    ]
    mig = profile.mig and sorted(
        [request.profile, request.count, sorted(request.starts)] for request in profile.mig
    )
    return [
        sorted(match, key=json.dumps),
        entry.on_missing.value,
        profile.mode.value,
        mig,
        [[wish.type_name, wish.count, sorted(wish.vf_indexes)] for wish in profile.vgpus],
        profile.mixed_size,
        profile.compute_instances,
    ]


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Bdf) else value
