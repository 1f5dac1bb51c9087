"""Last words of a rank that its launcher ends.

When one rank dies, torchrun ends the others with SIGTERM. A rank that waits in a collective is
inside C code then, where no Python handler runs, and would vanish without a word. So the signal
also wakes a thread of its own, which says what happened and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

EXIT_CODE = 128 + signal.SIGTERM
"""As a shell gives it for a process that SIGTERM ended."""


def say_why_when_ended(rank: int) -> bool:
    """From now on, say why this process ends when its launcher ends it.

    Nothing changes where the program handles SIGTERM, or watches signals, itself.

    Args:
        rank: for the message.

    Returns:
        Whether the signal is watched.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        os.close(reading)
        os.close(writing)
        return False
    signal.signal(signal.SIGTERM, lambda *_: None)  # the thread acts; the handler lets it be woken
    threading.Thread(target=_watch, args=(reading, rank), name="farewell", daemon=True).start()
    return True


def _watch(reading: int, rank: int) -> None:
    """Wait for the signal; other signals go on to their own handlers."""
    while signal.SIGTERM not in os.read(reading, 64):
        pass
    tell(
        f"rank {rank} was ended by SIGTERM, which launchers send when another rank fails; "
        "the output of that rank says why"
    )
    os._exit(EXIT_CODE)


def tell(text: str) -> None:
    """A line on stderr, from any thread, at once."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"archzoo: {text}\n".encode())
