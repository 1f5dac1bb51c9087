"""Every topology says what one rank says: all ranks simulated, float64, and float32 beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from runtime.pipelines import PROMPTS, Checkpoints, close, load
from runtime.topologies import SIZES, Case, possible, sweep
from torch import Tensor

import archzoo
from archzoo.layers import LogitsProcessorOutput
from archzoo.runtime import engine as engine_module
from archzoo.runtime.choosing import Choice, Choosable
from archzoo.runtime.request import Request
from archzoo.runtime.step import Step
from tiny import reference_logits

SWEEP = sweep()
QUARTER = [case for at, case in enumerate(SWEEP) if (at + at // 4 + at // 16) % 4 == 1]
"""Of the cases, turning through models, stages and groups, which all come in fours."""


@dataclass(frozen=True)
class Answers:
    """What a model says to the prompts.

    Args:
        prefill, chunked: logits of every position.
        tokens: that each prompt goes on with.
        decoded: for each prompt the logits that its tokens were chosen from.
    """

    prefill: list[Tensor]
    chunked: list[Tensor]
    tokens: list[list[int]]
    decoded: list[Tensor]


@contextmanager
def sampled_logits() -> Iterator[dict[int, list[Tensor]]]:
    """Rows that tokens were chosen from, by request, in the order in which requests came."""
    seen: dict[int, list[Tensor]] = {}
    owners: dict[int, list[int]] = {}
    choices_of, choose = engine_module.choices_of, engine_module.choose

    def asked(requests: list[Request], step: Step) -> list[Choice]:
        choices = choices_of(requests, step)
        pairs = zip(requests, step.samples, strict=True)
        owners[id(choices)] = [each.request_id for each, count in pairs for _ in range(count)]
        return choices

    def watched(
        output: LogitsProcessorOutput, choices: list[Choice], choosable: Choosable | None
    ) -> list[int]:
        assert output.next_token_logits is not None
        for request, row in zip(owners[id(choices)], output.next_token_logits, strict=True):
            seen.setdefault(request, []).append(row.clone())
        return choose(output, choices, choosable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "choices_of", asked)
        patch.setattr(engine_module, "choose", watched)
        yield seen


def answers(model: archzoo.Model) -> Answers:
    with sampled_logits() as rows:
        results = model.generate(PROMPTS, max_new_tokens=5, ignore_eos=True)
    return Answers(
        model.logits(PROMPTS),
        model.logits(PROMPTS, chunk_size=3),
        [result.token_ids for result in results],
        [torch.stack(rows[request]) for request in sorted(rows)],
    )


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def oracle(checkpoints: Checkpoints) -> Callable[[str], Answers]:
    """What our own single rank says, in float64."""
    made: dict[str, Answers] = {}

    def of(variant: str) -> Answers:
        if variant not in made:
            made[variant] = answers(load(checkpoints(variant)[0]))
        return made[variant]

    return of


@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_every_topology_says_what_one_rank_says(
    checkpoints: Checkpoints, oracle: Callable[[str], Answers], case: Case
) -> None:
    got = answers(load(checkpoints(case.variant)[0], **case.options))
    want = oracle(case.variant)
    close(got.prefill, want.prefill)
    close(got.chunked, want.prefill)
    assert got.tokens == want.tokens
    close(got.decoded, want.decoded)


@pytest.mark.parametrize("case", QUARTER, ids=str)
def test_a_quarter_in_float32_agrees_with_transformers(
    checkpoints: Checkpoints, case: Case
) -> None:
    path, reference = checkpoints(case.variant)
    got = answers(load(path, dtype=torch.float32, **case.options))
    want = [reference_logits(reference, ids) for ids in PROMPTS]
    close(got.prefill, want, 2e-4)
    close(got.chunked, want, 2e-4)
    texts = [[*ids, *new[:-1]] for ids, new in zip(PROMPTS, got.tokens, strict=True)]
    whole = [reference_logits(reference, text) for text in texts]
    close(got.decoded, [rows[-5:] for rows in whole], 2e-4)


def test_the_sweep_leaves_nothing_out() -> None:
    """All values that can meet do meet, on all topologies, in no more cases than there is time for."""
    assert {(case.tp, case.pp, case.attn_dp) for case in SWEEP} == set(SIZES)
    every = set().union(*(case.pairs for case in possible()))
    assert set().union(*(case.pairs for case in SWEEP)) == every
    assert len(set(map(str, SWEEP))) == len(SWEEP) <= 90
    for name in ("variant", "tp", "pp", "attn_dp", "plan", "dp_lm_head", "pp_micro_batches"):
        quarter, whole = ({getattr(case, name) for case in cases} for cases in (QUARTER, SWEEP))
        assert quarter == whole, name
