"""Model: a loaded checkpoint and everything one can ask of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, Unpack, cast, overload

from torch import Tensor

from ..config import ModelConfig
from ..errors import InputError
from ..weights import UpdateMode, UpdateReport, WeightReport, Weights
from .checkpoint import Checkpoint
from .choosing import Choosable
from .engine import Engine
from .exporting import export_weights
from .generation import (
    GenerateOptions,
    GenerateResult,
    Stream,
    StreamChunk,
    generate_all,
    sampling_params,
)
from .judging import JudgingModel
from .prefix_cache import CacheStats
from .prompts import Prompt, chunk_of, is_batch, is_chat
from .request import Request, SamplingParams, check_prompt, integer, number
from .scoring import PromptLogprobs, prompt_logits, prompt_logprobs
from .sentence_files import SentenceFiles
from .speculative.drafter import Drafter
from .speculative.pairing import make_drafter
from .speculative.state import Speculation
from .states import AuxStates
from .stopping import stop_ids_of
from .updating import UpdateOptions, update_weights


class Model(JudgingModel, AuxStates):
    """A model that is ready to run, on all its ranks.

    Under torchrun every process makes the same calls, from one thread; results are equal on all of
    them. Elsewhere any thread may call anything: see ``turns.py``.

    Args:
        config: the normalised configuration.
        checkpoint: where it came from; its tokenizer is loaded when first needed.
        engine: runs it.
        reports: weight reports of the local ranks.
        files: how texts become vectors, as files beside the checkpoint say.

    Attributes:
        config: the normalised configuration.
        report: weight report of the first local rank.
        reports: of all local ranks.
        engine: scheduler and ranks, for callers that step themselves.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        engine: Engine,
        reports: Sequence[WeightReport],
        *,
        files: SentenceFiles | None = None,
    ) -> None:
        super().__init__(config, checkpoint, engine, files)
        self.reports = tuple(reports)
        self.report = self.reports[0]

    @property
    def cache_stats(self) -> CacheStats:
        """What the prefix cache has done since the model was loaded."""
        return self.engine.cache_stats

    @overload
    def logits(self, ids: Sequence[int], *, chunk_size: int | None = None) -> Tensor: ...
    @overload
    def logits(
        self, ids: Sequence[Sequence[int]], *, chunk_size: int | None = None
    ) -> list[Tensor]: ...
    def logits(
        self, ids: Sequence[int] | Sequence[Sequence[int]], *, chunk_size: int | None = None
    ) -> Tensor | list[Tensor]:
        """Logits of every position.

        Args:
            ids: token ids of one prompt, or a list of prompts. No tokens give no rows.
            chunk_size: compute in chunks of so many tokens over cached keys and values.

        Returns:
            (T, V) float32 (float64 when the model runs in float64); a list for a list.

        Raises:
            InputError: an id outside the vocabulary, a prompt longer than the context, a model
                without a language-model head.
            CapacityError: the KV pool has no room.
        """
        self._require("logits")
        chunk = chunk_of(chunk_size)
        if is_batch(ids):
            return prompt_logits(self.engine, [self._ids(one) for one in ids], chunk)
        return prompt_logits(self.engine, [self._ids(ids)], chunk)[0]

    def logprobs(
        self,
        ids: str | Sequence[int],
        start: int = 0,
        top_k: int = 0,
        temperature: float = 1.0,
        *,
        chunk_size: int | None = None,
    ) -> PromptLogprobs:
        """Log-probability of each token of a prompt, given those before it.

        Args:
            ids: token ids, or a text.
            start: tokens before it get None.
            top_k: also the k likeliest tokens at each position.
            temperature: logits are divided by it before the softmax; 1 gives the raw ones.
            chunk_size: compute in chunks of so many tokens.

        Raises:
            InputError: an empty prompt, a start outside it, a temperature that is not positive,
                top_k outside the vocabulary, a model without a language-model head.
        """
        self._require("logprobs")
        vocab = self.config.vocab_size
        prompt = check_prompt(self.encode(ids), vocab)
        first = integer("start", start, 0, len(prompt))
        top = integer("top_k", top_k, 0, vocab)
        heat = number("temperature", temperature, 0.0, math.inf)
        if not heat:
            raise InputError("temperature=0 gives no distribution; it must be positive")
        return prompt_logprobs(self.engine, prompt, first, top, heat, chunk_of(chunk_size))

    @overload
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[True],
        draft: Model | None = None,
        draft_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[StreamChunk]: ...
    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first fits
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        *,
        stream: Literal[False] = False,
        draft: Model | None = None,
        draft_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerateResult: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        max_new_tokens: int | None = None,
        *,
        stream: Literal[False] = False,
        draft: Model | None = None,
        draft_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[GenerateResult]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_new_tokens: int | None = None,
        *,
        stream: bool = False,
        draft: Model | None = None,
        draft_tokens: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerateResult | list[GenerateResult] | Iterator[StreamChunk]:
        """Continue one prompt or a batch of them.

        Args:
            prompt: a text, token ids, chat messages, or a list of any of these.
            max_new_tokens: tokens to generate at most; as many as fit when None.
            stream: give pieces as they come instead of results at the end.
            draft: proposes tokens, several of which may come out of one forward: a model of the same
                vocabulary (this one too; its head may be padded otherwise), or one made for this
                model. Changes no output; with one that reads hidden states, prompts take no cached
                prefixes.
            draft_tokens: tokens to propose at once; 4 when None.
            options: how tokens are chosen and where the output ends, see GenerateOptions.

        Returns:
            A result with ``.token_ids`` (new ones), ``.text``, ``.finish_reason`` and with a draft
            ``.speculation``; a list for a list; an iterator of pieces when streaming. Ids that the
            head has and the tokenizer has not are never chosen, those that end an output aside.

        Raises:
            InputError: an empty prompt, an id outside the vocabulary, an option out of range, a
                model without a language-model head, a draft that does not fit.
            CapacityError: a request that could never fit the KV pool.
        """
        self._require("generate")
        if self.has_tokenizer:
            self.engine.choosable = self._choosable
        drafter = self._drafter(draft, draft_tokens)
        many = list(prompt) if is_batch(prompt) else [prompt]
        params = sampling_params(max_new_tokens, options)
        requests = [self._request(cast(Prompt, one), params, drafter) for one in many]
        if stream:
            return Stream(self.engine, requests)
        results = generate_all(self.engine, requests)
        return results if is_batch(prompt) else results[0]

    def update_weights(
        self,
        pairs: Weights,
        mode: UpdateMode = "partial",
        atomic: bool = False,
        *,
        allow_partial_stacks: bool = False,
        check_values: bool = True,
    ) -> UpdateReport:
        """Write new weights into the model while it stays loaded.

        Names, shapes, dtypes and ties are checked on every rank before anything is written, and
        derived state (tied heads, packed layouts) is made again. No prompt may be under way: its
        cached keys and values would be the old weights'.

        Args:
            pairs: (checkpoint name, full tensor) in Hugging Face format, or an open source. They
                are all taken before the first write.
            mode: ``partial`` leaves parameters without a tensor as they are; ``full`` wants every
                one, as a load does.
            atomic: an error while writing puts the old weights back, bit for bit; costs the
                memory of what is written over until the update ends. Without it, such an error
                leaves a model that refuses to serve until a full update succeeds.
            allow_partial_stacks: parts of a stacked parameter (q without k and v) may come alone.
            check_values: look at every value for NaN and infinity first, not only at a few rows.

        Returns:
            What was touched.

        Raises:
            CoverageError: tensors that do not fit; half a stacked parameter; a tied head alone
                (``untie`` first).
            InputError: requests are under way, or an unknown mode.
            SpoiltWeightsError: a partial update, and an earlier one had ended half-way.
        """
        options = UpdateOptions(mode, atomic, allow_partial_stacks, check_values)
        found = update_weights(self.engine, pairs, options)
        if mode == "full":
            self.reports, self.report = found.reports, found.reports[0]
        return found

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as (checkpoint name, full tensor), one at a time, in the loaded dtype.

        Gathered over the ranks, padding cut, stacked parameters split unless the checkpoint
        stored them fused; a tied head comes once. Under torchrun every process takes all of them.

        Raises:
            WeightError: the model was updated before the last tensor was taken.
            SpoiltWeightsError: an update had ended half-way.
        """
        return export_weights(self.engine)

    def untie(self) -> None:
        """Give a head that is tied to the embedding storage of its own, with the same values.

        From then on the two are updated and exported apart. Nothing happens where none is tied.

        Raises:
            SpoiltWeightsError: an update had ended half-way.
        """
        with self.engine.turns.take():
            self.engine.require_weights()
            for runner in self.engine.runners:
                runner.module.untie()
            self.config = self.module.config

    @cached_property
    def _choosable(self) -> Choosable:
        """Ids that ``generate`` may choose: the tokenizer's, and those that end an output."""
        return Choosable({*self.tokenizer.tokens, *self.stop_ids()}, self.config.vocab_size)

    def _drafter(self, draft: Model | None, tokens: int | None) -> Drafter | None:
        if draft is not None:
            return make_drafter(self, draft, tokens)
        if tokens is not None:
            raise InputError(
                f"draft_tokens={tokens!r} without a draft; pass draft=, or leave it out"
            )
        return None

    def _request(
        self, prompt: Prompt, params: SamplingParams, drafter: Drafter | None = None
    ) -> Request:
        ids = self.encode(prompt)
        with self.engine.turns.take():
            seed = self.engine.executor.agree([[params.seeded().seed or 0]])[0][0]
        request = Request(
            ids,
            replace(params, seed=seed),
            self.stop_ids(isinstance(prompt, str) or is_chat(prompt)),
            self.tokenizer if params.stop or self.has_tokenizer else None,
            self.config.vocab_size,
        )
        request.speculation = None if drafter is None else Speculation(drafter)
        return request

    def stop_ids(self, with_tokenizer: bool = True) -> frozenset[int]:
        """Ids that end an output: the checkpoint's, and the tokenizer's.

        The checkpoint's are those of generation_config.json; the config's where it names none.
        """
        own = self._checkpoint.stop_ids or stop_ids_of(self.config.eos_token_ids)
        return own | self.tokenizer.eos_token_ids if with_tokenizer else own
