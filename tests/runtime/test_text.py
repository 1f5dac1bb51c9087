"""Text of real generations: behind its prompt, stopped where transformers' stop_strings stop.

A model that follows a chain of tokens says anything one wants, in pieces of a SentencePiece
vocabulary with byte fallback.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import archzoo
from tiny import SIZES

WORDS = ["▁", "a", "b", "c", "d", "▁a", "▁b", "<|im_end|>", "<|user|>"]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
ID = {piece: at for at, piece in enumerate(PIECES)}
SMILE = [f"<0x{byte:02X}>" for byte in "🙂".encode()]
NEWLINE = "<0x0A>"
# Each piece once, but for the last, which goes on for ever.
ANSWERS: dict[str, list[str]] = {
    "newlines": ["▁b", NEWLINE, NEWLINE],
    "smile": ["▁b", *SMILE, "c", "d", "d"],
    "special": ["▁b", "<|im_end|>", "<|user|>", "c", "▁", "▁"],
    "broken": ["▁b", NEWLINE, *SMILE[:2], "c", "<0xFF>", "<0xFF>"],
}


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(
        models.BPE(ID, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True)
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(content=" ", left=1)]
    )  # fmt: skip
    inner.add_special_tokens([AddedToken(each, special=True) for each in WORDS[-2:]])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def says(folder: Path, answer: Sequence[str]) -> LlamaForCausalLM:
    """A checkpoint whose likeliest tokens behind an "a" are these, the last one without end."""
    size = len(PIECES)
    config = {**SIZES, "vocab_size": size, "hidden_size": size, "num_hidden_layers": 1}
    model = LlamaForCausalLM(
        LlamaConfig(**{**config, "num_attention_heads": 4, "num_key_value_heads": 2}, head_dim=8)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1 if "norm" in name else 1e-4)
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for before, after in pairwise([ID["▁a"], *(ID[piece] for piece in answer)]):
            model.lm_head.weight[after, before] = 1
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


class Said:
    """A model of each answer, and the reference's."""

    def __init__(self, folder: Path, answer: Sequence[str]) -> None:
        self.reference = says(folder, answer)
        self.model = archzoo.load(folder)
        self.tokenizer = tokenizer()

    def right(self, stop: str, new: int) -> list[int]:
        """New tokens of transformers."""
        prompt = torch.tensor([self.tokenizer.encode("a")])
        out = self.reference.generate(
            prompt, max_new_tokens=new, do_sample=False, stop_strings=[stop],
            tokenizer=self.tokenizer, pad_token_id=2,
        )  # fmt: skip
        found: list[int] = out[0, prompt.shape[1] :].tolist()
        return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    return {name: Said(tmp_path_factory.mktemp(name), answer) for name, answer in ANSWERS.items()}


STOPS = [
    ("newlines", "\n", 1), ("newlines", "\n\n", 2), ("newlines", "b\n", 1), ("newlines", " b", 0),
    ("smile", "🙂", 4), ("smile", "🙂c", 5), ("smile", "dd", 7),
    ("special", "<|im_end|>", 1), ("special", "<|im_end|><|user|>", 2),
    ("special", "b<|im", 1), ("special", "c ", 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stop", "at"), STOPS)
def test_stops_where_transformers_does(
    said: dict[str, Said], name: str, stop: str, at: int
) -> None:
    one = said[name]
    for new in (20, at + 1):
        result = one.model.generate("a", max_new_tokens=new, stop=stop)
        assert result.token_ids == one.right(stop, new) and len(result.token_ids) == at + 1
        assert result.finish_reason == "stop", "on the last allowed token too"
        drafted = one.model.generate(
            "a", max_new_tokens=new, stop=stop, draft=one.model, draft_tokens=6
        )
        assert (drafted.token_ids, drafted.text) == (result.token_ids, result.text)
        assert drafted.finish_reason == "stop"
    everything = one.tokenizer.decode([ID["▁a"], *result.token_ids])[1:]
    assert everything.startswith(result.text) and stop not in result.text


TEXTS = {
    "newlines": " b\n\n\n\n\n\n",
    "smile": " b🙂cd",
    "special": " bc    "[:6],
    "broken": " b\n\ufffd\ufffdc\ufffd\ufffd",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_prompt_and_text_are_the_decoding_of_all_ids(said: dict[str, Said], name: str) -> None:
    one = said[name]
    ids = one.tokenizer.encode("a")
    one.model.tokenizer.inner.chat_template = "{{ messages[0].content }}"
    prompts: list[Any] = ["a", ids, [{"role": "user", "content": "a"}]]
    for prompt in prompts:
        result = one.model.generate(prompt, max_new_tokens=7)
        assert result.text == TEXTS[name]
    decoded = one.tokenizer.decode([*ids, *result.token_ids], skip_special_tokens=True)
    assert (decoded == "a" + result.text) == (name != "broken")
    chunks = list(one.model.generate("a", max_new_tokens=7, stream=True))
    assert "".join(chunk.text for chunk in chunks) == result.text
    if NEWLINE in ANSWERS[name]:
        assert chunks[1].text == "\n", "at once"


@pytest.mark.parametrize("name", ["newlines", "smile", "special"])
def test_going_on_token_by_token_does_not_drift(said: dict[str, Said], name: str) -> None:
    one = said[name]
    ids = one.tokenizer.encode("a")
    text = ""
    for _ in range(7):
        result = one.model.generate(ids, max_new_tokens=1)
        text += result.text.rstrip("\ufffd")
        ids = [*result.prompt_token_ids, *result.token_ids]
    assert text == TEXTS[name]
