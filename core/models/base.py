"""DecoderBase: a decoder, its pooler and its weights behind one frozen forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor, nn

from ..config import LLAMA_LIKE, ConfigAdapter, ModelConfig
from ..errors import InputError
from ..forward import AttentionBackend, AttentionSpec, ForwardBatch, PoolingRequest
from ..layers import BuildContext, LogitsProcessorOutput, Pooler, PoolingType, RadixAttention
from ..weights import (
    STANDARD_GATE_UP_MAPPING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    AutoWeightsLoader,
    NameRules,
    Progress,
    WeightReport,
    Weights,
)
from .decoder import DecoderLayer, DecoderModel
from .names import name_map


class DecoderBase(nn.Module):
    """What every served decoder has; a kind of model adds its head.

    The kinds are ``CausalLM``, ``EmbeddingModel`` and ``SequenceClassifier``. A plugin extends one
    of them and sets ``layer``, and where its family differs from Llama, ``adapter`` and
    ``name_rules``; a subclass inherits its parents' name rules.

    Args:
        config: the normalised configuration.
        ctx: topology, dtype, device, quantization.
        prefix: dotted path of this module in a larger one.

    Attributes:
        layer: the decoder layer.
        adapter: how the family spells and defaults its configuration.
        name_rules: by checkpoint format, the rules this class adds to its parents'.
        pooling: rows that make a vector under ``get_embedding``.
        kind: what a model of this kind is, for messages.
        serves: names of the calls of ``Model`` that it answers.
    """

    layer: ClassVar[type[DecoderLayer]]
    adapter: ClassVar[ConfigAdapter] = LLAMA_LIKE
    name_rules: ClassVar[Mapping[str, NameRules]] = {
        "hf": NameRules(
            skips=STANDARD_SKIPS,
            stacking=STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING,
        )
    }
    pooling: ClassVar[PoolingType] = PoolingType.LAST
    kind: ClassVar[str]
    serves: ClassVar[tuple[str, ...]]

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config, self.dtype = config, ctx.dtype
        self.model = DecoderModel(config, self.layer, ctx=ctx, prefix=child_prefix(prefix, "model"))
        self.pooler = Pooler(self.pooling)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        input_embeds: Tensor | None = None,
        get_embedding: bool = False,
        pp_proxy_tensors: dict[str, Tensor] | None = None,
    ) -> LogitsProcessorOutput:
        """One forward.

        Args:
            input_ids: (T,) token ids; None with ``input_embeds``.
            positions: (T,) position of each row in its sequence.
            batch: the facts of this forward.
            input_embeds: (T, D) instead of ids.
            get_embedding: pooled rows of the requests that end here instead of logits: vectors,
                or the scores of a classifier.
            pp_proxy_tensors: state of the stage before this one; this model is one stage.

        Returns:
            Logits of the rows ``batch.outputs`` asks for, or pooled rows.

        Raises:
            InputError: logits asked of a model without a language-model head, pooling without
                requests, stage state given to a first stage.
        """
        if pp_proxy_tensors is not None:
            raise InputError(
                "pp_proxy_tensors was given to a model that is its own first stage; pass None"
            )
        hidden_states = self.model(input_ids, positions, batch, input_embeds)
        if get_embedding:
            return LogitsProcessorOutput(pooled=self._pool(hidden_states, batch))
        return self._logits(hidden_states, batch)

    @classmethod
    def require(cls, call: str) -> None:
        """Refuse what this kind of model cannot answer.

        Args:
            call: a method of ``Model``.

        Raises:
            InputError: it is none of ``serves``.
        """
        if call not in cls.serves:
            raise cls._refusal(call)

    @property
    def pooled_width(self) -> int:
        """Numbers in a pooled row."""
        return self.config.hidden_size

    def embed(self, input_ids: Tensor) -> Tensor:
        """(T,) ids to (T, D) embeddings, complete on every rank."""
        return self.model.embed(input_ids)

    def attention_layers(self) -> Iterator[RadixAttention]:
        """Every attention of this rank, in layer order."""
        return (module for module in self.modules() if isinstance(module, RadixAttention))

    def attention_specs(self) -> list[AttentionSpec]:
        """What a backend must serve; known before weights are loaded."""
        return [layer.spec for layer in self.attention_layers()]

    def bind(self, backend: AttentionBackend) -> None:
        """Give every attention layer the backend's handle for it."""
        handles = backend.bind(self.attention_specs())
        for layer in self.attention_layers():
            layer.kv = handles.get(layer.spec.layer_id)

    def load_weights(
        self, weights: Weights, fmt: str = "hf", progress: Progress | None = None
    ) -> WeightReport:
        """Fill this rank's parameters, strictly.

        Args:
            weights: an open source, or (name, tensor) pairs with checkpoint names.
            fmt: how the names are spelled, ``hf`` or ``gguf``.
            progress: called with (bytes done, bytes to do).

        Raises:
            CoverageError: anything missing, left over, doubled or of another shape.
        """
        loader = AutoWeightsLoader(self, name_map=name_map(type(self), fmt))
        return loader.load_weights(weights, progress=progress)

    def _logits(self, hidden_states: Tensor, batch: ForwardBatch) -> LogitsProcessorOutput:
        """Logits of the rows asked for; only a language-model head gives them."""
        raise self._refusal("logits")

    @classmethod
    def _refusal(cls, call: str) -> InputError:
        answers = ", ".join(f"{each}()" for each in cls.serves)
        return InputError(f"{cls.__name__} is {cls.kind}; it answers {answers}, not {call}()")

    def _pool(self, hidden_states: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.requests is None or batch.outputs.pooling is None:
            raise InputError(
                "get_embedding needs batch.requests and batch.outputs.pooling: which requests "
                "end in this forward"
            )
        wanted = batch.outputs.pooling
        return self._pooled(
            self.pooler.rows(hidden_states, batch.requests, wanted.requests), wanted
        )

    def _pooled(self, rows: Tensor, wanted: PoolingRequest) -> Tensor:
        """(P, D) rows of the requests that end here to what leaves the model: vectors."""
        return self.pooler.vectors(rows, wanted)


def child_prefix(prefix: str, name: str) -> str:
    """Dotted path of a child module."""
    return f"{prefix}.{name}" if prefix else name
