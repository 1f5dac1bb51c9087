"""CausalLM: decoder, head, logits and pooler behind one frozen forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor, nn

from ..config import LLAMA_LIKE, ConfigAdapter, ModelConfig
from ..errors import InputError
from ..forward import AttentionBackend, AttentionSpec, ForwardBatch
from ..layers import (
    BuildContext,
    LogitsProcessor,
    LogitsProcessorOutput,
    ParallelLMHead,
    Pooler,
    PoolingType,
    RadixAttention,
)
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


class CausalLM(nn.Module):
    """A decoder with a language-model head.

    A plugin sets ``layer``, and where its family differs from Llama, ``adapter`` and
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
        has_head: False for backbones that serve embeddings only.
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
    has_head: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config, self.dtype = config, ctx.dtype
        dot = f"{prefix}." if prefix else ""
        self.model = DecoderModel(config, self.layer, ctx=ctx, prefix=f"{dot}model")
        self.pooler = Pooler(self.pooling)
        self.lm_head: ParallelLMHead | None = None
        if self.has_head:
            tied = self.model.embed_tokens if config.tie_word_embeddings else None
            self.lm_head = ParallelLMHead(
                config.vocab_size,
                config.hidden_size,
                tied_to=tied,
                ctx=ctx,
                prefix=f"{dot}lm_head",
            )
        self.logits_processor = LogitsProcessor(config.vocab_size, config.final_logit_softcap)

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
            get_embedding: pooled vectors of the requests that end here instead of logits.
            pp_proxy_tensors: state of the stage before this one; this model is one stage.

        Returns:
            Logits of the rows ``batch.outputs`` asks for, or pooled vectors.

        Raises:
            InputError: pooling without requests, stage state given to a first stage.
        """
        if pp_proxy_tensors is not None:
            raise InputError(
                "pp_proxy_tensors was given to a model that is its own first stage; pass None"
            )
        hidden_states = self.model(input_ids, positions, batch, input_embeds)
        if get_embedding:
            return LogitsProcessorOutput(pooled=self._pool(hidden_states, batch))
        output: LogitsProcessorOutput = self.logits_processor(hidden_states, self._head(), batch)
        return output

    def embed(self, input_ids: Tensor) -> Tensor:
        """(T,) ids to (T, D) embeddings, complete on every rank."""
        return self.model.embed(input_ids)

    def head(self, rows: Tensor) -> Tensor:
        """(S, D) hidden rows, after the final norm, to (S, V) float32 logits."""
        return self.logits_processor.logits(rows, self._head())

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

    def _head(self) -> ParallelLMHead:
        if self.lm_head is None:
            raise InputError(
                f"{type(self).__name__} is an embedding model without a head; use embed() "
                "(get_embedding=True)"
            )
        return self.lm_head

    def _pool(self, hidden_states: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.requests is None or batch.outputs.pooling is None:
            raise InputError(
                "get_embedding needs batch.requests and batch.outputs.pooling: which requests "
                "end in this forward"
            )
        pooled: Tensor = self.pooler(hidden_states, batch.requests, batch.outputs.pooling)
        return pooled
