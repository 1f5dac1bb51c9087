from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from archzoo.errors import CheckpointFileError, WeightError
from archzoo.parallel import whole
from archzoo.weights import IterableSource, open_source, source, source_tensors_equal
from archzoo.weights.safetensors_header import DTYPES

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def write_index(folder, weight_map):
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


@pytest.fixture
def sharded(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / ONE)
    save_file({"c": torch.zeros(4)}, tmp_path / TWO)
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO})
    return tmp_path


def refused(path, *says):
    with pytest.raises(CheckpointFileError) as caught:
        open_source(path)
    for part in says:
        assert part in str(caught.value)
    return caught.value


def names(path):
    opened = open_source(path)
    try:
        return set(opened.infos())
    finally:
        opened.close()


def test_index_and_single_files_give_infos(sharded):
    opened = open_source(str(sharded))
    info = opened.infos()["c"]
    assert (info.name, info.shape, info.dtype) == ("c", (4,), torch.float32)
    assert info.file.endswith(TWO) and set(opened.infos()) == {"a", "b", "c"}
    assert "2 safetensors files" in opened.description and opened.notes == ()
    assert names(sharded / ONE) == {"a", "b"}
    assert names(sharded / "model.safetensors.index.json") == {"a", "b", "c"}
    opened.close()


def test_every_dtype_shape_and_slice_reads_back(tmp_path):
    tensors = {}
    for name, dtype in DTYPES.items():
        values = torch.arange(24, dtype=torch.uint8).reshape(4, 6) % 2
        tensors[name] = values.to(dtype) if dtype != torch.float8_e8m0fnu else values.view(dtype)
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "one": torch.ones(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    opened = open_source(tmp_path)
    for name, tensor in tensors.items():
        boxes = [whole(tuple(tensor.shape))]
        if tensor.shape == (4, 6):
            boxes += [((1, 3), (0, 6)), ((0, 4), (2, 5)), ((3, 4), (5, 6)), ((2, 2), (0, 6))]
        for box in boxes:
            found = opened.read(name, box)
            want = tensor[tuple(slice(*pair) for pair in box)]
            assert found.dtype == want.dtype == opened.infos()[name].dtype
            assert found.shape == want.shape
            raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (found, want)]
            assert torch.equal(*raw)
    opened.close()


def test_slices_are_views_of_the_mapping(tmp_path):
    save_file({"w": torch.randn(64, 32)}, tmp_path / "model.safetensors")
    opened = open_source(tmp_path)
    full = opened.read("w", ((0, 64), (0, 32)))
    rows, columns = opened.read("w", ((8, 16), (0, 32))), opened.read("w", ((0, 64), (4, 8)))
    assert rows.data_ptr() == full.data_ptr() + 8 * 32 * 4
    assert columns.data_ptr() == full.data_ptr() + 4 * 4 and columns.stride() == (32, 1)
    opened.close()


def mapped(name):
    """Whether this process maps a file of that name; None where the system does not say."""
    maps = Path("/proc/self/maps")
    return name in maps.read_text() if maps.exists() else None


def test_close_gives_the_mappings_back(sharded):
    opened = open_source(sharded)
    opened.read("a", ((0, 2),))
    assert mapped(ONE) is not False
    opened.close()
    opened.close()
    assert not mapped(ONE)
    with pytest.raises(WeightError, match=r"a: .* is closed"):
        opened.read("a", ((0, 2),))


def test_a_refused_checkpoint_leaves_nothing_mapped(sharded):
    (sharded / TWO).write_bytes(b"")
    refused(sharded, TWO)
    assert not mapped(ONE)


def test_missing_shards_are_named(sharded):
    (sharded / TWO).unlink()
    error = refused(sharded, TWO, "is missing", "download")
    assert error.file.endswith(TWO)
    (sharded / ONE).unlink()
    refused(sharded, ONE, f"missing too: {TWO}")


BROKEN = {
    "empty": (b"", "is empty (0 bytes)"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "git lfs pull",
    ),
    "page": (b"\n<!DOCTYPE html><html><body>401</body></html>", "HTML"),
    "zip": (b"PK\x03\x04" + b"x" * 60, "pickle"),
    "pickle": (b"\x80\x02" + b"x" * 60, "pickle"),
    "gguf": (b"GGUF" + b"\0" * 60, "GGUF"),
    "noise": (b"\xff" * 100, "truncated or damaged"),
    "short": (b"\x08\0", "truncated or damaged"),
    "huge header": (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", "truncated or damaged"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_shards_are_named_with_what_they_look_like(sharded, kind):
    content, says = BROKEN[kind]
    (sharded / ONE).write_bytes(content)
    refused(sharded, ONE, says)


def test_truncated_shards_are_named(sharded):
    content = (sharded / ONE).read_bytes()
    for size in (len(content) - 1, len(content) // 2, 9):
        (sharded / ONE).write_bytes(content[:size])
        refused(sharded, ONE, "truncated")


def test_a_folder_with_a_weight_files_name_is_refused(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    refused(tmp_path, "model.safetensors", "is not a file")


def header(entries):
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def test_headers_that_lie_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}) + b"1234"
    )
    refused(tmp_path, "model.safetensors")
    path.write_bytes(header({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}) + b"1")
    refused(tmp_path, "'a' as 'F4'")


def test_no_metadata_is_fine(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}) + b"7")
    assert names(tmp_path) == {"a"}


def test_the_indexs_copy_of_a_tensor_is_used(sharded):
    save_file({"c": torch.zeros(4), "b": torch.full((3,), 9.0)}, sharded / TWO)
    opened = open_source(sharded)
    assert opened.read("b", ((0, 3),)).tolist() == [1, 1, 1]
    (note,) = opened.notes
    assert TWO in note and "1 tensors" in note and note.endswith("b")
    opened.close()


def test_a_tensor_the_index_forgot_is_not_hidden(sharded):
    save_file({"c": torch.zeros(4), "d": torch.zeros(1)}, sharded / TWO)
    assert names(sharded) == {"a", "b", "c", "d"}


def test_a_forgotten_tensor_in_two_shards_is_refused(sharded):
    for name, own in ((ONE, {"a": torch.ones(2), "b": torch.ones(3)}), (TWO, {"c": torch.ones(4)})):
        save_file(own | {"d": torch.zeros(1)}, sharded / name)
    refused(sharded, "'d'", ONE, TWO)


def test_a_promise_the_shard_does_not_keep_names_both(sharded):
    write_index(sharded, {"a": ONE, "b": ONE, "c": TWO, "x": TWO, "y": TWO})
    refused(sharded, TWO, "'x' and 1 more")


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": null}}', "\xff", "[" * 100_000,
    ],
)  # fmt: skip
def test_broken_indexes_are_named(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    refused(sharded, "model.safetensors.index.json")


def test_an_index_that_names_a_tensor_twice_is_refused(sharded):
    text = f'{{"weight_map": {{"a": "{ONE}", "c": "{TWO}", "a": "{ONE}"}}}}'
    (sharded / "model.safetensors.index.json").write_text(text)
    refused(sharded, "model.safetensors.index.json", "'a' comes twice")


@pytest.mark.parametrize(
    "entry",
    [
        "../outside.safetensors", "sub/../../outside.safetensors", "/etc/outside.safetensors",
        "C:\\outside.safetensors", "\\\\host\\outside.safetensors", "..\\outside.safetensors",
        "", ".", "model.bin", "a\0.safetensors", "\ud800.safetensors", "~/../../x.safetensors",
    ],
)  # fmt: skip
def test_an_index_may_not_point_outside(sharded, entry):
    save_file({"a": torch.ones(2)}, sharded.parent / "outside.safetensors")
    write_index(sharded, {"a": entry})
    refused(sharded, "model.safetensors.index.json", "refused")


def test_an_index_may_not_name_a_link_that_leads_outside(sharded, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.safetensors"
    (sharded / TWO).rename(outside)
    (sharded / TWO).symlink_to(outside)
    error = refused(sharded, f"is a link to {outside}, outside", "model.safetensors.index.json")
    assert error.file == str(sharded / TWO)
    assert "put a copy of the file" in str(error) and str(outside.parent) in str(error)
    (sharded / ONE).rename(outside.parent / "y.safetensors")
    (sharded / ONE).symlink_to("hop.safetensors")
    (sharded / "hop.safetensors").symlink_to(outside.parent / "y.safetensors")
    error = refused(sharded, f"is a link to {outside.parent / 'y.safetensors'}")
    assert error.file == str(sharded / ONE)


def test_a_folder_that_is_a_link_outside_is_named(sharded, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (sharded / TWO).rename(outside / TWO)
    (sharded / "sub").symlink_to(outside)
    write_index(sharded, {"a": ONE, "b": ONE, "c": f"sub/{TWO}"})
    error = refused(sharded, f"is a link to {outside}, outside", "refused")
    assert error.file == str(sharded / "sub")


def test_a_cache_entry_may_not_link_beyond_its_blobs(sharded, tmp_path_factory):
    repo = tmp_path_factory.mktemp("cache") / "models--x--y"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "refs").mkdir()
    snapshot = sharded.rename(repo / "snapshots" / "abc")
    (snapshot / TWO).rename(repo / "refs" / TWO)
    (snapshot / TWO).symlink_to(f"../../refs/{TWO}")
    error = refused(snapshot, f"is a link to {repo / 'refs' / TWO}", "outside")
    assert error.file == str(snapshot / TWO)


def test_links_in_a_circle_and_names_too_long_are_missing_files(sharded):
    (sharded / TWO).unlink()
    (sharded / TWO).symlink_to(TWO)
    refused(sharded, TWO, "is missing")
    write_index(sharded, {"a": "x" * 5000 + ".safetensors"})
    refused(sharded, "is missing")


def test_sub_folders_and_links_inside_are_fine(sharded):
    (sharded / "sub").mkdir()
    (sharded / TWO).rename(sharded / "sub" / "x.safetensors")
    (sharded / TWO).symlink_to("sub/x.safetensors")
    assert names(sharded) == {"a", "b", "c"}


def test_a_hugging_face_cache_entry_is_read_through_its_links(sharded, tmp_path_factory):
    repo = tmp_path_factory.mktemp("cache") / "models--x--y"
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for number, path in enumerate(sorted(sharded.iterdir())):
        path.rename(repo / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert names(snapshot) == {"a", "b", "c"}


def touch(folder, *files):
    for name in files:
        save_file({name: torch.zeros(1)}, folder / name)


@pytest.mark.parametrize(
    ("files", "read", "noted"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"], "consolidated"),
        (
            ["x.safetensors", "consolidated-00001-of-00002.safetensors"],
            ["x.safetensors"],
            "consoli",
        ),
        (["consolidated.safetensors"], ["consolidated.safetensors"], None),
        (["model.safetensors", "other.safetensors"], ["model.safetensors"], "other.safetensors"),
        ([ONE, TWO], [ONE, TWO], "no index: all 2 shards of model"),
        ([ONE, TWO, "consolidated.safetensors"], [ONE, TWO], "consolidated.safetensors"),
    ],
)
def test_which_files_of_a_directory_are_read(tmp_path, files, read, noted):
    touch(tmp_path, *files)
    opened = open_source(tmp_path)
    assert set(opened.infos()) == set(read)
    assert (noted in "\n".join(opened.notes)) if noted else not opened.notes
    opened.close()


def test_a_single_file_goes_before_the_index_with_a_note(sharded):
    """As transformers does."""
    touch(sharded, "model.safetensors", "consolidated.safetensors")
    opened = open_source(sharded)
    assert set(opened.infos()) == {"model.safetensors"}
    left = f"consolidated.safetensors, {ONE}, {TWO}, model.safetensors.index.json"
    assert opened.notes == (f"not read beside model.safetensors: {left}",)
    opened.close()


def test_a_single_file_beside_an_index_whose_shards_are_gone_is_read(sharded):
    touch(sharded, "model.safetensors")
    for name in (ONE, TWO):
        (sharded / name).unlink()
    opened = open_source(sharded)
    assert set(opened.infos()) == {"model.safetensors"}
    assert opened.notes == ("not read beside model.safetensors: model.safetensors.index.json",)
    opened.close()


def test_pickles_beside_safetensors_are_noted(tmp_path):
    touch(tmp_path, "model.safetensors")
    for name in ("pytorch_model.bin", "training_args.bin"):
        (tmp_path / name).write_bytes(b"\x80\x02")
    opened = open_source(tmp_path)
    assert opened.notes == ("not read, pickles: pytorch_model.bin, training_args.bin",)
    opened.close()


def test_pickles_alone_are_refused_with_the_command(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02")
    for where in (tmp_path, path):
        refused(where, "pytorch_model.bin", "save_pretrained", str(tmp_path))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["a.safetensors", "b.safetensors"], "no index"),
        ([ONE], None),
        ([ONE, "x-00001-of-00001.safetensors"], "no index"),
        (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
         "model-00002-of-00003.safetensors"),
        (["model-00001-of-00000.safetensors", "model-00002-of-00000.safetensors"], "no index"),
    ],
)  # fmt: skip
def test_ambiguous_sets_are_refused(tmp_path, files, says):
    touch(tmp_path, *files)
    if says is None:
        assert names(tmp_path) == set(files)
    else:
        refused(tmp_path, says)


def test_two_indexes_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    refused(tmp_path, "several checkpoints", "a.safetensors.index.json")


def test_nothing_to_read(tmp_path):
    refused(tmp_path, "found: nothing")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "config.json")
    refused(tmp_path / "config.json", "neither")
    refused(tmp_path / "absent", "does not exist")
    refused(tmp_path / "absent.safetensors", "does not exist")


@pytest.mark.parametrize("name", ["x.gguf", "X.GGUF", "x.Gguf"])
def test_gguf_files_go_to_their_own_source(tmp_path, monkeypatch, name):
    module = types.ModuleType("archzoo.weights.gguf")
    module.GGUFSource = lambda path: ("gguf", path)
    monkeypatch.setitem(sys.modules, "archzoo.weights.gguf", module)
    path = tmp_path / name
    path.write_bytes(b"GGUF")
    assert open_source(path) == open_source(tmp_path) == ("gguf", path)
    (tmp_path / "y.gguf").write_bytes(b"GGUF")
    refused(tmp_path, "several checkpoints", name, "y.gguf")
    touch(tmp_path, "model.safetensors")
    opened = open_source(tmp_path)
    assert set(opened.infos()) == {"model.safetensors"} and name in opened.notes[0]
    opened.close()


def test_suffixes_of_safetensors_and_pickles_may_be_in_upper_case(tmp_path):
    touch(tmp_path, "x.SafeTensors")
    (tmp_path / "old.BIN").write_bytes(b"\x80\x02")
    for path in (tmp_path, tmp_path / "x.SafeTensors"):
        assert names(path) == {"x.SafeTensors"}
    opened = open_source(tmp_path)
    assert opened.notes == ("not read, pickles: old.BIN",)
    opened.close()
    refused(tmp_path / "old.BIN", "is a pickle")
    (tmp_path / "x.SafeTensors").unlink()
    refused(tmp_path, "is a pickle")
    touch(tmp_path, "y.safetensors")
    (tmp_path / "x.safetensors.index.JSON").write_text('{"weight_map": {"y": "y.safetensors"}}')
    refused(tmp_path, "'y'")


def test_iterables():
    opened = IterableSource(iter([("a", torch.arange(6).reshape(2, 3)), ("", torch.tensor(1))]))
    assert list(opened.infos()) == ["a", ""]
    assert opened.read("a", ((1, 2), (0, 2))).tolist() == [[3, 4]]
    assert opened.read("", ()).item() == 1
    opened.close()
    assert not opened.infos()
    with pytest.raises(WeightError, match="a comes twice"):
        IterableSource([("a", torch.ones(1)), ("a", torch.ones(1))])
    for wrong in (["ab"], [("a", 1)], [(1, torch.ones(1))], [("a", torch.ones(1), 2)], [None]):
        with pytest.raises(WeightError, match="must be"):
            IterableSource(wrong)


@pytest.mark.parametrize("chunk", [1, 40, 1 << 20])
def test_equal_tensors(monkeypatch, chunk):
    monkeypatch.setattr(source, "_COMPARE_BYTES", chunk)
    base = torch.randn(7, 5)
    base[2, 2] = float("nan")
    last, first = base.clone(), base.clone()
    last[-1, -1] += 1
    first[0, 0] += 1
    tensors = {
        "base": base, "same": base.clone(), "last": last, "first": first, "short": base[:6],
        "flat": base.reshape(-1), "double": base.double(), "zero": torch.tensor(0.0),
        "minus": torch.tensor(-0.0), "none": torch.zeros(0, 5), "none2": torch.ones(0, 5),
        "strided": base.T.contiguous().T,
    }  # fmt: skip
    opened = IterableSource(tensors.items())
    for other in ("same", "base", "strided"):
        assert source_tensors_equal(opened, "base", other)
    for other in ("last", "first", "short", "flat", "double"):
        assert not source_tensors_equal(opened, "base", other)
    assert not source_tensors_equal(opened, "zero", "minus")
    assert source_tensors_equal(opened, "none", "none2")
    with pytest.raises(WeightError, match="no tensor 'absent'"):
        source_tensors_equal(opened, "base", "absent")
