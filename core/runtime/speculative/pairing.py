"""Pairing: may this model draft for that one, and what has to be set up for it."""

from __future__ import annotations

from ...errors import InputError
from ...models import CausalLM, DecoderBase, DraftModel
from ..engine import Engine
from ..prompted import PromptedModel
from ..request import integer
from .drafter import Drafter

DRAFT_TOKENS = 4
"""Tokens proposed at once when nobody says."""


def make_drafter(target: PromptedModel, draft: PromptedModel, tokens: int | None) -> Drafter:
    """A drafter for requests of the target; states that the draft reads are captured from now on.

    The two take turns together from now on.

    Args:
        target: whose requests.
        draft: proposes; may be the target itself.
        tokens: to propose at once, no more than the draft's context; None for DRAFT_TOKENS.

    Raises:
        InputError: no language model, another vocabulary or width, or a target that gives other
            hidden states already. A head that is padded otherwise is no other vocabulary, where
            tokenizers beside both say so.
        BoundaryError: states that the target does not have.
        SpoiltWeightsError: writing the draft's weights ended half-way.
    """
    most = draft.engine.limits.pool.context
    count = DRAFT_TOKENS if tokens is None else integer("draft_tokens", tokens, 1, most)
    draft.engine.require_weights()
    module, big = draft.module, target.module
    if not isinstance(module, CausalLM):
        raise InputError(
            f"draft={type(module).__name__} is {module.kind}; a draft is a language model"
        )
    if module.config.vocab_size != big.config.vocab_size:
        _check_same_tokens(target, draft)
    target.engine.turns.merge(draft.engine.turns)
    if isinstance(module, DraftModel):
        with target.engine.turns.take():
            _capture(target.engine, draft.engine, module, big)
    reads_states = isinstance(module, DraftModel)
    return Drafter(draft.engine, count, reads_states, target.engine.choosable)


def _check_same_tokens(target: PromptedModel, draft: PromptedModel) -> None:
    """Refuse two heads of different sizes unless an id is the same token for both models."""
    sizes = (
        f"the draft has a vocabulary of {draft.config.vocab_size} tokens, its target one of "
        f"{target.config.vocab_size}"
    )
    for name, model in (("the draft", draft), ("its target", target)):
        if not model.has_tokenizer:
            raise InputError(
                f"{sizes}, and {name} has no tokenizer that says which of them are padding; use a "
                "draft made for this model, or put the tokenizer beside the checkpoint"
            )
    ours, theirs = target.tokenizer.tokens, draft.tokenizer.tokens
    if ours != theirs:
        at = min(at for at in {*ours, *theirs} if ours.get(at) != theirs.get(at))
        raise InputError(
            f"{sizes}, and their tokenizers differ: id {at} is {theirs.get(at)!r} for the draft, "
            f"{ours.get(at)!r} for its target; use a draft made for this model"
        )


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
    target.capture(states)
    draft.capture((module.config.num_hidden_layers,))
