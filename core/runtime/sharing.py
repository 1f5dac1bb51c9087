"""How much of a sequence requests may share; the rest of the runtime asks no model about it."""

from __future__ import annotations

from collections.abc import Sequence

from ..forward import AttentionType
from ..layers import PoolingType
from ..layers.rope_tables import same_turns_up_to
from ..models import DecoderBase
from .executor import Executor
from .memory import context_of


def shared_tokens(models: Sequence[DecoderBase], executor: Executor) -> int:
    """Leading tokens whose keys and values nothing decides but those tokens, equal on all ranks.

    None where a token sees later ones. Where rotation depends on the length of a sequence, as many
    as turn alike in all of them.

    Args:
        models: of all local ranks.
        executor: the ranks.
    """
    config = models[0].config
    specs = [spec for model in models for spec in model.attention_specs()]
    causal = all(spec.attn_type is AttentionType.DECODER for spec in specs)
    limits = [context_of(config)] if causal else [0]
    if config.rope is not None:
        ropes = [config.rope_for(layer) for layer in range(config.num_hidden_layers)]
        limits += [most for rope in ropes if (most := same_turns_up_to(rope)) is not None]
    return executor.least(min(limits))


def recompute_after(model: DecoderBase) -> int | None:
    """Tokens of the longest sequence that keeps its keys; past it all are made again. None: never.

    Args:
        model: of any rank.
    """
    rope = model.config.rope if model.adapter.recomputes_keys else None
    return None if rope is None else same_turns_up_to(rope)


def borrowable(model: DecoderBase, prompt: Sequence[int]) -> int:
    """Tokens of a prompt that need not be computed for its pooled row: all but a last one."""
    return len(prompt) - 1 if model.pooler.pooling is PoolingType.LAST else 0
