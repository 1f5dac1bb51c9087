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


def test_tokens_by_id() -> None:
    """Added ones too; of a vocabulary that leaves ids out, those that are there."""
    backend = Backend(models.WordLevel({"a": 0, "b": 5}, "a"))
    backend.add_tokens(["c"])
    wrapped = TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), unused=[5])
    assert dict(wrapped.tokens) == {0: "a", 2: "c"}


def test_tokens_that_are_spelled_alike_each_count() -> None:
    pieces = [("<unk>", 0.0), ("x", -1.0), ("x", -2.0), ("y", -3.0)]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    wrapped = TransformersTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert dict(wrapped.tokens) == {0: "<unk>", 1: "x", 2: "x", 3: "y"}


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


PARTS = [{"type": "text", "text": "h"}, {"type": "text", "text": "i hi"}]
READS_LISTS = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
)
CONTENT_TEMPLATES = {
    "prints": (TEMPLATE, "<s>user:hi hi</s><s>a:"),
    "trims": ("{{ messages[0].content | trim }}", "hi hi"),
    "adds": ("{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}", "userhi hi"),
    "spells": ("{{ messages[0].content | tojson }}", '"hi hi"'),
    "texts only": ("{{ messages[0].content if messages[0].content is string else '' }}", "hi hi"),
    "reads": (READS_LISTS, "user:<h><i hi>"),
}


@pytest.mark.parametrize("name", CONTENT_TEMPLATES)
def test_lists_of_text_parts(directory: Path, name: str) -> None:
    template, shown = CONTENT_TEMPLATES[name]
    tokenizer = load_tokenizer(directory)
    tokenizer.inner.chat_template = template
    messages = [{"role": "user", "content": PARTS}]
    assert tokenizer.decode(tokenizer.apply_chat(messages), skip_special_tokens=False) == shown
    assert messages == [{"role": "user", "content": PARTS}], "the caller's messages stay"


def test_only_the_lists_that_are_not_read_are_joined(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    tokenizer.inner.chat_template = "{{ messages[0].content | trim }}|" + READS_LISTS
    messages = [{"role": "system", "content": PARTS}, {"role": "user", "content": PARTS}]
    ids = tokenizer.apply_chat(messages)
    assert tokenizer.decode(ids) == "hi hi|system:hi hiuser:<h><i hi>"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, r"message 1 \(assistant\): content is 3; it must be a text or a list"),
        (None, r"message 1 \(assistant\): content is None; .* only beside tool_calls"),
        (b"hi", r"message 1 \(assistant\): content is b'hi'"),
        ({"type": "text", "text": "a"}, r"message 1 \(assistant\): content is {"),
        (["a"], r"message 1 \(assistant\): content\[0\] is a part of type 'a'"),
        ([*PARTS, {"type": "image_url", "image_url": "x" * 999}], r"content\[2\] .* 'image_url'"),
        ([{"type": "text"}], r"content\[0\]\['text'\] is None; it must be a text"),
        ([{"type": "text", "text": "\ud800"}], r"content\[0\]\['text'\] holds '\\ud800'"),
    ],
)
def test_a_content_of_another_kind(tokenizer: Tokenizer, content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tokenizer.apply_chat(
            [{"role": "user", "content": "a"}, dict(role="assistant", content=content)]
        )
    assert len(str(caught.value)) < 500


def test_calls_need_no_content(tokenizer: Tokenizer) -> None:
    calls = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    for message in (calls, {**calls, "content": None}):
        ids = tokenizer.apply_chat([{"role": "user", "content": "hi"}, message])
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        assert shown == "<s>user:hi</s><s>assistant:</s><s>a:"
    with pytest.raises(InputError, match="message 0 is .* must be a mapping with 'role'"):
        tokenizer.apply_chat([{"role": 3, "content": "hi"}])


def with_settings(directory: Path, path: Path, processor: object = ..., **settings: Any) -> Path:
    """The tokenizer with other settings; ``processor`` in place of its post-processor."""
    content = json.loads((directory / "tokenizer.json").read_text())
    if processor is not ...:
        content["post_processor"] = processor
    (path / "tokenizer.json").write_text(json.dumps(content))
    config = {"bos_token": "<s>", "eos_token": "</s>", **settings}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("processor", "settings", "front", "back"),
    [
        (..., {"add_eos_token": True}, ["<s>"], ["</s>"]),
        (..., {"add_bos_token": False}, [], []),
        (..., {"add_bos_token": False, "add_eos_token": True}, [], ["</s>"]),
        (None, {"add_bos_token": True}, ["<s>"], []),
        (None, {"add_bos_token": True, "add_eos_token": True}, ["<s>"], ["</s>"]),
        ({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
         {"add_bos_token": True}, ["<s>"], []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "LlamaTokenizer"])
def test_stated_ends_are_put_and_told(
    directory: Path, tmp_path: Path, kind: str, processor: Any, settings: Any, front: Any, back: Any
) -> None:
    path = with_settings(directory, tmp_path, processor, tokenizer_class=kind, **settings)
    with pytest.warns(UserWarning, match=f"{next(reversed(settings))} is .*the other says"):
        tokenizer = load_tokenizer(path)
    lookup = tokenizer.inner.convert_tokens_to_ids
    bare = tokenizer.encode("hi hi", add_special_tokens=False)
    assert tokenizer.encode("hi hi") == [*lookup(front), *bare, *lookup(back)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"add_bos_token": True, "add_eos_token": False}, {"add_bos_token": None},
     {"add_eos_token": True, "eos_token": None}],
)  # fmt: skip
def test_what_does_not_contradict_is_as_it_is(
    directory: Path, tmp_path: Path, settings: Any, recwarn: pytest.WarningsRecorder
) -> None:
    tokenizer = load_tokenizer(with_settings(directory, tmp_path, **settings))
    assert tokenizer.encode("hi")[0] == tokenizer.bos_token_id and len(tokenizer.encode("hi")) == 2
    assert not [each for each in recwarn if "add_" in str(each.message)]


def test_stated_ends_of_a_vocabulary_without_the_letter_a(tmp_path: Path) -> None:
    backend = Backend(models.BPE({"<s>": 0, "M": 1, "K": 2}, []))
    backend.add_special_tokens(["<s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    stated = {"bos_token": "<s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    with pytest.warns(UserWarning, match="add_bos_token is true"):
        assert load_tokenizer(tmp_path).encode("MK") == [0, 1, 2]


def test_ids_are_not_drawn_by_chance(directory: Path, tmp_path: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="states dropout 0.9"):
        tokenizer = load_tokenizer(tmp_path)
    want = load_tokenizer(directory).encode("hi hi hi hi", add_special_tokens=False)
    got = [tokenizer.encode("hi hi hi hi", add_special_tokens=False) for _ in range(5)]
    assert got == [want] * 5


def test_statements_that_cannot_be_put(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="add_eos_token is 'yes'; it must be true or false"):
        load_tokenizer(with_settings(directory, tmp_path, add_eos_token="yes"))
    extra = json.loads((directory / "tokenizer.json").read_text())
    extra = next(each["id"] for each in extra["added_tokens"] if each["content"] == "<extra>")
    processor = {"type": "BertProcessing", "sep": ["<extra>", extra], "cls": ["<extra>", extra]}
    with pytest.raises(InputError, match=r"add_bos_token is true.*<extra>.* make the files agree"):
        load_tokenizer(with_settings(directory, tmp_path, processor, add_bos_token=True))


TWICE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TWO_TEXTS = {"type": "TemplateProcessing", "special_tokens": {},
             "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
             "pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"]}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [TWICE] * 40}),
        ("normalizer", {"type": "Sequence", "normalizers": [{**TWICE, "pattern": {"String": ""}}] * 40}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 99}] * 99}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAAAA"}),
        ("decoder", {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [TWICE] * 20}] * 2}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 40}),
        ("post_processor", {"type": "Sequence", "processors": [TWO_TEXTS] * 40}),
        ("post_processor", {**TWO_TEXTS, "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 9999,
                            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}),
    ],
)  # fmt: skip
def test_a_tokenizer_that_grows_texts_without_end(
    directory: Path, tmp_path: Path, section: str, value: Any
) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, section: value}))
    with pytest.raises(InputError, match="times longer|claims more"):
        load_tokenizer(tmp_path)


def test_a_panic_of_the_library_is_named(directory: Path, tmp_path: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    bomb = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "pre_tokenizer": bomb}))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(InputError, match="cannot read this text: PanicException"):
        tokenizer.encode("a" * 40 + "b")


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
