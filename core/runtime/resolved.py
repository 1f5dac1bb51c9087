"""ResolvedCheckpoint: what a checkpoint is, before anything of it is built or written.

``load``, ``preflight``, ``verify`` and whoever else wants a checkpoint ask here, so that each refuses
what the others refuse. Class, config, quantization, head and pooled rows are found in one order, out of
the config and the tensors' headers; values are read for one question only, whether a stored head
equals the embedding that the config ties it to.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import ModelConfig
from ..context import BuildContext
from ..errors import ConfigError, QuantizationError
from ..layers import Pooler
from ..models import CausalLM, DecoderBase, SequenceClassifier, name_map
from ..models.causal_lm import EMBEDDING_WEIGHT, HEAD_WEIGHT
from ..models.classifier import SCORE_WEIGHT
from ..parallel import Topology
from ..quantization import QuantConfig, quant_config
from ..weights import NameMap, Skipped, WeightSource, source_tensors_equal
from .checkpoint import Checkpoint
from .engine import Engine
from .options import DTYPES, check_experts
from .reading import AS_STATED, Overrides
from .sentence_files import SentenceFiles
from .speculative.lending import with_embedding

_PACKED = frozenset("qweight qzeros g_idx weight_packed weight_shape absmax quant_map SCB".split())
"""Last components of names that only packed weights have: GPTQ, AWQ, compressed-tensors,
bitsandbytes."""


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """What a checkpoint is.

    Args:
        model_class: serves it; the backbone's where there is no head.
        config: as that class's family reads it, untied where a head of its own is stored.
        quant: methods of its linears and experts.
        files: what lies beside the weights about vectors.
        source: the weights; of a draft without an embedding, with its target's.
        notes: what a report should say of all this.
    """

    model_class: type[DecoderBase]
    config: ModelConfig
    quant: QuantConfig
    files: SentenceFiles
    source: WeightSource
    notes: tuple[str, ...]

    def context(self, topology: Topology, **settings: Any) -> BuildContext:
        """A rank's context: the checkpoint's quantization, and settings of ``BuildContext.of``."""
        return BuildContext.of(topology, quant=self.quant, **settings)

    def build(self, ctx: BuildContext) -> DecoderBase:
        """The module of one rank, empty and checked.

        Raises:
            ShapeError, BoundaryError: the topology does not fit, or the class built something else
                than its module tree shows.
        """
        module = self.model_class(self.config, ctx)
        module.check_structure()
        if self.files.pooling is not None:
            module.pooler = Pooler(self.files.pooling)
        return module.eval()


def resolve_checkpoint(
    checkpoint: Checkpoint,
    overrides: Overrides = AS_STATED,
    topologies: Sequence[Topology] = (),
    *,
    find: Callable[[Sequence[str]], type[DecoderBase]] | None = None,
    target: Engine | None = None,
    headers_only: bool = False,
) -> ResolvedCheckpoint:
    """Resolve an open checkpoint.

    Args:
        checkpoint: stays the caller's to close.
        overrides: what its user decides against its config.
        topologies: that it will be built for; experts must be there to deal out.
        find: the class of some architectures; ``resolve_model`` when None.
        target: of the model that a draft will serve; lends an embedding.
        headers_only: read no value: a stored head of a tied config counts as equal to the embedding
            where shape and dtype are, and a draft without an embedding is not lent one.

    Raises:
        ArchzooError: nothing serves it, or its parts contradict each other.
    """
    raw, file = checkpoint.raw, checkpoint.config_file
    model_class, config = overrides.resolve(raw, file, find)
    for topology in topologies:
        check_experts(config, topology)
    notes = overrides.notes(config)
    quant = quantization_of(config, model_class, checkpoint.source)
    source = checkpoint.source
    if not headers_only:
        source = with_embedding(source, model_class, config, target)
    if (pair := stored_head(config, model_class, source)) is not None:
        if headers_only:
            equal, told = _equal_by_headers(source, *pair)
            notes += (told,)
        elif not (equal := source_tensors_equal(source, *pair)):
            head, embedding = pair
            warnings.warn(
                f"{file}: tie_word_embeddings is true, but the stored {head} differs from "
                f"{embedding}; the stored head is used. Set tie_word_embeddings to false to say so, "
                f"or remove {head} to use the embedding",
                stacklevel=3,
            )
        if not equal:  # the trained head is kept, as transformers does
            config = replace(config, tie_word_embeddings=False)
    model_class = with_or_without_head(config, model_class, checkpoint)
    check_labels(config, model_class, source)
    files = sentence_files_of(config, model_class, checkpoint)
    return ResolvedCheckpoint(model_class, config, quant, files, source, notes)


def _equal_by_headers(source: WeightSource, head: str, embedding: str) -> tuple[bool, str]:
    """Whether a tied config's stored head equals the embedding, as far as headers tell; in words too."""
    one, other = (source.infos()[name] for name in (head, embedding))
    if (one.shape, one.dtype) == (other.shape, other.dtype):
        return True, (
            f"tie_word_embeddings is true and {head} is stored: taken to equal {embedding}, which "
            "shows when they are read; if not, it takes memory of its own"
        )
    return False, (
        f"tie_word_embeddings is true, but the stored {head} differs from {embedding}; the stored "
        "head is used"
    )


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
