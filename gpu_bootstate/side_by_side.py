"""Work on several GPUs at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def side_by_side(tasks: Sequence[Callable[[], _T]], *, limit: int) -> list[_T | BaseException]:
    """What each task returned or raised, in their order, once all have ended.

    A thread of its own for each, of which ``limit`` work at a time: with a pool it would depend on
    chance which tasks share a thread.
    """
    ended: dict[int, _T | BaseException] = {}
    turn = threading.BoundedSemaphore(max(1, limit))

    def run(number: int) -> None:
        with turn:
            try:
                ended[number] = tasks[number]()
            except BaseException as err:  # the caller decides, after the barrier
                ended[number] = err

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ended[number] for number in range(len(tasks))]
