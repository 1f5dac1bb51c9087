"""Vectors are pooled as the files of ``sentence-transformers`` beside the checkpoint say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import archzoo
from archzoo.errors import ConfigError, InputError
from archzoo.layers import PoolingType
from archzoo.runtime.sentence_files import stated_pooling
from tiny import ids_of, tiny_llama

PROMPTS = [ids_of(9), ids_of(1), ids_of(5)]
SWITCHES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


def write(folder: Path, *on: str, kinds: tuple[str, ...] = (), **more: Any) -> Path:
    """modules.json as sentence-transformers saves it, and the switches of its Pooling."""
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" if at else "", "type": f"st.{kind}"}
        for at, kind in enumerate(kinds or ("Transformer", "Pooling", "Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    stated = {f"pooling_mode_{name}": name in on for name in SWITCHES} | more
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    return folder


ROWS = {
    "mean_tokens": lambda rows: rows.mean(0),
    "cls_token": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
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
    with torch.no_grad():
        rows: list[Tensor] = [reference.model(torch.tensor([ids]))[0][0] for ids in PROMPTS]
    want = F.normalize(torch.stack([ROWS[mode](each) for each in rows]), dim=-1)
    for options in ({}, {"tp": 3, "pp": 2}):
        model = archzoo.load(path, dtype=torch.float32, kv_slots=128, **options)
        for _ in range(2):  # again, with the prompts in the prefix cache
            torch.testing.assert_close(model.embed(PROMPTS), want, rtol=0, atol=1e-5)
    if mode != "lasttoken":
        with pytest.raises(InputError, match="do not chunk it"):
            model.embed(PROMPTS, chunk_size=4)


@pytest.mark.parametrize("call", [archzoo.load, archzoo.preflight])
def test_loading_and_preflight_refuse_alike(call: Any, tmp_path: Path) -> None:
    path = write(tiny_llama(tmp_path)[0], "max_tokens")
    with pytest.raises(ConfigError, match="pooling_mode: max_tokens"):
        call(path)


def test_nothing_is_stated_without_the_list(tmp_path: Path) -> None:
    assert stated_pooling(tmp_path) is None
    write(tmp_path, "mean_tokens")
    assert stated_pooling(tmp_path) is PoolingType.MEAN
    write(tmp_path, "mean_tokens", kinds=("Transformer", "LogitScore"))  # a reranker's
    assert stated_pooling(tmp_path) is None
    (tmp_path / "modules.json").unlink()
    assert stated_pooling(tmp_path) is None


def test_a_word_counts_more_than_switches(tmp_path: Path) -> None:
    for word, pooling in (("lasttoken", PoolingType.LAST), ("cls", PoolingType.CLS)):
        write(tmp_path, "mean_tokens", pooling_mode=word)
        assert stated_pooling(tmp_path) is pooling


@pytest.mark.parametrize(
    ("on", "kinds", "says"),
    [
        (("max_tokens",), (), "pooling_mode: max_tokens; one is applied"),
        (("mean_tokens", "lasttoken"), (), "mean_tokens and lasttoken; one"),
        ((), (), "pooling_mode: none; one"),
        (("lasttoken",), ("Transformer", "Pooling", "Dense"), r"\[2\]: 'Dense' is not applied"),
        (("lasttoken",), ("Transformer", "Pooling", "Pooling"), "2 times Pooling; one"),
    ],
)
def test_what_would_be_done_by_halves_is_refused(
    on: tuple[str, ...], kinds: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        stated_pooling(write(tmp_path, *on, kinds=kinds))


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "..", ".", "", "a\0", None, 7])
def test_a_path_that_leads_elsewhere_is_not_followed(path: object, tmp_path: Path) -> None:
    folder = write(tmp_path, "mean_tokens")
    modules = [{"type": "st.Pooling", "path": path}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="is not the name of a folder"):
        stated_pooling(folder)


@pytest.mark.parametrize("content", ["{}", "[1]", "[", "null"])
def test_a_broken_list_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        stated_pooling(tmp_path)


def test_a_model_without_vectors_does_not_read_them(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    from tiny import SIZES, save

    reference = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=2)).eval()
    path = write(save(reference, tmp_path), "max_tokens")
    assert archzoo.load(path, dtype=torch.float32).classify([3, 4]).shape == (1, 2)
