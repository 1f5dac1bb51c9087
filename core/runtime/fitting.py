"""What a checkpoint decides beside its config: names, the head, what stays plain, pooled rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

from ..config import ModelConfig
from ..errors import ConfigError, QuantizationError
from ..models import CausalLM, DecoderBase, SequenceClassifier, name_map
from ..models.causal_lm import EMBEDDING_WEIGHT, HEAD_WEIGHT
from ..models.classifier import SCORE_WEIGHT
from ..quantization import QuantConfig, quant_config
from ..weights import NameMap, Skipped, WeightSource, source_tensors_equal
from .checkpoint import Checkpoint
from .options import DTYPES
from .sentence_files import SentenceFiles

_PACKED = frozenset("qweight qzeros g_idx weight_packed weight_shape absmax quant_map SCB".split())
"""Last components of names that only packed weights have: GPTQ, AWQ, compressed-tensors,
bitsandbytes."""


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
        QuantizationError: as ``quant_config``; of plain weights it says that they are.
    """
    if config.quantization is None:
        packed = next((n for n in source.infos() if n.rpartition(".")[2] in _PACKED), None)
        if packed is None:
            return quant_config(None)
        raise QuantizationError(
            f"{packed} is part of packed weights, but {config.file} states no quantization_config, "
            "which names their method; fetch the config of the same repository, or use an "
            "unquantized checkpoint of this model"
        )
    names = fitted_names(model_class, source)
    try:
        return quant_config(config.quantization, names)
    except QuantizationError as error:
        dtypes = {
            info.dtype
            for info in source.infos().values()
            if not isinstance(names.to_parameter(info.name), Skipped)
        }
        if not dtypes <= set(DTYPES.values()):
            raise
        raise QuantizationError(
            f"{config.file}: quantization_config names {config.quantization['quant_method']!r}, but "
            f"all weights are plain ({', '.join(sorted(map(str, dtypes)))}), as merged or dequantised "
            "ones are: remove the block from the config, or pass quantization='none' (--quantization "
            "none)"
        ) from error


def with_or_without_head(
    config: ModelConfig, model_class: type[DecoderBase], checkpoint: Checkpoint
) -> type[DecoderBase]:
    """The class itself, or its backbone's where the checkpoint was saved from the backbone alone.

    Embedding models are published under the name of their language model, yet without a head: their
    names lack the ``model.`` that stands beside one, or a list of ``sentence-transformers`` pools
    rows. Where a head is merely missing, neither is so, and loading refuses it.
    """
    if not issubclass(model_class, CausalLM) or model_class.backbone is None:
        return model_class
    names = checkpoint.source.infos()
    if config.tie_word_embeddings or any(name.endswith(HEAD_WEIGHT) for name in names):
        return model_class
    bare = EMBEDDING_WEIGHT.partition(".")[2] in names
    return model_class.backbone if bare or checkpoint.lists_pooling else model_class


def check_labels(config: ModelConfig, model_class: type[DecoderBase], source: WeightSource) -> None:
    """Refuse a classifier whose stored head has another number of rows than the config has labels.

    Raises:
        ConfigError: both numbers, and where the config's comes from.
    """
    if not issubclass(model_class, SequenceClassifier):
        return
    names = fitted_names(model_class, source)
    for name, info in source.infos().items():
        if names.rename(name) == SCORE_WEIGHT and len(info.shape) == 2:
            rows, where = info.shape[0], config.ledger.defaulted.get("num_labels")
            if rows != config.num_labels:
                told = "states neither num_labels nor id2label, so" if where else "says that"
                raise ConfigError(
                    f"{name} has {rows} rows, one for each label, but the config {told} there are "
                    f"{config.num_labels}; set num_labels to {rows}",
                    "num_labels",
                    config.file,
                )


def sentence_files_of(
    config: ModelConfig, model_class: type[DecoderBase], checkpoint: Checkpoint
) -> SentenceFiles:
    """What files beside the weights say of vectors, where the class gives some.

    Raises:
        ConfigError: they ask for something that is not done here. Where the class answers other
            calls too, files that describe no vectors are refused by ``embed`` alone.
    """
    if "embed" not in model_class.serves:
        return SentenceFiles()
    files = checkpoint.sentence_files(config.hidden_size)
    if model_class.serves == ("embed",):
        files.require_vectors()
    return files


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
