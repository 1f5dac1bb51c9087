"""Workers: threads that take items from several queues, one queue each as long as they last.

What is queued is bytes of files. A thread works through one file, so that several files are read
at once and each in order; when no file is left untouched it helps with the longest queue. Results
are handed back to the calling thread, which alone keeps the books.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

from ..parallel.thread_state import ThreadState

T = TypeVar("T")
R = TypeVar("R")


def work_through(
    work: Callable[[T], R], queues: Iterable[Sequence[T]], done: Callable[[R], None], threads: int
) -> None:
    """Do all items, and hand each result to ``done``, in this thread, as it comes.

    Args:
        work: called in any thread; with one thread, in this one and in order.
        queues: items that are best done one after the other.
        done: called in this thread.
        threads: how many; each computes with one thread of torch's.

    Raises:
        BaseException: the first that ``work`` or ``done`` raised; the other threads have stopped.
    """
    if threads < 2:
        for queue in queues:
            for item in queue:
                done(work(item))
        return
    _Workers(work, queues).run(done, threads)


class _Workers(Generic[T, R]):
    """One call of ``work_through``."""

    def __init__(self, work: Callable[[T], R], queues: Iterable[Sequence[T]]) -> None:
        self._work = work
        self._queues = [deque(queue) for queue in queues]
        self._untouched = deque(self._queues)
        self._results: SimpleQueue[R | _Failure] = SimpleQueue()
        self._starting = threading.Lock()
        self._stopped = False

    def run(self, done: Callable[[R], None], threads: int) -> None:
        """Start the threads, take in what they give, and wait until they have ended."""
        state, expected = ThreadState.of_caller(), sum(map(len, self._queues))
        crew = [
            threading.Thread(
                target=self._serve, args=(replace(state, threads=1),), name=f"load-{n}"
            )
            for n in range(threads)
        ]
        try:
            for thread in crew:
                thread.start()
            for _ in range(expected):
                result = self._results.get()
                if isinstance(result, _Failure):
                    raise result.error
                done(result)
        finally:
            self._stopped = True
            for thread in crew:
                if thread.ident is not None:
                    thread.join()
            # Theirs became the number that new threads start with.
            torch.set_num_threads(state.threads)

    def _serve(self, state: ThreadState) -> None:
        try:
            with self._starting:
                torch.set_num_threads(state.threads)
            with state.entered():
                queue: deque[T] = deque()
                while not self._stopped:
                    queue = queue or self._next_queue()
                    try:
                        item = queue.popleft()
                    except IndexError:
                        if not any(self._queues):
                            return
                        continue  # another thread took the last one
                    self._results.put(self._work(item))
        except BaseException as error:  # handed to the thread that waits
            self._results.put(_Failure(error))

    def _next_queue(self) -> deque[T]:
        """One that no thread has begun, or the one with most left."""
        try:
            return self._untouched.popleft()
        except IndexError:
            return max(self._queues, key=len)


class _Failure:
    """An error on its way to the calling thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
