"""One model in pipeline stages: what each holds, takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import archzoo
from archzoo.attention import TorchAttention
from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.context import BuildContext
from archzoo.errors import InputError, ShapeError, TopologyError
from archzoo.forward import (
    ForwardBatch,
    ForwardMode,
    KVCacheLayout,
    KVPool,
    OutputRows,
    PoolingRequest,
    RequestRows,
    TokenRows,
)
from archzoo.layers import LogitsProcessorOutput, PoolingType
from archzoo.models import DecoderBase, EmbeddingModel, PPProxyTensors, SequenceClassifier
from archzoo.parallel import Elsewhere, Topology
from archzoo_llama.heads import LlamaForSequenceClassificationWithNormal_Weights
from archzoo_llama.model import LlamaDecoderLayer, LlamaForCausalLM
from tiny import SIZES, ids_of, randomise

LAYERS = 12
"""More than ten: layer 1 is not layer 10 or 11."""


def raw_config(**changes: Any) -> dict[str, Any]:
    sizes = {**SIZES, "num_hidden_layers": LAYERS, "hidden_size": 24, "intermediate_size": 42}
    sizes |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {**sizes, "num_attention_heads": 3, "num_key_value_heads": 3, **changes}


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(raw_config(**changes), LLAMA_LIKE.with_labels())


def whole_and_stages(
    config: ModelConfig, pp: int, kind: type[DecoderBase] = LlamaForCausalLM, **options: Any
) -> tuple[DecoderBase, list[DecoderBase]]:
    """A random model in float64, and the same weights as stages."""
    f64 = torch.float64
    whole = kind(config, BuildContext.of(dtype=f64))
    randomise(whole)
    whole.weights_ready()
    stages = [
        kind(config, BuildContext.of(Topology(pp=pp, rank=rank, **options), dtype=f64, poison=True))
        for rank in range(pp)
    ]
    values = whole.state_dict()
    for stage in stages:
        stage.load_state_dict({name: values[name] for name in stage.state_dict()})
    return whole, stages


def prompt_batch(
    model: DecoderBase, count: int, pooling: PoolingRequest | None = None
) -> ForwardBatch:
    """One prompt over a pool of NaN."""
    pool = KVPool(KVCacheLayout.of(model.attention_specs(), model.dtype), count, 1, count)
    for spec in model.attention_specs():
        kv = pool.layer(spec.layer_id)
        assert kv is not None
        kv.k.fill_(torch.nan), kv.v.fill_(torch.nan)
    backend = TorchAttention(pool)
    model.bind(backend)
    slots = torch.arange(count)
    pool.req_to_token[0, :count] = slots
    rows, requests = TokenRows(count, count, slots), RequestRows.of([0], [0], [count])
    batch = ForwardBatch(backend, ForwardMode.EXTEND, rows, requests, OutputRows(pooling=pooling))
    batch.plan = backend.plan(batch)
    return batch


def through(
    stages: Sequence[DecoderBase], ids: list[int], pooling: PoolingRequest | None = None
) -> LogitsProcessorOutput:
    """One prompt through all stages, proxies handed on as they come."""
    tokens, positions = torch.tensor(ids, dtype=torch.int64), torch.arange(len(ids))
    given: Any = None
    for at, stage in enumerate(stages):
        batch = prompt_batch(stage, len(ids), pooling)
        given = stage(
            tokens if at == 0 else None,
            positions,
            batch,
            get_embedding=pooling is not None,
            pp_proxy_tensors=given,
        )
    assert isinstance(given, LogitsProcessorOutput)
    return given


def close(a: Tensor | None, b: Tensor | None) -> None:
    assert a is not None and b is not None and a.shape == b.shape
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


# --- what a stage holds ---------------------------------------------------------------------------


@pytest.mark.parametrize("pp", [2, 3, 5, 12])
def test_layers_keep_their_global_numbers_on_every_stage(pp: int) -> None:
    held = []
    for rank in range(pp):
        ctx = BuildContext.of(Topology(pp=pp, rank=rank), device="meta")
        model = archzoo.build(raw_config(), ctx)
        here = model.model.stage.layers
        assert len(model.model.layers) == LAYERS
        for number, layer in enumerate(model.model.layers):
            assert isinstance(layer, Elsewhere) == (number not in here)
            assert not isinstance(layer, LlamaDecoderLayer) or layer.layer_id == number
        specs = model.attention_specs()
        assert [spec.layer_id for spec in specs] == list(here)
        assert [spec.prefix for spec in specs] == [
            f"model.layers.{number}.self_attn.attn" for number in here
        ]
        layout = KVCacheLayout.of(specs, model.dtype)
        assert layout.bytes_per_slot == len(here) * 2 * 24 * 4, "KV of its own layers only"
        held += [set(dict(model.named_parameters()))]
    whole = set(
        dict(archzoo.build(raw_config(), BuildContext.of(device="meta")).named_parameters())
    )
    assert set.union(*held) == whole and sum(map(len, held)) == len(whole)
    assert {n for n in held[0] if ".layers." not in n} == {"model.embed_tokens.weight"}
    assert {n for n in held[-1] if ".layers." not in n} == {"model.norm.weight", "lm_head.weight"}


def test_a_range_of_an_engine_is_a_stage() -> None:
    model = LlamaForCausalLM(config_of(), BuildContext.of(layer_range=range(4, 7), device="meta"))
    assert [spec.layer_id for spec in model.attention_specs()] == [4, 5, 6]
    assert not model.model.stage.is_first and not model.model.stage.is_last


def test_more_stages_than_layers_is_refused_with_both_numbers() -> None:
    with pytest.raises(ShapeError, match="pp=13.*12 layers"):
        archzoo.build(raw_config(), BuildContext.of(Topology(pp=13), device="meta"))


# --- forward --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pp", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("count", [1, 9])
def test_stages_in_a_row_equal_the_whole(pp: int, tied: bool, count: int) -> None:
    whole, stages = whole_and_stages(config_of(tie_word_embeddings=tied), pp)
    ids = ids_of(count)
    close(through(stages, ids).next_token_logits, through([whole], ids).next_token_logits)


def test_uneven_stages_equal_the_whole() -> None:
    whole, stages = whole_and_stages(config_of(), 3, pp_layers=(1, 10, 1))
    assert [len(stage.attention_specs()) for stage in stages] == [1, 10, 1]
    close(
        through(stages, ids_of(7)).next_token_logits, through([whole], ids_of(7)).next_token_logits
    )


def test_every_layer_attends_by_its_own_global_number() -> None:
    """Windows of 2 to 13 tokens, all different: a layer with another number sees other tokens."""
    windows = tuple(range(LAYERS + 1, 1, -1))
    whole, stages = whole_and_stages(replace(config_of(), sliding_windows=windows), 3)
    ids = ids_of(14)
    close(through(stages, ids).next_token_logits, through([whole], ids).next_token_logits)


class Vectors(EmbeddingModel):
    layer = LlamaDecoderLayer
    pooling = PoolingType.MEAN


class Scores(SequenceClassifier):
    layer = LlamaDecoderLayer


@pytest.mark.parametrize(
    "kind", [LlamaForCausalLM, Vectors, Scores, LlamaForSequenceClassificationWithNormal_Weights]
)
def test_pooled_rows_of_every_kind(kind: type[DecoderBase]) -> None:
    whole, stages = whole_and_stages(config_of(num_labels=4), 3, kind)
    pooling = PoolingRequest((0,), None, True)
    close(through(stages, ids_of(5), pooling).pooled, through([whole], ids_of(5), pooling).pooled)
    assert {stage.pooled_width for stage in stages} == {whole.pooled_width}


def test_two_forwards_interleaved_keep_their_streams() -> None:
    """A and B pass the stages in different orders; equal sizes, so nothing would look odd."""
    whole, stages = whole_and_stages(config_of(), 2)
    a, b = ids_of(6, seed=1), ids_of(6, seed=2)
    positions = torch.arange(6)

    def run(stage: DecoderBase, ids: list[int], given: Any = None) -> Any:
        tokens = None if given else torch.tensor(ids)
        return stage(tokens, positions, prompt_batch(stage, 6), pp_proxy_tensors=given)

    first_a = run(stages[0], a)
    first_b = run(stages[0], b)
    kept = {name: tensor.clone() for name, tensor in first_a.items()}
    got_b = run(stages[1], b, first_b)
    got_a = run(stages[1], a, first_a)
    close(got_a.next_token_logits, through([whole], a).next_token_logits)
    close(got_b.next_token_logits, through([whole], b).next_token_logits)
    for name, tensor in kept.items():
        assert torch.equal(first_a[name], tensor), "a proxy was written to"


def test_proxies_are_a_flat_dict_of_tensors_of_which_a_plain_copy_serves() -> None:
    whole, stages = whole_and_stages(config_of(), 2)
    ids, positions = ids_of(4), torch.arange(4)
    given = stages[0](torch.tensor(ids), positions, prompt_batch(stages[0], 4))
    assert isinstance(given, PPProxyTensors)
    assert {name: tuple(t.shape) for name, t in given.items()} == {"residual": (4, 24)}
    assert given["residual"].dtype is torch.float64
    out = stages[1](
        torch.tensor(ids), positions, prompt_batch(stages[1], 4), pp_proxy_tensors=dict(given)
    )
    close(out.next_token_logits, through([whole], ids).next_token_logits)


def test_proxies_that_do_not_belong_are_refused() -> None:
    _, (first, last) = whole_and_stages(config_of(), 2)
    ids, positions = torch.tensor(ids_of(4)), torch.arange(4)
    rows = torch.zeros(4, 24, dtype=torch.float64)

    def refused(stage: DecoderBase, message: str, *args: Any, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            stage(*args[:1], positions, prompt_batch(stage, 4), *args[1:], **options)

    refused(first, "first pipeline stage.*layers 0 to 5 of 12", ids, pp_proxy_tensors={})
    refused(first, "neither", None)
    refused(last, "None.*layers 6 to 11 of 12", ids)
    refused(last, "input_embeds.*layers 6 to 11", None, rows, pp_proxy_tensors={"residual": rows})
    for bad in ({}, {"hidden": rows}, {"residual": rows, "more": rows}):
        refused(last, r"expected \['residual'\]", None, pp_proxy_tensors=bad)
    for wrong in (rows[:3], rows[:, :-1], rows.float(), rows.unsqueeze(0)):
        refused(last, r"\[4, 24\]", None, pp_proxy_tensors={"residual": wrong})


def test_what_another_stage_has_cannot_be_called() -> None:
    _, (first, last) = whole_and_stages(config_of(), 2)
    with pytest.raises(TopologyError, match=r"lm_head.*layers 0 to 5"):
        first.head(torch.zeros(1, 24, dtype=torch.float64))  # type: ignore[operator]  # a CausalLM
    with pytest.raises(TopologyError, match=r"model\.embed_tokens.*layers 6 to 11"):
        last.embed(torch.tensor([1]))
    with pytest.raises(TopologyError, match=r"model\.layers\.6"):
        first.model.layers[6](None)


def test_every_stage_refuses_what_the_last_one_could_not_pool() -> None:
    _, stages = whole_and_stages(config_of(), 2, Vectors)
    for stage in stages:
        batch = prompt_batch(stage, 4, PoolingRequest((0,)))
        batch.requests = RequestRows.of([0], [2], [4])
        with pytest.raises(InputError, match="mean pooling needs all rows"):
            stage(torch.tensor([1] * 4), torch.arange(4), batch, get_embedding=True)
        batch.outputs = OutputRows()
        with pytest.raises(InputError, match=r"batch\.outputs\.pooling"):
            stage(torch.tensor([1] * 4), torch.arange(4), batch, get_embedding=True)
