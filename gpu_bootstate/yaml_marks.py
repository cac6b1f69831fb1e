"""YAML text to a small tree in which every value knows its place.

Only the part of YAML that a configuration needs: no aliases and merge keys (they hide what a GPU
is to be, and expand without bound), no tags, one document. Scalars keep the text as written, so
that no YAML 1.1 rule turns ``17:00.0`` into a number or ``off`` into a boolean.

Time and memory are bounded by the three limits below, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from gpu_bootstate.model import Mark
from gpu_bootstate.problems import ProblemList

MAX_SIZE = 1 << 20  # bytes of a file, characters of a text
MAX_DEPTH = 20  # mappings and lists inside each other
MAX_NODES = 10_000  # keys and values of one file

# libyaml is ten times as fast; PyYAML may have been built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Line breaks other than \n and \r\n would make our line numbers differ from an editor's.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value. ``plain``: written without quotes and not as a block."""

    text: str
    plain: bool
    mark: Mark

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Items:
    """A YAML sequence."""

    nodes: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Table:
    """A YAML mapping in file order, keys unique."""

    rows: tuple[tuple[Scalar, Node], ...]
    mark: Mark

    def get(self, key: str) -> Node | None:
        return next((node for name, node in self.rows if name.text == key), None)

    def mark_of(self, key: str) -> Mark:
        """Where the key stands; the whole mapping's place when it is not there."""
        return next((name.mark for name, _ in self.rows if name.text == key), self.mark)


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands for something whose problem has been recorded already."""

    mark: Mark


Node: TypeAlias = Scalar | Items | Table | Unusable


def join(path: str, key: str) -> str:
    """The key path one level down: ``policy.deadline``, ``mig["1g.18gb"]``."""
    if not _PLAIN_KEY.fullmatch(key):
        return f'{path}["{abridge(key)}"]'
    return f"{path}.{key}" if path else key


def shown(text: str) -> str:
    """What the user wrote, in quotes, on one line and not too long."""
    return f"'{abridge(text)}'"


def abridge(text: str, limit: int = 60) -> str:
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def read(text: str, name: str, problems: ProblemList) -> Node | None:
    """The tree of a text, None when it holds nothing. Never raises.

    What makes the whole text unreadable is recorded and gives Unusable; anything smaller is
    recorded, and reading goes on.
    """
    start = Mark(name, 1, 1)
    if len(text) > MAX_SIZE:
        problems.add(start, "", "the file is larger than 1 MiB")
        return Unusable(start)
    if bad := FORBIDDEN.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        message = f"the character U+{ord(bad[0]):04X} is not allowed"
        problems.add(Mark(name, line, column), "", message)
        return Unusable(start)
    try:
        return _Reader(yaml.parse(text, Loader=_LOADER), name, problems).document()
    except _TooMuch as err:
        problems.add(err.mark, "", str(err))
    except yaml.MarkedYAMLError as err:
        at = err.problem_mark or err.context_mark
        mark = Mark(name, at.line + 1, at.column + 1) if at else start
        why = ": ".join(part for part in (err.context, err.problem) if part)
        problems.add(mark, "", f"not valid YAML: {abridge(why, 160)}")
    except (yaml.YAMLError, ValueError, OverflowError) as err:
        # The two built-in errors: PyYAML's own scanner lets int() and chr() fail on odd escapes.
        why = " ".join(str(err).split())
        problems.add(start, "", f"not valid YAML: {abridge(why, 160)}")
    return Unusable(start)


class _TooMuch(Exception):
    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark


class _Reader:
    """Takes the parser's events one by one, so that a limit stops the parser too."""

    def __init__(self, events: Iterator[yaml.Event], name: str, problems: ProblemList) -> None:
        self._events = events
        self._name = name
        self._problems = problems
        self._nodes = 0

    def document(self) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _TooMuch(self._mark(event), "a second document begins here; one is read")
                root = self._node(next(self._events), "", 0)
        if isinstance(root, Scalar) and root.is_null:
            return None
        return root

    def _mark(self, event: yaml.Event) -> Mark:
        at = event.start_mark
        return Mark(self._name, at.line + 1, at.column + 1) if at else Mark(self._name, 1, 1)

    def _node(self, event: yaml.Event, path: str, depth: int) -> Node:
        mark = self._mark(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooMuch(mark, f"the file has more than {MAX_NODES} keys and values")
        if depth > MAX_DEPTH:
            raise _TooMuch(mark, f"nested more than {MAX_DEPTH} levels deep")
        node: Node
        if isinstance(event, yaml.AliasEvent):
            self._problems.add(
                mark,
                path,
                f"the alias *{abridge(event.anchor or '')} is not read",
                want="the value written out, or a named profile",
            )
            return Unusable(mark)
        if isinstance(event, yaml.ScalarEvent):
            node = Scalar(event.value, event.style in (None, ""), mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._items(mark, path, depth)
        else:
            node = self._table(mark, path, depth)
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._problems.add(mark, path, f"the tag {shown(tag)} is not read", want="no tag")
            return Unusable(mark)
        return node

    def _items(self, mark: Mark, path: str, depth: int) -> Items:
        nodes: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            nodes.append(self._node(event, f"{path}[{len(nodes)}]", depth + 1))
        return Items(tuple(nodes), mark)

    def _table(self, mark: Mark, path: str, depth: int) -> Table:
        rows: dict[str, tuple[Scalar, Node]] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, path, depth + 1)
            below = join(path, key.text) if isinstance(key, Scalar) else path
            value = self._node(next(self._events), below, depth + 1)
            if isinstance(key, Unusable):
                continue
            if not isinstance(key, Scalar):
                self._problems.add(key.mark, path, "a key is a list or a mapping", want="a word")
            elif key.plain and key.text == "<<":
                self._problems.add(
                    key.mark,
                    path,
                    "the merge key << is not read",
                    want="the keys written out, or a named profile",
                )
            elif key.text in rows:
                message = (
                    f"the key {shown(key.text)} is given twice, {_both(rows[key.text][0], key)}"
                )
                self._problems.add(key.mark, path, message, want="each key once")
            else:
                rows[key.text] = (key, value)
        return Table(tuple(rows.values()), mark)


def _both(first: Scalar, second: Scalar) -> str:
    one, two = first.mark, second.mark
    if one.line == two.line:
        return f"on line {one.line} in columns {one.column} and {two.column}"
    return f"on line {one.line} and on line {two.line}"
