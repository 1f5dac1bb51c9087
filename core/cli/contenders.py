"""Contenders: one model each, ours or theirs, timed over the same prompts. Greedy, no text.

A time covers everything from token ids to token ids; only the work named is inside it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import torch

from ..runtime import Engine, Model
from ..runtime.request import Request, SamplingParams

Prompts = Sequence[Sequence[int]]


class Contender(Protocol):
    """A model that can be timed."""

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first new token."""
        ...

    def decode(self, prompts: Prompts, count: int) -> float:
        """Seconds for count tokens after the first, for each of the prompts together."""
        ...


class Ours:
    """archzoo, by its engine.

    Args:
        model: with a pool that holds the prompts.
    """

    def __init__(self, model: Model) -> None:
        """Nothing runs yet."""
        self._engine: Engine = model.engine

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first new token."""
        begin = perf_counter()
        self._finish(self._submit([prompt], 1))
        return perf_counter() - begin

    def decode(self, prompts: Prompts, count: int) -> float:
        """Seconds for count tokens after the first, for each of the prompts together."""
        requests = self._submit(prompts, 1 + count)
        while not all(request.num_output for request in requests):
            self._engine.step()
        have = sum(request.num_output for request in requests)
        begin = perf_counter()
        self._finish(requests)
        seconds = perf_counter() - begin
        # A long prompt may have come in later, while others already decoded.
        made = sum(request.num_output for request in requests) - have
        return seconds * len(prompts) * count / made

    def _submit(self, prompts: Prompts, count: int) -> list[Request]:
        params = SamplingParams(max_new_tokens=count, ignore_eos=True)
        return [self._engine.add(Request(prompt, params)) for prompt in prompts]

    def _finish(self, requests: Sequence[Request]) -> None:
        while not all(request.finished for request in requests):
            self._engine.step()


class Theirs:
    """transformers: its forward in a bare loop, with its own cache.

    Args:
        model: of ``transformers``.
    """

    def __init__(self, model: Any) -> None:
        """Nothing runs yet."""
        self._model = model
        # Newer versions call it cache and warn about the older name.
        known = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to its first new token."""
        begin = perf_counter()
        self._next(torch.tensor([list(prompt)]), self._cache()).tolist()
        return perf_counter() - begin

    def decode(self, prompts: Prompts, count: int) -> float:
        """Seconds for count tokens after the first, for each of the prompts together."""
        cache = self._cache()
        tokens = self._next(torch.tensor([list(prompt) for prompt in prompts]), cache)
        begin = perf_counter()
        for _ in range(count):
            tokens = self._next(tokens[:, None], cache)
        tokens.tolist()
        return perf_counter() - begin

    def _cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    @torch.inference_mode()
    def _next(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        """The likeliest next token of each row."""
        output = self._model(
            input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_argument: cache}
        )
        tokens: torch.Tensor = output.logits[:, -1].argmax(dim=-1)
        return tokens
