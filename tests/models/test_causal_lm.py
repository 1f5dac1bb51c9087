"""The skeleton's contract: meta builds, embeddings for ids, foreign engines, one compilation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import archzoo
from archzoo.attention import TorchAttention, reference_attention
from archzoo.config import LLAMA_LIKE, ModelConfig, read_config
from archzoo.context import BuildContext
from archzoo.errors import InputError, ShapeError
from archzoo.forward import (
    AttentionSpec,
    ForwardBatch,
    ForwardMode,
    KVCacheLayout,
    KVPool,
    OutputRows,
    PoolingRequest,
    RequestRows,
    TokenRows,
)
from archzoo.models import CausalLM
from archzoo.parallel import Group, Topology
from archzoo_llama.model import LlamaForCausalLM
from ranks import contexts, with_groups
from tiny import SIZES, ids_of, reference_logits, tiny_llama

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}


def config_of(**changes: Any) -> ModelConfig:
    raw = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", **changes}
    return ModelConfig.from_dict(raw, LLAMA_LIKE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 1), (8, 7), (16, 15), (64, 63)])
def test_a_70b_llama_builds_on_meta_for_any_rank_without_a_process_group(
    tp: int, rank: int
) -> None:
    ctx = BuildContext.of(Topology(tp=tp, rank=rank), device="meta", dtype=torch.bfloat16)
    model = archzoo.build(LLAMA_70B, ctx)
    parameters = dict(model.named_parameters())
    assert all(p.is_meta for p in parameters.values())
    qkv = parameters["model.layers.79.self_attn.qkv_proj.weight"]
    assert qkv.shape == (8192 // tp + 2 * 128 * max(1, 8 // tp), 8192)
    assert parameters["model.layers.0.mlp.down_proj.weight"].shape == (8192, 28672 // tp)
    assert parameters["lm_head.weight"].shape == (128256 // tp, 8192)
    specs = model.attention_specs()
    assert [spec.layer_id for spec in specs] == list(range(80))
    assert {spec.num_heads for spec in specs} == {64 // tp}
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("tp", [3, 7, 128])
def test_a_topology_that_does_not_fit_is_refused_with_heads_and_ranks(tp: int) -> None:
    ctx = BuildContext.of(Topology(tp=tp), device="meta")
    with pytest.raises(ShapeError, match=rf"layers\.0\.self_attn.*64 query heads.*tp={tp}"):
        archzoo.build(LLAMA_70B, ctx)


def test_forward_is_the_frozen_contract() -> None:
    parameters = inspect.signature(CausalLM.forward).parameters
    assert list(parameters) == [
        "self",
        "input_ids",
        "positions",
        "batch",
        "input_embeds",
        "get_embedding",
        "pp_proxy_tensors",
    ]
    assert parameters["input_embeds"].default is None
    assert parameters["get_embedding"].default is False


def one_prompt(model: CausalLM, ids: list[int], outputs: OutputRows | None = None) -> ForwardBatch:
    """A whole prompt over a fresh pool."""
    pool = KVPool(KVCacheLayout.of(model.attention_specs(), model.dtype), len(ids), 1, len(ids))
    backend = TorchAttention(pool)
    model.bind(backend)
    slots = torch.arange(len(ids))
    pool.req_to_token[0, : len(ids)] = slots
    batch = ForwardBatch(
        backend,
        ForwardMode.EXTEND,
        TokenRows(len(ids), len(ids), slots),
        RequestRows.of([0], [0], [len(ids)]),
        outputs or OutputRows(),
    )
    batch.plan = backend.plan(batch)
    return batch


@pytest.mark.parametrize("tp", [1, 3])
def test_embeddings_serve_as_well_as_ids(checkpoint: tuple[Path, Any], tp: int) -> None:
    path, reference = checkpoint
    ids = ids_of(9)
    world, each = contexts(Topology(tp=tp))

    def run(rank: int) -> tuple[Tensor, Tensor]:
        model = archzoo.build(read_config(path), each[rank])
        archzoo.load_weights(model, path)
        tokens, positions = torch.tensor(ids), torch.arange(len(ids))
        by_ids = model(tokens, positions, one_prompt(model, ids)).next_token_logits
        rows = model.embed(tokens)
        by_rows = model(None, positions, one_prompt(model, ids), rows).next_token_logits
        return by_ids, by_rows

    for by_ids, by_rows in world.run(run):
        assert torch.equal(by_ids, by_rows)
        torch.testing.assert_close(by_ids, reference_logits(reference, ids), rtol=0, atol=2e-4)


def test_embed_forward_and_head_apart_equal_the_whole(checkpoint: tuple[Path, Any]) -> None:
    path, reference = checkpoint
    model = archzoo.build(read_config(path), BuildContext.of())
    archzoo.load_weights(model, path)
    ids, positions = torch.tensor(ids_of(5)), torch.arange(5)
    hidden = model.model(None, positions, one_prompt(model, ids.tolist()), model.embed(ids))
    torch.testing.assert_close(
        model.head(hidden.rows[-2:]),
        reference_logits(reference, ids.tolist())[-2:],
        rtol=0,
        atol=2e-4,
    )


def test_ids_and_embeddings_exclude_each_other() -> None:
    model = archzoo.build(config_of(), BuildContext.of())
    model.weights_ready()
    positions = torch.arange(2)
    batch = one_prompt(model, [1, 2])
    with pytest.raises(InputError, match="neither"):
        model(None, positions, batch)
    with pytest.raises(InputError, match="both"):
        model(torch.tensor([1, 2]), positions, batch, torch.zeros(2, 48))
    with pytest.raises(InputError, match="47.*48"):
        model(None, positions, batch, torch.zeros(2, 47))
    with pytest.raises(InputError, match="pp_proxy_tensors"):
        model(torch.tensor([1, 2]), positions, batch, pp_proxy_tensors={})
    with pytest.raises(InputError, match="pooling"):
        model(torch.tensor([1, 2]), positions, batch, get_embedding=True)


class ForeignEngine(torch.nn.Module):
    """Another engine's attention: its own cache, keyed by prefix, and its own idea of the batch."""

    name, padded_rows = "foreign", "undefined"

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.rows = 0
        self.specs: list[AttentionSpec] = []

    def bind(self, specs: Sequence[AttentionSpec]) -> Mapping[int, Any]:
        self.specs = list(specs)
        return {}

    def plan(self, batch: ForwardBatch) -> None:
        raise AssertionError("an external batch is planned by its engine")

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        spec: AttentionSpec,
        batch: ForwardBatch,
        kv: Any = None,
        save_kv_cache: bool = True,
    ) -> Tensor:
        assert kv is None and batch.tokens is None and batch.requests is None
        past = self.cache.setdefault(spec.prefix, [])
        past.append((k[: self.rows].clone(), v[: self.rows].clone()))
        keys, values = (torch.cat(part) for part in zip(*past, strict=True))
        total = keys.shape[0]
        out = torch.full(q.shape, float("nan"))
        out[: self.rows] = reference_attention(
            q[: self.rows],
            keys,
            values,
            spec,
            torch.arange(total - self.rows, total),
            torch.arange(total),
        )
        return out


class Summing:
    """Collectives of an engine whose two ranks run in this thread, one after the other."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat([x, x], dim)


def test_a_foreign_engine_drives_the_model_with_factless_batches(
    checkpoint: tuple[Path, Any],
) -> None:
    """Prompt, then two decode steps, the last with padded rows that hold NaN afterwards."""
    path, reference = checkpoint
    model = archzoo.build(read_config(path), BuildContext.of())
    archzoo.load_weights(model, path)
    engine = ForeignEngine()
    model.bind(engine)
    assert [spec.prefix for spec in engine.specs] == [
        f"model.layers.{n}.self_attn.attn" for n in range(3)
    ]
    ids = ids_of(6)
    got, at = [], 0
    for size, padding in ((4, 0), (1, 0), (1, 2)):
        engine.rows = size
        rows = torch.tensor(ids[at : at + size] + [0] * padding)
        positions = torch.arange(at, at + size + padding)
        hidden = model.model(rows, positions, ForwardBatch.external(engine))
        got.append(model.head(hidden.rows[:size]))
        at += size
    torch.testing.assert_close(torch.cat(got), reference_logits(reference, ids), rtol=0, atol=2e-4)


def test_injected_groups_are_the_only_ones_used() -> None:
    summing = Summing()
    group = Group("tp", (4, 9), 1, summing)  # type: ignore[arg-type]  # two collectives suffice
    ctx = with_groups(BuildContext.of(plan="naive"), tp=group, attn_tp=group)
    model = archzoo.build(config_of(num_attention_heads=4, num_key_value_heads=2), ctx)
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    model.weights_ready()
    assert model.attention_specs()[0].num_heads == 2
    engine = ForeignEngine()
    engine.rows = 3
    model.bind(engine)
    out = model(torch.tensor([5, 6, 7]), torch.arange(3), ForwardBatch.external(engine))
    assert out.next_token_logits is not None and out.next_token_logits.shape == (3, 130)
    assert len(summing.seen) == 1 + 2 * 3, "embedding, and two sums for each layer"


def test_pooled_vectors_come_instead_of_logits(checkpoint: tuple[Path, Any]) -> None:
    path, _ = checkpoint
    model = archzoo.build(read_config(path), BuildContext.of())
    archzoo.load_weights(model, path)
    batch = one_prompt(model, ids_of(4), OutputRows(pooling=PoolingRequest((0,))))
    out = model(torch.tensor(ids_of(4)), torch.arange(4), batch, get_embedding=True)
    assert out.next_token_logits is None and out.pooled is not None
    assert out.pooled.shape == (1, 48)
    torch.testing.assert_close(out.pooled.norm(), torch.tensor(1.0))


class Traceable:
    """Attention over the layer's own handle, in a form that Dynamo can follow."""

    name, padded_rows = "traceable", "zero"

    def bind(self, specs: Sequence[AttentionSpec]) -> Mapping[int, Any]:
        return {
            spec.layer_id: (torch.zeros(8, spec.num_kv_heads, spec.head_dim, dtype=torch.float64),)
            * 2
            for spec in specs
        }

    def plan(self, batch: ForwardBatch) -> None:
        return None

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        spec: AttentionSpec,
        batch: ForwardBatch,
        kv: Any = None,
        save_kv_cache: bool = True,
    ) -> Tensor:
        keys, values = kv[0][:2] + k.sum(0), kv[1][:2] + v.sum(0)
        group = spec.num_heads // spec.num_kv_heads
        keys = keys.repeat_interleave(group, 1).transpose(0, 1)
        values = values.repeat_interleave(group, 1).transpose(0, 1)
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * spec.scaling
        return (scores.softmax(-1) @ values).transpose(0, 1)


def test_one_compilation_serves_all_layers() -> None:
    """A layer's forward reads no Python number that differs between layers."""
    torch._dynamo.reset()
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    model = LlamaForCausalLM(config_of(num_hidden_layers=5), BuildContext.of(dtype=torch.float64))
    for parameter in model.parameters():
        parameter.data.normal_()
    model.weights_ready()
    backend = Traceable()
    model.bind(backend)
    batch = ForwardBatch.external(backend)
    ids, positions = torch.tensor(ids_of(6)), torch.arange(6)
    want = model(ids, positions, batch).next_token_logits
    layer_forward = torch.compile(type(model.model.layers[0]).forward, backend=count)
    for layer in model.model.layers:
        layer.forward = layer_forward.__get__(layer)
    got = model(ids, positions, batch).next_token_logits
    # The first layer finds nothing owed to the stream; all others find the layer before them.
    assert len(graphs) == 2, f"{len(graphs)} compilations for a first layer and four equal ones"
    torch.testing.assert_close(got, want)


def test_tables_are_shared_by_all_layers() -> None:
    """32 layers hold one cos/sin storage."""
    model = LlamaForCausalLM(config_of(num_hidden_layers=32), BuildContext.of())
    tables = [layer.self_attn.rotary_emb.table(torch.device("cpu")) for layer in model.model.layers]
    assert len({id(table) for table in tables}) == 1
    assert not any("rotary" in name for name in model.state_dict())
