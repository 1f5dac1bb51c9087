"""Split GGUF models: equal to the unsplit one, or a refusal that names the part."""

from __future__ import annotations

import pickle
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize

import archzoo
from archzoo.errors import CheckpointFileError
from archzoo.models import name_map
from archzoo.parallel import whole
from archzoo.weights import WeightSource, open_source
from archzoo.weights.gguf import GGUFFile, GGUFSource
from archzoo.weights.gguf_split import split_set
from tiny import ids_of, tiny_llama

HEADS, KV_HEADS = 4, 2
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": HEADS}


def facts(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_context_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(130)


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Hugging Face rows in ggml's interleaved order."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write(path: Path, state: dict[str, torch.Tensor], **split: int) -> Path:
    """The model as llama.cpp's own writer stores it, whole or in parts."""
    names = name_map(archzoo.resolve("LlamaForCausalLM"), "gguf")
    writer = gguf.GGUFWriter(path, "llama", **split)
    facts(writer)
    for name, value in state.items():
        target = name_map(archzoo.resolve("LlamaForCausalLM"), "hf").to_parameter(name)
        stored, rows = names.to_checkpoint(target.parameter, target.shard_id), value.numpy()
        for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            rows = permuted(rows, heads) if f".{part}." in stored else rows
        kind = Kind.F32 if rows.ndim == 1 else Kind.Q8_0
        writer.add_tensor(stored, quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Path, list[Path]]:
    """An unsplit file, and the parts of the same model."""
    folder = tmp_path_factory.mktemp("models")
    _, reference = tiny_llama(folder / "hf", num_key_value_heads=KV_HEADS, **SIZES)
    state = {name: value.detach() for name, value in reference.state_dict().items()}
    one = write(folder / "one.gguf", state)
    (folder / "split").mkdir()
    write(folder / "split" / "m.gguf", state, split_max_tensors=8)
    return one, sorted((folder / "split").iterdir())


@pytest.fixture
def parts(models, tmp_path) -> list[Path]:
    """A copy of the parts, to damage."""
    copies = [tmp_path / path.name for path in models[1]]
    for path, copy in zip(models[1], copies, strict=True):
        copy.write_bytes(path.read_bytes())
    return copies


def values(source: WeightSource) -> dict[str, torch.Tensor]:
    return {name: source.read(name, whole(info.shape)) for name, info in source.infos().items()}


def refused(path: Path, *says: str) -> None:
    with pytest.raises(CheckpointFileError) as caught:
        open_source(path)
    for part in says:
        assert part in str(caught.value)


def test_split_equals_unsplit_to_the_bit(models):
    one, parts = models
    assert len(parts) == 4
    want = values(open_source(one))
    for path in (*parts, parts[0].parent):
        source = open_source(path)
        found = values(source)
        assert found.keys() == want.keys() and not source.notes
        assert all(torch.equal(found[name], want[name]) for name in want)
        files = {info.file for info in source.infos().values()}
        assert files == {str(part) for part in parts}
        assert source.description == "GGUF file m-00001-of-00004.gguf and 3 more"
        source.close()
        with pytest.raises(CheckpointFileError, match="was closed"):
            source.read("output.weight", ((0, 1), (0, 1)))


def test_a_split_model_runs_as_the_unsplit_one_does(models):
    one, parts = models
    want = archzoo.load(one).logits(ids_of(9))
    for path in (parts[0], parts[2], parts[0].parent):
        assert torch.equal(archzoo.load(path).logits(ids_of(9)), want)


def test_metadata_is_the_first_parts_and_all_pickles(models):
    file = GGUFFile(models[1][-1])
    assert file.path == models[1][0] and file.need("llama.block_count", int) == 3
    again = pickle.loads(pickle.dumps(file))
    assert again.tensors == file.tensors and again.parts == file.parts


def test_a_missing_part_is_named(parts):
    parts[2].unlink()
    for path in (parts[0], parts[3], parts[0].parent):
        refused(path, str(parts[2]), "is missing")


def test_a_directory_without_the_first_part(parts):
    parts[0].unlink()
    refused(parts[0].parent, "m-00001-of-00004.gguf")


def test_parts_that_changed_places_are_named(parts):
    one, two = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(two)
    parts[2].write_bytes(one)
    refused(parts[0], parts[1].name, "split.no = 2")


def test_a_part_of_another_save_is_named(parts, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other / "m.gguf", {f"model.layers.{at}.input_layernorm.weight": torch.ones(64)
                             for at in range(8)}, split_max_tensors=2)  # fmt: skip
    parts[3].write_bytes((other / "m-00004-of-00004.gguf").read_bytes())
    refused(parts[0], "tensors in all parts")


def test_a_tensor_in_two_parts_is_named(parts, tmp_path_factory):
    names = [*GGUFFile(parts[0]).parts[2].tensors][:2]
    other = tmp_path_factory.mktemp("other") / "m.gguf"
    writer = gguf.GGUFWriter(other, "llama", split_max_tensors=1)
    for name in (*names, "blk.7.attn_norm.weight", "blk.8.attn_norm.weight"):
        writer.add_tensor(name, np.ones(64, np.float32))
    writer.write_header_to_file(other)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts[1].write_bytes((other.parent / "m-00002-of-00004.gguf").read_bytes())
    refused(parts[0], parts[2].name, repr(names[1]), parts[1].name)


def test_a_truncated_or_empty_part_is_named(parts):
    content = parts[1].read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 40):
        parts[1].write_bytes(content[:size])
        refused(parts[0], parts[1].name)


def test_renamed_parts_are_refused_with_the_name_they_need(parts):
    lone = parts[1].rename(parts[1].with_name("second.gguf"))
    refused(lone, "one of 4 parts", "of-00004.gguf", "--merge")
    wrong = parts[0].rename(parts[0].with_name("m-00001-of-00003.gguf"))
    refused(wrong, "one of 4 parts")


def test_a_part_that_changed_since_its_header_was_read(parts):
    file = GGUFFile(parts[0])
    parts[3].write_bytes(parts[3].read_bytes() + b"x")
    with pytest.raises(CheckpointFileError, match=parts[3].name):
        GGUFSource(file)


def test_two_split_models_in_one_directory_are_ambiguous(parts):
    for path in parts:
        path.with_name("other" + path.name[1:]).write_bytes(path.read_bytes())
    refused(parts[0].parent, "several checkpoints", "m-00001-of-00004.gguf", "other-00001")


def test_a_part_that_is_a_link_out_is_refused(parts, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.gguf"
    parts[2].rename(outside)
    parts[2].symlink_to(outside)
    refused(parts[0].parent, str(parts[2]), "is a link to", str(outside))


@pytest.mark.parametrize(
    ("name", "count"),
    [("m-00002-of-00003.gguf", 3), ("a-b-00001-of-00001.GGUF", 1), ("m-00004-of-00003.gguf", 0),
     ("m-00000-of-00003.gguf", 0), ("m-1-of-3.gguf", 0), ("m.gguf", 0), ("-00001-of-00002.gguf", 0)],
)  # fmt: skip
def test_names_of_parts(name, count):
    found = split_set(name)
    assert len(found or ()) == count and (not count or name in found)
