"""JudgingModel: vectors, scores and relevance, read from the last rows of prompts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import ModelConfig
from ..errors import InputError
from ..layers.pooler import cut_dimensions
from .checkpoint import Checkpoint
from .engine import Engine
from .prompted import PromptedModel
from .prompts import Prompt, chunk_of, is_batch, is_list
from .request import integer
from .scoring import prompt_label_logits, prompt_pooled, prompt_steps
from .sentence_files import MODULES_NAME, SentenceFiles

Token = str | int
"""A token by its text or its id."""


class JudgingModel(PromptedModel):
    """Calls that generate nothing; each computes a prompt once.

    Args:
        config, checkpoint, engine: as in PromptedModel.
        files: how texts become vectors, as files beside the checkpoint say.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        engine: Engine,
        files: SentenceFiles | None = None,
    ) -> None:
        super().__init__(config, checkpoint, engine)
        self._files = SentenceFiles() if files is None else files
        self._dense = [dense.layer() for dense in self._files.dense]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        dimensions: int | None = None,
        normalize: bool | None = None,
        *,
        chunk_size: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Tensor:
        """A vector for each prompt.

        A checkpoint with the files of ``sentence-transformers`` (``modules.json``) does with texts
        what they say: the prompt in front, lower case, the longest text (a longer one is cut, with a
        warning), pooled rows, dense layers. Token ids and messages are taken as they are.

        Args:
            prompts: one prompt or a list of them.
            dimensions: keep so many leading features, cut before normalising.
            normalize: scale each vector to length 1; None does, with a warning where
                ``modules.json`` lists no ``Normalize``.
            chunk_size: compute long prompts in chunks (last-token pooling only).
            prompt_name: which of the checkpoint's prompts stands in front of each text; its default
                one when None, if it names one.
            prompt: what stands in front instead; an empty text for nothing.

        Returns:
            (R, D) float32, or (R, dimensions).

        Raises:
            InputError: an empty prompt, dimensions outside 1…D, an unknown prompt_name, a prompt for
                something else than texts, or a classifier, which has scores instead of vectors.
            ConfigError: the files describe something else than a vector for each text.
        """
        self._require("embed")
        self._files.require_vectors()
        width = self._files.dense[-1].out_features if self._dense else self.module.pooled_width
        cut = None if dimensions is None else integer("dimensions", dimensions, 1, width)
        scale = self._scale() if normalize is None else normalize
        given = _prompts(prompts)
        front = self._files.prompt(prompt_name, prompt)
        others = [at for at, one in enumerate(given) if not isinstance(one, str)]
        if others and (prompt_name is not None or prompt is not None):
            raise InputError(f"prompt {others[0]} is no text; nothing can stand in front of it")
        ids = [self._ids(self._text_ids(one, front)) for one in given]
        if not ids:
            return torch.empty(0, cut or width)
        skip = 0
        if front and not self._files.include_prompt and len(others) < len(given):
            if others:
                raise InputError(
                    f"prompt {others[0]} is no text, others are, and {MODULES_NAME} leaves the rows "
                    f"of {front!r} before a text out of the mean; pass the two kinds apart"
                )
            skip = self._prompt_length(front)
        chunk = chunk_of(chunk_size)
        if not self._dense:
            return prompt_pooled(self.engine, ids, cut, scale, chunk, skip)
        vectors = prompt_pooled(self.engine, ids, None, False, chunk, skip).float()
        for layer in self._dense:
            vectors = layer(vectors)
        vectors = cut_dimensions(vectors, cut)
        return F.normalize(vectors, dim=-1) if scale else vectors

    def _scale(self) -> bool:
        """Whether vectors are scaled when nobody says: yes, and not in silence."""
        if not self._files.normalize:
            warnings.warn(
                f"{MODULES_NAME} lists no Normalize, so sentence-transformers gives vectors of any "
                "length; these have length 1: pass normalize=False, or True to say so",
                stacklevel=3,
            )
        return True

    def _text_ids(self, prompt: Prompt, front: str) -> Sequence[int]:
        """Ids of a prompt for ``embed``: of a text as the files beside the checkpoint say."""
        if not isinstance(prompt, str):
            return self.encode(prompt)
        text = front + prompt
        text = text.lower() if self._files.do_lower_case else text
        ids, most = self.tokenizer.encode(text), self._files.max_seq_length
        if most is None or len(ids) <= most:
            return ids
        warnings.warn(
            f"a text of {len(ids)} tokens is cut to {most}, the longest that the files beside the "
            "checkpoint allow (max_seq_length), as sentence-transformers does",
            stacklevel=4,
        )
        return self._cut(text, ids, most)

    def _cut(self, text: str, ids: Sequence[int], most: int) -> Sequence[int]:
        """The ids of a text cut to some, those that the tokenizer puts around it kept."""
        body = self.tokenizer.encode(text, add_special_tokens=False)
        around = len(ids) - len(body)
        starts = [at for at in range(around + 1) if list(ids[at : at + len(body)]) == body]
        if not starts or most <= around:
            raise InputError(
                f"a text of {len(ids)} tokens cannot be cut to {most}: the tokenizer puts {around} "
                "around it; shorten it, or pass token ids"
            )
        at, keep = starts[0], most - around
        kept = body[-keep:] if self._files.cut_left else body[:keep]
        return [*ids[:at], *kept, *ids[at + len(body) :]]

    def _prompt_length(self, front: str) -> int:
        """Rows of what stands in front of a text, as sentence-transformers counts them."""
        ids = self._text_ids(front.strip(), "")
        return len(ids) - (bool(ids) and self.tokenizer.hidden_text(ids[-1]) is not None)

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
