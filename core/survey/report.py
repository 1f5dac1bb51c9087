"""PreflightReport: what a checkpoint would do on every rank of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..config import ModelConfig
from ..errors import CoverageError
from ..parallel import Topology
from ..runtime.memory import context_of
from ..weights import FAULT_KINDS, Fault, Fill, Routes, Stored, TensorInfo
from ..weights.report import explained_skips, fault_lines, refusal
from .explanation import Explanation, explain
from .heads import HeadShare
from .memory import Load, RankMemory


@dataclass(frozen=True, slots=True)
class RankFault(Fault):
    """A fault, and where it is.

    Args:
        kind: a key of ``FAULT_KINDS``.
        ranks: that have it; empty for what concerns all of them together.
    """

    kind: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankReport:
    """One rank.

    Args:
        rank: its number.
        layers: global numbers of its layers.
        heads: attention heads it holds.
        memory: bytes it takes.
        read_bytes: checkpoint bytes it would read, as loads count them.
        fills: parameters and the tensors that fill them.
    """

    rank: int
    layers: range
    heads: tuple[HeadShare, ...]
    memory: RankMemory
    read_bytes: int
    fills: Mapping[str, Fill]


@dataclass(frozen=True)
class PreflightReport:
    """The outcome for all ranks. Plain data; pickles.

    Args:
        path: as asked.
        source: what was read.
        architecture: class that would be built.
        config: its configuration, with the ledger of fields.
        dtype: of weights and activations.
        topology: sizes of all axes.
        load: the work that memory is planned for.
        context: tokens of each request that memory is planned for; None for the model's own.
        memory: bytes that a rank has; None when nobody said.
        tensors: the checkpoint's, by name.
        places: where their bytes lie.
        routes: where their names lead.
        ranks: every rank.
        found: what is wrong, each thing once.
        skipped: rule -> checkpoint tensors it leaves out.
        skip_reasons: rule -> why.
        converted: "from -> to" dtype -> tensors that change.
        tied: parameter or tensor -> the parameter whose elements it shares.
        derived: optional parameters that the checkpoint leaves out.
        notes: what else a reader should know.
    """

    path: str
    source: str
    architecture: str
    config: ModelConfig
    dtype: torch.dtype
    topology: Topology
    load: Load
    context: int | None
    memory: int | None
    tensors: Mapping[str, TensorInfo]
    places: Mapping[str, Stored]
    routes: Routes
    ranks: tuple[RankReport, ...]
    found: tuple[RankFault, ...]
    skipped: Mapping[str, tuple[str, ...]]
    skip_reasons: Mapping[str, str]
    converted: Mapping[str, int]
    tied: Mapping[str, str]
    derived: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every parameter of every rank is filled once, and every tensor has a fate."""
        return not self.found

    def faults(self) -> dict[str, tuple[RankFault, ...]]:
        """What is wrong, by kind, without empty kinds."""
        found = {
            kind: [fault for fault in self.found if fault.kind == kind] for kind in FAULT_KINDS
        }
        return {kind: tuple(faults) for kind, faults in found.items() if faults}

    @property
    def model_context(self) -> int:
        """Tokens of the longest sequence that the model is made for."""
        return context_of(self.config)

    @property
    def wanted_context(self) -> int:
        """Tokens of each request that memory is planned for."""
        return self.model_context if self.context is None else self.context

    @property
    def needed(self) -> int:
        """Bytes of the rank that needs most, with every request at its wanted context."""
        tokens = self.load.requests * self.wanted_context
        return max(rank.memory.need(tokens) for rank in self.ranks)

    def most_context(self, memory: int) -> int:
        """Tokens that each request can have on ranks of so many bytes; 0: the model does not fit.

        Not cut to what the model is made for.
        """
        tokens = min(rank.memory.tokens(memory) for rank in self.ranks)
        return max(0, tokens) // self.load.requests

    @property
    def fits(self) -> bool | None:
        """Whether the memory holds the context asked for, or any where none was; None: no memory."""
        if self.memory is None:
            return None
        return self.most_context(self.memory) >= (1 if self.context is None else self.context)

    def explain(self, name: str) -> Explanation:
        """Where a checkpoint tensor goes, or where a parameter comes from.

        Raises:
            InputError: neither has that name.
        """
        return explain(self, name)

    def explain_skips(self) -> str:
        """Every tensor that would be left out, under the rule that does it and why."""
        return explained_skips(self.skipped, self.skip_reasons)

    def raise_for_faults(self) -> None:
        """Nothing when the checkpoint fills the model.

        Raises:
            CoverageError: there are faults; it carries this report.
        """
        if not self.ok:
            raise CoverageError(self)

    def __str__(self) -> str:
        """The verdict, then each fault with its remedy."""
        faults = self.faults()
        if faults:
            return "\n".join([refusal(self.source, faults), *fault_lines(faults)])
        fills = sum(len(rank.fills) for rank in self.ranks)
        return (
            f"{self.source}: {len(self.tensors)} tensors fill {fills} parameters on "
            f"{len(self.ranks)} ranks"
        )
