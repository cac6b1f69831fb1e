"""A mistake in the configuration, with its place: shared by what reads it and what resolves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_bootstate.model import Mark
from gpu_bootstate.reasons import Code


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. ``path`` is the key path (``gpus[0].match.pci``), empty for a whole file.

    ``want`` says what was expected, as a noun phrase; ``nearest`` is a valid word that was
    probably meant. ``mark`` is None only where no place in a file can be blamed.
    """

    mark: Mark | None
    path: str
    message: str
    want: str = ""
    nearest: str | None = None
    code: Code = Code.CONFIG_INVALID

    def __str__(self) -> str:
        """``file:line:col: path: message; expected ...; did you mean ...?`` on one line."""
        where = [str(self.mark)] if self.mark else []
        if self.path:
            where.append(self.path)
        text = ": ".join([*where, self.message])
        if self.want:
            text += f"; expected {self.want}"
        if self.nearest is not None:
            text += f"; did you mean {self.nearest}?"
        return text


class ConfigInvalid(Exception):
    """Everything that is wrong with a configuration, in one go. Never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ProblemList:
    """Collects, so that one run of `check` shows everything there is to correct.

    Only the first ``LIMIT`` are kept: a file of garbage must cost neither memory nor the time of
    finding the nearest word ten thousand times.
    """

    LIMIT = 100

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._kept) + self._dropped

    def add(
        self,
        mark: Mark | None,
        path: str,
        message: str,
        *,
        want: str = "",
        meant: str | None = None,
        word: str | None = None,
        known: Iterable[str] = (),
        code: Code = Code.CONFIG_INVALID,
    ) -> None:
        """Offers ``meant`` in the place of what was written, else the one of ``known`` that is
        nearest to ``word``."""
        if len(self._kept) >= self.LIMIT:
            self._dropped += 1
            return
        if meant is None and word is not None:
            meant = nearest(word, known)
        self._kept.append(Problem(mark, path, message, want, meant, code))

    def raise_if_any(self, files: Sequence[str]) -> None:
        """Raises ConfigInvalid, ordered by file (as in ``files``), line and column."""
        if not self._kept:
            return
        rank = {name: index for index, name in enumerate(files)}

        def place(problem: Problem) -> tuple[int, int, int]:
            if problem.mark is None:
                return len(rank) + 1, 0, 0
            mark = problem.mark
            return rank.get(mark.file, len(rank)), mark.line, mark.column

        problems = sorted(self._kept, key=place)
        if self._dropped:
            more = "problem is" if self._dropped == 1 else "problems are"
            problems.append(Problem(None, "", f"{self._dropped} more {more} not listed"))
        raise ConfigInvalid(problems)


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word most like ``word``, whatever its case, or None where none is like it.

    ``cutoff`` is difflib's ratio, 0 to 1. Among equally near words the first one wins.
    """
    # Only a mistake needs difflib; the boot path with a right file never loads it.
    from difflib import get_close_matches

    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    # A word longer than any name is no misspelling, and difflib's time grows with its square.
    found = get_close_matches(word[:100].casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None
