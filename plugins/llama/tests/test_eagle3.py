"""EAGLE-3 heads against the formulas in plain torch, and heads that are refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3 import SIZES, Reference, save, weights
from runtime.drafts import PROMPTS, proposals, tokens
from torch import Tensor

import archzoo
from archzoo.errors import (
    BoundaryError,
    ConfigError,
    CoverageError,
    InputError,
    ShapeError,
    SpoiltWeightsError,
    WeightError,
)
from archzoo.forward import ForwardMode
from archzoo.runtime.runner import Wanted
from archzoo.runtime.step import Step
from archzoo_llama.eagle3 import LlamaForCausalLMEagle3
from tiny import ids_of, tiny_llama

WIDE = {"target_hidden_size": 60}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> archzoo.Model:
    path, _ = tiny_llama(tmp_path_factory.mktemp("target"))
    return archzoo.load(path, dtype="float64")


def head(path: Path, options: dict[str, Any] | None = None, **changes: Any) -> archzoo.Model:
    """A head in float64; changes to its configuration."""
    config = SIZES | changes
    return archzoo.load(
        save(path, config, weights(config)), **({"dtype": "float64"} | (options or {}))
    )


def outputs(draft: archzoo.Model, ids: list[int], beside: Tensor, chunk: int) -> list[Tensor]:
    """Logits and own states of rows ids, in chunks; of the first rank of the last stage."""
    draft.engine.set_aux_layers((1,))
    found: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        step = Step(ForwardMode.DRAFT_EXTEND, [0], [0], [start], [len(part)], [99] * len(part))
        step.input_ids, step.new_slots = part, list(range(start, start + len(part)))
        step.beside = beside[start : start + chunk]
        output = draft.engine._run([step], [Wanted()])[0]
        assert output is not None and output.next_token_logits is not None
        found.append((output.next_token_logits, *output.aux_hidden_states))
    return [torch.cat(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("options", [{}, {"tp": 3}, {"tp": 6}], ids=str)
@pytest.mark.parametrize(
    "changes",
    [{}, WIDE, {"draft_vocab_size": 130}, {"draft_vocab_size": 1}, {"head_dim": 10}],
    ids=str,
)
def test_logits_and_states_are_those_of_the_formulas(
    tmp_path: Path, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    draft, config = head(tmp_path, options | {"dtype": "float64"}, **changes), SIZES | changes
    reference = Reference(config, weights(config))
    generator = torch.Generator().manual_seed(3)
    width = config.get("target_hidden_size", 48)
    states = [torch.randn(11, width, generator=generator, dtype=torch.float64) for _ in range(3)]
    own = torch.randn(11, 48, generator=generator, dtype=torch.float64)
    ids = ids_of(11)
    for beside, hidden in ((torch.cat(states, -1), reference.fuse(states)), (own, own)):
        want = reference(ids, hidden)
        for chunk in (11, 4, 1):
            for got, wanted in zip(outputs(draft, ids, beside, chunk), want, strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({}, (0, 1, 2)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 0, 1]}}, (1, 2, 3)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (0, 1, 2)),
        ({"norm_output": True}, (0, 1, 2)),
    ],
    ids=str,
)
def test_proposals_follow_from_the_targets_states(
    tmp_path: Path, target: archzoo.Model, changes: dict[str, Any], states: tuple[int, ...]
) -> None:
    """Through prefill, acceptance and rejection: always what the formulas give from the start."""
    told = pytest.warns(UserWarning, match="norm_output=true: .*no tensor can confirm")
    with told if "norm_output" in changes else nullcontext():
        draft = head(tmp_path, **changes)
    reference = Reference(SIZES | changes, weights(SIZES))
    plain = tokens(target.generate(PROMPTS, 12, ignore_eos=True))
    target.set_aux_layers(())
    with proposals() as seen:
        drafted = target.generate(PROMPTS, 12, ignore_eos=True, draft=draft, draft_tokens=3)
    assert tokens(drafted) == plain and target.module.aux_layers == states
    for stood, proposed in seen[::4]:
        found = target.forward(stood[:-1]).aux_hidden_states
        assert reference.chain(stood, list(found), len(proposed)) == proposed
    target.set_aux_layers(())


def test_an_embedding_is_lent(tmp_path: Path, target: archzoo.Model) -> None:
    tensors = weights(SIZES, embedding=False)
    path = save(tmp_path, SIZES, tensors)
    draft = archzoo.load(path, target=target, dtype="float64", tp=3)
    assert any("copy of the target's embedding" in note for note in draft.report.notes)
    lent = dict(draft.export_weights())
    assert set(lent) == {*tensors, "embed_tokens.weight"}
    embedding = dict(target.export_weights())["model.embed_tokens.weight"]
    torch.testing.assert_close(lent["embed_tokens.weight"], embedding, rtol=0, atol=0)
    reference = Reference(SIZES, tensors, embedding)
    with proposals() as seen:
        target.generate(PROMPTS, 6, ignore_eos=True, draft=draft, draft_tokens=2)
    for stood, proposed in seen[::5]:
        states = target.forward(stood[:-1]).aux_hidden_states
        assert reference.chain(stood, list(states), len(proposed)) == proposed
    target.set_aux_layers(())


def test_an_embedding_that_nobody_lends_is_missed_by_name(
    tmp_path: Path, target: archzoo.Model
) -> None:
    path = save(tmp_path / "lent", SIZES, weights(SIZES, embedding=False))
    with pytest.raises(InputError, match=r"stores no embed_tokens.weight.*target=model"):
        archzoo.load(path)
    other, _ = tiny_llama(tmp_path / "other", hidden_size=36)
    with pytest.raises(ShapeError, match="embedding is 130 x 36, this draft needs 130 x 48"):
        archzoo.load(path, target=archzoo.load(other))


def test_a_head_of_the_whole_vocabulary_may_leave_its_maps_out(tmp_path: Path) -> None:
    config = {name: size for name, size in SIZES.items() if name != "draft_vocab_size"}
    tensors = weights(config)
    whole = archzoo.load(save(tmp_path / "with", config, tensors), dtype="float64")
    del tensors["d2t"], tensors["t2d"]
    without = archzoo.load(save(tmp_path / "without", config, tensors), dtype="float64")
    beside = torch.randn(5, 48, dtype=torch.float64)
    for one, two in zip(*(outputs(m, ids_of(5), beside, 5) for m in (whole, without)), strict=True):
        assert torch.equal(one, two)
    assert {"d2t", "t2d"}.isdisjoint(dict(without.export_weights()))


def hostile(name: str, tensors: dict[str, Tensor]) -> None:
    """Damage a head's maps."""
    d2t, t2d = tensors["d2t"], tensors["t2d"]
    match name:
        case "past the end":
            d2t[69] = 61
        case "before the start":
            d2t[3] = -4
        case "overflowing":
            d2t[1] = 2**63 - 1
        case "twice":
            d2t[5] = d2t[6] + 1
        case "t2d of another head":
            t2d[:] = t2d.flip(0)
        case "t2d knows too much":
            t2d[~t2d] = True
        case "t2d knows nothing":
            t2d[:] = False


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("past the end", r"d2t\[69\] = 61 makes draft token 69 the target's token 130, outside"),
        ("before the start", r"d2t\[3\] = -4 makes draft token 3 the target's token -1, outside"),
        ("overflowing", r"d2t\[1\] = .* outside 0…129"),
        ("twice", r"d2t makes draft tokens \[5, 6\] all the target's token"),
        ("t2d of another head", r"t2d says that the draft (knows|does not know) token"),
        ("t2d knows too much", r"t2d says that the draft knows token"),
        ("t2d knows nothing", r"t2d says that the draft does not know token"),
    ],
)
def test_hostile_maps_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    tensors = weights(SIZES)
    hostile(name, tensors)
    with pytest.raises(WeightError, match=problem):
        archzoo.load(save(tmp_path, SIZES, tensors))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"d2t": None}, "expected d2t"),
        ({"t2d": None}, "expected t2d"),
        ({"d2t": torch.zeros(70)}, "float32 is stored, the parameter is int64"),
        ({"d2t": torch.zeros(70, dtype=torch.int32)}, "int32 is stored, the parameter is int64"),
        ({"t2d": torch.zeros(130, dtype=torch.uint8)}, "uint8 is stored, the parameter is bool"),
        ({"d2t": torch.zeros(71, dtype=torch.int64)}, r"\[71\].*\[70\]"),
        ({"t2d": torch.ones(131, dtype=torch.bool)}, r"\[131\].*\[130\]"),
        ({"fc.weight": torch.ones(48, 144, dtype=torch.int64)}, "int64 is stored"),
        ({"fc.weight": torch.ones(48, 96)}, r"\[48, 96\].*\[48, 144\]"),
        ({"midlayer.hidden_norm.weight": None}, "expected midlayer.hidden_norm.weight"),
        ({"midlayer.self_attn.k_proj.weight": torch.ones(24, 48)}, r"\[24, 48\].*\[24, 96\]"),
        ({"layers.1.mlp.up_proj.weight": torch.ones(72, 48)}, "layers.1.mlp.up_proj.weight"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, Tensor | None], problem: str
) -> None:
    changed = {**weights(SIZES), **change}
    tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
    with pytest.raises(CoverageError, match=problem):
        archzoo.load(save(tmp_path, SIZES, tensors))


def test_an_update_with_a_hostile_map_spoils_the_head(
    tmp_path: Path, target: archzoo.Model
) -> None:
    draft = head(tmp_path)
    sound, broken = weights(SIZES), weights(SIZES)
    hostile("twice", broken)
    with pytest.raises(WeightError, match="draft tokens"):
        draft.update_weights([("d2t", broken["d2t"])], atomic=True)
    target.generate([5], 3, draft=draft)  # as it was
    with pytest.raises(WeightError, match="draft tokens"):
        draft.update_weights([("d2t", broken["d2t"])])
    with pytest.raises(SpoiltWeightsError):
        target.generate([5], 3, draft=draft)
    draft.update_weights(sound.items(), mode="full")
    target.generate([5], 3, draft=draft)
    target.set_aux_layers(())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers: 2 layers; an EAGLE-3 head has 1"),
        ({"draft_vocab_size": 131}, "131 tokens to propose of a vocabulary of 130"),
        ({"draft_vocab_size": 0}, "draft_vocab_size: 0 is out of range"),
        ({"draft_vocab_size": "70"}, "draft_vocab_size: '70' is not an integer"),
        ({"tie_word_embeddings": True}, "the head has 70 rows and the embedding 130"),
        ({"target_hidden_size": 16}, "look alike"),
        ({"norm_output": 1}, "norm_output: 1 is neither true nor false"),
        ({"norm_before_residual": True}, "norm_before_residual: True is not known to eagle3"),
        ({"fc_norm": True}, "fc_norm: True is not known to eagle3"),
        ({"parallel_drafting": True}, "parallel_drafting: True is not known to eagle3"),
        ({"eagle_config": [1, 2, 3]}, "eagle_config: .* is not an object"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            "eagle_config.use_aux_hidden_state: false",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
            "is not a list of 3 layer ids",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, -1]}},
            "layer_ids: -1 is out of range",
        ),
    ],
    ids=str,
)
def test_configurations_of_no_such_head_are_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    tensors = weights(SIZES)
    del tensors["lm_head.weight"]  # a tied head is not stored
    path = save(tmp_path, SIZES | changes, tensors)
    with pytest.raises(ConfigError, match=problem):
        archzoo.load(path)


def test_targets_of_another_shape_are_refused(tmp_path: Path, target: archzoo.Model) -> None:
    with pytest.raises(InputError, match="hidden states of 60 features, its target has 48"):
        target.generate([5], 3, draft=head(tmp_path / "wide", **WIDE))
    with pytest.raises(InputError, match="vocabulary of 140 tokens, its target one of 130"):
        target.generate([5], 3, draft=head(tmp_path / "vocab", vocab_size=140))
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
    with pytest.raises(BoundaryError, match="layer id 3: a draft reads outputs of layers 0 to 2"):
        target.generate([5], 3, draft=head(tmp_path / "ids", **ids))
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}}
    with pytest.raises(BoundaryError, match="name one twice"):
        target.generate([5], 3, draft=head(tmp_path / "twice", **ids))
    assert target.module.aux_layers == ()


@pytest.mark.parametrize("call", ["logits", "generate", "embed", "classify", "logprobs", "forward"])
def test_a_head_answers_nothing_alone(tmp_path: Path, call: str) -> None:
    draft = head(tmp_path)
    assert type(draft.module) is LlamaForCausalLMEagle3
    with pytest.raises(InputError, match=r"a draft model; pass it to generate\(draft=…\)"):
        getattr(draft, call)([5, 6])


def test_a_forward_without_states_is_refused(tmp_path: Path) -> None:
    draft = head(tmp_path)
    step = Step(ForwardMode.EXTEND, [0], [0], [0], [1], [1], [1], [5], [0])
    with pytest.raises(InputError, match="the batch brings none"):
        draft.engine._run([step], [Wanted()])
