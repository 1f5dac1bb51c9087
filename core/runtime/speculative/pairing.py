"""Pairing: may this model draft for that one, and what has to be set up for it."""

from __future__ import annotations

from ...errors import InputError
from ...models import CausalLM, DecoderBase, DraftModel
from ..engine import Engine
from ..request import integer
from .drafter import Drafter

DRAFT_TOKENS = 4
"""Tokens proposed at once when nobody says."""


def make_drafter(target: Engine, draft: Engine, tokens: int | None) -> Drafter:
    """A drafter for requests of the target; states that the draft reads are captured from now on.

    Args:
        target: whose requests.
        draft: proposes; may be the target itself.
        tokens: to propose at once, no more than the draft's context; None for DRAFT_TOKENS.

    Raises:
        InputError: no language model, another vocabulary or width, or a target that gives other
            hidden states already.
        BoundaryError: states that the target does not have.
        SpoiltWeightsError: writing the draft's weights ended half-way.
    """
    most = draft.limits.pool.context
    count = DRAFT_TOKENS if tokens is None else integer("draft_tokens", tokens, 1, most)
    draft.require_weights()
    module, big = draft.runners[0].module, target.runners[0].module
    if not isinstance(module, CausalLM):
        raise InputError(
            f"draft={type(module).__name__} is {module.kind}; a draft is a language model"
        )
    if module.config.vocab_size != big.config.vocab_size:
        raise InputError(
            f"the draft has a vocabulary of {module.config.vocab_size} tokens, its target one of "
            f"{big.config.vocab_size}; use a draft made for this model"
        )
    if isinstance(module, DraftModel):
        _capture(target, draft, module, big)
    return Drafter(draft, count, isinstance(module, DraftModel))


def _capture(target: Engine, draft: Engine, module: DraftModel, big: DecoderBase) -> None:
    """Let the target give what the draft reads, and the draft its own state."""
    if module.target_width != big.config.hidden_size:
        raise InputError(
            f"the draft reads hidden states of {module.target_width} features, its target has "
            f"{big.config.hidden_size}; use a draft made for this model"
        )
    states = module.target_states(big.config.num_hidden_layers)
    if big.aux_layers not in ((), states):
        raise InputError(
            f"the draft reads hidden states {states}, its target gives {big.aux_layers}; call "
            "set_aux_layers(()) of the target first"
        )
    target.set_aux_layers(states)
    draft.set_aux_layers((module.config.num_hidden_layers,))
