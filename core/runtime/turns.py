"""Turns: the threads that use an engine, one at a time, in order of arrival.

Whoever touches an engine has the turn: its requests, slots and cache, its modules and its ranks. So
none of them needs a lock of its own, and no thread sees another's half-done work. There are three
ways to ask::

    with turns.take():                    # what is done at once: queue, abort, score, update
        ...
    with turns.ride(key, ready) as turn:  # generating
        while not ready():
            step()
            turn.pause()                  # the others' turn
    turns.later(work)                     # from a finalizer: between two steps, by whoever has the turn

Of the threads that generate, one *drives*: its steps compute the requests of all. The others ride
along; each gets a turn when its requests have moved. After a step the driver goes to the end of the
queue, so everybody who asked meanwhile comes between two steps: neither generating nor scoring
starves. A driver that has what it wants, or fails, leaves the wheel to the rider who came first.
With one thread there is nobody to wait for, and a step costs nothing more.

A thread that asks inside of its own turn (a hook, an observer, a signal handler) would wait for
itself, or find things half done: it is refused by name. Ranks simulated as threads are inside too:
they run in the context of the call.

Engines of which one drafts for the other share a queue from then on (``merge``): a step of the one
runs the other, and two queues would be a deadlock for two threads that take them in other orders.

A fork takes no other thread along. A child in which another thread had the turn has an engine that
stopped somewhere inside of a step, and says so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from ..errors import CollectiveError, InputError
from ..parallel.forking import forks

_GLANCE = 0.1
"""Seconds until who waits looks up: a signal that comes just before it blocks does not wake it."""

_inside: ContextVar[Turn | None] = ContextVar("archzoo_turn", default=None)
"""The innermost turn that this thread has, or waits for."""


class _Guard:
    """Locks around the queues of all engines, never held while anything is computed.

    Re-entrant, because a signal handler may ask for another model's turn.
    """

    def __init__(self) -> None:
        self.renew()
        forks.then(self.renew)

    def renew(self) -> None:
        """For a forked child: who held them is not there."""
        self.queues, self.merging = threading.RLock(), threading.RLock()


_guard = _Guard()


class Turn:
    """One call's place in the queue, and its turn; a context manager.

    Args:
        turns: the queue.
        key: the engine that it generates with; None for what is done at once.
        ready: whether a generating call has what it wants; asked with the turn, or for it.
        ordered: what it does must come in the same order on every process.
    """

    __slots__ = ("gate", "key", "ordered", "outer", "over", "ready", "thread", "turns")

    def __init__(
        self,
        turns: Turns,
        key: object = None,
        ready: Callable[[], bool] | None = None,
        ordered: bool = True,
    ) -> None:
        self.turns, self.key, self.ready, self.ordered = turns, key, ready, ordered
        self.thread, self.over = threading.get_ident(), False
        self.outer: Turn | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    @property
    def drives(self) -> bool:
        """Whether it will step when it has the turn."""
        return self.ready is not None and not self.ready()

    def __enter__(self) -> Turn:
        """Wait for the turn.

        Raises:
            InputError: this thread has it already, or a forked child cannot use the engine.
            CollectiveError: another thread has it, under torchrun.
        """
        if self.turns.inside:
            raise InputError(
                "a model was called from inside of a call of it, or of a model that drafts for it "
                "(by a hook, an observer or a signal handler); call it when that call has returned"
            )
        self.outer = _inside.get()
        _inside.set(self)
        try:
            self.turns.arrive(self)
            self._wait()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Let the next one have it."""
        try:
            self._leave()
        finally:
            self._leave()  # an interrupt may hit the first; else there is nothing left to do

    def pause(self) -> None:
        """Let everybody who waits go first."""
        if self.turns.queue(self):
            self._wait()

    def _wait(self) -> None:
        while not self.turns.has(self):
            self.gate.acquire(timeout=_GLANCE)
        self.turns.work_off()

    def _leave(self) -> None:
        self.turns.leave(self)
        _inside.set(self.outer)


class Turns:
    """The queue of one engine, or of several that have been merged.

    Args:
        alone: why threads cannot take turns here; empty where they can.
        unforkable: why a forked child cannot use the engine; empty where it can.
    """

    def __init__(self, alone: str = "", unforkable: str = "") -> None:
        """Nobody is there."""
        self._alone, self._unforkable = alone, unforkable
        self._calls: deque[Turn] = deque()  # the first has the turn
        self._riders: list[Turn] = []
        self._later: deque[Callable[[], object]] = deque()
        self._into: Turns | None = None
        self._forks = forks.count
        self._lost = ""

    @property
    def root(self) -> Turns:
        """The queue that this one has become part of."""
        while self._into is not None:
            self = self._into
        return self

    @property
    def inside(self) -> bool:
        """Whether this thread has the turn, or waits for it."""
        turn = _inside.get()
        while turn is not None:
            if not turn.over and turn.turns.root is self.root:
                return True
            turn = turn.outer
        return False

    def take(self) -> Turn:
        """The turn, for something that is done at once."""
        return Turn(self)

    def look(self) -> AbstractContextManager[object]:
        """The turn, to read something; from inside of a turn, as it is now."""
        return nullcontext() if self.inside else Turn(self, ordered=False)

    def ride(self, key: object, ready: Callable[[], bool]) -> Turn:
        """The turn, when ``ready()`` or when nobody else drives the engine ``key``."""
        return Turn(self, key, ready)

    def later(self, work: Callable[[], object]) -> None:
        """Have something done by the next one who gets the turn. Takes no lock and never waits."""
        self.root._later.append(work)

    def soon(self, work: Callable[[], object]) -> None:
        """Do something with the turn; when this thread is inside of one, at the next."""
        self.later(work)
        if not self.inside:
            with self.take():
                return  # done already

    def driven(self, key: object) -> bool:
        """Whether any thread generates with an engine now."""
        with _guard.queues:
            return any(turn.key is key for turn in (*self.root._calls, *self.root._riders))

    def merge(self, other: Turns) -> None:
        """Be one queue with another from now on."""
        if self.root is other.root:
            return
        with _guard.merging, self.take() as mine:
            if mine.turns is other.root:
                return
            with other.take() as its, _guard.queues:
                kept, gone = mine.turns, its.turns
                gone._into = kept
                kept._alone = kept._alone or gone._alone
                kept._unforkable = kept._unforkable or gone._unforkable
                kept._later += gone._later
                for turn in (*gone._calls, *gone._riders):
                    _wake(turn)  # it moves over itself

    def arrive(self, turn: Turn) -> None:
        """Queue a call.

        Raises:
            InputError, CollectiveError: as ``Turn.__enter__``.
        """
        forks.settle()
        with _guard.queues:
            turn.turns = root = self.root
            root._refuse(turn)
            root._enter(turn)

    def has(self, turn: Turn) -> bool:
        """Whether it is a call's turn."""
        with _guard.queues:
            if self._into is not None:
                self._remove(turn)
                self.arrive(turn)
                return turn.turns.has(turn)
            return bool(self._calls) and self._calls[0] is turn

    def queue(self, turn: Turn) -> bool:
        """Put the call whose turn it is behind all others; whether there is or was any."""
        if len(self._calls) == 1 and not self._riders:
            return bool(self._later)
        with _guard.queues:
            self._calls.popleft()
            self._admit_ready()
            self._enter(turn)
            self._admit_driver()
            _wake(self._calls[0])
        return True

    def leave(self, turn: Turn) -> None:
        """A call has ended, wherever it is; the next one has the turn."""
        with _guard.queues:
            if turn.over:
                return
            self._remove(turn)
            self._admit_ready()
            self._admit_driver()
            if self._calls:
                _wake(self._calls[0])
            turn.over = True

    def work_off(self) -> None:
        """Do what was left for later."""
        while self._later:
            self._later.popleft()()

    def _enter(self, turn: Turn) -> None:
        """At the end of the queue; beside it, where another one drives."""
        rides = turn.drives and self._is_driven(turn.key)
        (self._riders if rides else self._calls).append(turn)

    def _admit_ready(self) -> None:
        """Queue riders that have what they want."""
        for rider in [rider for rider in self._riders if not rider.drives]:
            self._riders.remove(rider)
            self._calls.append(rider)

    def _admit_driver(self) -> None:
        """Queue the first rider of each engine that nobody drives."""
        for rider in list(self._riders):
            if not self._is_driven(rider.key):
                self._riders.remove(rider)
                self._calls.append(rider)

    def _is_driven(self, key: object) -> bool:
        return any(turn.key is key and turn.drives for turn in self._calls)

    def _remove(self, turn: Turn) -> None:
        for place in (self._calls, self._riders):
            if turn in place:
                place.remove(turn)

    def _refuse(self, turn: Turn) -> None:
        if self._forks != forks.count:
            self._forked()
        if self._lost:
            raise InputError(self._lost)
        others = any(other.thread != turn.thread for other in (*self._calls, *self._riders))
        if self._alone and turn.ordered and others:
            raise CollectiveError(self._alone)

    def _forked(self) -> None:
        """Find out, in a child, whether the engine can go on."""
        mine, self._forks = threading.get_ident(), forks.count
        if self._unforkable:
            self._lost = f"this process was forked after the model was loaded: {self._unforkable}"
        elif self._calls and self._calls[0].thread != mine:
            self._lost = (
                "this process was forked while another thread of its parent was inside of a call of "
                "the model, which no thread can end here; fork when no call is under way, or load "
                "the model in the child"
            )
        self._calls = deque(turn for turn in self._calls if turn.thread == mine)
        self._riders.clear()


def _wake(turn: Turn) -> None:
    """Let a call look whether it is its turn."""
    if turn.gate.locked():
        turn.gate.release()
