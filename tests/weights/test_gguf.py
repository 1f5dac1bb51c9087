from __future__ import annotations

import builtins
import pickle
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from torch import Tensor

from archzoo.errors import CheckpointFileError, MissingDependency
from archzoo.parallel import Box, box_slices, whole
from archzoo.weights import gguf as gguf_module
from archzoo.weights.gguf import GGUFFile, GGUFSource
from archzoo.weights.gguf_names import GGUF_LLAMA_RENAMES, GGUF_LLAMA_SKIPS
from archzoo.weights.remap import NameMap, Rename, Skip, Skipped, Target

RENAMES = NameMap(
    renames=(tuple(Rename(*pair) for pair in GGUF_LLAMA_RENAMES),),
    skips=tuple(Skip(*rule) for rule in GGUF_LLAMA_SKIPS),
)
HEADS, KV_HEADS, HEAD = 4, 2, 8


def decodable() -> list[Kind]:
    kinds = []
    for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
        try:
            dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        kinds.append(kind)
    return kinds


def write(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray, Kind]],
    *,
    arch: str = "llama",
    setup: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """A GGUF file of tensors given in stored form (floats, or bytes of blocks)."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    setup(writer)
    for name, (data, kind) in tensors.items():
        plain = kind in (Kind.F32, Kind.F16)
        writer.add_tensor(name, data, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def noise(kind: Kind, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes as blocks of a kind: every bit pattern, NaN and inf scales included."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, columns // block * size), dtype=np.uint8)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def read_all(source: GGUFSource) -> dict[str, Tensor]:
    return {name: source.read(name, whole(info.shape)) for name, info in source.infos().items()}


def same(one: Tensor, two: Tensor) -> None:
    assert one.dtype == two.dtype == torch.float32
    torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


# --- dequantisation ----------------------------------------------------------


@pytest.mark.parametrize("kind", decodable(), ids=lambda kind: kind.name)
def test_every_box_of_every_type_equals_the_reference(tmp_path: Path, kind: Kind) -> None:
    rows, columns = 5, 1024
    raw = noise(kind, rows, columns)
    stored = raw.view({Kind.F32: np.float32, Kind.F16: np.float16}.get(kind, np.uint8))
    path = write(tmp_path / "a.gguf", {"token_embd.weight": (stored, kind)})
    source = GGUFSource(path)
    with np.errstate(all="ignore"):
        full = torch.from_numpy(np.array(dequantize(raw, kind), np.float32))
    info = source.infos()["token_embd.weight"]
    assert (info.shape, info.dtype, info.file) == ((rows, columns), torch.float32, str(path))
    boxes: list[Box] = [
        ((0, rows), (0, columns)),
        ((4, 5), (1023, 1024)),
        ((1, 3), (255, 257)),
        ((2, 4), (33, 34)),
        ((0, 5), (512, 512)),
        ((3, 3), (0, columns)),
    ]
    for box in boxes:
        same(source.read("token_embd.weight", box), full[box_slices(box)])


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_values_survive_quantisation(tmp_path: Path, kind: Kind) -> None:
    values = normal(7, 96)
    path = write(tmp_path / "a.gguf", {"output.weight": (quantize(values, kind), kind)})
    read = read_all(GGUFSource(path))["output.weight"]
    assert (read - torch.from_numpy(values)).abs().max() < 0.5


def test_more_rows_than_one_chunk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_module, "_CHUNK", 100)
    data = quantize(normal(33, 64), Kind.Q8_0)
    path = write(tmp_path / "a.gguf", {"output.weight": (data, Kind.Q8_0)})
    full = torch.from_numpy(dequantize(data, Kind.Q8_0))
    same(read_all(GGUFSource(path))["output.weight"], full)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_one_and_three_dimensions(tmp_path: Path, kind: Kind) -> None:
    vector, cube = quantize(normal(64), kind), quantize(normal(3, 4, 64), kind)
    tensors = {"output_norm.weight": (vector, kind), "cube.weight": (cube, kind)}
    source = GGUFSource(write(tmp_path / "a.gguf", tensors))
    flat, deep = (torch.from_numpy(dequantize(data, kind)) for data in (vector, cube))
    same(source.read("output_norm.weight", ((3, 37),)), flat[3:37])
    box = ((1, 3), (2, 3), (5, 50))
    same(source.read("cube.weight", box), deep[box_slices(box)])


def test_only_rows_of_the_box_are_dequantised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = quantize(normal(HEADS * HEAD, 128), Kind.Q4_1)
    tensors = {name: (data, Kind.Q4_1) for name in ("output.weight", "blk.0.attn_q.weight")}
    source = GGUFSource(write(tmp_path / "a.gguf", tensors))
    sizes: list[int] = []
    real = gguf_module._blocks_to_floats
    monkeypatch.setattr(
        gguf_module, "_blocks_to_floats", lambda b, t: (sizes.append(b.size), real(b, t))[1]
    )
    source.read("output.weight", ((3, 6), (32, 64)))
    assert sizes == [3 * 20]
    sizes.clear()
    source.read("blk.0.attn_q.weight", ((HEAD, 3 * HEAD), (0, 128)))
    assert sizes == [2 * HEAD * 80]


# --- q and k rows ------------------------------------------------------------


def to_ggml(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row (half t, pair j) of every head goes to 2 j + t, one row at a time."""
    stored, size = np.empty_like(rows), rows.shape[0] // heads
    for head in range(heads):
        for half in range(2):
            for pair in range(size // 2):
                stored[head * size + 2 * pair + half] = rows[head * size + half * size // 2 + pair]
    return stored


def attention(arch: str = "llama") -> tuple[dict[str, np.ndarray], dict[str, tuple]]:
    """Hugging Face tensors of one attention layer, and as llama.cpp stores them."""
    true = {
        "blk.0.attn_q.weight": normal(HEADS * HEAD, 32, seed=1),
        "blk.0.attn_k.weight": normal(KV_HEADS * HEAD, 32, seed=2),
        "blk.0.attn_v.weight": normal(KV_HEADS * HEAD, 32, seed=3),
        "blk.0.attn_q.bias": normal(HEADS * HEAD, seed=4),
        "blk.0.attn_k.bias": normal(KV_HEADS * HEAD, seed=5),
        "blk.0.attn_output.weight": normal(32, HEADS * HEAD, seed=6),
    }
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS} if arch == "llama" else {}
    stored = {
        name: (to_ggml(rows, heads[part]) if (part := name.split(".")[2]) in heads else rows)
        for name, rows in true.items()
    }
    return true, {name: (rows, Kind.F32) for name, rows in stored.items()}


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_rows_come_back_in_hugging_face_order(tmp_path: Path, arch: str) -> None:
    true, stored = attention(arch)

    def heads(writer: gguf.GGUFWriter) -> None:
        writer.add_vocab_size(1)

    source = GGUFSource(write(tmp_path / "a.gguf", stored, arch=arch, setup=heads))
    for name, rows in true.items():
        for start in range(0, rows.shape[0], 3):
            for stop in range(start, rows.shape[0] + 1, 5):
                box = ((start, stop), *((7, 9) for _ in rows.shape[1:]))
                same(source.read(name, box), torch.from_numpy(rows)[box_slices(box)])


def test_missing_kv_head_count_means_as_many_as_query_heads(tmp_path: Path) -> None:
    rows = normal(HEADS * HEAD, 32)
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(HEADS)
    writer.add_tensor("blk.0.attn_k.weight", to_ggml(rows, HEADS))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    same(read_all(GGUFSource(path))["blk.0.attn_k.weight"], torch.from_numpy(rows))


def test_head_counts_may_be_stated_for_each_layer(tmp_path: Path) -> None:
    rows = normal(HEADS * HEAD, 32)
    for name, counts, message in (
        ("a", [HEADS, HEADS], None),
        ("b", [HEADS, 2], r"attention\.head_count_kv: \[4, 2\]: sizes that differ by layer"),
        ("c", [HEADS], r"attention\.head_count_kv: has 1 values for 2 layers"),
    ):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        writer.add_block_count(2)
        writer.add_head_count([HEADS, HEADS])
        writer.add_head_count_kv(counts)
        writer.add_tensor("blk.0.attn_k.weight", to_ggml(rows, HEADS))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        if message is None:
            source = GGUFSource(tmp_path / f"{name}.gguf")
            same(read_all(source)["blk.0.attn_k.weight"], torch.from_numpy(rows))
        else:
            with pytest.raises(CheckpointFileError, match=message):
                GGUFSource(tmp_path / f"{name}.gguf")


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_stacked_experts_are_tensors_of_one_expert_each(tmp_path: Path, kind: Kind) -> None:
    data = quantize(normal(3, 4, 64), kind)
    name = "blk.0.ffn_up_exps.weight"
    source = GGUFSource(write(tmp_path / "a.gguf", {name: (data, kind)}, arch="qwen3moe"))
    full, read = torch.from_numpy(dequantize(data, kind)), read_all(source)
    assert list(read) == [f"blk.0.ffn_up_exps.{at}.weight" for at in range(3)]
    for at in range(3):
        same(read[f"blk.0.ffn_up_exps.{at}.weight"], full[at])
    same(source.read("blk.0.ffn_up_exps.2.weight", ((1, 3), (5, 50))), full[2, 1:3, 5:50])
    places = [source.stored(name) for name in read]
    assert all(one.stop == two.start for one, two in zip(places, places[1:], strict=False))


def test_interleaved_rope_on_stored_rows_is_half_rope_on_ours() -> None:
    """Why the order is what it is: scores agree between the two rope styles."""
    x = torch.from_numpy(normal(HEAD))
    stored = torch.from_numpy(to_ggml(x.numpy(), 1))
    angle = torch.arange(HEAD // 2) * 0.3 + 0.1
    cos, sin = angle.cos(), angle.sin()
    one, two = x[: HEAD // 2], x[HEAD // 2 :]
    half = torch.cat([one * cos - two * sin, two * cos + one * sin])
    even, odd = stored[0::2], stored[1::2]
    pairs = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(-1)
    same(torch.from_numpy(to_ggml(half.numpy(), 1)), pairs)


@pytest.mark.parametrize("rows", [HEADS * 3, HEADS * HEAD + 1, 0])
def test_rows_that_heads_cannot_share(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "a.gguf", {"blk.0.attn_q.weight": (normal(rows, 32), Kind.F32)})
    with pytest.raises(CheckpointFileError, match=f"blk.0.attn_q.weight has {rows} rows.*4 heads"):
        GGUFSource(path)


# --- what a source refuses ---------------------------------------------------


def one(name: str = "output.weight", kind: Kind = Kind.F32) -> dict[str, tuple[np.ndarray, Kind]]:
    return {name: (normal(2, 32), kind)}


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointFileError,
        match=r"'mamba' is not read from GGUF \(read are llama, mistral3, qwen2",
    ):
        GGUFSource(write(tmp_path / "a.gguf", one(), arch="mamba"))


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", one(), setup=lambda w: w.add_uint16("split.count", 3))
    with pytest.raises(CheckpointFileError, match="one of 3 parts.*--merge"):
        GGUFSource(path)


@pytest.mark.parametrize("kind", [Kind.I32, Kind.Q8_1, Kind.F64])
def test_types_without_dequantisation_are_refused_before_reading(
    tmp_path: Path, kind: Kind
) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.zeros((2, 64 // block * size), np.uint8)
    path = write(tmp_path / "a.gguf", {"output.weight": (data, kind)})
    with pytest.raises(CheckpointFileError, match=f"output.weight is stored as {kind.name}"):
        GGUFSource(path)


def test_rope_factors_that_matter_are_refused(tmp_path: Path) -> None:
    factors = np.array([1, 1, 8], np.float32)
    path = write(tmp_path / "a.gguf", {"rope_freqs.weight": (factors, Kind.F32)})
    with pytest.raises(CheckpointFileError, match=r"rope_freqs.weight divides.*by up to 8"):
        GGUFSource(path)
    source = GGUFSource(path, accept_rope_divisors=True)
    assert source.rope_divisors == (1.0, 1.0, 8.0)


@pytest.mark.parametrize("factors", [[np.nan, 1], [0.5, 1]])
def test_odd_rope_factors_are_refused_too(tmp_path: Path, factors: list[float]) -> None:
    tensors = {"rope_freqs.weight": (np.array(factors, np.float32), Kind.F32)}
    with pytest.raises(CheckpointFileError, match="rope_freqs.weight"):
        GGUFSource(write(tmp_path / "a.gguf", tensors))


def test_rope_factors_of_one_are_a_named_skip(tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": (np.ones(4, np.float32), Kind.F32)}
    source = GGUFSource(write(tmp_path / "a.gguf", tensors))
    assert RENAMES.to_parameter("rope_freqs.weight") == Skipped("gguf-rope-divisors")
    assert source.rope_divisors == (1.0,) * 4
    assert list(source.infos()) == ["rope_freqs.weight"]
    assert GGUFSource(write(tmp_path / "b.gguf", one())).rope_divisors is None


def test_reading_after_close_is_an_error_and_views_stay(tmp_path: Path) -> None:
    source = GGUFSource(write(tmp_path / "a.gguf", one()))
    view = source.read("output.weight", ((0, 2), (0, 32)))
    source.close()
    source.close()
    same(view, torch.from_numpy(normal(2, 32)))
    with pytest.raises(CheckpointFileError, match="closed"):
        source.read("output.weight", ((0, 1), (0, 1)))


def test_a_file_that_changed_since_its_header_was_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", one())
    file = GGUFFile(path)
    path.write_bytes(path.read_bytes()[:-32])
    with pytest.raises(CheckpointFileError, match="now and had"):
        GGUFSource(file)


def test_the_file_on_disk_is_never_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", one())
    before = path.read_bytes()
    source = GGUFSource(path)
    source.read("output.weight", ((0, 2), (0, 32))).fill_(float("nan"))
    source.close()
    assert path.read_bytes() == before


# --- the header --------------------------------------------------------------


def test_metadata_of_every_type(tmp_path: Path) -> None:
    def everything(writer: gguf.GGUFWriter) -> None:
        for kind in ("uint8", "uint16", "uint32", "uint64"):
            getattr(writer, f"add_{kind}")(f"x.{kind}", 200)
        for kind in ("int8", "int16", "int32", "int64"):
            getattr(writer, f"add_{kind}")(f"x.{kind}", -100)
        writer.add_float32("x.f32", 1e-5)
        writer.add_float64("x.f64", 1e-5)
        writer.add_bool("x.bool", False)
        writer.add_string("x.text", "naïve ▁ 你好 🤖 \n")
        writer.add_array("x.numbers", [1, -2, 3])
        writer.add_array("x.flags", [True, False])
        writer.add_array("x.words", ["", "a", "é" * 300])

    file = GGUFFile(write(tmp_path / "a.gguf", {}, setup=everything))
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    expected = {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    assert file.metadata == expected
    assert file.metadata["x.flags"] == [True, False] and file.metadata["x.bool"] is False
    assert type(file.metadata["x.f32"]) is float and type(file.metadata["x.uint8"]) is int
    assert file.metadata["x.words"] == ["", "a", "é" * 300]
    assert file.architecture == "llama" and file.tensor_names == ()


def test_get_and_need_state_key_and_kinds(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "a.gguf", {}, setup=lambda w: w.add_bool("x.y", True)))
    assert file.get("x.z", int) is None and file.get("x.y", bool) is True
    with pytest.raises(CheckpointFileError, match=r"x\.y is a bool, expected int"):
        file.get("x.y", int)
    with pytest.raises(CheckpointFileError, match=r"has no x\.z in its metadata"):
        file.need("x.z", int)


def test_a_parsed_file_pickles(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "a.gguf", one()))
    again = pickle.loads(pickle.dumps(file))
    assert (again.metadata, again.tensors, again.parts) == (file.metadata, file.tensors, file.parts)
    same(read_all(GGUFSource(again))["output.weight"], torch.from_numpy(normal(2, 32)))


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def row(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", kind, offset)
    )


def header(
    entries: tuple[bytes, ...] = (),
    rows: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file byte by byte; counts are (tensors, entries)."""
    tensors, keys = counts or (len(rows), len(entries))
    head = struct.pack("<4sIQQ", magic, version, tensors, keys)
    body = head + b"".join(entries) + b"".join(rows)
    return body + b"\0" * (-len(body) % 32) + data


def nested(depth: int) -> bytes:
    return b"".join(struct.pack("<IQ", 9, 1) for _ in range(depth)) + struct.pack("<IQB", 0, 1, 1)


HUGE = 1 << 62
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes"),
    "short": (b"GGUF\3\0\0\0", "has 8 bytes"),
    "other format": (header(magic=b"<!DO"), "starts with b'<!DO'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "starts with b'vers'.*pointer"),
    "version 0": (header(version=0), "GGUF version 0"),
    "version 1": (header(version=1), "GGUF version 1"),
    "version 4": (header(version=4), "GGUF version 4"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "tensor count": (header(counts=(HUGE, 0)), f"states {HUGE} tensors"),
    "entry count": (header(counts=(0, HUGE)), f"states {HUGE} metadata entries"),
    "entries missing": (header(counts=(0, 2)), "bytes are left|are left; the file is cut short"),
    "key length": (header((struct.pack("<Q", HUGE),), counts=(0, 1)), "a metadata key at byte 32"),
    "text length": (header((entry("a", 8, struct.pack("<Q", HUGE)),)), "a at byte"),
    "array length": (header((entry("a", 9, struct.pack("<IQ", 6, HUGE)),)), "a at byte"),
    "words length": (header((entry("a", 9, struct.pack("<IQ", 8, HUGE)),)), "a at byte"),
    "word length": (
        header((entry("a", 9, struct.pack("<IQQQ", 8, 2, 0, HUGE)),)),
        r"a\[1\] at byte",
    ),
    "value type": (header((entry("a", 13, b"\0"),)), "a has value type 13"),
    "array of arrays": (header((entry("a", 9, nested(1)),)), "a has value type 9"),
    "deep arrays": (header((entry("a", 9, nested(100_000)),)), "a has value type 9"),
    "bad utf-8": (header((entry("a", 8, text(b"\xff\xfe")),)), "a is not UTF-8"),
    "bad utf-8 in array": (
        header((entry("a", 9, struct.pack("<IQ", 8, 1) + text(b"\xc3")),)),
        r"a is not UTF-8",
    ),
    "key twice": (header((entry("a", 0, b"\1"), entry("a", 0, b"\1"))), "states 'a' twice"),
    "tensor twice": (header((), (row("t", (0,)), row("t", (0,)))), "two tensors named 't'"),
    "five dims": (header((), (row("t", (1, 1, 1, 1, 1)),)), "t has 5 dimensions"),
    "dims count": (header((), (text("t") + b"\xff" * 16,)), "t has 4294967295 dimensions"),
    "ggml type": (header((), (row("t", (32,), 999),)), "t has ggml type 999.*install -U gguf"),
    "part of a block": (header((), (row("t", (33,), 8),), b"\0" * 64), "rows of 33.*32.*Q8_0"),
    "huge tensor": (header((), (row("t", (HUGE, HUGE)),)), "t takes"),
    "data cut": (header((), (row("t", (32,)),), b"\0" * 127), "t takes 128 bytes"),
    "offset outside": (header((), (row("t", (1,), 0, HUGE),), b"\0" * 64), "t takes 4 bytes"),
    "offset unaligned": (header((), (row("t", (1,), 0, 4),), b"\0" * 64), "alignment of 32"),
    "overlap": (header((), (row("b", (8,)), row("a", (16,))), b"\0" * 64), "b and a overlap"),
    "alignment 0": (header((entry("general.alignment", 4, b"\0" * 4),)), "general.alignment is 0"),
    "alignment 24": (
        header((entry("general.alignment", 4, struct.pack("<I", 24)),)),
        "general.alignment is 24",
    ),
    "alignment text": (header((entry("general.alignment", 8, text("32")),)), "alignment is '32'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_named_errors_and_cost_no_memory(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointFileError, match=message) as error:
            GGUFFile(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.file == str(path) and str(error.value).startswith(str(path))
    assert peak < 8 << 20


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointFileError, match="cannot be read"):
            GGUFFile(path)


def test_every_cut_and_many_flipped_bytes_are_named_errors(tmp_path: Path) -> None:
    """Whatever happens to the bytes: it parses, or it is our error; nothing else escapes."""

    def words(writer: gguf.GGUFWriter) -> None:
        writer.add_array("x.words", ["one", "two"])
        writer.add_array("x.numbers", [1.5, 2.5])

    path = write(tmp_path / "a.gguf", attention()[1], setup=words)
    good, bad = path.read_bytes(), tmp_path / "bad.gguf"
    start = GGUFFile(path).tensors["blk.0.attn_q.weight"].start
    for size in range(start):
        bad.write_bytes(good[:size])
        with pytest.raises(CheckpointFileError):
            GGUFFile(bad)
    dice = random.Random(0)
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(good)
        damaged[dice.randrange(start)] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
        bad.write_bytes(damaged)
        try:
            read_all(GGUFSource(bad))
            outcomes.add("read")
        except CheckpointFileError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_zero_size_and_scalar_tensors_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    arch = entry("general.architecture", 8, text("llama"))
    heads = entry("llama.attention.head_count", 4, struct.pack("<I", 1))
    rows = (row("none", (32, 0), 8), row("scalar", ()), row("also.none", (0,)))
    path.write_bytes(header((arch, heads), rows, struct.pack("<f", 2.5)))
    read = read_all(GGUFSource(path))
    shapes = {name: tuple(tensor.shape) for name, tensor in read.items()}
    assert shapes == {"none": (0, 32), "scalar": (), "also.none": (0,)}
    assert read["scalar"].item() == 2.5


def test_version_two_and_a_wide_alignment(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", one(), setup=lambda w: w.add_custom_alignment(1024))
    content = bytearray(path.read_bytes())
    content[4] = 2
    path.write_bytes(content)
    same(read_all(GGUFSource(path))["output.weight"], torch.from_numpy(normal(2, 32)))
    assert GGUFFile(path).tensors["output.weight"].start % 1024 == 0


# --- the optional dependency -------------------------------------------------


def test_without_the_gguf_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match=r"pip install 'archzoo\[gguf\]'"):
        GGUFFile(tmp_path / "a.gguf")


def test_a_broken_gguf_package_shows_its_own_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def broken(name: str, *args: object, **kwargs: object) -> object:
        if name == "gguf":
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return real(name, *args, **kwargs)  # type: ignore[arg-type]  # passed through untouched

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        GGUFFile(tmp_path / "a.gguf")


# --- names, and transformers as the judge ------------------------------------


def test_names_there_and_back() -> None:
    pairs = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        "blk.11.attn_k.bias": "model.layers.11.self_attn.k_proj.bias",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    }
    for ours, theirs in pairs.items():
        assert RENAMES.to_parameter(ours) == Target(theirs)
        assert RENAMES.to_checkpoint(theirs) == ours
    assert RENAMES.to_parameter("blk.0.attn_norm_2.weight") == Target("blk.0.attn_norm_2.weight")


def test_a_whole_model_equals_what_transformers_loads(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    state = model.state_dict()
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    tensors = {}
    for name, value in state.items():
        stored = RENAMES.to_checkpoint(name)
        part = stored.split(".")[2] if stored.startswith("blk.") else ""
        rows = to_ggml(value.numpy(), heads[part]) if part in heads else value.numpy()
        kind = Kind.F32 if rows.ndim == 1 else Kind.Q8_0
        tensors[stored] = (quantize(rows, kind), kind)

    def facts(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(2)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(64)
        writer.add_context_length(128)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_vocab_size(64)

    path = write(tmp_path / "a.gguf", tensors, setup=facts)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    ours = {}
    for name, value in read_all(GGUFSource(path)).items():
        target = RENAMES.to_parameter(name)
        assert isinstance(target, Target)
        ours[target.parameter] = value
    assert set(ours) == set(theirs) == set(state)
    for name, value in ours.items():
        same(value, theirs[name].float())
        assert (value - state[name]).abs().max() < 0.01
