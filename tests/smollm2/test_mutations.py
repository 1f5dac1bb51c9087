"""SmolLM2-135M with tensors in places that are not theirs: a recording of the sound model tells."""

from __future__ import annotations

import pytest
import torch
from demo.run import demo_weights
from same_shape import Mutation, Tensors, every_mutation

import archzoo
from archzoo.cli.comparison import TOLERANCES, compare
from archzoo.cli.recording import Recording, read_recording
from archzoo.cli.trace import our_trace
from archzoo.errors import CoverageError

LAYERS = (0, 14, 29)
"""First, middle and last: swaps across a layer go to the next of them."""


@pytest.fixture(scope="module")
def model() -> archzoo.Model:
    return archzoo.load(demo_weights(), dtype=torch.float32, tp=3, kv_slots=16)


@pytest.fixture(scope="module")
def sound(model: archzoo.Model) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.export_weights()}


@pytest.fixture(scope="module")
def recorded(model: archzoo.Model, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    ids = tuple(model.tokenizer.encode("Once upon a time there was a"))
    file = tmp_path_factory.mktemp("recording") / "smollm2.safetensors"
    Recording(ids, our_trace(model, ids), "the sound model", {}).write(file)
    assert file.stat().st_size < 5 << 20
    return read_recording(file)


def chosen(sound: Tensors) -> list[Mutation]:
    """One of each kind: every pair of parts, each at its own layer or across two."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "input_layernorm")
    far = [tuple(f"model.layers.{at}.{name}.weight" for at in LAYERS[:2]) for name in names]
    near = [
        (f"model.layers.{at}.{one}.weight", f"model.layers.{at}.{two}.weight")
        for at, one, two in (
            (14, "self_attn.k_proj", "self_attn.v_proj"),
            (29, "mlp.gate_proj", "mlp.up_proj"),
            (29, "input_layernorm", "post_attention_layernorm"),
            (14, "self_attn.q_proj", "self_attn.o_proj"),
        )
    ]
    norms = ("model.layers.29.input_layernorm.weight", "model.norm.weight")
    swaps = [Mutation("swapped", names) for names in (*far, *near, norms)]
    turned = [
        Mutation("transposed", (f"model.layers.{at}.self_attn.{name}.weight",))
        for at, name in ((0, "q_proj"), (29, "q_proj"), (14, "o_proj"))
    ]
    return [*swaps, *turned]


def test_each_kind_of_mutation_departs_at_its_stage(
    model: archzoo.Model, sound: Tensors, recorded: Recording
) -> None:
    possible = set(every_mutation(sound))
    for mutation in chosen(sound):
        assert mutation in possible, "the sizes would have told"
        mutated = mutation.of(sound)
        pairs = [(name, mutated[name]) for name in mutation.names]
        model.update_weights(pairs, allow_partial_stacks=True)
        found = compare(our_trace(model, recorded.ids), recorded.trace, TOLERANCES[torch.float32])
        assert found.first_departure is not None, mutation
        assert found.first_departure.stage == mutation.stage, mutation
        model.update_weights(
            [(name, sound[name]) for name in mutation.names], allow_partial_stacks=True
        )
    found = compare(our_trace(model, recorded.ids), recorded.trace, TOLERANCES[torch.float32])
    assert found.first_departure is None


@pytest.mark.parametrize(("bad", "status"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.14.mlp.up_proj.weight"]
)
def test_one_bad_value_is_named(
    model: archzoo.Model, sound: Tensors, name: str, bad: float, status: str
) -> None:
    spoilt = sound[name].clone()
    spoilt[-1, -1] = bad
    with pytest.raises(CoverageError) as caught:
        model.update_weights(
            [(name, spoilt)], atomic=True, allow_partial_stacks=True, check_values=True
        )
    assert [(fault.name, fault.status) for fault in caught.value.report.value] == [(name, status)]
