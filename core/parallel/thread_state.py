"""ThreadState: the settings of torch that threads do not inherit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ThreadState:
    """Inference mode, grad mode, intra-op threads and CUDA stream of one thread, for others.

    Args:
        inference: inside ``torch.inference_mode``.
        grad: gradients are recorded.
        threads: intra-op threads.
        stream: current CUDA stream, which implies the current device; None where CUDA is unused.
    """

    inference: bool
    grad: bool
    threads: int
    stream: torch.cuda.Stream | None

    @staticmethod
    def of_caller() -> ThreadState:
        """The state of the thread that calls."""
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's gap
        stream = torch.cuda.current_stream() if in_use else None
        return ThreadState(
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            stream,
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the body in this state, on any thread.

        The thread count stays afterwards: OpenMP keeps it for each thread that asks, and setting
        it costs more than comparing.
        """
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.grad),
            torch.cuda.stream(self.stream),
        ):
            yield
