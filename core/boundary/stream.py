"""The residual stream of one forward, and what is still owed to it.

A stage's output is a partial sum over its group until somebody adds all ranks' parts. The stream
records it as owed; the next read pays. An owed value is taken once and cannot be looked at, so
summing twice, forgetting the sum, or reading an unpaid stream cannot be written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, overload

from torch import Tensor

from ..errors import BoundaryError
from ..parallel import Group


class AddNorm(Protocol):
    """A norm that can join the residual addition."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class _Owed:
    """A stage's output, partial over a group."""

    value: Tensor
    group: Group
    stage: str


class ResidualStream:
    """Hidden rows passed from stage to stage; belongs to one forward, nothing is global.

    Args:
        hidden_states: (T, D), complete on every rank.
    """

    __slots__ = ("_owed", "_residual")

    def __init__(self, hidden_states: Tensor) -> None:
        self._residual = hidden_states
        self._owed: _Owed | None = None

    def owe(self, partial: Tensor, group: Group, stage: str) -> None:
        """Record a stage's output, partial over ``group``.

        Raises:
            BoundaryError: an earlier stage's output has not been read yet.
        """
        if self._owed is not None:
            raise BoundaryError(
                f"{stage}: finish() while the output of {self._owed.stage} is still unread; every "
                "stage calls prepare() before it computes"
            )
        self._owed = _Owed(partial, group, stage)

    def read(self, norm: AddNorm) -> Tensor:
        """Pay what is owed, add it to the residual, and give the normalised rows."""
        owed, self._owed = self._owed, None
        if owed is None:
            return norm(self._residual)
        hidden, self._residual = norm(owed.group.all_reduce(owed.value), self._residual)
        return hidden

    def settled(self) -> Tensor:
        """The residual with every debt paid: (T, D), complete on every rank."""
        owed, self._owed = self._owed, None
        if owed is not None:
            self._residual = self._residual + owed.group.all_reduce(owed.value)
        return self._residual
