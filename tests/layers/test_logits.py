"""Rows are selected before the head; logits and log-probabilities equal a plain computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archzoo.context import BuildContext
from archzoo.forward import (
    ForwardBatch,
    ForwardMode,
    LogprobRequest,
    OutputRows,
    TokenRows,
    default_sample_rows,
)
from archzoo.layers import logits as logits_module
from archzoo.layers.logits import LogitsProcessor
from archzoo.layers.vocab import ParallelLMHead
from archzoo.parallel import Topology
from ranks import fill, finish, on_ranks

WIDTH, VOCAB = 6, 70


class NoBackend:
    """Logits never ask attention for anything."""

    name, padded_rows = "none", "zero"

    def bind(self, specs: Any) -> dict[int, Any]:
        raise AssertionError

    def plan(self, batch: Any) -> None:
        raise AssertionError

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError


def batch_of(rows: int, outputs: OutputRows, padding: int = 0) -> ForwardBatch:
    tokens = TokenRows(rows + padding, rows, torch.arange(rows))
    return ForwardBatch(NoBackend(), tokens=tokens, outputs=outputs)  # type: ignore[arg-type]


class Spy(ParallelLMHead):
    """A head that remembers how many rows it saw."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__(VOCAB, WIDTH, ctx=ctx, prefix="lm_head")
        generator = torch.Generator().manual_seed(0)
        self.full = torch.randn(VOCAB, WIDTH, generator=generator)
        self.seen: list[int] = []
        fill(self.weight, {None: self.full})
        finish(self)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append(rows.shape[0])
        return super().forward(rows)


def hidden(rows: int, padding: int = 0) -> torch.Tensor:
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))
    return torch.cat([x, torch.full((padding, WIDTH), float("nan"))])


@pytest.mark.parametrize(
    ("mode", "sizes", "want"),
    [
        (ForwardMode.EXTEND, [5], [4]),
        (ForwardMode.EXTEND, [3, 0, 2], [2, 4]),
        (ForwardMode.DECODE, [1, 1, 1], [0, 1, 2]),
        (ForwardMode.MIXED, [4, 1], [3, 4]),
        (ForwardMode.TARGET_VERIFY, [3, 2], [0, 1, 2, 3, 4]),
        (ForwardMode.DRAFT_EXTEND, [3, 2], [2, 4]),
        (ForwardMode.IDLE, [], []),
    ],
)
@pytest.mark.parametrize("tp", [1, 3])
def test_the_head_sees_only_requested_rows(
    mode: ForwardMode, sizes: list[int], want: list[int], tp: int
) -> None:
    rows = default_sample_rows(mode, sizes)
    assert list(rows) == want
    x = hidden(sum(sizes))

    def run(ctx: BuildContext) -> None:
        head = Spy(ctx)
        output = LogitsProcessor(VOCAB)(
            x, head, batch_of(sum(sizes), OutputRows(torch.tensor(rows, dtype=torch.int64)))
        )
        assert head.seen == [len(want)]
        assert output.next_token_logits is not None
        torch.testing.assert_close(output.next_token_logits, x[want] @ head.full.T)

    on_ranks(Topology(tp=tp), run)


def test_without_rows_every_real_row_and_no_padded_one() -> None:
    def run(ctx: BuildContext) -> None:
        head = Spy(ctx)
        out = LogitsProcessor(VOCAB)(hidden(3, 2), head, batch_of(3, OutputRows(), 2))
        assert head.seen == [3] and out.next_token_logits is not None
        assert out.next_token_logits.isfinite().all()

    on_ranks(Topology(), run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logits_are_float32_and_soft_capped(dtype: torch.dtype) -> None:
    def run(ctx: BuildContext) -> None:
        head = Spy(ctx)
        x = hidden(4).to(dtype)
        out = LogitsProcessor(VOCAB, soft_cap=2.0).logits(x, head)
        assert out.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        plain = x.double() @ head.full.to(dtype).double().T
        want = torch.tanh(plain / 2.0) * 2.0
        tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
        assert out.abs().max() <= 2.0

    on_ranks(Topology(), run, dtype)


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5, torch.tensor([0.5, 2.0, 1.0, 3.0])])
def test_input_logprobs_scale_before_the_softmax_in_any_chunks(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float | torch.Tensor
) -> None:
    monkeypatch.setattr(logits_module, "LOGPROB_CHUNK", chunk)
    rows, targets = torch.tensor([0, 1, 3, 4]), torch.tensor([5, 69, 0, 7])
    wanted = LogprobRequest(rows, targets, top_k=3, token_ids=(1, 68), temperature=temperature)

    def run(ctx: BuildContext) -> None:
        head, x = Spy(ctx), hidden(5)
        out = LogitsProcessor(VOCAB)(
            x, head, batch_of(5, OutputRows(torch.tensor([4]), wanted))
        ).input_logprobs
        assert out is not None and max(head.seen) <= max(chunk, 1)
        by_row = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
        want = torch.log_softmax((x @ head.full.T)[rows] / by_row, -1)
        torch.testing.assert_close(out.tokens, want[range(4), targets])
        torch.testing.assert_close(out.top_values, want.topk(3).values)
        assert torch.equal(out.top_ids, want.topk(3).indices)
        torch.testing.assert_close(out.chosen, want[:, [1, 68]])

    on_ranks(Topology(), run)


def test_no_logprob_rows_give_empty_tensors() -> None:
    empty = torch.empty(0, dtype=torch.int64)

    def run(ctx: BuildContext) -> None:
        wanted = LogprobRequest(empty, empty, top_k=2, token_ids=(3,))
        out = LogitsProcessor(VOCAB)(hidden(2), Spy(ctx), batch_of(2, OutputRows(empty, wanted)))
        assert out.next_token_logits is not None and out.next_token_logits.shape == (0, VOCAB)
        assert out.input_logprobs is not None
        assert out.input_logprobs.tokens.shape == (0,)
        assert out.input_logprobs.top_ids.shape == (0, 2)
        assert out.input_logprobs.chosen.shape == (0, 1)

    on_ranks(Topology(), run)
