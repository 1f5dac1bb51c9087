"""Texts become vectors as the files of ``sentence-transformers`` beside the checkpoint say."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import archzoo
from archzoo.errors import ArchzooError, ConfigError, InputError
from archzoo.layers import PoolingType
from archzoo.runtime.sentence_files import read_sentence_files
from tiny import ids_of, tiny_llama

PROMPTS = [ids_of(9), ids_of(1), ids_of(5)]
SWITCHES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
SWITCHES += ("mean_sqrt_len_tokens", "weightedmean_tokens")
USUAL = ("Transformer", "Pooling", "Normalize")
WORDS = "<s> </s> ? search : the river ran by an old tree The River".split()


def write(folder: Path, *on: str, kinds: tuple[str, ...] = (), **more: Any) -> Path:
    """modules.json as sentence-transformers saves it, and the switches of its Pooling."""
    modules = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": kind if "." in kind else f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds or USUAL)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    stated = {f"pooling_mode_{name}": name in on for name in SWITCHES} | more
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    return folder


def put(folder: Path, name: str, **content: Any) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


def put_words(folder: Path, **settings: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of words that puts <s> in front and </s> behind."""
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "?"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special, **settings)
    tokenizer.save_pretrained(folder)
    return tokenizer


def rows_of(reference: PreTrainedModel, ids: list[int]) -> Tensor:
    with torch.no_grad():
        rows: Tensor = reference.model(torch.tensor([ids]))[0][0]
    return rows


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Callable[[str], Tensor], PreTrainedModel]:
    """A checkpoint with a tokenizer, what its last row of a text is, and the reference."""
    path, reference = tiny_llama(tmp_path)
    tokenizer = put_words(path)

    def last(text: str) -> Tensor:
        return F.normalize(rows_of(reference, tokenizer(text)["input_ids"])[-1], dim=0)

    return write(path, "lasttoken"), last, reference


def loaded(path: Path) -> archzoo.Model:
    return archzoo.load(path, dtype="float32", kv_slots=128)


ROWS = {
    "mean_tokens": lambda rows: rows.mean(0),
    "cls_token": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
    "max_tokens": lambda rows: rows.max(0).values,
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean_tokens": lambda rows: torch.arange(1.0, len(rows) + 1) @ rows,
}


@pytest.mark.parametrize("architecture", ["LlamaModel", "LlamaForCausalLM"])
@pytest.mark.parametrize("mode", ROWS)
def test_rows_that_the_files_name_make_the_vector(
    mode: str, architecture: str, tmp_path: Path
) -> None:
    path, reference = tiny_llama(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    write(path, mode)
    rows = [ROWS[mode](rows_of(reference, ids)) for ids in PROMPTS]
    want = F.normalize(torch.stack(rows), dim=-1)
    for options in ({}, {"tp": 3, "pp": 2}):
        model = archzoo.load(path, dtype=torch.float32, kv_slots=128, **options)
        for _ in range(2):  # again, with the prompts in the prefix cache
            torch.testing.assert_close(model.embed(PROMPTS), want, rtol=0, atol=1e-5)
    if mode != "lasttoken":
        with pytest.raises(InputError, match="do not chunk it"):
            model.embed(PROMPTS, chunk_size=4)


@pytest.mark.parametrize("call", [archzoo.load, archzoo.preflight])
def test_loading_and_preflight_refuse_alike(call: Any, tmp_path: Path) -> None:
    path = write(tiny_llama(tmp_path)[0], "max_tokens", "lasttoken")
    with pytest.raises(ConfigError, match="pooling_mode: max_tokens and lasttoken"):
        call(path)


def test_nothing_is_stated_without_the_list(tmp_path: Path) -> None:
    assert read_sentence_files(tmp_path, 48).pooling is None
    write(tmp_path, "mean_tokens")
    assert read_sentence_files(tmp_path, 48).pooling is PoolingType.MEAN
    write(tmp_path, "mean_tokens", kinds=("Transformer", "LogitScore"))  # a reranker's
    assert "'LogitScore' and no Pooling" in read_sentence_files(tmp_path, 48).no_vectors
    (tmp_path / "modules.json").unlink()
    assert read_sentence_files(tmp_path, 48).no_vectors == ""


def test_a_word_counts_more_than_switches(tmp_path: Path) -> None:
    for word, pooling in (("lasttoken", PoolingType.LAST), (["cls"], PoolingType.CLS)):
        write(tmp_path, "mean_tokens", pooling_mode=word)
        assert read_sentence_files(tmp_path, 48).pooling is pooling


COLBERT, SPLADE = "pylate.models.Dense.Dense", "sentence_transformers.sparse.SpladePooling"
DENSE = {"in_features": 48, "out_features": 6, "activation_function": "torch.nn.ReLU"}


@pytest.mark.parametrize(
    ("on", "kinds", "says"),
    [
        (("mean_tokens", "lasttoken"), (), "mean_tokens and lasttoken; one"),
        ((), (), "pooling_mode: none; one"),
        (
            ("lasttoken",),
            ("Transformer", "Pooling", "LayerNorm"),
            r"\[2\]: 'LayerNorm' is not appl",
        ),
        (("lasttoken",), ("custom_st.Transformer", "Pooling"), r"'custom_st\.Transformer' is not"),
        (("lasttoken",), ("Transformer", "Pooling", COLBERT), r"'pylate\.models\.Dense\.Dense' is"),
        (("lasttoken",), ("Transformer", "Pooling", "Pooling"), "lists Transformer, Pooling, Pool"),
        (("lasttoken",), (*USUAL, "Dense"), "then any Dense layers, then Normalize at most once"),
    ],
)
def test_what_would_be_done_by_halves_is_refused(
    on: tuple[str, ...], kinds: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        read_sentence_files(write(tmp_path, *on, kinds=kinds), 48)


@pytest.mark.parametrize("call", [archzoo.load, archzoo.preflight])
@pytest.mark.parametrize("kind", [COLBERT, SPLADE])
def test_lists_without_vectors_are_refused_by_name(call: Any, kind: str, tmp_path: Path) -> None:
    path = write(tiny_llama(tmp_path)[0], kinds=("Transformer", kind))
    config = json.loads((path / "config.json").read_text())
    put(path, "config.json", **{**config, "architectures": ["LlamaModel"]})
    with pytest.raises(ConfigError, match=f"{kind.split('.')[-1]}' and no Pooling"):
        call(path)
    put(path, "config.json", **config)  # a language model generates whatever the list says
    call(path)
    with pytest.raises(ConfigError, match=r"modules\.json: lists 'Transformer' and"):
        archzoo.load(path).embed([PROMPTS[0]])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "cls", "include_prompt": False}, "first row"),
        ("1_Pooling/config.json", {"pooling_mode": "cls", "n_sink_tokens": 3}, "n_sink_tokens: 3"),
        ("sentence_bert_config.json", {"mask_prompt": True}, "mask_prompt: True is not read"),
        ("sentence_bert_config.json", {"config_args": {"a": 1}}, "config_args"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length: 0 is out of range"),
        ("sentence_bert_config.json", {"do_lower_case": "yes"}, "do_lower_case: 'yes'"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "not an object of texts"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "none of the prompts"),
        ("config_sentence_transformers.json", {"query_length": 32}, "query_length: 32 is not read"),
        ("2_Dense/config.json", {**DENSE, "in_features": 5}, "5, but vectors have 48 numbers"),
        (
            "2_Dense/config.json",
            {**DENSE, "use_residual": True},
            "use_residual: True is not read",
        ),
        (
            "2_Dense/config.json",
            {**DENSE, "activation_function": "os.system"},
            "'os.system' is not",
        ),
        ("2_Dense/config.json", DENSE, r"its weights are \{'linear.weight': \(6, 48\)\}"),
        ("2_Dense/config.json", {**DENSE, "out_features": 7, "bias": False}, "its weights are"),
    ],
)
def test_settings_that_change_vectors_are_refused(
    name: str, content: dict[str, Any], says: str, tmp_path: Path
) -> None:
    kinds = ("Transformer", "Pooling", "Dense") if "Dense" in name else USUAL
    put(write(tmp_path, "lasttoken", kinds=kinds), name, **content)
    if "Dense" in name:
        save_file({"linear.weight": torch.ones(6, 48)}, tmp_path / "2_Dense/model.safetensors")
    with pytest.raises(ConfigError, match=says):
        read_sentence_files(tmp_path, 48)


def test_files_as_they_are_published(tmp_path: Path) -> None:
    """Qwen3-Embedding's, and those that sentence-transformers 5 writes."""
    put(write(tmp_path, "lasttoken", include_prompt=True, word_embedding_dimension=48),
        "sentence_bert_config.json", max_seq_length=512, do_lower_case=False)  # fmt: skip
    prompts = {"query": "Instruct: x\nQuery:", "document": ""}
    put(tmp_path, "config_sentence_transformers.json", prompts=prompts, default_prompt_name=None,
        similarity_fn_name="cosine", __version__={"pytorch": "2"}, model_type="SentenceTransformer")  # fmt: skip
    found = read_sentence_files(tmp_path, 48)
    assert (found.prompts, found.default_prompt_name, found.max_seq_length) == (prompts, None, 512)
    modality = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    put(tmp_path, "sentence_bert_config.json", transformer_task="feature-extraction",
        modality_config=modality, module_output_name="token_embeddings")  # fmt: skip
    assert read_sentence_files(tmp_path, 48).max_seq_length is None


def test_texts_that_would_pass_the_chat_template_are_refused(tmp_path: Path) -> None:
    """sentence-transformers makes messages of texts where the file knows messages."""
    way = {"method": "forward", "method_output_name": "last_hidden_state"}
    put(write(tmp_path, "lasttoken"), "sentence_bert_config.json", modality_config={"text": way},
        unpad_inputs=True)  # fmt: skip
    read_sentence_files(tmp_path, 48)
    put(tmp_path, "sentence_bert_config.json", modality_config={"text": way, "message": way})
    with pytest.raises(ConfigError, match="modality_config: .* may change vectors"):
        read_sentence_files(tmp_path, 48)


def test_a_model_in_a_folder_of_its_own_is_pooled_as_the_list_above_says(texts: Any) -> None:
    """As sentence-transformers saved models before version 2."""
    path, _, reference = texts
    put_words(reference_folder := path / "0_Transformer")
    reference.save_pretrained(reference_folder)
    write(path, "mean_tokens")
    listed = json.loads((path / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (path / "modules.json").write_text(json.dumps(listed))
    prompts = {"query": "search : "}
    put(path, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    put(reference_folder, "sentence_roberta_config.json", do_lower_case=True)
    model = loaded(reference_folder)
    rows = rows_of(reference, list(model.encode("search : the river")))
    want = F.normalize(rows.mean(0), dim=0)
    torch.testing.assert_close(model.embed("The River")[0], want, rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match=r"\[0\]\.path: '0_Transformer' holds the model"):
        loaded(path)
    listed[0]["path"] = "elsewhere"  # a list of something else
    (path / "modules.json").write_text(json.dumps(listed))
    assert read_sentence_files(reference_folder, 48).pooling is None


def test_prompts_stand_in_front_of_texts(texts: Any) -> None:
    path, last, _ = texts
    prompts = {"query": "search : ", "document": ""}
    put(path, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    model, text = loaded(path), "the river"

    def check(want: Tensor, **options: Any) -> None:
        torch.testing.assert_close(model.embed(text, **options)[0], want, rtol=0, atol=1e-5)

    check(last("search : the river"))
    check(last("the river"), prompt_name="document")
    check(last("the river"), prompt="")
    check(last("an old the river"), prompt="an old ")
    ids = model.encode(text)
    torch.testing.assert_close(model.embed([ids])[0], last(text), rtol=0, atol=1e-5)
    for options, says in (
        ({"prompt_name": "passage"}, "no prompt of .* known: 'query', 'document'"),
        ({"prompt_name": "query", "prompt": "x"}, "give one"),
    ):
        with pytest.raises(InputError, match=says):
            model.embed(text, **options)
    with pytest.raises(InputError, match="prompt 1 is no text"):
        model.embed([text, ids], prompt_name="query")


def test_texts_are_lowered_and_cut(texts: Any) -> None:
    path, last, _ = texts
    put(path, "sentence_bert_config.json", max_seq_length=5, do_lower_case=True)
    model = loaded(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = model.embed(["The RIVER ran"])[0]
    torch.testing.assert_close(got, last("the river ran"), rtol=0, atol=1e-5)
    with pytest.warns(UserWarning, match="a text of 7 tokens is cut to 5"):
        got = model.embed(["The River ran by the"])[0]
    torch.testing.assert_close(got, last("the river ran"), rtol=0, atol=1e-5)
    put_words(path, model_max_length=4, truncation_side="left")
    put(path, "sentence_bert_config.json", max_seq_length=None)  # then the tokenizer's holds
    with pytest.warns(UserWarning, match="a text of 6 tokens is cut to 4"):
        got = loaded(path).embed(["The River ran by"])[0]
    torch.testing.assert_close(got, last("ran by"), rtol=0, atol=1e-5)
    put(path, "sentence_bert_config.json", max_seq_length=2)
    with pytest.raises(InputError, match="cannot be cut to 2"), pytest.warns(UserWarning):
        loaded(path).embed(["The River"])


@pytest.mark.parametrize("mode", ["mean_tokens", "weightedmean_tokens"])
def test_a_prompt_is_left_out_of_a_mean(texts: Any, mode: str) -> None:
    path, _, reference = texts
    write(path, mode, include_prompt=False)
    prompts = {"query": "search : "}
    put(path, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")
    for options in ({}, {"tp": 3, "pp": 2}):
        model = archzoo.load(path, dtype="float32", kv_slots=128, **options)
        every = [
            rows_of(reference, list(model.encode(f"search : {t}"))) for t in ("the river", "by")
        ]
        weights = torch.arange(4.0, 9.0) if mode == "weightedmean_tokens" else torch.ones(5)
        rows = [weights[: len(each) - 3] @ each[3:] for each in every]
        want = F.normalize(torch.stack(rows), dim=-1)
        torch.testing.assert_close(model.embed(["the river", "by"]), want, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="prompt 1 is no text, others are"):
        model.embed(["by", [3, 4]])
    assert model.embed([[3, 4]]).shape == (1, 48)


def test_dense_layers_follow_pooling(tmp_path: Path) -> None:
    path, reference = tiny_llama(tmp_path)
    write(path, "lasttoken", kinds=("Transformer", "Pooling", "Dense", "Dense"))
    weights = [torch.randn(20, 48), torch.randn(6, 20)]
    bias, tanh = torch.randn(20), "torch.nn.modules.activation.Tanh"
    put(path, "2_Dense/config.json", in_features=48, out_features=20, activation_function=tanh)
    put(path, "3_Dense/config.json", in_features=20, out_features=6, bias=False,
        activation_function="torch.nn.modules.linear.Identity")  # fmt: skip
    save_file(
        {"linear.weight": weights[0], "linear.bias": bias}, path / "2_Dense/model.safetensors"
    )
    save_file({"linear.weight": weights[1]}, path / "3_Dense/model.safetensors")
    rows = torch.stack([rows_of(reference, ids)[-1] for ids in PROMPTS])
    want = (rows @ weights[0].T + bias).tanh() @ weights[1].T
    model = loaded(path)
    torch.testing.assert_close(model.embed(PROMPTS, normalize=False), want, rtol=0, atol=1e-4)
    with pytest.warns(UserWarning, match="lists no Normalize"):
        cut = model.embed(PROMPTS, dimensions=4)
    torch.testing.assert_close(cut, F.normalize(want[:, :4], dim=-1), rtol=0, atol=1e-4)
    assert model.embed([], normalize=True).shape == (0, 6)
    with pytest.raises(InputError, match="dimensions=7"):
        model.embed(PROMPTS, dimensions=7, normalize=True)
    archzoo.preflight(path)


def test_a_list_that_pools_wants_no_head(tmp_path: Path) -> None:
    path, reference = tiny_llama(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArchzooError, match=r"lm_head\.weight"):
        loaded(path)
    write(path, "lasttoken")
    want = F.normalize(rows_of(reference, PROMPTS[0])[-1], dim=0)
    model = loaded(path)
    torch.testing.assert_close(model.embed([PROMPTS[0]])[0], want, rtol=0, atol=1e-5)
    report = archzoo.preflight(path)
    assert report.architecture == type(model.module).__name__ == "LlamaModel"
    assert not report.found


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "..", ".", "", "a\0", None, 7])
def test_a_path_that_leads_elsewhere_is_not_followed(path: object, tmp_path: Path) -> None:
    folder = write(tmp_path, "mean_tokens")
    modules = [
        {"type": "sentence_transformers.models.Transformer"},
        {"type": "sentence_transformers.models.Pooling", "path": path},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="is not the name of a folder"):
        read_sentence_files(folder, 48)


@pytest.mark.parametrize("content", ["{}", "[1]", "[", "null"])
def test_a_broken_list_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        read_sentence_files(tmp_path, 48)


def test_a_model_without_vectors_does_not_read_them(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from tiny import SIZES, save

    reference = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=2)).eval()
    path = write(save(reference, tmp_path), "max_tokens")
    assert archzoo.load(path, dtype=torch.float32).classify([3, 4]).shape == (1, 2)
