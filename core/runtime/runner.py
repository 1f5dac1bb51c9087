"""Runner: one rank's model, KV pool and backend; turns a step's numbers into one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..attention import make_backend
from ..forward import (
    ForwardBatch,
    ForwardMode,
    KVCacheLayout,
    KVPool,
    LogprobRequest,
    OutputRows,
    PoolingRequest,
    RequestRows,
    TokenRows,
)
from ..layers import LogitsProcessorOutput
from ..models import DecoderBase, PPProxyTensors
from ..parallel.rows import GroupRows
from .step import Step


@dataclass(frozen=True)
class PoolSize:
    """Room of a KV pool.

    Args:
        slots: tokens it holds.
        requests: requests under way at once.
        context: tokens of the longest sequence.
    """

    slots: int
    requests: int
    context: int


@dataclass(frozen=True)
class Logprobs:
    """Input log-probabilities wanted of a step, as plain numbers, rows ascending; see LogprobRequest."""

    rows: Sequence[int]
    targets: Sequence[int]
    top_k: int = 0
    token_ids: tuple[int, ...] = ()
    temperature: float = 1.0


@dataclass(frozen=True)
class Wanted:
    """What a step is to give back, as plain numbers.

    Args:
        sample_rows: rows whose logits are wanted, ascending; None for every row.
        logprobs: input log-probabilities, or None.
        pooling: pooled rows (vectors, or scores of a classifier) instead of logits, or None.
    """

    sample_rows: Sequence[int] | None = None
    logprobs: Logprobs | None = None
    pooling: PoolingRequest | None = None


class Runner:
    """One rank: a loaded model bound to a backend over its own pool.

    Args:
        module: the model.
        size: room of the pool.
        backend: name of the attention backend.
        device: where the model is.

    Raises:
        BackendUnavailableError: the backend does not serve this model.
    """

    def __init__(
        self,
        module: DecoderBase,
        size: PoolSize,
        backend: str,
        device: torch.device,
    ) -> None:
        self.module, self.device = module, device
        layout = KVCacheLayout.of(module.attention_specs(), module.dtype)
        self.pool = KVPool(layout, size.slots, size.requests, size.context, device)
        self.backend = make_backend(backend, self.pool)
        module.bind(self.backend)
        self.group_index = module.model.stack.group_index
        self._reads_known_lens = module.model.needs_known_lens

    def rows(self, steps: Sequence[Step], wanted: Sequence[Wanted]) -> GroupRows:
        """Rows of every attention group in one forward, laid out as is cheapest.

        Args:
            steps, wanted: of each group.
        """
        counts = tuple(len(step.input_ids) for step in steps)
        selected = tuple(map(self._num_selected, steps, wanted))
        return self.module.model.stack.book.rows(counts, selected)

    def forward(
        self, step: Step, wanted: Wanted, rows: GroupRows, proxies: PPProxyTensors | None = None
    ) -> LogitsProcessorOutput | PPProxyTensors:
        """Run one step; rows are laid out as the step says, padding behind them.

        Args:
            step, wanted: what to compute and give back.
            rows: of every attention group.
            proxies: what the pipeline stage before gave; None on the first stage.

        Returns:
            The output, or before the last stage what the next one takes.
        """
        padding = self.module.model.stack.own_rows(rows) - len(step.input_ids)
        positions = self._tensor(step.positions)
        batch = self._batch(step, positions, wanted, rows, padding)
        batch.plan = self.backend.plan(batch)
        output: LogitsProcessorOutput | PPProxyTensors = self.module(
            self._tensor(step.input_ids, padding) if proxies is None else None,
            F.pad(positions, (0, padding)) if padding else positions,
            batch,
            get_embedding=wanted.pooling is not None,
            pp_proxy_tensors=proxies,
        )
        return output

    def _batch(
        self, step: Step, positions: Tensor, wanted: Wanted, rows: GroupRows, padding: int
    ) -> ForwardBatch:
        slots = self._tensor(step.new_slots)
        requests = RequestRows.of(
            step.req_pool_indices,
            step.prefix_lens,
            step.extend_lens,
            self.device,
        )
        table_rows = requests.req_pool_indices
        if step.mode is not ForwardMode.DECODE:
            table_rows = table_rows.repeat_interleave(requests.extend_seq_lens)
        for row, borrowed in step.borrowed_slots.items():
            self.pool.req_to_token[row, : len(borrowed)] = self._tensor(borrowed)
        self.pool.req_to_token[table_rows, positions] = slots
        real = len(step.input_ids)
        return ForwardBatch(
            self.backend,
            step.mode,
            TokenRows(
                real + padding,
                real,
                slots,
                self._known_lens(step, padding),
                self._beside(step, padding),
            ),
            requests,
            self._outputs(step, wanted),
            parallel=rows,
        )

    def _num_selected(self, step: Step, wanted: Wanted) -> int:
        """Rows of a step that leave the model."""
        rows, pooling = len(step.input_ids), wanted.pooling
        if pooling is not None:
            return rows if self.module.pooler.pooling.reads_all else len(pooling.requests)
        sampled = rows if wanted.sample_rows is None else len(wanted.sample_rows)
        return sampled + (0 if wanted.logprobs is None else len(wanted.logprobs.rows))

    def _outputs(self, step: Step, wanted: Wanted) -> OutputRows:
        rows = wanted.sample_rows
        every = rows is None or len(rows) == len(step.input_ids)
        asked = wanted.logprobs
        return OutputRows(
            None if every or rows is None else self._tensor(rows),
            None
            if asked is None
            else LogprobRequest(
                self._tensor(asked.rows),
                self._tensor(asked.targets),
                asked.top_k,
                asked.token_ids,
                asked.temperature,
            ),
            wanted.pooling,
        )

    def _known_lens(self, step: Step, padding: int) -> Tensor | None:
        return self._tensor(step.known_lens, padding) if self._reads_known_lens else None

    def _beside(self, step: Step, padding: int) -> Tensor | None:
        if step.beside is None:
            return None
        return F.pad(step.beside.to(self.device, self.module.dtype), (0, 0, 0, padding))

    def _tensor(self, numbers: Sequence[int], padding: int = 0) -> Tensor:
        padded = [*numbers, *[0] * padding] if padding else numbers
        return torch.tensor(padded, dtype=torch.int64, device=self.device)
