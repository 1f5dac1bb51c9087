"""Every spelling of a checkpoint's names fills every Llama-like model with the same numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import archzoo
from archzoo.context import BuildContext
from archzoo.parallel import Topology
from tiny import ids_of, reference_logits, tiny_llama

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "LlamaModel": "llama",
    "LlamaForSequenceClassification": "llama",
    "MistralForCausalLM": "mistral",
    "Phi3ForCausalLM": "phi3",
    "InternLM3ForCausalLM": "internlm3",
    "IQuestCoderForCausalLM": "iquestcoder",
}
CONFIG = {
    "vocab_size": 24, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "num_labels": 3, "head_dim": 4,
}  # fmt: skip
WRAPPERS = {
    "plain": ("model.", ""), "bare": ("", ""), "doubled": ("model.model.", "model."),
    "language_model": ("language_model.model.", "language_model."),
    "multimodal": ("model.language_model.", ""), "transformer": ("transformer.", ""),
    "peft": ("base_model.model.model.", "base_model.model."),
}  # fmt: skip


def module(architecture: str) -> archzoo.models.DecoderBase:
    config = {**CONFIG, "architectures": [architecture], "model_type": ARCHITECTURES[architecture]}
    ctx = BuildContext.of(Topology(), dtype=torch.float32, device=torch.device("cpu"))
    return archzoo.build(config, ctx)


def split_state(architecture: str) -> dict[str, Tensor]:
    """Seeded tensors under the names that Llama's authors use."""
    dice, heads = torch.Generator().manual_seed(0), 4
    kv = CONFIG["num_key_value_heads"] * heads
    layer = {
        "self_attn.q_proj": (24, 24), "self_attn.k_proj": (kv, 24), "self_attn.v_proj": (kv, 24),
        "self_attn.o_proj": (24, 24), "mlp.gate_proj": (36, 24), "mlp.up_proj": (36, 24),
        "mlp.down_proj": (24, 36), "input_layernorm": (24,), "post_attention_layernorm": (24,),
    }  # fmt: skip
    shapes = {"model.embed_tokens": (24, 24), "model.norm": (24,)}
    shapes |= {
        f"model.layers.{at}.{name}": shape for at in range(2) for name, shape in layer.items()
    }
    if architecture.endswith("CausalLM"):
        shapes["lm_head"] = (24, 24)
    if architecture.endswith("Classification"):
        shapes["score"] = (3, 24)
    return {f"{name}.weight": torch.randn(shape, generator=dice) for name, shape in shapes.items()}


def fused(state: dict[str, Tensor], layers: range = range(2)) -> dict[str, Tensor]:
    """q, k, v and gate, up of some layers as one tensor each."""
    out = dict(state)
    for at in layers:
        for part, pieces in (
            ("self_attn.qkv_proj", ("q", "k", "v")),
            ("mlp.gate_up_proj", ("gate", "up")),
        ):
            where = f"model.layers.{at}.{part.split('.')[0]}"
            rows = [out.pop(f"{where}.{piece}_proj.weight") for piece in pieces]
            out[f"model.layers.{at}.{part}.weight"] = torch.cat(rows)
    return out


def wrapped(state: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    body, head = WRAPPERS[kind]
    return {
        body + name.removeprefix("model.") if name.startswith("model.") else head + name: value
        for name, value in state.items()
    }


def filled(architecture: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    model = module(architecture)
    report = model.load_weights(state)
    assert set(report.loaded) == state.keys() and not report.skipped
    for owner in model.modules():  # plain weights again where they were packed
        if (method := getattr(owner, "quant_method", None)) is not None:
            method.restore_weights_before_loading(owner)
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("form", ["fused", "one layer fused"])
def test_split_and_fused_fill_the_same_parameters(architecture, form):
    state = split_state(architecture)
    want = filled(architecture, state)
    found = filled(architecture, fused(state, range(2) if form == "fused" else range(1, 2)))
    assert want.keys() == found.keys()
    assert all(torch.equal(want[name], found[name]) for name in want)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_fill_the_same_parameters(architecture, kind):
    state = split_state(architecture)
    want, found = filled(architecture, state), filled(architecture, wrapped(state, kind))
    assert all(torch.equal(want[name], found[name]) for name in want)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapped_checkpoint_with_what_its_trainer_left_equals_transformers(kind, tmp_path: Path):
    path, reference = tiny_llama(tmp_path)
    state = wrapped(load_file(path / "model.safetensors"), kind)
    body, _ = WRAPPERS[kind]
    at = f"{body}layers.1.self_attn"
    state[f"{at}.rotary_emb.inv_freq"] = torch.ones(4)
    state[f"{at}.k_proj.k_scale"] = torch.tensor(0.5)
    state["vision_tower.blocks.0.attn.q_proj.weight"] = torch.ones(2, 2)
    save_file(state, path / "model.safetensors")
    ids = ids_of(9)
    for tp in (1, 3):
        model = archzoo.load(path, tp=tp, dtype=torch.float32)
        torch.testing.assert_close(
            model.logits(ids), reference_logits(reference, ids), atol=2e-4, rtol=0
        )
        assert sorted(model.report.skipped) == [
            "KV-cache scale", "rotary inv_freq", "vision: vision_tower",
        ]  # fmt: skip


def test_a_wrapped_head_that_differs_from_its_tie_is_used_with_a_warning(tmp_path: Path):
    """As for plain names: a config that says tied beside another head contradicts itself."""
    path, reference = tiny_llama(tmp_path, tie_word_embeddings=False)
    state = wrapped(load_file(path / "model.safetensors"), "language_model")
    save_file(state, path / "model.safetensors")
    config = (path / "config.json").read_text().replace(
        '"tie_word_embeddings": false', '"tie_word_embeddings": true'
    )  # fmt: skip
    (path / "config.json").write_text(config)
    ids = ids_of(5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = archzoo.load(path, dtype=torch.float32)
    assert any("language_model.lm_head.weight differs" in str(each.message) for each in caught)
    torch.testing.assert_close(
        model.logits(ids), reference_logits(reference, ids), atol=2e-4, rtol=0
    )
