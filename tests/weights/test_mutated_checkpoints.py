"""Mutations of real-shaped checkpoints that headers can show: all found before a tensor is read.

The models are on ``meta`` and the sources are headers whose ``read`` fails the test, so nothing
here can have looked at a value. What only values or logits can show is in other suites.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import archzoo
from archzoo.context import BuildContext
from archzoo.errors import CheckpointFileError, CoverageError
from archzoo.parallel import Box, Topology
from archzoo.weights import TensorInfo, WeightReport, open_source

BASE = {
    "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "num_hidden_layers": 3,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
        "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "Mistral-7B": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32768,
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False, "sliding_window": None,
    },
    "Phi-3-mini": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 32064,
        "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 32, "tie_word_embeddings": False, "sliding_window": None,
    },
    "Qwen3-4B": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
        "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip
Infos = dict[str, TensorInfo]


@dataclass(frozen=True)
class Headers:
    """A source of which nothing but headers is there."""

    tensors: Mapping[str, TensorInfo]
    description: str = "headers"
    format: str = "hf"
    notes: tuple[str, ...] = ()

    def infos(self) -> Mapping[str, TensorInfo]:
        return self.tensors

    def read(self, name: str, box: Box) -> Tensor:
        raise AssertionError(f"{name} was read")

    def close(self) -> None: ...


def checkpoint(kind: str) -> Infos:
    """What the model's checkpoint states, split (or, for Phi-3, fused) as its authors saved it."""
    c = {**BASE, **SHAPES[kind]}
    hidden, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head = c.get("head_dim", hidden // heads)
    q, kv = heads * head, c["num_key_value_heads"] * head
    split = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
             "self_attn.v_proj": (kv, hidden), "mlp.gate_proj": (ffn, hidden),
             "mlp.up_proj": (ffn, hidden)}  # fmt: skip
    fused = {"self_attn.qkv_proj": (q + 2 * kv, hidden), "mlp.gate_up_proj": (2 * ffn, hidden)}
    layer = (fused if kind.startswith("Phi") else split) | {
        "self_attn.o_proj": (hidden, q), "mlp.down_proj": (hidden, ffn),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    if kind.startswith("Qwen3"):
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    shapes = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for at in range(c["num_hidden_layers"]):
        shapes |= {f"model.layers.{at}.{name}.weight": shape for name, shape in layer.items()}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    return {name: TensorInfo(name, tuple(shape), torch.bfloat16, "x.safetensors")
            for name, shape in shapes.items()}  # fmt: skip


def load(kind: str, infos: Infos) -> WeightReport:
    """The report of a refused load."""
    ctx = BuildContext.of(Topology(), dtype=torch.bfloat16, device=torch.device("meta"))
    module = archzoo.build({**BASE, **SHAPES[kind]}, ctx)
    with pytest.raises(CoverageError) as caught:
        module.load_weights(Headers(infos))
    return caught.value.report


def put(infos: Infos, info: TensorInfo) -> Infos:
    return {**infos, info.name: info}


def shaped(infos: Infos, name: str, shape: tuple[int, ...]) -> Infos:
    return put(infos, replace(infos[name], shape=shape))


Changed = tuple[Infos, str]
"""The mutated headers, and the tensor that a fault must name."""
Mutation = Callable[[Infos, str], Changed | None]
"""None where the tensor cannot be mutated so."""


def delete(infos: Infos, name: str) -> Changed:
    return {key: info for key, info in infos.items() if key != name}, name


def rename(infos: Infos, name: str) -> Changed:
    other = name.replace(".weight", ".wieght")
    return put(delete(infos, name)[0], replace(infos[name], name=other)), other


def move(infos: Infos, name: str) -> Changed | None:
    if ".0." not in name:
        return None
    other = name.replace(".0.", ".3.")
    return put(delete(infos, name)[0], replace(infos[name], name=other)), other


def transpose(infos: Infos, name: str) -> Changed | None:
    shape = infos[name].shape
    return (shaped(infos, name, shape[::-1]), name) if len({*shape}) == 2 else None


def truncate(infos: Infos, name: str) -> Changed:
    rows, *rest = infos[name].shape
    return shaped(infos, name, (rows - 1, *rest)), name


def narrow(infos: Infos, name: str) -> Changed:
    *rest, columns = infos[name].shape
    return shaped(infos, name, (*rest, columns // 2)), name


def widen(infos: Infos, name: str) -> Changed:
    rows, *rest = infos[name].shape
    return shaped(infos, name, (rows + 64, *rest)), name


def empty(infos: Infos, name: str) -> Changed:
    return shaped(infos, name, (0,)), name


def flatten(infos: Infos, name: str) -> Changed | None:
    shape = infos[name].shape
    return (shaped(infos, name, (shape[0] * shape[1],)), name) if shape[1:] else None


def fold(infos: Infos, name: str) -> Changed | None:
    """As many elements, and other rows."""
    shape = infos[name].shape
    return (shaped(infos, name, (shape[0] * 2, shape[1] // 2)), name) if shape[1:] else None


def integer(infos: Infos, name: str) -> Changed:
    return put(infos, replace(infos[name], dtype=torch.int8)), name


def eight_bits(infos: Infos, name: str) -> Changed:
    return put(infos, replace(infos[name], dtype=torch.float8_e4m3fn)), name


def add_scale(infos: Infos, name: str) -> Changed:
    scale = f"{name}_scale"
    return put(infos, replace(infos[name], name=scale, shape=infos[name].shape[:1])), scale


def duplicate(infos: Infos, name: str) -> Changed | None:
    """Fused beside split, or split beside fused: two tensors for the same rows."""
    for part, other in (("q_proj", "qkv_proj"), ("up_proj", "gate_up_proj"), ("qkv_proj", "v_proj"),
                        ("gate_up_proj", "gate_proj")):  # fmt: skip
        if f".{part}." in name:
            second = name.replace(f".{part}.", f".{other}.")
            return put(infos, replace(infos[name], name=second)), second
    return None


def extra_layer(infos: Infos, name: str) -> Changed | None:
    if ".2." not in name:
        return None
    more = [replace(info, name=key.replace(".2.", ".3.")) for key, info in infos.items()
            if ".layers.2." in key]  # fmt: skip
    return {**infos, **{info.name: info for info in more}}, name.replace(".2.", ".3.")


MUTATIONS: dict[Mutation, set[tuple[str, str]]] = {
    delete: {("missing", "missing")},
    rename: {("missing", "missing"), ("unexpected", "unexpected")},
    move: {("missing", "missing"), ("unexpected", "extra layer")},
    transpose: {("shape", "transposed")},
    truncate: {("shape", "truncated")},
    narrow: {("shape", "truncated")},
    widen: {("shape", "widened")},
    empty: {("shape", "empty")},
    flatten: {("shape", "other rank")},
    fold: {("shape", "reshaped")},
    integer: {("dtype", "integer for a float")},
    eight_bits: {("dtype", "dtype")},
    add_scale: {("unexpected", "unexpected")},
    duplicate: {("duplicate", "duplicate")},
    extra_layer: {("unexpected", "extra layer")},
}
"""What each is called: every (kind, status) in the report, and nothing else."""
PARTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def roles(infos: Infos) -> Iterator[str]:
    """Every tensor of the first and the last layer, and of what is around the layers."""
    return (name for name in infos if ".layers.1." not in name)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_mutation_of_every_tensor_is_found_in_headers_and_called_by_its_name(kind, mutation):
    tried = 0
    for name in roles(checkpoint(kind)):
        changed = mutation(checkpoint(kind), name)
        if changed is None:
            continue
        tried += 1
        infos, culprit = changed
        report = load(kind, infos)
        found = {(key, fault.status) for key, faults in report.faults().items() for fault in faults}
        assert found == expected(mutation, name), (name, str(report))
        assert culprit in str(report) and any(
            culprit == fault.name or culprit in fault.text
            for faults in report.faults().values() for fault in faults
        )  # fmt: skip
        assert not report.bytes_read
    assert tried >= 2


def expected(mutation: Mutation, name: str) -> set[tuple[str, str]]:
    """Of a stacked parameter a part is missing, not the whole."""
    part = name.split(".")[-2] in PARTS
    swap = {("missing", "missing"): ("partial", "partial")} if part else {}
    return {swap.get(pair, pair) for pair in MUTATIONS[mutation]}


@pytest.mark.parametrize("kind", SHAPES)
def test_the_unmutated_headers_fit(kind):
    ctx = BuildContext.of(Topology(), dtype=torch.bfloat16, device=torch.device("meta"))
    module = archzoo.build({**BASE, **SHAPES[kind]}, ctx)
    with pytest.raises(archzoo.errors.WeightError, match="meta device") as caught:
        module.load_weights(Headers(checkpoint(kind)))
    assert not isinstance(caught.value, CoverageError)


@pytest.mark.parametrize("parts", [["q_proj"], ["k_proj"], ["v_proj"], ["q_proj", "v_proj"]])
def test_missing_ones_of_q_k_v_are_each_named(parts):
    infos = checkpoint("Llama-3.1-8B")
    for part in parts:
        del infos[f"model.layers.1.self_attn.{part}.weight"]
    report = load("Llama-3.1-8B", infos)
    assert [fault.text for fault in report.partial] == [
        f"shard {part[0]!r} of model.layers.1.self_attn.qkv_proj.weight: expected "
        f"model.layers.1.self_attn.{part}.weight"
        for part in parts
    ]
    assert set(report.faults()) == {"partial"}


def test_a_stored_head_of_a_tied_model_is_checked_before_it_is_compared():
    infos = checkpoint("SmolLM2-135M")
    head = replace(infos["model.embed_tokens.weight"], name="lm_head.weight")
    report = load("SmolLM2-135M", delete(put(infos, head), "model.norm.weight")[0])
    assert set(report.faults()) == {"missing"}


# --- files -------------------------------------------------------------------

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small model in two shards with an index."""
    tensors = {f"model.layers.{at}.x.weight": torch.full((3, 4), float(at)) for at in range(4)}
    for number, file in enumerate(FILES):
        part = dict(list(tensors.items())[2 * number : 2 * number + 2])
        save_file(part, tmp_path / file)
    reindex(tmp_path)
    return tmp_path


def reindex(folder: Path, **changes: str) -> None:
    weight_map = {f"model.layers.{at}.x.weight": FILES[at // 2] for at in range(4)} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def stale_index(folder: Path) -> str:
    reindex(folder, **{"model.layers.4.x.weight": FILES[1]})
    return "index and shards are of different saves"


def swapped_index(folder: Path) -> str:
    reindex(folder, **{"model.layers.0.x.weight": FILES[1]})
    return "index and shards are of different saves"


def index_of_more_shards(folder: Path) -> str:
    reindex(folder, **{"model.layers.4.x.weight": "model-00003-of-00003.safetensors"})
    return "is missing"


def truncated_file(folder: Path) -> str:
    content = (folder / FILES[1]).read_bytes()
    (folder / FILES[1]).write_bytes(content[:-1])
    return "truncated or damaged"


def widened_file(folder: Path) -> str:
    with (folder / FILES[1]).open("ab") as stream:
        stream.write(b"\0")
    return "truncated or damaged"


def emptied_file(folder: Path) -> str:
    (folder / FILES[0]).write_bytes(b"")
    return "is empty"


def duplicated_tensor(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    save_file({"model.layers.0.x.weight": torch.ones(1)}, folder / FILES[1])
    return "nothing says which copy is right"


FILE_MUTATIONS = (stale_index, swapped_index, index_of_more_shards, truncated_file, widened_file,
                  emptied_file, duplicated_tensor)  # fmt: skip


@pytest.mark.parametrize("mutation", FILE_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_files_that_disagree_are_found_when_they_are_opened(saved, mutation):
    open_source(saved).close()
    says = mutation(saved)
    with pytest.raises(CheckpointFileError, match=says) as caught:
        open_source(saved)
    assert Path(caught.value.file).parent == saved
