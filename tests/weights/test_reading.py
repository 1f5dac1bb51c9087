"""Bytes go from files into parameters once, by several threads, and no rank reads another's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agents import HANGING
from safetensors.torch import save_file
from torch import nn

import archzoo
from archzoo.errors import ArchzooError, CheckpointFileError, CoverageError
from archzoo.parallel import Box, Piece, box_numel, box_slices, whole
from archzoo.weights import (
    AutoWeightsLoader,
    SafetensorsSource,
    WeightReport,
    execution,
    open_source,
    parts,
)
from archzoo.weights.parts import parts_of
from archzoo.weights.plan import Placement
from archzoo.weights.source import FileSource, TensorInfo
from archzoo.weights.workers import work_through
from tiny import tiny_llama

FILES = 3


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Small loads are split into tiny parts and copied by four threads."""
    before = torch.get_num_threads()
    monkeypatch.setattr(execution, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(parts, "PART_BYTES", 64)
    torch.set_num_threads(4)
    yield 4
    assert torch.get_num_threads() == 4, "the caller's threads are as they were"
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Box, str]]:
    """(tensor, box, thread) of every read, of whatever kind."""
    found: list[tuple[str, Box, str]] = []

    def spy(method: str) -> None:
        real = getattr(SafetensorsSource, method)

        def read(self: SafetensorsSource, name: str, box: Box, *out: Any) -> Any:
            found.append((name, box, threading.current_thread().name))
            return real(self, name, box, *out)

        monkeypatch.setattr(SafetensorsSource, method, read)

    spy("read")
    spy("read_into")
    return found


def write(folder: Path, full: dict[str, torch.Tensor], files: int = FILES) -> Path:
    """The tensors dealt to several files."""
    import json

    names, index = list(full), {}
    for at in range(files):
        file = f"model-{at + 1:05d}-of-{files:05d}.safetensors"
        save_file({name: full[name] for name in names[at::files]}, folder / file)
        index |= dict.fromkeys(names[at::files], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def load(model: nn.Module, folder: Path, toy: Any, **options: Any) -> WeightReport:
    source = open_source(folder)
    try:
        loader = AutoWeightsLoader(model, name_map=toy.names)
        return loader.load_weights(source, **options)
    finally:
        source.close()


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(model: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        assert found[name].dtype == want.dtype and torch.equal(found[name].data, want), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("check_values", [False, True])
def test_threads_fill_every_rank(
    toy: Any, tmp_path: Path, threads: int, seen: Any, dtype: torch.dtype, check_values: bool
) -> None:
    """Rows and columns, straight and converted; every element is read by one rank once."""
    full = toy().checkpoint()
    write(tmp_path, full)
    reads = {name: torch.zeros(tensor.shape, dtype=torch.int) for name, tensor in full.items()}
    for rank in range(3):
        seen.clear()
        one = toy(3, rank, dtype=dtype)
        model = one.model()
        report = load(model, tmp_path, toy, check_values=check_values)
        same(model, one.expected(full))
        boxes = {(name, box) for name, box, _ in seen}
        counted = sum(box_numel(box) * full[name].itemsize for name, box in boxes)
        assert report.bytes_read == counted
        whole_size = sum(tensor.nbytes for tensor in full.values())
        assert report.bytes_read < whole_size / 2
        assert {thread for *_, thread in seen} != {"MainThread"}
        for name, box in boxes:
            reads[name][box_slices(box)] += 1
    for name, count in reads.items():
        vector_of_all = count.ndim == 1 and "norm" in name or name.endswith("down_proj.bias")
        assert bool((count == (3 if vector_of_all else 1)).all()), name


def test_simulated_ranks_read_the_checkpoint_once(tmp_path: Path, seen: Any) -> None:
    """Not tp times: only what ranks hold in common is read again."""
    path, _ = tiny_llama(tmp_path / "m", num_attention_heads=8, num_key_value_heads=2)
    told: list[tuple[int, int]] = []
    model = archzoo.load(
        path, dtype="float32", tp=4, kv_slots=16, progress=lambda *pair: told.append(pair)
    )
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    once = max(report.bytes_read for report in archzoo.load(path, kv_slots=16).reports)
    total = sum(report.bytes_read for report in model.reports)
    assert once <= total < 1.25 * once <= 1.25 * stored
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done) and done[0] == 0
    assert all(a <= b for a, b in told) and done[-1] == totals[-1] == total


def test_progress_of_threads_rises_to_the_total(toy: Any, tmp_path: Path, threads: int) -> None:
    write(tmp_path, toy().checkpoint())
    told: list[tuple[int, int]] = []
    caller = threading.current_thread()

    def progress(done: int, total: int) -> None:
        assert threading.current_thread() is caller
        told.append((done, total))

    report = load(toy(2, 1).model(), tmp_path, toy, progress=progress)
    done, totals = zip(*told, strict=True)
    assert done[0] == 0 and list(done) == sorted(set(done))
    assert set(totals) == {report.bytes_read} == {done[-1]}


def test_the_report_is_the_same_whoever_is_first(toy: Any, tmp_path: Path, threads: int) -> None:
    write(tmp_path, toy().checkpoint())
    reports = [load(toy().model(), tmp_path, toy) for _ in range(3)]
    torch.set_num_threads(1)
    reports.append(load(toy().model(), tmp_path, toy))
    torch.set_num_threads(threads)
    assert len({report.parameter_names for report in reports}) == 1
    assert len({report.loaded for report in reports}) == 1


def test_a_file_that_fails_is_named_and_the_others_stop(
    toy: Any, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = toy(layers=40).checkpoint()
    write(tmp_path, full)
    started: list[str] = []
    bad = next(name for name in full if "layers.0.mlp.up" in name)
    real = SafetensorsSource.read_into

    def read_into(self: SafetensorsSource, name: str, box: Box, out: torch.Tensor) -> None:
        started.append(name)
        if name == bad:
            raise OSError(5, "Input/output error")
        time.sleep(0.02)  # reading on would take them seconds
        real(self, name, box, out)

    monkeypatch.setattr(SafetensorsSource, "read_into", read_into)
    before = threading.active_count()
    with pytest.raises(OSError, match="Input/output") as caught:
        load(toy(layers=40).model(), tmp_path, toy)
    assert any(bad in note and "model-0000" in note for note in caught.value.__notes__)
    assert threading.active_count() == before, "threads are left over"
    assert len(set(started)) < len(full), "the others read on"


def test_an_error_of_the_caller_stops_the_threads(toy: Any, tmp_path: Path, threads: int) -> None:
    write(tmp_path, toy().checkpoint())

    def interrupted(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        load(toy().model(), tmp_path, toy, progress=interrupted)
    assert threading.active_count() == before


@pytest.mark.parametrize("how", ["shorter", "longer", "other", "gone"])
def test_a_file_that_changes_after_its_header_was_read_is_refused(
    toy: Any, tmp_path: Path, how: str
) -> None:
    write(tmp_path, toy().checkpoint())
    file = tmp_path / "model-00002-of-00003.safetensors"
    source = open_source(tmp_path)
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes({"shorter": content[:-1], "longer": content + b"0"}.get(how, content))
        os.utime(file, ns=(0, 12345))
    with pytest.raises(CheckpointFileError, match=r"00002-of-00003.*(was changed|any more)"):
        AutoWeightsLoader(toy().model(), name_map=toy.names).load_weights(source)


def test_a_file_that_ends_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.ones(4, 4)}, file)
    source = open_source(tmp_path)
    state = file.stat()
    os.truncate(file, state.st_size - 8)
    monkeypatch.setattr(os, "fstat", lambda descriptor: state)
    with pytest.raises(CheckpointFileError, match="it ends early"):
        source.read_into("w", whole((4, 4)), torch.empty(4, 4))


def test_every_kind_of_slice_is_read_into_memory(tmp_path: Path) -> None:
    """Runs and no runs, of one to four dimensions, and of types without arithmetic."""
    full = {
        "four": torch.arange(3 * 4 * 5 * 6, dtype=torch.int16).view(3, 4, 5, 6),
        "matrix": torch.randn(9, 7).to(torch.bfloat16),
        "vector": torch.arange(11, dtype=torch.int64),
        "scalar": torch.tensor(2.5),
        "bytes": torch.arange(15, dtype=torch.uint8).view(3, 5),
        "float8": torch.arange(15, dtype=torch.uint8).view(5, 3).view(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False, True]),
    }
    save_file(full, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    assert isinstance(source, FileSource)
    make = torch.Generator().manual_seed(1)
    for name, tensor in full.items():
        for _ in range(40):
            box = tuple(
                tuple(sorted(torch.randint(size + 1, (2,), generator=make).tolist()))
                for size in tensor.shape
            )
            out = torch.full([b - a for a, b in box], 0x55).to(tensor.dtype)
            source.read_into(name, box, out)
            want = tensor[box_slices(box)]
            assert torch.equal(raw(out), raw(want)), (name, box)
            assert torch.equal(raw(source.read(name, box)), raw(want)), (name, box)
    source.close()
    with pytest.raises(ArchzooError, match="is closed"):
        source.read_into("scalar", (), torch.empty(()))


def test_offsets_that_are_odd_are_read(tmp_path: Path) -> None:
    """The format allows data that is not aligned to its type."""
    values = torch.arange(6, dtype=torch.float32).view(2, 3)
    header = (
        b'{"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"f":{"dtype":"F32","shape":[2,3],"data_offsets":[1,25]}}'
    )
    content = len(header).to_bytes(8, "little") + header + b"\x07" + values.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(content)
    source = open_source(tmp_path)
    for box in (whole((2, 3)), ((1, 2), (0, 3)), ((0, 2), (1, 2))):
        out = torch.empty([b - a for a, b in box])
        source.read_into("f", box, out)
        assert torch.equal(out, values[box_slices(box)])
        assert torch.equal(source.read("f", box), values[box_slices(box)])


SMAPS = Path("/proc/self/smaps")


def resident(name: str) -> int:
    """Bytes of a file of that name that this process has touched; 0 where nothing tells."""
    total, ours = 0, False
    for line in SMAPS.read_text().splitlines() if SMAPS.exists() else ():
        if "-" in line.split(" ", 1)[0]:
            ours = line.endswith(name)
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_no_page_of_a_file_stays(tmp_path: Path) -> None:
    rows, columns = 512, 4096
    save_file({"w": torch.ones(rows, columns)}, tmp_path / "paged.safetensors")
    source = open_source(tmp_path / "paged.safetensors")
    columns_read = torch.empty(rows, 16)
    source.read_into("w", ((0, rows), (8, 24)), columns_read)
    source.read_into("w", whole((rows, columns)), torch.empty(rows, columns))
    assert bool((columns_read == 1).all())
    assert resident("paged.safetensors") <= 64 << 10
    assert bool((source.read("w", ((0, rows), (0, 1))) == 1).all())
    assert resident("paged.safetensors") > 1 << 20 or not SMAPS.exists(), "nothing is measured"


@pytest.mark.parametrize("limit", [1, 4, 12, 24, 1 << 20])
@pytest.mark.parametrize("box", [((2, 9), (1, 4)), ((0, 1), (0, 3)), ((5, 5), (0, 3)), ((3, 7),)])
def test_parts_cover_a_piece_in_order(
    monkeypatch: pytest.MonkeyPatch, limit: int, box: Box
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", limit)
    target = tuple(
        (start + 10 * (at + 1), stop + 10 * (at + 1)) for at, (start, stop) in enumerate(box)
    )
    info = TensorInfo("t", (9,) * len(box), torch.float32, "f")
    pieces = (Piece(box, target),) if box_numel(box) else ()
    found = list(parts_of(Placement(info, "p", None, pieces), cut=True))
    assert sum(part.nbytes for part in found) == info.nbytes(box)
    rows = [row for part in found for row in range(*part.source[0])]
    assert rows == list(range(*box[0]))
    for part in found:
        (start, stop), (into, end) = part.source[0], part.target[0]
        assert (into, end) == (start + 10, stop + 10) and part.source[1:] == box[1:]
        assert part.nbytes <= max(limit, info.nbytes(((0, 1), *box[1:])))


@pytest.mark.parametrize("count", [0, 1, 5, 40])
@pytest.mark.parametrize("queues", [1, 3, 9])
def test_workers_do_everything_once(count: int, queues: int) -> None:
    items = [[(queue, n) for n in range(count + queue)] for queue in range(queues)]
    done: list[tuple[int, int]] = []
    work_through(lambda item: item, items, done.append, threads=4)
    assert sorted(done) == [item for queue in items for item in queue]


def test_each_file_is_begun_by_a_thread_of_its_own() -> None:
    """And threads that have nothing left help the one that has."""
    took: dict[str, set[int]] = {}
    two_files, one_file = (
        threading.Barrier(2, timeout=HANGING),
        threading.Barrier(2, timeout=HANGING),
    )
    meetings = {(0, 0): two_files, (1, 0): two_files, (1, 1): one_file, (1, 2): one_file}

    def work(item: tuple[int, int]) -> None:
        took.setdefault(threading.current_thread().name, set()).add(item[0])
        meetings[item].wait()

    work_through(work, [[(0, 0)], [(1, 0), (1, 1), (1, 2)]], lambda _: None, 2)
    assert sorted(map(sorted, took.values())) == [[0, 1], [1]]


def test_workers_have_the_callers_state(threads: int) -> None:
    found: list[tuple[bool, int]] = []
    with torch.inference_mode():
        work_through(
            lambda _: (torch.is_inference_mode_enabled(), torch.get_num_threads()),
            [[1, 2, 3]],
            found.append,
            threads,
        )
    assert found == [(True, 1)] * 3
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [threads], "threads that start later have as many as before"


@pytest.mark.parametrize("check_values", [False, True])
def test_values_are_judged_over_all_parts(
    toy: Any, tmp_path: Path, threads: int, check_values: bool
) -> None:
    """Zero rows, or all of them, are no fault; rows of NaN are, and one in the last part is seen."""
    full = toy().checkpoint()
    full["lm_head.weight"][2:] = 0
    assert bad_values(toy, full, tmp_path, check_values) == {}
    if not check_values:
        full["lm_head.weight"][:2] = torch.nan
        full["lm_head.weight"][5] = 1
        assert bad_values(toy, full, tmp_path, check_values) == {}
    full["lm_head.weight"][:] = torch.nan
    full["model.layers.1.mlp.gate_proj.weight"][:] = torch.nan
    full["model.layers.0.mlp.up_proj.weight"][-1, -1] = torch.nan
    found = bad_values(toy, full, tmp_path, check_values)
    bad = {"lm_head.weight", "model.layers.1.mlp.gate_proj.weight"}
    if check_values:
        bad.add("model.layers.0.mlp.up_proj.weight")
        assert "at [17, 9]" in found["model.layers.0.mlp.up_proj.weight"]
    else:
        assert "of 18 rows" in found["model.layers.1.mlp.gate_proj.weight"]
    assert found.keys() == bad


def bad_values(
    toy: Any, full: dict[str, torch.Tensor], folder: Path, check_values: bool
) -> dict[str, str]:
    """What a load finds wrong with the values, by tensor, once each."""
    write(folder, full)
    try:
        load(toy().model(), folder, toy, check_values=check_values)
    except CoverageError as error:
        faults = {fault.name: fault.text for fault in error.report.value}
        assert len(faults) == len(error.report.value)
        return faults
    return {}


def test_values_that_overflow_are_seen_by_threads(toy: Any, tmp_path: Path, threads: int) -> None:
    full = toy().checkpoint()
    full["model.layers.1.mlp.up_proj.weight"][:] = 1e6
    write(tmp_path, full)
    with pytest.raises(CoverageError) as caught:
        load(toy(dtype=torch.float16).model(), tmp_path, toy)
    assert [fault.name for fault in caught.value.report.dtype] == [
        "model.layers.1.mlp.up_proj.weight"
    ]
