"""LogitsProcessor: from hidden rows to logits and log-probabilities.

Rows are selected before the head multiplies them: a prompt of 4,000 tokens that needs one next
token multiplies one row. Letters: T rows, S rows whose logits are wanted, L rows whose
log-probabilities are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..forward import ForwardBatch, LogprobRequest

Head = Callable[[Tensor], Tensor]
"""(S, D) hidden rows to (S, V) logits: a ParallelLMHead."""

LOGPROB_CHUNK = 1024
"""Rows whose whole distributions are in memory at once."""


@dataclass
class InputLogprobs:
    """Log-probabilities of input tokens, one entry for each requested row.

    Attributes:
        tokens: (L,) of the token each row should have predicted.
        top_values, top_ids: (L, k), the likeliest tokens, best first.
        chosen: (L, n), of the requested ids.
    """

    tokens: Tensor
    top_values: Tensor
    top_ids: Tensor
    chosen: Tensor


@dataclass
class LogitsProcessorOutput:
    """What a forward gives back.

    Attributes:
        next_token_logits: (S, V) float32 (float64 models: float64); None for pooled outputs.
        input_logprobs: where they were asked for.
        pooled: (P, D) vectors of requests that end here, for embedding models.
        aux_hidden_states: (T, D) each, of this attention group's rows, in the order asked for.
    """

    next_token_logits: Tensor | None = None
    input_logprobs: InputLogprobs | None = None
    pooled: Tensor | None = None
    aux_hidden_states: tuple[Tensor, ...] = ()


class LogitsProcessor(nn.Module):
    """Select rows, multiply with the head, gather the vocabulary, cut padding, cap, float32.

    Args:
        vocab_size: V; columns past it are padding.
        soft_cap: logits become cap * tanh(logit / cap); None for plain logits.
    """

    def __init__(self, vocab_size: int, soft_cap: float | None = None) -> None:
        super().__init__()
        self.vocab_size, self.soft_cap = vocab_size, soft_cap

    def forward(
        self, hidden_states: Tensor, head: Head, batch: ForwardBatch
    ) -> LogitsProcessorOutput:
        """Logits of the rows the batch asks for, and log-probabilities where it asks for them.

        Args:
            hidden_states: (T, D), after the final norm, padding included.
            head: the output projection.
            batch: says which rows.
        """
        wanted, real = batch.outputs, batch.num_real
        picked = hidden_states if real is None else hidden_states[:real]
        if wanted.sample_rows is not None:
            picked = hidden_states.index_select(0, wanted.sample_rows)
        if wanted.logprobs is not None:
            picked = torch.cat([picked, hidden_states.index_select(0, wanted.logprobs.rows)])
        return self.of_picked(picked, head, batch, slice(0, picked.shape[0]))

    def of_picked(
        self, picked: Tensor, head: Head, batch: ForwardBatch, own: slice
    ) -> LogitsProcessorOutput:
        """The same for rows that were picked before.

        Args:
            picked: (P, D), normalised. Of one attention group those whose logits are wanted, then
                those of log-probabilities; of several where the head is split over them all.
            head: the output projection; called equally often on every rank.
            batch: what is wanted of the rows in ``own``.
            own: rows of this rank's attention group.
        """
        wanted = batch.outputs.logprobs
        if wanted is None:
            return LogitsProcessorOutput(self.logits(picked, head)[own])
        sampled: list[Tensor] = []
        parts: list[tuple[Tensor, ...]] = []
        first = own.stop - wanted.rows.numel()
        for start in range(0, max(picked.shape[0], 1), LOGPROB_CHUNK):
            logits = self.logits(picked[start : start + LOGPROB_CHUNK], head)
            stop = start + logits.shape[0]
            low, border, high = (min(max(at, start), stop) for at in (own.start, first, own.stop))
            sampled.append(logits[low - start : border - start])
            rows = slice(border - first, high - first)
            parts.append(_logprobs(logits[border - start : high - start], wanted, rows))
        return LogitsProcessorOutput(
            torch.cat(sampled), InputLogprobs(*(torch.cat(c) for c in zip(*parts, strict=True)))
        )

    def logits(self, rows: Tensor, head: Head) -> Tensor:
        """(S, D) hidden rows to (S, V) float32 logits (float64 rows stay float64)."""
        logits = head(rows)
        if logits.dtype is not torch.float64:
            logits = logits.float()
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits


def _logprobs(logits: Tensor, wanted: LogprobRequest, rows: slice) -> tuple[Tensor, ...]:
    """Columns of InputLogprobs for some of the rows wanted, from their logits."""
    logprobs = scaled_log_softmax(logits, wanted.temperature, rows)
    top = logprobs.topk(wanted.top_k, dim=-1)
    target = logprobs.gather(1, wanted.targets[rows, None]).squeeze(1)
    ids = torch.tensor(wanted.token_ids, dtype=torch.int64, device=logits.device)
    return target, top.values, top.indices, logprobs.index_select(1, ids)


def scaled_log_softmax(logits: Tensor, temperature: float | Tensor, rows: slice) -> Tensor:
    """log_softmax(logits / temperature), with one temperature or one for each row."""
    if isinstance(temperature, Tensor):
        return torch.log_softmax(logits / temperature[rows, None], dim=-1)
    scaled = logits if temperature == 1.0 else logits / temperature
    return torch.log_softmax(scaled, dim=-1)
