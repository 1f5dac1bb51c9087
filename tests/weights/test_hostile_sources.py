"""Files that lie, flood or lead elsewhere: a named error, nothing read, nothing run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from archzoo.errors import CheckpointFileError, CoverageError
from archzoo.weights import AutoWeightsLoader, open_source
from archzoo.weights.directory import INDEX_SUFFIX

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
GOOD = '{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'


def write(folder: Path, header: str | bytes, data: bytes = bytes(16)) -> Path:
    """A safetensors file byte by byte."""
    text = header.encode() if isinstance(header, str) else header
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def refused(path: Path, *says: str) -> CheckpointFileError:
    with pytest.raises(CheckpointFileError) as caught:
        open_source(path)
    for part in says:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
    return caught.value


HEADERS = {
    "a name twice": ('{"a":' + GOOD + ',"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}',
                     "'a' comes twice"),
    "metadata twice": ('{"__metadata__":{},"a":' + GOOD + ',"__metadata__":{}}', ""),
    "overlapping": ('{"a":' + GOOD + ',"b":' + GOOD + "}", "invalid offset"),
    "partly overlapping": (
        '{"a":' + GOOD + ',"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}}', "offset"),
    "a hole": ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}', "offset"),
    "beyond the end": ('{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}', "truncated"),
    "far beyond": ('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}', ""),
    "backwards": ('{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}', ""),
    "too little for the shape": ('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,16]}}', ""),
    "a product that wraps": (
        '{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}', ""),
    "negative": ('{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}', ""),
    "a float": ('{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}', ""),
    "no shape": ('{"a":{"dtype":"F32","data_offsets":[0,16]}}', ""),
    "no such dtype": ('{"a":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}}', ""),
    "many dimensions": (
        '{"a":{"dtype":"F32","shape":[' + "1," * 40 + '4],"data_offsets":[0,16]}}', "41 dimensions"),
    "a flood of dimensions": (
        '{"a":{"dtype":"F32","shape":[' + "1," * 10**6 + '4],"data_offsets":[0,16]}}', "dimensions"),
    "a flood of a name": ('{"' + "a" * 10**6 + '":' + GOOD + "}", "1000000 characters"),
    "terminal codes": ('{"\\u001b[2Ja":' + GOOD + "}", "'\\x1b[2Ja'"),
    "a line of its own": ('{"a\\nloaded: all":' + GOOD + "}", "'a\\nloaded: all'"),
    "right to left": ('{"\\u202eabc":' + GOOD + "}", "printable"),
    "half a character": ('{"\\ud800":' + GOOD + "}", ""),
    "not UTF-8": (b'{"\xff":' + GOOD.encode() + b"}", "UTF-8"),
    "not JSON": ("{", ""), "a list": ("[]", ""), "nothing": ("", ""),
    "deep": ("[" * 10**6, ""), "deep in an object": ('{"a":' * 10**5, ""),
    "more data than stated": ('{"a":' + GOOD.replace("4", "3").replace("16", "12") + "}", ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_that_lie_are_refused(tmp_path, kind):
    header, says = HEADERS[kind]
    path = write(tmp_path, header)
    for where in (tmp_path, path):
        error = refused(where, says)
        assert error.file == str(path)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 100_000_001])
def test_a_header_bomb_costs_nothing(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{" * 64)
    tracemalloc.start()
    refused(tmp_path, "truncated or damaged")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_names_that_look_like_paths_are_names(tmp_path):
    """A tensor's name never becomes a path; here it is an unexpected tensor."""
    names = ["../../etc/passwd", "..", "a/../b", "C:\\x", "~", "$(touch pwned)", ""]
    save_file({name: torch.ones(1) for name in names}, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    assert set(source.infos()) == set(names)
    with pytest.raises(CoverageError) as caught:
        AutoWeightsLoader(torch.nn.Module()).load_weights(source)
    assert {fault.name for fault in caught.value.report.unexpected} == set(names)
    source.close()


def test_absurd_shapes_of_nothing_are_listed_and_never_made(tmp_path):
    write(tmp_path, '{"a":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}}',
          b"")  # fmt: skip
    source = open_source(tmp_path)
    assert source.infos()["a"].shape == (0, 2**62, 8)
    source.close()


def sharded(folder: Path, weight_map: object = None) -> Path:
    save_file({"a": torch.ones(2)}, folder / ONE)
    save_file({"b": torch.zeros(4)}, folder / TWO)
    index = folder / f"model{INDEX_SUFFIX}"
    index.write_text(json.dumps({"weight_map": weight_map or {"a": ONE, "b": TWO}}))
    return index


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<html>", "HTML"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "comes twice"),
        (b'{"weight_map": {"\\ud800": "\\ud800"}}', "\\ud800"),
        (b'{"weight_map": {"a": [' + b"1," * 10**5 + b"1]}}", "not to a file name"),
        (b"[" * 10**6, "not a readable JSON index"),
        (b"\x80\x02", "pickle"),
    ],
)
def test_indexes_that_are_none(tmp_path, content, says):
    index = sharded(tmp_path)
    index.write_bytes(content)
    for where in (tmp_path, index):
        refused(where, says)


def test_an_index_bomb_is_not_read(tmp_path):
    index = sharded(tmp_path)
    with index.open("wb") as stream:
        stream.truncate(1 << 30)
    refused(tmp_path, "1073741824 bytes, at most")


def test_an_index_that_swaps_its_shards_is_refused(tmp_path):
    sharded(tmp_path, {"a": TWO, "b": ONE})
    refused(tmp_path, "index and shards are of different saves")


@pytest.mark.parametrize("kind", ["single", "shards", "index"])
def test_links_out_of_the_directory_are_refused(tmp_path, tmp_path_factory, kind):
    outside = tmp_path_factory.mktemp("outside") / "x"
    index = sharded(tmp_path)
    link = {"single": tmp_path / "model.safetensors", "shards": tmp_path / TWO, "index": index}[
        kind
    ]
    if kind == "shards":
        index.unlink()
    if kind == "single":
        save_file({"a": torch.ones(1)}, outside)
    else:
        link.rename(outside)
    link.symlink_to(outside)
    refused(tmp_path, str(link), f"is a link to {outside}", "refused")
    outside.unlink()
    refused(tmp_path, str(link))


def test_a_directory_that_is_itself_a_link_is_followed(tmp_path):
    """Whoever gives the path means what it leads to."""
    (tmp_path / "real").mkdir()
    sharded(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    source = open_source(tmp_path / "link")
    assert set(source.infos()) == {"a", "b"}
    source.close()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "is not a file")
    refused(tmp_path / "model.safetensors", "is not a file")


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "x.PTH", "x.ckpt", "model.safetensors", "model.gguf",
     f"model{INDEX_SUFFIX}", ONE],
)  # fmt: skip
def test_no_name_makes_a_pickle_run(tmp_path, name):
    ran = tmp_path / "ran"
    torch.save({"a": Bomb(ran)}, tmp_path / name)
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "x.bin"}}')
    for where in (tmp_path, tmp_path / name):
        refused(where)
    assert not ran.exists()


@pytest.mark.parametrize("folder", ["plain", "it's", 'a"b', "$(touch pwned)", "`touch pwned`; x"])
def test_the_command_that_converts_is_one_command_whatever_the_folder(tmp_path, folder):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02")
    found = re.search(r"author: (python -c .*)$", str(refused(path)))
    assert found is not None
    python, flag, script = shlex.split(found[1])
    assert (python, flag) == ("python", "-c")
    fake = "class M:\n from_pretrained = staticmethod(lambda p: M(p))\n"
    fake += " def __init__(self, p): self.p = p\n"
    fake += " def save_pretrained(self, to): print(self.p, to, sep='|')\n"
    done = subprocess.run(
        [sys.executable, "-c", fake + script.split("; ", 1)[1]],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert done.stdout == f"{path.parent}|{path.parent}-safetensors\n"
    assert not (tmp_path / "pwned").exists()
