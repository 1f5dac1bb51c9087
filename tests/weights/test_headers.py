"""Headers alone: read as the library reads them, from files, bare files and JSON; never tensors."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.mutator import mutate
from safetensors.torch import save_file

from archzoo.errors import ArchzooError, CheckpointFileError, WeightError
from archzoo.weights import PlacedSource, Stored, open_headers, open_source

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
MUTANTS = 400
HEADERS = "model.safetensors.headers.json"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two shards with an index; tensors of many kinds, some without elements."""
    first = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "none": torch.ones(0)}
    second = {"c": torch.ones(2, 2, 2, dtype=torch.int8), "one": torch.tensor(1.0)}
    save_file(first, tmp_path / FILES[0], metadata={"format": "pt"})
    save_file(second, tmp_path / FILES[1])
    weight_map = {name: FILES[0] for name in first} | {name: FILES[1] for name in second}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def header_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: 8 + struct.unpack("<Q", content[:8])[0]]


def as_json(folder: Path) -> dict[str, Any]:
    """What a headers JSON says of the files in a folder."""
    return {
        path.name: {"size": path.stat().st_size, "header": json.loads(header_bytes(path)[8:])}
        for path in sorted(folder.glob("*.safetensors"))
    }


def cut_off(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.write_bytes(header_bytes(path))


def replaced_by_json(folder: Path) -> None:
    (folder / HEADERS).write_text(json.dumps(as_json(folder)))
    for path in folder.glob("*.safetensors"):
        path.unlink()


def test_whole_files_say_the_same_as_when_opened_to_be_read(saved: Path) -> None:
    opened = open_source(saved)
    headers = open_headers(saved)
    assert dict(headers.infos()) == dict(opened.infos())
    assert list(headers.infos()) == list(opened.infos())
    assert (headers.description, headers.format) == (opened.description, opened.format)
    assert headers.notes == opened.notes
    opened.close()
    with pytest.raises(WeightError, match="opened for its headers"):
        headers.read("a", ((0, 1), (0, 3)))


def test_places_are_where_the_bytes_lie(saved: Path) -> None:
    headers = open_headers(saved)
    for name, info in headers.infos().items():
        place = headers.stored(name)
        raw = Path(place.file).read_bytes()[place.start : place.stop]
        source = open_source(saved)
        box = tuple((0, size) for size in info.shape)
        values = source.read(name, box).contiguous().reshape(-1)
        assert raw == bytes(values.view(torch.uint8).tolist()), name
        source.close()


def places(source: PlacedSource) -> dict[str, Stored]:
    return {name: source.stored(name) for name in source.infos()}


@pytest.mark.parametrize("change", [cut_off, replaced_by_json])
def test_headers_alone_say_all_but_cannot_be_loaded(
    saved: Path, change: Callable[[Path], None]
) -> None:
    whole = open_headers(saved)
    change(saved)
    headers = open_headers(saved)
    assert dict(headers.infos()) == dict(whole.infos())
    assert places(headers) == places(whole)
    assert "weights are here" in str(headers.notes) or "headers only" in str(headers.notes)
    with pytest.raises(CheckpointFileError):
        open_source(saved)
    one = saved / (HEADERS if change is replaced_by_json else FILES[0])
    assert "a" in open_headers(one).infos()


def test_a_json_needs_no_index(saved: Path) -> None:
    replaced_by_json(saved)
    whole = open_headers(saved)
    (saved / INDEX).unlink()
    assert dict(open_headers(saved).infos()) == dict(whole.infos())


def test_files_count_where_there_are_some(saved: Path) -> None:
    """A stale JSON beside the real files says nothing."""
    (saved / HEADERS).write_text("{}")
    assert "a" in open_headers(saved).infos()
    (saved / FILES[1]).unlink()
    with pytest.raises(CheckpointFileError, match="is missing"):
        open_headers(saved)


@pytest.mark.parametrize("kept", [0, 7, 9, -1, -5])
def test_a_file_that_breaks_off_elsewhere_is_refused(saved: Path, kept: int) -> None:
    content = (saved / FILES[0]).read_bytes()
    (saved / FILES[0]).write_bytes(content[:kept])
    with pytest.raises(CheckpointFileError) as caught:
        open_headers(saved)
    assert caught.value.file == str(saved / FILES[0])


def test_an_index_that_disagrees_is_refused(saved: Path) -> None:
    cut_off(saved)
    weight_map = {"a": FILES[0], "nowhere": FILES[1]}
    (saved / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointFileError, match="lacks 'nowhere'"):
        open_headers(saved)


GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
BAD_ENTRIES: list[Any] = [
    None, [], "x", 7, {},
    {**GOOD, "dtype": "F33"}, {**GOOD, "dtype": 3}, {**GOOD, "shape": 6}, {**GOOD, "shape": [2, -3]},
    {**GOOD, "shape": [2, 3.0]}, {**GOOD, "shape": [2, True]}, {**GOOD, "shape": [2, "3"]},
    {**GOOD, "data_offsets": [0]}, {**GOOD, "data_offsets": [0, 24, 48]},
    {**GOOD, "data_offsets": [0, 20]}, {**GOOD, "data_offsets": [24, 0]},
    {**GOOD, "data_offsets": [4, 28]}, {**GOOD, "shape": [2] * 17}, {**GOOD, "shape": [2**63, 2**63]},
    {**GOOD, "shape": [1] * 200_000}, {**GOOD, "data_offsets": [0, 2**70]},
]  # fmt: skip


def written(path: Path, header: object, data: int = 24) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return path


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=lambda entry: str(entry)[:40])
def test_what_the_library_refuses_is_refused(tmp_path: Path, entry: Any) -> None:
    path = written(tmp_path / "x.safetensors", {"t": entry})
    for opened in (open_headers, open_source):
        with pytest.raises(CheckpointFileError):
            opened(path)
    stated = {"x.safetensors": {"size": 1000, "header": {"t": entry}}}
    path.unlink()
    (tmp_path / HEADERS).write_text(json.dumps(stated))
    with pytest.raises(CheckpointFileError):
        open_headers(tmp_path)


@pytest.mark.parametrize(
    "header",
    [[], None, {"__metadata__": {"a": 1}}, {"__metadata__": []}, {"t": GOOD, "u": GOOD}],
    ids=str,
)
def test_headers_that_are_none_are_refused(tmp_path: Path, header: object) -> None:
    path = written(tmp_path / "x.safetensors", header)
    for opened in (open_headers, open_source):
        with pytest.raises(CheckpointFileError):
            opened(path)


@pytest.mark.parametrize(
    "header",
    [{"t": GOOD}, {"t": {**GOOD, "more": 1}}, {"__metadata__": None, "t": GOOD},
     {"t": GOOD, "e": {**GOOD, "shape": [0], "data_offsets": [24, 24]}},
     {"e": {**GOOD, "shape": [0], "data_offsets": [0, 0]}, "t": GOOD}],
    ids=str,
)  # fmt: skip
def test_what_the_library_takes_is_taken(tmp_path: Path, header: object) -> None:
    path = written(tmp_path / "x.safetensors", header)
    source = open_source(path)
    assert dict(open_headers(path).infos()) == dict(source.infos())
    source.close()


BAD_JSON: list[Any] = [
    None, [], {}, {"x.safetensors": 1}, {"x.safetensors": {}},
    {"x.safetensors": {"size": 24, "header": []}}, {"x.safetensors": {"size": "24", "header": {}}},
    {"x.safetensors": {"size": True, "header": {}}}, {"x.bin": {"size": 24, "header": {}}},
    {"../x.safetensors": {"size": 24, "header": {}}}, {"/x.safetensors": {"size": 24, "header": {}}},
    {"x.safetensors": {"size": 23, "header": {"t": GOOD}}},
    {"a\u001b.safetensors": {"size": 24, "header": {}}},
    {"a" * 5000 + ".safetensors": {"size": 24, "header": {"t": 3}}},
]  # fmt: skip


@pytest.mark.parametrize("stated", BAD_JSON, ids=lambda stated: str(stated)[:50])
def test_a_json_that_is_none_is_refused(tmp_path: Path, stated: Any) -> None:
    (tmp_path / HEADERS).write_text(json.dumps(stated))
    with pytest.raises(CheckpointFileError):
        open_headers(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": 1, "a": 1}', "\udcff"])
def test_a_json_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / HEADERS).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointFileError):
        open_headers(tmp_path)


def test_a_json_of_more_bytes_than_any_model_needs_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / HEADERS
    with path.open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(CheckpointFileError, match="at most 67108864 are read"):
        open_headers(path)


def test_gguf_files_count_before_a_json(tmp_path: Path) -> None:
    """As when the weights are read: both ways of opening name the same file."""
    (tmp_path / HEADERS).write_text(
        json.dumps({"x.safetensors": {"size": 24, "header": {"t": GOOD}}})
    )
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for opened in (open_headers, open_source):
        with pytest.raises(CheckpointFileError) as caught:
            opened(tmp_path)
        assert caught.value.file == str(tmp_path / "m.gguf")


@pytest.mark.parametrize("opened", [open_headers, open_source])
def test_what_the_system_does_not_let_us_read_is_named(
    saved: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], object]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for owner, name, path in (
        (os, "listdir", saved),
        (Path, "open", saved / INDEX),
        (Path, "open", saved / FILES[0]),
    ):
        with monkeypatch.context() as patched, pytest.raises(CheckpointFileError) as caught:
            patched.setattr(owner, name, refuse)
            opened(path)
        assert caught.value.file == str(path)
        assert "cannot be read (Permission denied)" in str(caught.value)


def test_two_jsons_leave_the_choice_open(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors.headers.json").write_text("{}")
    with pytest.raises(CheckpointFileError, match="several checkpoints"):
        open_headers(tmp_path)


def test_mutated_files_are_read_alike_or_refused(saved: Path) -> None:
    """What the library refuses is refused, but files cut off where their header ends."""
    corpus = [(saved / name).read_bytes() for name in FILES]
    dice, path, taken = random.Random(7), saved / "x.safetensors", 0
    for _ in range(MUTANTS):
        path.write_bytes(mutate(dice, corpus, framed=True))
        try:
            source = open_source(path)
        except ArchzooError:
            assert not takes(path) or path.read_bytes() == header_bytes(path)
            continue
        taken += 1
        assert dict(open_headers(path).infos()) == dict(source.infos())
        source.close()
    assert taken


def takes(path: Path) -> bool:
    try:
        open_headers(path)
    except ArchzooError:
        return False
    return True
