"""Checkpoints to run commands on, and a way to run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
import torch
from agents import HANGING, new_store, start_ranks
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from archzoo.cli import main
from tiny import SIZES, tiny_llama

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


CONTEXT = {"max_position_embeddings": 256}


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def command(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return command


def as_processes(arguments: list[str], count: int) -> list[Done]:
    """Run a command as so many processes, as torchrun starts them; in the order of their ranks."""
    command = [sys.executable, "-m", "archzoo", *arguments]
    store = new_store()
    ranks = start_ranks(command, store.port, count, stderr=subprocess.PIPE)
    said = [rank.communicate(timeout=HANGING) for rank in ranks]
    return [Done(rank.returncode, *each) for rank, each in zip(ranks, said, strict=True)]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without a tokenizer: 6 query heads, 3 KV heads, 3 layers, 130 ids, context 256."""
    return tiny_llama(tmp_path_factory.mktemp("llama"), **CONTEXT)[0]


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a byte-level tokenizer and a chat template; 260 ids."""
    path, _ = tiny_llama(tmp_path_factory.mktemp("chatty"), vocab_size=260)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({piece: at for at, piece in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of the same shape, without a tokenizer."""
    _, model = tiny_llama(tmp_path_factory.mktemp("source"), seed=3, **CONTEXT)
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(path, {name: value.detach() for name, value in model.state_dict().items()})
    return path


def _write_gguf(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_vocab_size(SIZES["vocab_size"])
    writer.add_context_length(CONTEXT["max_position_embeddings"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SIZES["num_hidden_layers"])
    for name, value in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            count = heads if "q_proj" in name else kv_heads
            halves = value.reshape(count, 2, -1, value.shape[1])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        stem, suffix = name.rsplit(".", 1)
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a function one that must not be called."""

    def refuse(target: str) -> None:
        def never(*_args: Any, **_kwargs: Any) -> Any:
            raise AssertionError(f"{target} was called")

        monkeypatch.setattr(target, never)

    return refuse
