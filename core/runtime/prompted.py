"""PromptedModel: a loaded model and its tokenizer, and how any kind of prompt becomes ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ..config import ModelConfig
from ..errors import InputError
from ..models import DecoderBase
from .checkpoint import Checkpoint
from .engine import Engine, OfOneProcess
from .prompts import Prompt, checked_ids, is_chat
from .request import integer
from .tokenizer import Tokenizer


class PromptedModel(OfOneProcess):
    """What every call of a model begins with.

    Args:
        config: the normalised configuration.
        checkpoint: where it came from; its tokenizer is loaded when first needed.
        engine: runs it.

    Attributes:
        config: the normalised configuration.
        engine: scheduler and ranks, for callers that step themselves.
    """

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, engine: Engine) -> None:
        self.config, self.engine = config, engine
        self._checkpoint = checkpoint

    @property
    def module(self) -> DecoderBase:
        """The architecture's module of the first local rank.

        On a CPU its linears pack their weights in the first forward: ``weight`` then keeps shape and
        dtype on ``meta``, so state_dict is not for a loaded model, and deepcopy and pickle refuse it.
        """
        return self.engine.runners[0].module

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer.

        Raises:
            InputError: there is none.
        """
        return self._checkpoint.tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the checkpoint brings a tokenizer."""
        return self._checkpoint.has_tokenizer

    def encode(self, prompt: Prompt, add_generation_prompt: bool = True) -> Sequence[int]:
        """Token ids of any kind of prompt; ids come back as they are.

        Args:
            prompt: a text, messages, or token ids.
            add_generation_prompt: messages end with what begins the assistant's turn.

        Raises:
            InputError: a text or messages, and the checkpoint has no tokenizer for them.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if is_chat(prompt):
            return self.tokenizer.apply_chat(prompt, add_generation_prompt)
        return cast(Sequence[int], prompt)

    def _token_id(self, name: str, token: str | int) -> int:
        """A token that a caller names by its text or its id.

        Raises:
            InputError: an id outside the vocabulary, a text of several tokens, or a text and no
                tokenizer.
        """
        if not isinstance(token, str):
            return integer(name, token, 0, self.config.vocab_size - 1)
        ids = self.tokenizer.encode(token, add_special_tokens=False)
        if len(ids) != 1:
            raise InputError(f"{name}={token!r} is {len(ids)} tokens ({ids}); it must be one")
        return ids[0]

    def _require(self, call: str) -> None:
        self.engine.require_weights()
        self.module.require(call)

    def _ids(self, ids: Any) -> list[int]:
        return checked_ids(ids, self.config.vocab_size)
