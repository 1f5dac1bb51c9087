"""LogitsProcessor: from hidden rows to logits and log-probabilities.

Rows are selected before the head multiplies them: a prompt of 4,000 tokens that needs one next
token multiplies one row. Letters: T rows, S rows whose logits are wanted, L rows whose
log-probabilities are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..forward import ForwardBatch, LogprobRequest
from .vocab import ParallelLMHead

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
    """

    next_token_logits: Tensor | None = None
    input_logprobs: InputLogprobs | None = None
    pooled: Tensor | None = None


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
        self, hidden_states: Tensor, head: ParallelLMHead, batch: ForwardBatch
    ) -> LogitsProcessorOutput:
        """Logits of the rows the batch asks for, and log-probabilities where it asks for them.

        Args:
            hidden_states: (T, D), after the final norm, padding included.
            head: the output projection.
            batch: says which rows.
        """
        rows = batch.outputs.sample_rows
        if rows is not None:
            selected = hidden_states.index_select(0, rows)
        elif batch.num_real is not None and batch.num_real < hidden_states.shape[0]:
            selected = hidden_states[: batch.num_real]
        else:
            selected = hidden_states
        output = LogitsProcessorOutput(self.logits(selected, head))
        if batch.outputs.logprobs is not None:
            output.input_logprobs = self._input_logprobs(
                hidden_states, head, batch.outputs.logprobs
            )
        return output

    def logits(self, rows: Tensor, head: ParallelLMHead) -> Tensor:
        """(S, D) hidden rows to (S, V) float32 logits (float64 rows stay float64)."""
        logits: Tensor = head(rows)
        if logits.dtype is not torch.float64:
            logits = logits.float()
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits

    def _input_logprobs(
        self, hidden_states: Tensor, head: ParallelLMHead, wanted: LogprobRequest
    ) -> InputLogprobs:
        parts = list(self._logprob_parts(hidden_states, head, wanted))
        return InputLogprobs(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _logprob_parts(
        self, hidden_states: Tensor, head: ParallelLMHead, wanted: LogprobRequest
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Chunk by chunk, so that at most LOGPROB_CHUNK distributions exist at once."""
        ids = torch.tensor(wanted.token_ids, dtype=torch.int64, device=wanted.rows.device)
        total = wanted.rows.numel()
        for start in range(0, max(total, 1), LOGPROB_CHUNK):
            part = slice(start, start + LOGPROB_CHUNK)
            logits = self.logits(hidden_states.index_select(0, wanted.rows[part]), head)
            logprobs = scaled_log_softmax(logits, wanted.temperature, part)
            top = logprobs.topk(wanted.top_k, dim=-1)
            target = logprobs.gather(1, wanted.targets[part, None]).squeeze(1)
            yield target, top.values, top.indices, logprobs.index_select(1, ids)


def scaled_log_softmax(logits: Tensor, temperature: float | Tensor, rows: slice) -> Tensor:
    """log_softmax(logits / temperature), with one temperature or one for each row."""
    if isinstance(temperature, Tensor):
        return torch.log_softmax(logits / temperature[rows, None], dim=-1)
    scaled = logits if temperature == 1.0 else logits / temperature
    return torch.log_softmax(scaled, dim=-1)
