"""What a checkpoint decides beside its config: names, the head, what stays plain, pooled rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

from ..config import ModelConfig
from ..layers import PoolingType
from ..models import CausalLM, DecoderBase, name_map
from ..models.causal_lm import EMBEDDING_WEIGHT, HEAD_WEIGHT
from ..quantization import QuantConfig, quant_config
from ..weights import NameMap, WeightSource, source_tensors_equal
from .checkpoint import Checkpoint


def fitted_names(model_class: type[DecoderBase], source: WeightSource) -> NameMap:
    """The class's name rules, fitted to the checkpoint's names.

    Raises:
        WeightError: names that are wrapped in different ways.
    """
    return name_map(model_class, source.format).bound(source.infos())


def quantization_of(
    config: ModelConfig, model_class: type[DecoderBase], source: WeightSource
) -> QuantConfig:
    """The checkpoint's quantization; names are fitted only where something is quantized.

    Raises:
        QuantizationError: as ``quant_config``.
    """
    if config.quantization is None:
        return quant_config(None)
    return quant_config(config.quantization, fitted_names(model_class, source))


def with_or_without_head(
    config: ModelConfig, model_class: type[DecoderBase], source: WeightSource
) -> type[DecoderBase]:
    """The class itself, or its backbone's where the checkpoint was saved from the backbone alone.

    Embedding models are published under the name of their language model, yet without a head, and
    their names lack the ``model.`` that stands beside one. Where a head is merely missing, the name
    says so, and loading refuses it.
    """
    if not issubclass(model_class, CausalLM) or model_class.backbone is None:
        return model_class
    names = source.infos()
    bare = EMBEDDING_WEIGHT.partition(".")[2] in names
    if config.tie_word_embeddings or HEAD_WEIGHT in names or not bare:
        return model_class
    return model_class.backbone


def pooling_of(model_class: type[DecoderBase], checkpoint: Checkpoint) -> PoolingType | None:
    """Rows that make a vector, where the class gives vectors and files beside the weights say so.

    Raises:
        ConfigError: the files ask for something that is not done here.
    """
    return checkpoint.pooling() if "embed" in model_class.serves else None


def stored_head(
    config: ModelConfig, model_class: type[DecoderBase], source: WeightSource
) -> tuple[str, str] | None:
    """Checkpoint names of a head and an embedding that are both stored though the config ties them.

    Nothing is read; None where that is not so.
    """
    if not config.tie_word_embeddings or not issubclass(model_class, CausalLM):
        return None
    names = fitted_names(model_class, source)
    stored = {names.rename(name): name for name in source.infos()}
    head, embedding = stored.get(HEAD_WEIGHT), stored.get(EMBEDDING_WEIGHT)
    return None if head is None or embedding is None else (head, embedding)


def with_stored_head(
    config: ModelConfig, model_class: type[DecoderBase], checkpoint: Checkpoint
) -> ModelConfig:
    """The config, untied where the checkpoint stores a head of its own that differs.

    A config that says "tied" beside a stored head with other values contradicts itself; the
    trained head is kept, as ``transformers`` does, with a warning that says so.
    """
    pair = stored_head(config, model_class, checkpoint.source)
    if pair is None or source_tensors_equal(checkpoint.source, *pair):
        return config
    head, embedding = pair
    warnings.warn(
        f"{checkpoint.config_file}: tie_word_embeddings is true, but the stored {head} differs "
        f"from {embedding}; the stored head is used. Set tie_word_embeddings to false to say so, "
        f"or remove {head} to use the embedding",
        stacklevel=3,
    )
    return replace(config, tie_word_embeddings=False)
