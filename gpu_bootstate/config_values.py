"""Single values of the configuration: a node of the tree in, a typed value out.

Every reader takes a node and its key path. On a mistake it records the problem and returns None,
so that the caller can go on and find the next one.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from gpu_bootstate.model import Bdf
from gpu_bootstate.problems import ProblemList
from gpu_bootstate.yaml_marks import FORBIDDEN, Items, Node, Scalar, Table, Unusable, join, shown

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

MAX_DURATION_S = 86_400.0
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) *(ms|s|min|h)")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")

_TRUTH = {"true": True, "false": False}
# YAML 1.1 reads these as booleans too, YAML 1.2 as text: a trap either way, so neither.
_OTHER_TRUTHS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false"}

HEX_ID = re.compile(r"(?:(?:0x)?10de:)?(?:0x)?([0-9a-f]{4})", re.IGNORECASE)
UUID = re.compile(r"GPU(-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
SERIAL = re.compile(r"[0-9A-Fa-f]{4,32}")

# systemd.unit(5): these characters make up a unit name; a template needs its instance.
UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]+)?\.(?:service|socket|timer|path)")
# Stopping one of these is stopping the work itself.
NEEDED_UNITS = (
    "gpu-bootstate.service",
    "nvidia-vgpu-mgr.service",
    "nvidia-vgpud.service",
    "nvidia-fabricmanager.service",
)


class Reader:
    def __init__(self, problems: ProblemList) -> None:
        self.problems = problems

    # ------------------------------------------------------------------ shapes

    def table(self, node: Node, path: str, known: Sequence[str] = ()) -> Table | None:
        """A mapping; with ``known``, one that has no other keys."""
        if not isinstance(node, Table):
            want = f"a mapping with {listed(known)}" if known else "a mapping"
            self._wrong_shape(node, path, want)
            return None
        for key, _ in node.rows:
            if known and key.text not in known:
                message = f"unknown key {shown(key.text)}"
                self.problems.add(
                    key.mark, path, message, want=listed(known), word=key.text, known=known
                )
        return node

    def items(self, node: Node, path: str, want: str) -> tuple[tuple[str, Node], ...]:
        """The elements of a list, each with its path; nothing for what is no list."""
        if isinstance(node, Items):
            return tuple((f"{path}[{index}]", item) for index, item in enumerate(node.nodes))
        self._wrong_shape(node, path, want)
        return ()

    def one_or_more(self, node: Node, path: str, want: str) -> tuple[tuple[str, Node], ...]:
        """A single value or a list that is not empty."""
        if not isinstance(node, Items):
            return ((path, node),)
        if not node.nodes:
            self.problems.add(node.mark, path, "the list is empty", want=want)
        return self.items(node, path, want)

    def scalar(self, node: Node, path: str, want: str) -> Scalar | None:
        """One value, not null, on one line and printable."""
        if not isinstance(node, Scalar) or node.is_null:
            self._wrong_shape(node, path, want)
            return None
        if "\n" in node.text or "\r" in node.text or "\t" in node.text:
            self.problems.add(node.mark, path, "has a line break or a tab in it", want=want)
            return None
        return node if self._no_control(node, path, want) else None

    def content(self, node: Node, path: str) -> str | None:
        """Text of any number of lines."""
        want = "text, in quotes"
        if not isinstance(node, Scalar) or node.is_null:
            self._wrong_shape(node, path, want)
            return None
        return node.text if self._no_control(node, path, want) else None

    def field(
        self, table: Table, path: str, key: str, read: Callable[[Node, str], T | None], default: T
    ) -> T:
        """The value of an optional key; the default where it is absent or wrong."""
        node = table.get(key)
        value = None if node is None else read(node, join(path, key))
        return default if value is None else value

    def choice_field(self, table: Table, path: str, key: str, default: E) -> E:
        """The same for one of an enum's values."""
        node = table.get(key)
        kind = type(default)
        choices = [member.value for member in kind]
        value = None if node is None else self.word(node, join(path, key), choices)
        return default if value is None else kind(value)

    def _no_control(self, node: Scalar, path: str, want: str) -> bool:
        # "\0" and its like in double quotes pass the check of the raw text.
        bad = FORBIDDEN.search(node.text)
        if bad:
            message = f"the character U+{ord(bad[0]):04X} is not allowed"
            self.problems.add(node.mark, path, message, want=want)
        return bad is None

    def _wrong_shape(self, node: Node, path: str, want: str) -> None:
        if isinstance(node, Unusable):
            return
        if isinstance(node, Items):
            found = "is a list"
        elif isinstance(node, Table):
            found = "is a mapping"
        else:
            found = "is empty" if node.is_null else f"{shown(node.text)} is a single value"
        self.problems.add(node.mark, path, found, want=want)

    # ------------------------------------------------------------------ plain values

    def word(self, node: Node, path: str, choices: Sequence[str]) -> str | None:
        want = listed(choices)
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if value.text in choices:
            return value.text
        self.refuse(value, path, want, known=choices)
        return None

    def matching(self, node: Node, path: str, *, pattern: re.Pattern[str], want: str) -> str | None:
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if pattern.fullmatch(value.text):
            return value.text
        self.refuse(value, path, want)
        return None

    def boolean(self, node: Node, path: str) -> bool | None:
        want = "true or false"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if value.plain and value.text in _TRUTH:
            return _TRUTH[value.text]
        folded = value.text.casefold()
        meant = folded if folded in _TRUTH else _OTHER_TRUTHS.get(folded)
        self._refuse_plain(value, path, want, meant=meant)
        return None

    def integer(
        self, node: Node, path: str, lowest: int, highest: int, want: str = ""
    ) -> int | None:
        want = want or f"a whole number from {lowest} to {highest}"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        # Short, because int() is slow on a million digits; no 010, which YAML 1.1 takes for 8.
        if value.plain and re.fullmatch("0|[1-9][0-9]{0,8}", value.text):
            number = int(value.text)
            if lowest <= number <= highest:
                return number
        self._refuse_plain(value, path, want)
        return None

    def duration(self, node: Node, path: str) -> float | None:
        """Seconds. A bare number is seconds; otherwise parts like ``1min 30s``."""
        want = "a time of more than 0 and at most 24 h, such as 90, 90s, 1min 30s or 500ms"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        text = value.text.strip()
        seconds = None
        if NUMBER.fullmatch(text):
            seconds = float(text)
        elif re.fullmatch(f"{DURATION_PART.pattern}(?: *{DURATION_PART.pattern})*", text):
            parts = DURATION_PART.findall(text)
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if seconds is not None and 0 < seconds <= MAX_DURATION_S:
            return seconds
        self.refuse(value, path, want)
        return None

    # ------------------------------------------------------------------ names of things

    def pci(self, node: Node, path: str) -> Bdf | None:
        want = "a PCI address such as 0000:17:00.0"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        try:
            return Bdf.parse(value.text)
        except ValueError:
            self.refuse(value, path, want, meant=_mended_address(value.text))
            return None

    def uuid(self, node: Node, path: str) -> str | None:
        """``GPU-`` and the hexadecimal digits in lower case, as NVML gives it."""
        want = "a GPU's UUID as `nvidia-smi -L` shows it (GPU- and 32 hexadecimal digits)"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if found := UUID.fullmatch(value.text):
            return f"GPU{found[1].lower()}"
        if value.text.upper().startswith("MIG-"):
            message = f"{shown(value.text)} names a MIG instance, not a GPU"
            self.problems.add(value.mark, path, message, want=want)
        else:
            self.refuse(value, path, want)
        return None

    def serial(self, node: Node, path: str) -> str | None:
        want = "a board's serial number as `nvidia-smi -q` shows it (4 to 32 digits)"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if SERIAL.fullmatch(value.text):
            return value.text
        self.refuse(value, path, want)
        return None

    def hex_id(self, node: Node, path: str) -> int | None:
        """A PCI device id. Always hexadecimal, with or without 0x, as lspci shows it."""
        want = "four hexadecimal digits such as 0x2335 or 10de:2335"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if found := HEX_ID.fullmatch(value.text):
            return int(found[1], 16)
        self.refuse(value, path, want)
        return None

    def unit(self, node: Node, path: str) -> str | None:
        want = "a unit's full name such as nvidia-dcgm.service"
        value = self.scalar(node, path, want)
        if value is None:
            return None
        if value.text in NEEDED_UNITS:
            message = f"{value.text} is needed while the GPUs are set up and cannot be stopped"
            self.problems.add(value.mark, path, message)
            return None
        if len(value.text) > 255 or not UNIT.fullmatch(value.text):
            full = f"{value.text}.service"
            self.refuse(value, path, want, meant=full if UNIT.fullmatch(full) else None)
            return None
        return value.text

    def file_path(self, node: Node, path: str) -> str | None:
        """An absolute path with nothing in it for the kernel to resolve but links."""
        want = "an absolute path without //, . and .."
        value = self.scalar(node, path, want)
        if value is None:
            return None
        text = value.text
        normal = os.path.normpath("/" + text.lstrip("/"))  # normpath keeps a leading //
        parts = text.split("/")
        too_long = len(text.encode()) > 4095 or max(len(part.encode()) for part in parts) > 255
        if text == normal and text != "/" and not too_long:
            return text
        guess = text.startswith("/") and text != normal and ".." not in parts and not too_long
        self.refuse(value, path, want, meant=normal if guess else None)
        return None

    def _refuse_plain(
        self, value: Scalar, path: str, want: str, *, meant: str | None = None
    ) -> None:
        """For values that quotes turn into text."""
        note = "" if value.plain else " (in quotes it is text)"
        message = f"{shown(value.text)} is not valid{note}"
        self.problems.add(value.mark, path, message, want=want, meant=meant)

    def refuse(
        self,
        value: Scalar,
        path: str,
        want: str,
        *,
        meant: str | None = None,
        known: Sequence[str] = (),
    ) -> None:
        message = f"{shown(value.text)} is not valid"
        self.problems.add(
            value.mark, path, message, want=want, meant=meant, word=value.text, known=known
        )


def listed(words: Sequence[str]) -> str:
    """``a, b or c``."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _mended_address(text: str) -> str | None:
    """A PCI address that was probably meant: digits missing, other separators."""
    fields = re.split(r"[:.\s/-]+", text.strip())
    if len(fields) == 3:
        fields = ["0", *fields]
    if len(fields) != 4 or not all(re.fullmatch("[0-9A-Fa-f]{1,8}", part) for part in fields):
        return None
    domain, bus, device, function = (int(part, 16) for part in fields)
    if domain > 0xFFFF or bus > 0xFF or device > 0x1F or function > 7:
        return None
    return str(Bdf(domain, bus, device, function))
