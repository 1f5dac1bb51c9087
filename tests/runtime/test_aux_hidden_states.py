"""Hidden states that ride along: those of one rank on every topology, and of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.pipelines import LAYERS, PROMPTS, Checkpoints, close, load
from runtime.topologies import BYTES_ONLY
from torch import Tensor

import archzoo
from archzoo.errors import BoundaryError
from archzoo.layers import LogitsProcessorOutput
from archzoo.models import states_for_draft
from archzoo.runtime.engine import Engine
from archzoo.runtime.runner import Wanted
from archzoo.runtime.step import Step

ASKED = (4, 0, LAYERS, 3)
"""Not in order; the first, the last, and two that are neighbours."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))("several")


@pytest.fixture(scope="module")
def one(checkpoint: tuple[Path, Any]) -> list[list[Tensor]]:
    """By prompt, the states of one rank in float64."""
    return states(load(checkpoint[0]), ASKED)


def ask(model: archzoo.Model, indices: Sequence[int]) -> archzoo.Model:
    model.set_aux_layers(indices)
    return model


def states(
    model: archzoo.Model, indices: Sequence[int], chunk: int | None = None
) -> list[list[Tensor]]:
    """For every prompt its rows of each state, chunks put together."""
    pieces: list[list[list[Tensor]]] = [[[] for _ in indices] for _ in PROMPTS]
    plain = Engine._run

    def run(
        engine: Engine, steps: Sequence[Step], wanted: Sequence[Wanted]
    ) -> list[LogitsProcessorOutput | None]:
        outputs = plain(engine, steps, wanted)
        for group, step in enumerate(steps):
            found = same_on_all([outputs[rank] for rank in of_group(model, group)])
            assert len(found) == len(indices)
            for number, state in enumerate(found):
                assert len(state) == len(step.input_ids), "padded rows are given"
                for prompt, part in zip(
                    step.request_ids, state.split(step.extend_lens), strict=True
                ):
                    pieces[prompt][number].append(part)
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_run", run)
        ask(model, indices).logits(PROMPTS, chunk_size=chunk)
    return [[torch.cat(kept) for kept in prompt] for prompt in pieces]


def same_on_all(outputs: list[LogitsProcessorOutput | None]) -> tuple[Tensor, ...]:
    """The states that all ranks of an attention group give."""
    found = [output.aux_hidden_states for output in outputs if output is not None]
    assert len(found) == len(outputs)
    for each in found:
        assert all(map(torch.equal, each, found[0])), "ranks of a group hold different rows"
    return found[0]


def of_group(model: archzoo.Model, group: int) -> range:
    """Ranks of an attention group in the last pipeline stage."""
    first = model.engine.executor.result_rank(group)
    return range(first, first + model.engine.executor.topology.attn_tp)


def test_one_rank_gives_what_transformers_gives(checkpoint: tuple[Path, Any]) -> None:
    """0 is the embedding, i what layer i - 1 gives, the last one before the final norm."""
    path, reference = checkpoint
    seen: list[Tensor] = []
    places = [reference.model.embed_tokens, *reference.model.layers]
    hooks = [
        place.register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out).view(-1, 32))
        )
        for place in places
    ]
    every = tuple(range(LAYERS + 1))
    found = states(load(path, dtype=torch.float32), every)
    for ids, got in zip(PROMPTS, found, strict=True):
        seen.clear()
        with torch.no_grad():
            reference(torch.tensor([ids]))
        close(got, seen, 2e-4)
    for hook in hooks:
        hook.remove()


TOPOLOGIES: dict[str, dict[str, Any]] = {
    "tp4-naive": {"tp": 4, "plan": "naive"},
    "tp8-sliced": {"tp": 8, "costs": BYTES_ONLY},
    "pp5": {"pp": 5},
    "pp3-cut": {"pp": 3, "pp_layers": (1, 5, 1), "pp_micro_batches": 4},
    "tp2-pp2-sliced": {"tp": 2, "pp": 2, "costs": BYTES_ONLY, "pp_micro_batches": 2},
    "tp4-dp2": {"tp": 4, "attn_dp": 2},
    "tp4-dp4-naive": {"tp": 4, "attn_dp": 4, "plan": "naive"},
    "tp8-dp2-sliced": {"tp": 8, "attn_dp": 2, "dp_lm_head": True, "costs": BYTES_ONLY},
    "tp4-dp2-pp3-sliced": {"tp": 4, "attn_dp": 2, "pp": 3, "costs": BYTES_ONLY}
    | {"pp_micro_batches": 3},
    "tp4-dp4-pp2": {"tp": 4, "attn_dp": 4, "pp": 2, "dp_lm_head": True},
}


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_gives_the_states_of_one_rank(
    checkpoint: tuple[Path, Any],
    one: list[list[Tensor]],
    topology: str,
    chunk: int | None,
) -> None:
    model = load(checkpoint[0], **TOPOLOGIES[topology])
    found = states(model, ASKED, chunk)
    given = model.forward(PROMPTS, chunk_size=chunk)
    for got, told, want in zip(found, given, one, strict=True):
        close(got, want)
        close(list(told.aux_hidden_states), got, 0)
    close([each.logits for each in given], model.logits(PROMPTS, chunk_size=chunk), 0)


def test_states_come_in_the_order_asked_for(checkpoint: tuple[Path, Any]) -> None:
    model = load(checkpoint[0], pp=3)
    for forth, back in zip(states(model, (6, 1, 4)), states(model, (4, 1, 6)), strict=True):
        close(forth, back[::-1])
        assert not torch.equal(forth[0], back[0])


def test_asking_changes_no_answer(checkpoint: tuple[Path, Any]) -> None:
    """Neither logits nor vectors nor tokens."""
    plain, asked = (load(checkpoint[0], tp=4, attn_dp=2, pp=2) for _ in range(2))
    ask(asked, ASKED)
    close(asked.logits(PROMPTS), plain.logits(PROMPTS))
    close([asked.embed(PROMPTS)], [plain.embed(PROMPTS)])
    got, want = (model.generate(PROMPTS, 4, ignore_eos=True) for model in (asked, plain))
    assert [each.token_ids for each in got] == [each.token_ids for each in want]


@pytest.mark.parametrize(
    "indices",
    [[-1], [LAYERS + 1], [0, 2, 0], [3, 3], [True], [1.0], ["1"], [None], [0, LAYERS + 2]],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"pp": 3}], ids=str)
def test_indices_that_name_nothing_are_refused_and_change_nothing(
    checkpoint: tuple[Path, Any],
    one: list[list[Tensor]],
    options: dict[str, Any],
    indices: Any,
) -> None:
    model = ask(load(checkpoint[0], **options), ASKED)
    for ask_it in (model, *(runner.module for runner in model.engine.runners)):
        with pytest.raises(BoundaryError, match=r"give each once|indices are 0 .* to 7"):
            ask_it.set_aux_layers(indices)
    last = model.engine.executor.result_rank()
    close(list(aux_of(model, last)), one[1])


def test_none_are_given_again(checkpoint: tuple[Path, Any]) -> None:
    model = ask(ask(load(checkpoint[0], pp=2), ASKED), ())
    assert aux_of(model, 1) == ()
    assert states(model, (2,))[0][0].shape == (len(PROMPTS[0]), 32)


def aux_of(model: archzoo.Model, rank: int) -> tuple[Tensor, ...]:
    """States of the second prompt, one token, on a rank."""
    with model.engine.scoring([PROMPTS[1]], [0]) as scoring:
        step = scoring._step([0], 0, 1)
        output = model.engine._run([step], [Wanted()])[rank]
    assert output is not None
    return output.aux_hidden_states


def test_a_prompt_alone_one_of_no_tokens_and_no_states(checkpoint: tuple[Path, Any]) -> None:
    model = load(checkpoint[0], tp=2, pp=2)
    assert model.forward(PROMPTS[0]).aux_hidden_states == ()
    ask(model, (2, 0))
    alone, empty = model.forward(PROMPTS[0]), model.forward([])
    batch = model.forward([[], PROMPTS[0], []])
    close(list(alone.aux_hidden_states), list(batch[1].aux_hidden_states))
    for none in (empty, batch[0], batch[2]):
        assert none.logits.shape == (0, 131)
        assert [each.shape for each in none.aux_hidden_states] == [(0, 32)] * 2
        assert none.aux_hidden_states[0].dtype is alone.aux_hidden_states[0].dtype
    assert not alone.aux_hidden_states[0].is_inference()


@pytest.mark.parametrize("of", ["model", "module"])
@pytest.mark.parametrize("call", ["set_eagle3_layers_to_capture", "set_dflash_layers_to_capture"])
def test_the_fields_counting(checkpoint: tuple[Path, Any], call: str, of: str) -> None:
    """Defaults are states already, explicit ids are layers; both in layer order."""
    model = load(checkpoint[0])
    ask_it = getattr(model if of == "model" else model.module, call)
    ask_it()
    assert model.module.aux_layers == (2, 3, 4)
    ask_it([6, 0, 3])
    assert model.module.aux_layers == (1, 4, 7)
    for ids in ([7], [-1], [0, 0], [True], [1.0], ["1"]):
        with pytest.raises(BoundaryError, match="outputs of layers 0 to 6|give each once"):
            ask_it(ids)
    assert model.module.aux_layers == (1, 4, 7)


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 6])
def test_small_models_have_no_default_states(layers: int) -> None:
    with pytest.raises(BoundaryError, match=f"a model of {layers} layers has no default states"):
        states_for_draft(None, layers)
