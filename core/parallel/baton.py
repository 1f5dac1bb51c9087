"""Baton: threads of which exactly one runs at a time.

A thread keeps the baton until it waits or ends, then hands it to the one that has been ready
longest. Because nobody runs beside the holder, the state here and in whatever the holder touches
needs no locks, and "nobody is ready, somebody waits" is a deadlock that is seen at once.

The caller of ``run`` is no rank; it only waits. So a signal that interrupts it (Ctrl-C) cannot
hit the hand-over code in the middle: it sets the failure, and the ranks unwind by themselves.

Wake-ups may be one too many and never one too few: a thread believes ``_holder``, not its lock.

A fork leaves none of the threads to the child, whose first run starts new ones.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVar

from ..errors import CollectiveError
from .forking import forks
from .thread_state import ThreadState

T = TypeVar("T")

_CALLER = -1

_GLANCE = 0.1
"""Seconds until the caller looks up: a signal that comes just before it blocks does not wake it."""


class Baton:
    """Runs one function on each of several ranks, one rank at a time.

    Args:
        size: ranks; a daemon thread is started for each.
        began: told when a run starts.
        ended: told each rank that ends; may call ``fail``.
        stuck: what to raise when every rank that has not ended waits.
    """

    def __init__(
        self,
        size: int,
        began: Callable[[], None],
        ended: Callable[[int], None],
        stuck: Callable[[], CollectiveError],
    ) -> None:
        """Start the threads; they wait for the first run."""
        self.size, self._began, self._ended, self._stuck = size, began, ended, stuck
        self._closing = False
        self._start()

    def _start(self) -> None:
        """New threads, which belong to this process."""
        self._forks = forks.count
        self._busy = threading.Lock()
        self._turns = [threading.Lock() for _ in range(self.size + 1)]
        for turn in self._turns:
            turn.acquire()
        self._holder = _CALLER
        self._ready: deque[int] = deque()
        self._waiting: set[int] = set()
        self._failure: BaseException | None = None
        self._reason = ""
        self._function: Callable[[int], Any] = _nothing
        self._state, self._context = ThreadState.of_caller(), Context()
        self._results: list[Any] = []
        self._threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"rank-{rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, function: Callable[[int], T]) -> list[T]:
        """function(rank) on every rank; results in rank order.

        Raises:
            CollectiveError: a run is under way, or ranks failed to meet.
            BaseException: what the first rank to fail raised, with its rank as a note.
        """
        if self._forks != forks.count:
            self._start()
        if not self._busy.acquire(blocking=False):
            raise CollectiveError(
                f"run() while another run() of the same in-process world of {self.size} ranks is "
                "under way; wait for it, or use a second world"
            )
        try:
            self._begin(function)
            self._drive()
            if self._failure is not None:
                raise self._failure
            return self._results
        finally:
            if self._holder == _CALLER:  # else: interrupted twice, a rank still runs
                self._forget()
            self._busy.release()

    def close(self) -> None:
        """End the threads; for when nobody can call run any more."""
        self._closing = True
        for turn in self._turns:
            _wake(turn)

    def check_thread(self, rank: int, what: str) -> None:
        """Refuse a call that does not come from the thread of that rank, which has the baton.

        Raises:
            CollectiveError: it comes from elsewhere, or from a forked child.
            BaseException: this run has failed already.
        """
        if threading.get_ident() != self._threads[rank].ident:
            raise CollectiveError(
                f"{what} as rank {rank} from outside that rank: collectives of an in-process world "
                "work inside its run(), on the thread of the rank the communicator was made for"
            )
        self._check_fork(f"{what} as rank {rank}")
        if self._failure is not None:
            raise self._given_up()

    def fail(self, error: BaseException, reason: str = "") -> None:
        """End this run: every rank raises at its next collective. The first failure counts.

        Args:
            error: what run() raises.
            reason: why the other ranks give up, for their messages.
        """
        if self._failure is None:
            self._failure, self._reason = error, reason or str(error)

    def wait(self, rank: int) -> None:
        """Give the baton away until ``resume`` names this rank.

        Raises:
            BaseException: the run has failed meanwhile.
        """
        self._waiting.add(rank)
        target = self._next()
        if target != rank:
            self._hand_over(target)
            self._await(rank)
        if self._failure is not None:
            raise self._given_up()

    def resume(self, rank: int) -> None:
        """Let a waiting rank go on when its turn comes."""
        self._waiting.discard(rank)
        self._ready.append(rank)

    def _begin(self, function: Callable[[int], Any]) -> None:
        if self._holder != _CALLER:
            raise CollectiveError(
                f"rank {self._holder} of this in-process world was left running by an interrupt; "
                "wait until it ends, or build the model anew"
            )
        self._forget()
        self._function = function
        self._state, self._context = ThreadState.of_caller(), copy_context()
        self._results = [None] * self.size
        self._ready.extend(range(self.size))
        self._began()

    def _drive(self) -> None:
        try:
            self._hand_over(self._ready.popleft())
            self._await(_CALLER)
        except BaseException as interrupt:
            self.fail(interrupt, f"the caller of run() was interrupted ({_text(interrupt)})")
            _wake(self._turns[self._holder])
            self._await(_CALLER)
            raise

    def _forget(self) -> None:
        """Drop what belongs to one run, so that tensors and tracebacks can be freed."""
        self._function, self._results, self._context = _nothing, [], Context()
        self._failure, self._reason = None, ""
        self._ready.clear()
        self._waiting.clear()

    def _work(self, rank: int) -> None:
        while self._await(rank):
            self._turn(rank)
            self._check_fork(f"rank {rank}")
            self._hand_over(self._next())

    def _turn(self, rank: int) -> None:
        if self._failure is None:
            try:
                with self._state.entered():
                    self._results[rank] = self._context.copy().run(self._function, rank)
            except BaseException as error:
                if self._failure is None:
                    self.fail(error, f"rank {rank} raised {_text(error)}")
                    error.add_note(f"raised on rank {rank} of {self.size}")
        self._ended(rank)

    def _next(self) -> int:
        """Who has the baton next; the caller of run when all ranks have ended."""
        if self._waiting:
            if self._failure is None and not self._ready:
                self.fail(self._stuck())
            if self._failure is not None:
                self._ready.extend(sorted(self._waiting))
                self._waiting.clear()
        return self._ready.popleft() if self._ready else _CALLER

    def _check_fork(self, what: str) -> None:
        if self._forks != forks.count:
            raise CollectiveError(
                f"{what} in a child that was forked inside of a run of its in-process world; the "
                "other ranks are not in the child: fork between runs"
            )

    def _given_up(self) -> BaseException:
        """What a rank raises once the run has failed.

        The rank that is first to see a failure of the collectives raises that very error, so
        that what run() raises shows its line.
        """
        error = self._failure
        if isinstance(error, CollectiveError) and error.__traceback__ is None:
            return error
        return CollectiveError(f"given up: {self._reason}")

    def _hand_over(self, target: int) -> None:
        self._holder = target
        _wake(self._turns[target])

    def _await(self, rank: int) -> bool:
        """Block until this one has the baton; False when the threads are to end."""
        turn = self._turns[rank]
        patience = _GLANCE if rank == _CALLER else -1
        while self._holder != rank:
            if self._closing:
                return False
            turn.acquire(timeout=patience)
        return True


def _wake(turn: threading.Lock) -> None:
    try:
        turn.release()
    except RuntimeError:  # released already: that wake-up is enough
        return


def _text(error: BaseException) -> str:
    """Type and message; a message that cannot be made is said to be so, not raised."""
    return "".join(traceback.format_exception_only(error)).strip()


def _nothing(rank: int) -> None:
    """What idle threads have to do."""
