"""Speculation: what one request has of its draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from ..request import Request


class DraftSource(Protocol):
    """Who proposes tokens for requests."""

    reads_states: bool
    """Whether ``observe`` is to be called."""

    def propose(self, requests: Sequence[Request]) -> None:
        """Set the proposal of each of these running requests."""
        ...

    def observe(self, request: Request, first: int, states: Tensor) -> None:
        """Take the target's hidden states of positions first, first + 1, …"""
        ...

    def give_up(self, request: Request) -> None:
        """Propose nothing more for a request until it runs anew."""
        ...

    def release(self, request: Request) -> None:
        """Forget a request that runs no more."""
        ...


@dataclass
class Speculation:
    """A request's proposal under way, and what became of earlier ones.

    Args:
        drafter: proposes.
        proposal: tokens expected to come next.
        proposed: tokens proposed and computed so far.
        accepted: of these, how many came to be output.
        target_forwards: forwards of the target that computed rows of the request.
        draft_forwards: the same of the draft.
    """

    drafter: DraftSource
    proposal: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0

    def settle(self, proposed: int, accepted: int) -> None:
        """Enter a forward of the target; its proposal is used up."""
        self.proposal = []
        self.target_forwards += 1
        self.proposed += proposed
        self.accepted += accepted

    @property
    def report(self) -> SpeculationReport:
        """The counts as they are now."""
        return SpeculationReport(
            self.proposed, self.accepted, self.target_forwards, self.draft_forwards
        )


@dataclass(frozen=True)
class SpeculationReport:
    """What a draft was worth to one request.

    Args:
        proposed: tokens the draft proposed and the target computed.
        accepted: of these, how many are output.
        target_forwards: forwards of the target, those over the prompt included.
        draft_forwards: forwards of the draft, over the prompt and to catch up included.
    """

    proposed: int
    accepted: int
    target_forwards: int
    draft_forwards: int

    @property
    def acceptance(self) -> float:
        """Share of proposed tokens that came to be output; 0 where none was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0
