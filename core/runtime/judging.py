"""JudgingModel: vectors, scores and relevance, read from the last rows of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ..errors import InputError
from .prompted import PromptedModel
from .prompts import Prompt, chunk_of, is_batch, is_list
from .request import integer
from .scoring import prompt_label_logits, prompt_pooled, prompt_steps

Token = str | int
"""A token by its text or its id."""


class JudgingModel(PromptedModel):
    """Calls that generate nothing; each computes a prompt once."""

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        dimensions: int | None = None,
        normalize: bool = True,
        *,
        chunk_size: int | None = None,
    ) -> Tensor:
        """A vector for each prompt.

        Args:
            prompts: one prompt or a list of them.
            dimensions: keep so many leading features, cut before normalising.
            normalize: scale each vector to length 1.
            chunk_size: compute long prompts in chunks (last-token pooling only).

        Returns:
            (R, D) float32, or (R, dimensions).

        Raises:
            InputError: an empty prompt, dimensions outside 1…D, or a classifier, which has scores
                instead of vectors.
        """
        self._require("embed")
        width = self.module.pooled_width
        cut = None if dimensions is None else integer("dimensions", dimensions, 1, width)
        ids = [self._ids(self.encode(one)) for one in _prompts(prompts)]
        if not ids:
            return torch.empty(0, cut or width)
        return prompt_pooled(self.engine, ids, cut, normalize, chunk_of(chunk_size))

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        chunk_size: int | None = None,
        label_tokens: Sequence[Token] | None = None,
    ) -> Tensor:
        """Scores of each prompt, of a classification or reward head over its last token.

        Args:
            prompts: one prompt or a list of them. Messages are a whole conversation: nothing that
                begins another turn is added.
            chunk_size: compute long prompts in chunks.
            label_tokens: ask a language model instead: the logits of these tokens, ids or texts of
                one token each, as what comes after the prompt. Messages then end with what begins
                the assistant's turn.

        Returns:
            (R, labels) float32, raw: no softmax, no sigmoid, no scaling.

        Raises:
            InputError: an empty prompt, or a model without such a head.
        """
        self._require("classify" if label_tokens is None else "logits")
        asked = label_tokens is not None
        ids = [self._ids(self.encode(one, asked)) for one in _prompts(prompts)]
        if asked and not is_list(label_tokens):
            raise InputError(f"label_tokens={label_tokens!r} is no list of tokens")
        labels = [self._token_id("label_tokens", token) for token in label_tokens or ()]
        if not ids:
            return torch.empty(0, len(labels) if asked else self.module.pooled_width)
        if asked:
            return prompt_label_logits(self.engine, ids, labels, chunk_of(chunk_size))
        return prompt_pooled(self.engine, ids, None, False, chunk_of(chunk_size))

    def step_scores(
        self, prompts: Prompt | Sequence[Prompt], step_token: Token | None = None
    ) -> list[Tensor]:
        """Scores of each step of each prompt, of a process reward head.

        Args:
            prompts: one prompt or a list of them, as in ``classify``.
            step_token: the token that ends a step; that of the architecture when None.

        Returns:
            For each prompt (S, labels) float32, one row for each of its S step tokens, raw. Of a
            model with two labels, ``softmax(-1)[:, 1]`` is how likely a step is right.

        Raises:
            InputError: an empty prompt, no step token, or a model without such a head.
        """
        self._require("classify")
        token = self.module.step_token if step_token is None else step_token
        if token is None:
            raise InputError(
                f"{type(self.module).__name__} names no token that ends a step; give step_token"
            )
        end = self._token_id("step_token", token)
        ids = [self._ids(self.encode(one, False)) for one in _prompts(prompts)]
        return prompt_steps(self.engine, ids, end)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        labels: tuple[Token, Token] | None = None,
        chunk_size: int | None = None,
    ) -> Tensor:
        """How well each document answers a query, in the prompt that the model was trained on.

        Args:
            query: what is asked.
            documents: what may answer it.
            instruction: the task; the architecture's own words when None.
            labels: the answers yes and no, as tokens, of a language model; the architecture's when
                None. A head of a single row is their difference already.
            chunk_size: compute long prompts in chunks.

        Returns:
            (R,) float32 in 0…1: the probability of yes, of yes and no.

        Raises:
            InputError: an architecture without such a prompt (``classify`` takes prompts of any
                form), a head of several labels, labels beside a head,
                no tokenizer.
        """
        form = self.module.reranking
        if form is None:
            raise InputError(
                f"{type(self.module).__name__} knows no prompt for reranking; build it, and pass "
                "it to classify(), to a language model with label_tokens"
            )
        if not is_list(documents) or not all(isinstance(text, str) for text in (query, *documents)):
            raise InputError("rerank() takes a query that is a text and a list of texts")
        prompts = [form.prompt(query, document, instruction) for document in documents]
        if "classify" not in self.module.serves:
            asked = (form.yes, form.no) if labels is None else labels
            if len(asked) != 2:
                raise InputError(f"labels={asked!r} must be two tokens, yes and no")
            yes, no = self.classify(prompts, label_tokens=asked, chunk_size=chunk_size).unbind(1)
            return (yes - no).sigmoid()
        if self.module.pooled_width != 1 or labels is not None:
            raise InputError(
                f"{type(self.module).__name__} answers by a head of {self.module.pooled_width} rows, "
                f"labels={labels!r}; reranking needs one row and no labels, classify() gives all"
            )
        return self.classify(prompts, chunk_size=chunk_size)[:, 0].sigmoid()


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or a list of them, as a list; an empty list holds none."""
    none_at_all = is_list(prompts) and not prompts
    many = list(prompts) if none_at_all or is_batch(prompts) else [prompts]
    return cast(list[Prompt], many)
