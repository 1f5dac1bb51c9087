"""EAGLE-3 draft heads: one Llama layer that guesses what a larger model says next.

::

    states of the target (3 x Dt) ─ fc ─┐ (T, D)
                                        ├─ hidden_norm ──┐
    ids ─ embed ─ input_layernorm ──────┼────────────────┴─ concat (T, 2D) ─ attention ─ + ─ MLP ─ +
                                        └──────────────────────────────────────────────┘
      ─ norm ─ lm_head (draft vocabulary) ─ d2t ─ logits of the target's vocabulary

What the MLP leaves, before ``norm``, is the state that the next guess takes instead of the fused
ones, as long as the target has not computed the token; with ``norm_output`` (EAGLE-3.1) the guess
takes it after ``norm``.

Source: EAGLE-3 (arXiv 2503.01840); checkpoint names as its authors' repository saves them.
``norm_output``: https://vllm.ai/blog/2026-05-26-eagle-3-1 and SpecForge's pull request 879.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from archzoo.boundary import ResidualStream, StageBoundary
from archzoo.config import ModelConfig
from archzoo.errors import ConfigError
from archzoo.forward import ForwardBatch
from archzoo.layers import BuildContext, ReplicatedLinear, RotaryRows
from archzoo.models import DraftModel, make_norm, states_for_draft

from .adapters import EAGLE3, EAGLE3_STATES
from .draft_vocabulary import DraftLogits
from .model import LlamaAttention, LlamaDecoderLayer
from .names import EAGLE3_HEAD


class Eagle3Attention(LlamaAttention):
    """Attention over embedding and hidden state side by side.

    Shapes:
        hidden_states: (T, 2D); returns (T, D), partial over ``attn_tp``.
    """

    @classmethod
    def input_size(cls, config: ModelConfig) -> int:
        """Both halves."""
        return 2 * config.hidden_size


class Eagle3Layer(LlamaDecoderLayer):
    """Llama's layer, whose attention also reads the embeddings in ``batch.tokens.beside``."""

    attention = Eagle3Attention

    def make_boundaries(
        self, config: ModelConfig, *, ctx: BuildContext, prefix: str
    ) -> tuple[StageBoundary, ...]:
        """The stream is read through ``hidden_norm``; ``input_layernorm`` is the embeddings'."""
        attn, mlp = super().make_boundaries(config, ctx=ctx, prefix=prefix)
        self.hidden_norm = make_norm(config, ctx, f"{prefix}.hidden_norm")
        self.attn_boundary = StageBoundary(
            attn.facts, self.self_attn, norm=self.hidden_norm, where=attn.where
        )
        return self.attn_boundary, mlp

    def forward(
        self, positions: Tensor | RotaryRows, stream: ResidualStream, batch: ForwardBatch
    ) -> None:
        """Run both stages over the stream."""
        assert batch.tokens is not None and batch.tokens.beside is not None
        embedded: Tensor = self.input_layernorm(batch.tokens.beside)
        both = torch.cat([embedded, self.attn_boundary.prepare(stream)], -1)
        self.attn_boundary.finish(stream, self.self_attn(positions, both, batch))
        hidden_states = self.mlp_boundary.prepare(stream)
        self.mlp_boundary.finish(stream, self.mlp(hidden_states))


class LlamaForCausalLMEagle3(DraftModel):
    """An EAGLE-3 head for a Llama-like target, or any other that gives hidden states.

    Args:
        config, ctx, prefix: as in DecoderBase.

    Warns:
        UserWarning: ``norm_output``, which the config alone says.

    Raises:
        ConfigError: several layers, or sizes that contradict each other.
    """

    layer = Eagle3Layer
    adapter = EAGLE3
    name_rules = {"hf": EAGLE3_HEAD}

    def __init__(self, config: ModelConfig, ctx: BuildContext, prefix: str = "") -> None:
        _check(config)
        super().__init__(config, ctx, prefix)
        if config.extra["norm_output"] and ctx.topology.rank == 0:
            warnings.warn(
                "norm_output=true: guesses go on from normed states, as EAGLE-3.1 heads do; no tensor "
                "can confirm it, so if few guesses are accepted, see what the head was trained with, "
                "or load it with ignore_fields=['norm_output']",
                stacklevel=2,
            )
        self.fc = ReplicatedLinear(
            EAGLE3_STATES * self.target_width,
            config.hidden_size,
            bias=False,
            ctx=ctx,
            prefix=f"{prefix}.fc" if prefix else "fc",
        )
        self.logits_processor = DraftLogits(
            self.head_size(config), config.vocab_size, config.final_logit_softcap, ctx=ctx
        )

    @classmethod
    def head_size(cls, config: ModelConfig) -> int:
        """Rows of the head: the draft's vocabulary, the target's where the file states none."""
        return int(config.extra["draft_vocab_size"] or config.vocab_size)

    @property
    def target_width(self) -> int:
        """Features of a hidden state of its target; its own where the file states none."""
        return int(self.config.extra["target_hidden_size"] or self.config.hidden_size)

    def target_states(self, layers: int) -> tuple[int, ...]:
        """Three states: outputs of the layers that the file names, else those of every target."""
        return states_for_draft(self.config.extra["eagle_config"], layers)

    def fuse(self, states: Tensor) -> Tensor:
        """Three states of the target through ``fc``; an own one as it is, or normed."""
        rows: Tensor
        if states.shape[-1] == self.config.hidden_size:
            rows = self.model.norm(states) if self.config.extra["norm_output"] else states
            return rows
        rows, _ = self.fc(states)
        return rows

    def check_weights(self) -> None:
        """Refuse vocabulary maps that contradict themselves or each other."""
        assert isinstance(self.logits_processor, DraftLogits)
        self.logits_processor.check()


def _check(config: ModelConfig) -> None:
    """Refuse what no EAGLE-3 head is.

    Raises:
        ConfigError: which field.
    """
    layers, vocab = config.num_hidden_layers, LlamaForCausalLMEagle3.head_size(config)
    if layers != 1:
        problem = f"{layers} layers; an EAGLE-3 head has 1"
        raise ConfigError(problem, "num_hidden_layers", config.file)
    if vocab > config.vocab_size:
        problem = f"{vocab} tokens to propose of a vocabulary of {config.vocab_size}"
        raise ConfigError(problem, "draft_vocab_size", config.file)
    if config.tie_word_embeddings and vocab < config.vocab_size:
        problem = f"true, but the head has {vocab} rows and the embedding {config.vocab_size}"
        raise ConfigError(problem, "tie_word_embeddings", config.file)
    width = config.extra["target_hidden_size"] or config.hidden_size
    if EAGLE3_STATES * width == config.hidden_size:
        problem = (
            f"{width}: {EAGLE3_STATES} states side by side are as wide as hidden_size="
            f"{config.hidden_size}, so the target's states and the head's own look alike"
        )
        raise ConfigError(problem, "target_hidden_size", config.file)
