"""Phi-3, InternLM3 and IQuest-Coder against transformers; Llama with mapped weights where it lacks
the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, PreTrainedModel
from transformers import Phi3ForCausalLM as ReferencePhi3

import archzoo
from archzoo.config import ConfigAdapter, ModelConfig
from archzoo.errors import ConfigError, CoverageError, ShapeError
from archzoo_llama.adapters import INTERNLM3, IQUESTCODER, LLAMA, MISTRAL, PHI3
from archzoo_llama.model import InternLM3ForCausalLM, IQuestCoderForCausalLM, Phi3ForCausalLM
from tiny import SIZES, ids_of, randomise, reference_logits, save

ATOL = 2e-4
WIDE = {"hidden_size": 96}
"""Heads of 16 features instead of 8, so that a part of them can be rotated."""


def longrope(features: int, **more: Any) -> dict[str, Any]:
    """A block whose two tables turn every pair of features differently."""
    short = [1.0 + 0.1 * n for n in range(features // 2)]
    long = [1.5 * (n + 1) for n in range(features // 2)]
    return {"short_factor": short, "long_factor": long, **more}


def new_longrope(features: int, **more: Any) -> dict[str, Any]:
    return longrope(features, rope_type="longrope", rope_theta=10000.0, **more)


PHI3_VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "window": {"sliding_window": 5},
    "partial": {**WIDE, "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
    "longrope": {"original_max_position_embeddings": 16, "rope_parameters": new_longrope(8)},
    "partial-longrope": {
        **WIDE,
        "original_max_position_embeddings": 16,
        "rope_parameters": new_longrope(12, partial_rotary_factor=0.75),
    },
}


@pytest.fixture(scope="module", params=list(PHI3_VARIANTS))
def phi3(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ReferencePhi3]:
    model = ReferencePhi3(Phi3Config(**{**SIZES, **PHI3_VARIANTS[request.param]})).eval()
    randomise(model, seed=len(request.param))
    return save(model, tmp_path_factory.mktemp(request.param)), model


def assert_logits(model: archzoo.Model, reference: PreTrainedModel, counts: list[int]) -> None:
    """Alone, together and in chunks."""
    prompts = [ids_of(count) for count in counts]
    want = [reference_logits(reference, ids) for ids in prompts]
    for ids, each in zip(prompts, want, strict=True):
        torch.testing.assert_close(model.logits(ids), each, rtol=0, atol=ATOL)
        torch.testing.assert_close(model.logits(ids, chunk_size=7), each, rtol=0, atol=ATOL)
    for got, each in zip(model.logits(prompts), want, strict=True):
        torch.testing.assert_close(got, each, rtol=0, atol=ATOL)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_phi3_equals_transformers(phi3: tuple[Path, ReferencePhi3], tp: int) -> None:
    """Prompts below, at, right above and far above the original length of the longrope variants."""
    path, reference = phi3
    kv = reference.config.num_key_value_heads
    if kv % tp and tp % kv:
        with pytest.raises(ShapeError, match=f"tp={tp}"):
            archzoo.load(path, dtype=torch.float32, tp=tp)
        return
    model = archzoo.load(path, dtype=torch.float32, tp=tp)
    assert type(model.module) is Phi3ForCausalLM
    assert_logits(model, reference, [7, 16, 17, 40, 1] if tp == 1 else [7, 40])


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_old_spellings_of_longrope_are_longrope(kind: str, tmp_path: Path) -> None:
    """The block of the first checkpoints, with the original length at the top level."""
    changes = {"original_max_position_embeddings": 16, "rope_parameters": new_longrope(8)}
    reference = ReferencePhi3(Phi3Config(**{**SIZES, **changes})).eval()
    randomise(reference)
    save(reference, tmp_path)
    edit(tmp_path, drop=("rope_parameters",), rope_scaling=longrope(8, type=kind))
    assert_logits(archzoo.load(tmp_path, dtype=torch.float32), reference, [7, 40])


def test_gate_comes_first_in_the_fused_tensor_at_every_tp(tmp_path: Path) -> None:
    """Halves of very different size: swapped, or cut across the seam, they give other numbers."""
    reference = ReferencePhi3(Phi3Config(**{**SIZES, "num_key_value_heads": 6})).eval()
    randomise(reference)
    width = SIZES["intermediate_size"]
    with torch.no_grad():
        for layer in reference.model.layers:
            layer.mlp.gate_up_proj.weight[:width] *= 0.01
            layer.mlp.gate_up_proj.weight[width:] *= 3
    save(reference, tmp_path)
    for tp in (1, 2, 3, 6):
        model = archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
        assert_logits(model, reference, [5])


def test_a_fused_tensor_of_another_width_is_refused(tmp_path: Path) -> None:
    save(ReferencePhi3(Phi3Config(**SIZES)), tmp_path)
    edit(tmp_path, num_key_value_heads=6)
    with pytest.raises(CoverageError, match="qkv_proj"):
        archzoo.load(tmp_path, dtype=torch.float32)


PHI3_RAW = {
    **SIZES,
    "architectures": ["Phi3ForCausalLM"],
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attention_dropout": 0.1,
    "attention_bias": True,
}


def test_phi3_ignores_dropout_and_bias_fields_by_named_rules() -> None:
    config = ModelConfig.from_dict(PHI3_RAW, PHI3)
    for field in ("resid_pdrop", "embd_pdrop", "attention_dropout"):
        assert config.ledger.ignored[field] == "training only"
    assert config.ledger.ignored["attention_bias"] == "phi3 has no biases"
    assert (config.attention_bias, config.o_proj_bias, config.mlp_bias) == (False,) * 3
    assert config.ledger.unknown == ()


# --------------------------------------------------------------------------------- InternLM3


def edit(path: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    file = path / "config.json"
    raw = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in raw.items() if key not in drop}))


def internlm3_twin(path: Path, qkv_bias: bool, bias: bool, **changes: Any) -> LlamaForCausalLM:
    """Llama with every bias, those that InternLM3 lacks zero there and not in the checkpoint."""
    config = LlamaConfig(**{**SIZES, **changes}, attention_bias=True, mlp_bias=True)
    twin = LlamaForCausalLM(config).eval()
    randomise(twin)
    stored = {}
    for name, parameter in twin.named_parameters():
        of_qkv = any(part in name for part in ("q_proj", "k_proj", "v_proj"))
        if name.endswith(".bias") and not (qkv_bias if of_qkv else bias):
            parameter.data.zero_()
        else:
            stored[name] = parameter.data
    path.mkdir(exist_ok=True)
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    raw = {**config.to_dict(), "architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3"}
    (path / "config.json").write_text(json.dumps(raw))
    edit(path, ("attention_bias", "mlp_bias"), qkv_bias=qkv_bias, bias=bias)
    return twin


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_internlm3_equals_llama_with_mapped_weights(
    qkv_bias: bool, bias: bool, tp: int, tmp_path: Path
) -> None:
    twin = internlm3_twin(tmp_path, qkv_bias, bias, head_dim=16)
    model = archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
    assert type(model.module) is InternLM3ForCausalLM
    assert_logits(model, twin, [9, 1])


def test_internlm3_extends_its_context_dynamically(tmp_path: Path) -> None:
    block = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}
    changes = {"max_position_embeddings": 32, "rope_parameters": block}
    twin = internlm3_twin(tmp_path, True, False, **changes)
    model = archzoo.load(tmp_path, dtype=torch.float32)
    assert_logits(model, twin, [12, 32, 33, 70])


def test_internlm3_reads_what_transformers_saves(tmp_path: Path) -> None:
    """Llama's names of the switches; a bias that no switch announces is refused."""
    twin = internlm3_twin(tmp_path, True, True)
    edit(tmp_path, ("qkv_bias", "bias"), attention_bias=True, mlp_bias=True)
    assert_logits(archzoo.load(tmp_path, dtype=torch.float32), twin, [6])
    edit(tmp_path, attention_bias=False)
    with pytest.raises(CoverageError, match=r"q_proj\.bias"):
        archzoo.load(tmp_path, dtype=torch.float32)


# ------------------------------------------------------------------------------ IQuest-Coder


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_iquestcoder_equals_llama(tp: int, tmp_path: Path) -> None:
    reference = LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=16)).eval()
    randomise(reference)
    save(reference, tmp_path)
    edit(
        tmp_path,
        architectures=["IQuestCoderForCausalLM"],
        model_type="iquestcoder",
        clip_qkv=None,
        use_sliding_window=False,
        sliding_window=4,
        max_window_layers=0,
    )
    if SIZES["num_key_value_heads"] % tp:
        with pytest.raises(ShapeError, match=f"tp={tp}"):
            archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
        return
    model = archzoo.load(tmp_path, dtype=torch.float32, tp=tp)
    assert type(model.module) is IQuestCoderForCausalLM
    assert_logits(model, reference, [9])


@pytest.mark.parametrize(("field", "value"), [("clip_qkv", 8.0), ("use_sliding_window", True)])
def test_iquestcoder_refuses_what_its_reference_refuses(field: str, value: Any) -> None:
    raw = {**SIZES, "architectures": ["IQuestCoderForCausalLM"], field: value}
    with pytest.raises(ConfigError, match=f"{field}: .*iquestcoder"):
        ModelConfig.from_dict(raw, IQUESTCODER)


# ---------------------------------------------------------------------------------- defaults

FAMILIES = {
    "LlamaConfig": LLAMA,
    "MistralConfig": MISTRAL,
    "Phi3Config": PHI3,
    "InternLM3Config": INTERNLM3,
    "IQuestCoderConfig": IQUESTCODER,
}
KNOWN = [name for name in FAMILIES if hasattr(transformers, name)]
"""Families that the installed transformers has a config class for."""
REQUIRED = {
    "vocab_size": 40000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def test_the_installed_transformers_knows_most_families() -> None:
    assert {"LlamaConfig", "MistralConfig", "Phi3Config"} <= set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_a_config_of_sizes_alone_reads_as_transformers_reads_it(name: str) -> None:
    adapter: ConfigAdapter = FAMILIES[name]
    reference: Any = getattr(transformers, name)(**REQUIRED)
    config = ModelConfig.from_dict(REQUIRED, adapter.with_labels())
    same = (
        "num_key_value_heads rms_norm_eps hidden_act max_position_embeddings tie_word_embeddings "
        "bos_token_id num_labels"
    )
    for field in same.split():
        assert getattr(config, field) == getattr(reference, field), field
    assert config.head_dim == (getattr(reference, "head_dim", None) or 8)
    assert config.eos_token_ids == (reference.eos_token_id,)
    if "pad_token_id" in adapter.defaults:
        assert config.pad_token_id == reference.pad_token_id
    assert config.attention_bias is getattr(reference, "attention_bias", False)
    assert config.mlp_bias is getattr(reference, "mlp_bias", False)
    assert set(config.sliding_windows) == {getattr(reference, "sliding_window", None)}
    assert config.rope is not None and config.rope.rope_type == "default"
    assert config.rope.theta == reference.rope_parameters["rope_theta"]


def test_phi3_takes_the_original_length_of_its_family() -> None:
    raw = {**REQUIRED, "max_position_embeddings": 8192, "rope_scaling": longrope(8, type="su")}
    rope = ModelConfig.from_dict(raw, PHI3).rope
    assert rope is not None and rope.original_max_position_embeddings == 4096
    reference = Phi3Config(
        **REQUIRED, max_position_embeddings=8192, rope_parameters=new_longrope(8)
    )
    assert reference.rope_parameters["original_max_position_embeddings"] == 4096


def test_a_null_head_width_is_derived_as_transformers_derives_it() -> None:
    config = ModelConfig.from_dict({**REQUIRED, "head_dim": None}, INTERNLM3)
    assert config.head_dim == 8, "not the family's 128"
