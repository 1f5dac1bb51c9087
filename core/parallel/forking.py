"""What a fork leaves to the child: of all threads the one that forked, and of OpenMP's none."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable

import torch


class Forks:
    """Forks between the start of archzoo and this process.

    Whoever holds threads or locks notes ``count`` when it makes them; another count says that the
    threads are gone, and that what they held will never be released.

    Attributes:
        count: forks so far.
    """

    def __init__(self) -> None:
        """None yet."""
        self.count = 0
        self._forked_in: int | None = None
        self.then(self._note)

    @staticmethod
    def then(renew: Callable[[], None]) -> None:
        """Call something first thing in a child, where the system has forks."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=renew)

    def settle(self) -> None:
        """Let the thread that forked compute with one thread of torch's from now on.

        GNU OpenMP, which torch brings on Linux, keeps a pool for each thread that used it and waits
        for ever for the pool of a thread that has been forked. Other threads begin with a pool of
        their own.
        """
        if self._forked_in != threading.get_ident():
            return
        self._forked_in = None
        if (threads := torch.get_num_threads()) > 1:
            torch.set_num_threads(1)
            warnings.warn(
                f"this process was forked by a thread that computes with {threads} threads of torch's, "
                "which a child has not: it goes on with one; call from a new thread to use more",
                RuntimeWarning,
                stacklevel=2,
            )

    def _note(self) -> None:
        self.count += 1
        self._forked_in = threading.get_ident()


forks = Forks()
"""Of this process."""
