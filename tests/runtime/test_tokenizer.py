"""Tokenizers beside a checkpoint: local files only, errors with a way out."""

from __future__ import annotations

import ast
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import archzoo.runtime.tokenizer as tokenizer_module
from archzoo.errors import InputError
from archzoo.runtime.tokenizer import Tokenizer, TransformersTokenizer, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'ghost' %}{{ raise_exception('no ghosts') }}{% endif %}"
    "<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>a:{% endif %}"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory with a small byte-level tokenizer that puts <s> in front."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: at for at, piece in enumerate([*letters, "hi", "Ġhi"])}
    backend = Backend(models.BPE(vocab, [("h", "i"), ("Ġ", "hi")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<extra>")])
    begin = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", begin)]
    )
    path = tmp_path_factory.mktemp("checkpoint")
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "unheard_of", "vocab_size": 261}))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


def test_encode_and_decode(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hi hi 😀")
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.encode("hi hi 😀", add_special_tokens=False) == ids[1:]
    assert tokenizer.decode(ids) == "hi hi 😀"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>hi hi 😀"
    assert all(type(each) is int for each in ids)


def test_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == [tokenizer.bos_token_id]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.decode([]) == ""


def test_same_as_transformers(tokenizer: Tokenizer, directory: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(directory)
    for text in ("hi there , don't", "  two\n\tspaces  ", "<s>in text</s>", "日本語", "\x00"):
        assert tokenizer.encode(text) == theirs.encode(text)
        assert tokenizer.decode(theirs.encode(text)) == theirs.decode(
            theirs.encode(text), skip_special_tokens=True
        )


def test_ids(tokenizer: TransformersTokenizer) -> None:
    lookup = tokenizer.inner.convert_tokens_to_ids
    assert tokenizer.eos_token_ids == {lookup("</s>")}
    texts = [tokenizer.hidden_text(lookup(each)) for each in ("<s>", "</s>", "<extra>", "hi")]
    assert texts == ["<s>", "</s>", "<extra>", None]
    assert tokenizer.hidden_text(10_000) == "", "an id of a padded vocabulary"
    assert all(tokenizer.byte_of(each) is None for each in range(300))
    assert not tokenizer.replacement


def test_a_tokenizer_without_special_tokens() -> None:
    bare = TransformersTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=Backend(models.BPE({"a": 0}, [])))
    )
    assert bare.eos_token_ids == frozenset()
    assert bare.bos_token_id is None
    assert not bare.has_chat_template
    with pytest.raises(InputError, match="no chat template; pass a plain prompt"):
        bare.apply_chat([{"role": "user", "content": "a"}])


def test_chat(tokenizer: Tokenizer) -> None:
    assert tokenizer.has_chat_template
    messages = [{"role": "user", "content": "hi"}]
    ids = tokenizer.apply_chat(messages)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>user:hi</s><s>a:"
    closed = tokenizer.apply_chat(messages, add_generation_prompt=False)
    assert tokenizer.decode(closed, skip_special_tokens=False) == "<s>user:hi</s>"


def test_a_conversation_the_template_refuses(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="refuses this conversation: no ghosts"):
        tokenizer.apply_chat([{"role": "ghost", "content": "boo"}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "0 messages"),
        (["hi"], "message 0 is 'hi'"),
        ([{"role": "user"}], "message 0"),
        ([{"role": "user", "content": "a"}, {"content": "a"}], "message 1"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
    ],
)
def test_what_is_no_conversation(tokenizer: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tokenizer.apply_chat(messages)


@pytest.mark.parametrize(
    ("text", "message"), [(b"hi", "not bytes"), (None, "not NoneType"), ("a\ud83d", "character 1")]
)
def test_what_is_no_text(tokenizer: Tokenizer, text: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tokenizer.encode(text)


def test_no_tokenizer_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "nowhere", Path("gpt2")):
        with pytest.raises(InputError, match="no tokenizer beside the checkpoint; pass token ids"):
            load_tokenizer(path)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": 3}'])
def test_a_broken_tokenizer_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_code_in_the_checkpoint_does_not_run(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "Evil"
    config["auto_map"] = {"AutoTokenizer": [None, "evil.Evil"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_no_network(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert load_tokenizer(directory).encode("hi")


def test_the_module_alone_imports_no_tokenizer_library() -> None:
    tree = ast.parse(Path(tokenizer_module.__file__).read_text(encoding="utf-8"))
    at_top = {name for node in tree.body for name in imported(node)}
    assert at_top and not at_top & {"transformers", "tokenizers"}


def imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [(node.module or "").split(".")[0]] if isinstance(node, ast.ImportFrom) else []
