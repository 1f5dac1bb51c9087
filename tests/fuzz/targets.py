"""What is fuzzed: each target takes bytes and may raise an ArchzooError, nothing else."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedTokenizerFast

from archzoo.config import LLAMA_LIKE, ModelConfig, config_from_gguf, read_config
from archzoo.errors import CheckpointFileError
from archzoo.models import CausalLM, name_map
from archzoo.parallel import whole
from archzoo.runtime.detokenize import Detokenizer
from archzoo.runtime.gguf_tokenizer import GGUFTokenizer, gguf_eos_token_ids
from archzoo.runtime.sentence_files import read_sentence_files
from archzoo.runtime.stopping import generation_eos_ids
from archzoo.runtime.tokenizer import TransformersTokenizer, load_tokenizer
from archzoo.weights import AutoWeightsLoader, WeightSource, open_headers, open_source
from archzoo.weights.gguf import GGUFFile, GGUFSource
from tiny import gguf_of

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SENTENCE_FILES = ("modules.json", "1_Pooling/config.json", "2_Dense/config.json")
SENTENCE_FILES += ("sentence_bert_config.json", "config_sentence_transformers.json")
SENTENCE_FILES += ("tokenizer_config.json",)
MOST_READ = 1 << 16
"""Elements of a tensor that are read; a target is about headers."""


def fuzz_safetensors(content: bytes, folder: Path) -> None:
    """A file: opened, planned, read."""
    path = folder / "model.safetensors"
    path.write_bytes(content)
    use(open_source(path))


def fuzz_index(content: bytes, folder: Path) -> None:
    """An index beside two good shards."""
    for number, name in enumerate(SHARDS):
        if not (folder / name).exists():
            save_file({f"model.layers.{number}.w": torch.ones(2, 3)}, folder / name)
    (folder / "model.safetensors.index.json").write_bytes(content)
    use(open_source(folder))


def fuzz_headers(content: bytes, folder: Path) -> None:
    """Headers that a JSON file states."""
    (folder / "model.safetensors.headers.json").write_bytes(content)
    source = open_headers(folder)
    plan(source)
    for name, info in source.infos().items():
        place = source.stored(name)
        assert place.stop - place.start == info.nbytes(whole(info.shape))


def fuzz_gguf(content: bytes, folder: Path) -> None:
    """A file: its metadata as a config, its tensors as weights."""
    path = folder / "model-00001-of-00002.gguf"
    path.write_bytes(content)
    file = GGUFFile(path)
    source = GGUFSource(file, accept_rope_divisors=True)
    use(source)
    divisors = source.rope_divisors
    raw = config_from_gguf(file.metadata, file.tensors, rope_divisors=divisors, file=str(path))
    ModelConfig.from_dict(raw, LLAMA_LIKE, str(path))


def fuzz_gguf_tokenizer(content: bytes, folder: Path) -> None:
    """What a GGUF file says of its tokenizer, as a JSON object: text to ids and back."""
    try:
        stated = json.loads(content)
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        raise CheckpointFileError(str(folder), "says nothing of a tokenizer")
    prefixed = {f"tokenizer.{key}": value for key, value in stated.items() if in_gguf(value)}
    file = gguf_of(prefixed, folder / "model.gguf")
    gguf_eos_token_ids(file)
    tokenizer = GGUFTokenizer(file)
    assert isinstance(tokenizer.inner, PreTrainedTokenizerFast)
    for text in ("", "It's 12345\n\n  <|end|> ab<0x41>", "é你好 \U0001f916"):
        tokenizer.decode(tokenizer.encode(text))


def in_gguf(value: object) -> bool:
    """Whether a GGUF file can hold a JSON value: UTF-8, numbers of 64 bits, lists of them."""
    match value:
        case str():
            return not any("\ud800" <= char <= "\udfff" for char in value)
        case list():
            return all(in_gguf(each) and not isinstance(each, list) for each in value)
        case int():
            return -(2**63) <= value < 2**64
    return isinstance(value, float)


def fuzz_config(content: bytes, folder: Path) -> None:
    """A config.json, normalised."""
    (folder / "config.json").write_bytes(content)
    ModelConfig.from_dict(read_config(folder), LLAMA_LIKE, str(folder / "config.json"))


def fuzz_sentences(content: bytes, folder: Path) -> None:
    """Files of sentence-transformers: an object of their names, each with its content."""
    try:
        files = {name: json.dumps(each).encode() for name, each in json.loads(content).items()}
    except (AttributeError, ValueError, RecursionError):
        files = {SENTENCE_FILES[0]: content}
    for name in SENTENCE_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        if name in files:
            (folder / name).write_bytes(files[name])
    save_file({"linear.weight": torch.ones(3, 8)}, folder / "2_Dense" / "model.safetensors")
    found = read_sentence_files(folder, 8)
    found.require_vectors()
    found.prompt(None, None)


TOKENIZERS = Path(__file__).parent / "corpus" / "tokenizer"
TEXTS = ("the river ran 3 times\n<s>é😀 </s>", "a" * 40 + " " * 40 + "1234567!")
CHAT = (
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi\n"},
    {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
    {"role": "user", "content": "go on", "extra": [1, 2.5, None, {"a": True}]},
)


def fuzz_tokenizer(content: bytes, folder: Path) -> None:
    """A tokenizer.json: texts to ids and back."""
    (folder / "tokenizer.json").write_bytes(content)
    use_tokenizer(load_tokenizer(folder))


def fuzz_tokenizer_config(content: bytes, folder: Path) -> None:
    """A tokenizer_config.json beside a good tokenizer."""
    (folder / "tokenizer.json").write_bytes((TOKENIZERS / "bytes").read_bytes())
    (folder / "tokenizer_config.json").write_bytes(content)
    use_tokenizer(load_tokenizer(folder))


def fuzz_template(content: bytes, folder: Path) -> None:
    """A chat template, over one conversation."""
    good_tokenizer().inner.chat_template = content.decode("utf-8", "replace")
    if good_tokenizer().has_chat_template:
        good_tokenizer().apply_chat(CHAT)


def fuzz_generation_config(content: bytes, folder: Path) -> None:
    """A generation_config.json."""
    (folder / "generation_config.json").write_bytes(content)
    generation_eos_ids(folder)


@cache
def good_tokenizer() -> TransformersTokenizer:
    """A tokenizer that templates are tried with."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_bytes((TOKENIZERS / "bytes").read_bytes())
        return load_tokenizer(Path(folder))


def use_tokenizer(tokenizer: TransformersTokenizer) -> None:
    """Everything that a prompt and its answer ask of a tokenizer."""
    assert all(each >= 0 for each in tokenizer.eos_token_ids)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        stream = Detokenizer(tokenizer, ids[:4])
        assert isinstance("".join(map(stream.push, ids[4:])) + stream.flush(), str)
        tokenizer.decode(ids, skip_special_tokens=False)
    if tokenizer.has_chat_template:
        tokenizer.apply_chat(CHAT)


def use(source: WeightSource) -> None:
    """Plan, load and read what a source says it has."""
    try:
        plan(source)
        for name, info in source.infos().items():
            box = whole(info.shape)
            if sum(stop for _, stop in box) < MOST_READ and info.nbytes(box) < MOST_READ:
                assert tuple(source.read(name, box).shape) == info.shape
    finally:
        source.close()


def plan(source: WeightSource) -> None:
    """Plan what a source says it has."""
    loader = AutoWeightsLoader(small_model(), name_map=name_map(CausalLM, "hf"))
    str(loader.plan(source.infos()).findings.report(source.description, source.notes))


def small_model() -> nn.Module:
    """Two layers and a tied pair."""
    top = nn.Module()
    top.model = nn.Module()
    top.model.layers = nn.ModuleList(nn.Module() for _ in range(2))
    for layer in top.model.layers:
        layer.w = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    top.model.embed_tokens, top.lm_head = nn.Module(), nn.Module()
    top.model.embed_tokens.weight = nn.Parameter(torch.zeros(4, 3), requires_grad=False)
    top.lm_head.weight = top.model.embed_tokens.weight
    return top


TARGETS: Mapping[str, Callable[[bytes, Path], None]] = {
    "safetensors": fuzz_safetensors,
    "gguf": fuzz_gguf,
    "gguf-tokenizer": fuzz_gguf_tokenizer,
    "index": fuzz_index,
    "headers": fuzz_headers,
    "config": fuzz_config,
    "sentences": fuzz_sentences,
    "tokenizer": fuzz_tokenizer,
    "tokenizer_config": fuzz_tokenizer_config,
    "template": fuzz_template,
    "generation_config": fuzz_generation_config,
}


def run_target(name: str, content: bytes, folder: Path) -> None:
    """One input; warnings are no concern here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TARGETS[name](content, folder)
