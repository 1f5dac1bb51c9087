"""SequenceClassifier and EmbeddingModel: what they give, refuse and never do to a score."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from archzoo.attention import TorchAttention
from archzoo.config import LLAMA_LIKE, ModelConfig
from archzoo.context import BuildContext
from archzoo.errors import ConfigError, InputError
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
from archzoo.models import DecoderBase, EmbeddingModel, SequenceClassifier, name_map
from archzoo.weights import Skipped, Target
from archzoo_llama.model import LlamaDecoderLayer
from tiny import SIZES, ids_of


class Classifier(SequenceClassifier):
    layer = LlamaDecoderLayer


class MeanClassifier(Classifier):
    pooling = PoolingType.MEAN


class Vectors(EmbeddingModel):
    layer = LlamaDecoderLayer


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**SIZES, "num_labels": 3, **changes}, Classifier.adapter)


def built(kind: type[DecoderBase], dtype: torch.dtype = torch.float32) -> DecoderBase:
    torch.manual_seed(0)
    model = kind(config_of(), BuildContext.of(dtype=dtype, poison=True))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.weights_ready()
    return model


def run(
    model: DecoderBase,
    lengths: list[int],
    pooling: PoolingRequest | None,
    padding: int = 0,
    get_embedding: bool = True,
) -> LogitsProcessorOutput:
    """Prompts end to end over a pool of NaN, then rows of padding."""
    rows = sum(lengths)
    layout = KVCacheLayout.of(model.attention_specs(), model.dtype)
    pool = KVPool(layout, rows, len(lengths), max(lengths))
    backend = TorchAttention(pool)
    model.bind(backend)
    slots = torch.arange(rows)
    positions = torch.cat([torch.arange(n) for n in lengths] + [torch.zeros(padding).long()])
    requests = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    pool.req_to_token[requests, positions[:rows]] = slots
    batch = ForwardBatch(
        backend,
        ForwardMode.EXTEND,
        TokenRows(rows + padding, rows, slots),
        RequestRows.of(list(range(len(lengths))), [0] * len(lengths), lengths),
        OutputRows(pooling=pooling),
    )
    batch.plan = backend.plan(batch)
    ids = torch.tensor([token for n in lengths for token in ids_of(n)] + [0] * padding)
    with torch.inference_mode():
        return model(ids, positions, batch, get_embedding=get_embedding)


def scores(model: DecoderBase, *args: Any, **options: Any) -> Tensor:
    output = run(model, *args, **options)
    assert output.next_token_logits is None and output.pooled is not None
    return output.pooled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scores_are_raw_and_at_least_float32(dtype: torch.dtype) -> None:
    model = built(Classifier, dtype)
    plain = scores(model, [4, 1, 6], PoolingRequest((0, 1, 2), normalize=False))
    assert plain.shape == (3, 3)
    assert plain.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert not torch.allclose(plain.norm(dim=-1), torch.ones(3, dtype=plain.dtype), atol=1e-2)
    asked = scores(model, [4, 1, 6], PoolingRequest((0, 1, 2), dimensions=2, normalize=True))
    assert torch.equal(plain, asked), "requests about vectors changed a score"


def test_the_last_real_row_is_scored_whatever_follows() -> None:
    model = built(Classifier)
    alone = scores(model, [6], PoolingRequest((0,)))
    padded = scores(model, [4, 6], PoolingRequest((1,)), padding=5)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)
    assert scores(model, [4, 6], PoolingRequest(())).shape == (0, 3), "nobody ends"


def test_a_classifier_may_pool_otherwise() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        mean = scores(built(MeanClassifier, dtype), [5], PoolingRequest((0,)))
        last = scores(built(Classifier, dtype), [5], PoolingRequest((0,)))
        assert mean.shape == (1, 3) and not torch.allclose(mean, last, atol=1e-2)


@pytest.mark.parametrize("kind", [Classifier, Vectors])
def test_logits_are_refused_by_name(kind: type[DecoderBase]) -> None:
    with pytest.raises(InputError, match=rf"{kind.__name__} is a.*head; it answers .*not logits"):
        run(built(kind), [3], None, get_embedding=False)
    with pytest.raises(InputError, match=r"batch\.outputs\.pooling"):
        run(built(kind), [3], None)


def test_no_language_model_head_is_built() -> None:
    for kind in (Classifier, Vectors):
        assert not any("lm_head" in name for name, _ in built(kind).named_parameters())
    assert built(Classifier).pooled_width == 3 and built(Vectors).pooled_width == 48


def test_labels_must_be_known() -> None:
    assert config_of(num_labels=None).num_labels == 2, "transformers writes none for two"
    config = ModelConfig.from_dict(SIZES, LLAMA_LIKE)
    with pytest.raises(ConfigError, match=r"num_labels: missing.*id2label.*with_labels\(\)"):
        Classifier(config, BuildContext.of())


def test_names_of_a_classifier() -> None:
    names = name_map(Classifier, "hf")
    assert names.to_parameter("score.weight") == Target("score.weight")
    assert names.to_parameter("lm_head.weight") == Skipped("head of a classifier")
    assert names.to_parameter("model.layers.0.self_attn.q_proj.weight") == Target(
        "model.layers.0.self_attn.qkv_proj.weight", "q"
    )


def test_a_prefix_reaches_every_part() -> None:
    model = Classifier(config_of(), BuildContext.of(device="meta"), "tower")
    assert model.score.prefix == "tower.score"
    assert model.attention_specs()[0].prefix == "tower.model.layers.0.self_attn.attn"
