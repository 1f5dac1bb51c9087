"""NaN, infinity and dead matrices are found, named and placed; sound values pass."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archzoo
from archzoo.errors import CoverageError
from archzoo.parallel import whole
from archzoo.weights import AutoWeightsLoader, IterableSource, TensorInfo
from archzoo.weights.findings import Findings
from archzoo.weights.values import SAMPLED_ROWS, ValueCheck
from tiny import tiny_llama

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]


def fault_of(tensor: torch.Tensor, every: bool = True, box: Any = None) -> str | None:
    """What a check of a slice of one tensor finds."""
    findings = Findings()
    info = TensorInfo("t", tuple(tensor.shape), tensor.dtype, "memory")
    box = whole(info.shape) if box is None else box
    check = ValueCheck(IterableSource([("t", tensor)]), findings, every)
    values = tensor[tuple(slice(*pair) for pair in box)]
    check.look(info, box, values)
    check.look(info, box, values)
    report = findings.report("memory", ())
    assert len(report.value) + len(report.zeros) < 2, "one finding for each tensor"
    return report.value[0].text if report.value else report.warning or None


@pytest.mark.parametrize("dtype", FLOATS + NARROW)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1), (33, 17), (3, 5, 2), (65, 1)])
def test_each_single_bad_value_is_found_and_placed(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    sound = torch.full(shape, 1.5).to(dtype)
    assert fault_of(sound) is None
    bads = [torch.nan] if dtype is torch.float8_e4m3fn else [torch.nan, torch.inf, -torch.inf]
    places = {tuple(0 for _ in shape), tuple(size - 1 for size in shape)}
    for bad in bads:
        for at in places:
            tensor = sound.float().clone()
            tensor[at] = bad
            text = fault_of(tensor.to(dtype))
            assert text is not None and f"at {list(at)}" in text
            counts = "1 NaN and 0 infinite" if bad != bad else "0 NaN and 1 infinite"
            assert f"{counts} of {sound.numel()} values" in text


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_values_are_sound(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype)
    values = torch.tensor([[limit.max, limit.min, limit.tiny, 0.0]], dtype=dtype)
    assert fault_of(values) is None


def test_infinities_of_both_signs_do_not_cancel() -> None:
    values = torch.zeros(40, 40)
    values[3, 4], values[3, 5], values[9, 9] = torch.inf, -torch.inf, torch.nan
    text = fault_of(values)
    assert text is not None and "1 NaN and 2 infinite" in text and "(inf) at [3, 4]" in text


def test_a_place_is_one_of_the_full_tensor() -> None:
    tensor = torch.ones(12, 10)
    tensor[7, 9] = torch.nan
    text = fault_of(tensor, box=((6, 9), (5, 10)))
    assert text is not None and "at [7, 9]" in text and "15 values in [[6, 9], [5, 10]]" in text
    assert fault_of(tensor, box=((0, 6), (0, 10))) is None


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + NARROW)
@pytest.mark.parametrize("rows", [1, 2, SAMPLED_ROWS, SAMPLED_ROWS + 1, 100])
def test_a_dead_matrix_is_named(rows: int, dtype: torch.dtype, every: bool) -> None:
    zero = torch.zeros(rows, 6).to(dtype)
    text = fault_of(zero, every)
    assert text is not None and "all values are zero in t;" in text
    assert fault_of((-torch.zeros(rows, 6)).to(dtype), every) is not None, "minus zero is zero"
    assert fault_of(torch.full((rows, 6), torch.nan).to(dtype), every) is not None
    alive = torch.zeros(rows, 6)
    alive[-1, -1] = 1
    assert fault_of(alive.to(dtype), every) is None


def test_a_plain_load_sees_no_single_nan() -> None:
    tensor = torch.ones(100, 6)
    tensor[5:90, 1:] = torch.nan
    assert fault_of(tensor, every=False) is None


@pytest.mark.parametrize("every", [False, True])
def test_what_may_be_zero(every: bool) -> None:
    """Vectors, integers, nothing at all, and a rank's part of a matrix that is not zero."""
    for tensor in (
        torch.zeros(9),
        torch.zeros(()),
        torch.zeros(9, 9, dtype=torch.int32),
        torch.zeros(9, 9, dtype=torch.bool),
        torch.zeros(0, 9),
        torch.zeros(9, 0),
    ):
        assert fault_of(tensor, every) is None
    half = torch.zeros(20, 6)
    half[0, 0] = 1
    assert fault_of(half, every, ((10, 20), (0, 6))) is None
    half[0, 0] = 0
    assert fault_of(half, every, ((10, 20), (0, 6))) is not None


def test_every_bad_tensor_is_in_the_report(toy: Any) -> None:
    full = toy().checkpoint()
    full["model.norm.weight"][3] = torch.inf
    full["model.layers.1.mlp.up_proj.weight"][17, 9] = torch.nan
    loader = AutoWeightsLoader(toy(3, 2).model(), name_map=toy.names)
    with pytest.raises(CoverageError) as caught:
        loader.load_weights(full)
    names = {fault.name for fault in caught.value.report.value}
    assert names == {"model.norm.weight", "model.layers.1.mlp.up_proj.weight"}
    assert "fetch the file again" in str(caught.value)
    loader = AutoWeightsLoader(toy(3, 2).model(), name_map=toy.names)
    loader.load_weights(full, check_values=False)
    loader = AutoWeightsLoader(toy(3, 0).model(), name_map=toy.names)
    with pytest.raises(CoverageError) as caught:
        loader.load_weights(full)
    assert {fault.name for fault in caught.value.report.value} == {"model.norm.weight"}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One NaN, in the last shard of four of a matrix that is split by columns."""
    path, _ = tiny_llama(
        tmp_path_factory.mktemp("values") / "nan", num_attention_heads=8, num_key_value_heads=2
    )
    file = path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["model.layers.2.mlp.down_proj.weight"][11, 71] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    return path


@pytest.mark.parametrize("topology", [{}, {"tp": 4}, {"pp": 3}, {"tp": 4, "attn_dp": 2}], ids=str)
def test_one_nan_in_one_shard(spoilt: Path, topology: Any) -> None:
    with pytest.raises(CoverageError, match=r"2\.mlp\.down_proj.*1 NaN.*at \[11, 71\]"):
        archzoo.load(spoilt, dtype="float32", kv_slots=16, **topology)
    archzoo.load(spoilt, dtype="float32", check_values=False, kv_slots=16, **topology)


def test_load_weights_and_updates_check_unless_told_otherwise(spoilt: Path) -> None:
    model = archzoo.load(spoilt, dtype="bfloat16", check_values=False, kv_slots=16)
    for fill in (
        lambda: model.update_weights(load_file(spoilt / "model.safetensors"), mode="full"),
        lambda: archzoo.load_weights(model.module, spoilt),
    ):
        with pytest.raises(CoverageError, match="down_proj"):
            fill()
    archzoo.load_weights(model.module, spoilt, check_values=False)


def test_sums_that_overflow_are_sound() -> None:
    """The quick look adds up; what overflows there is looked at again."""
    for dtype in FLOATS:
        assert fault_of(torch.full((64, 64), torch.finfo(dtype).max, dtype=dtype)) is None


def with_biases(source: Path, folder: Path, names: list[str], value: float) -> Path:
    """The checkpoint with biases that its config has no place for."""
    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in names:
        bias = torch.zeros(tensors[f"{name}.weight"].shape[0])
        bias[-1] = value
        tensors[f"{name}.bias"] = bias
    save_file(tensors, file, {"format": "pt"})
    return folder


SPARE = [
    "model.layers.0.self_attn.q_proj", "model.layers.2.self_attn.o_proj",
    "model.layers.1.mlp.up_proj", "lm_head",
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("biases") / "sound"
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False}
    return tiny_llama(folder, **sizes)[0]


@pytest.mark.parametrize("topology", [{}, {"tp": 2, "pp": 3}], ids=str)
def test_biases_without_a_place_are_skipped_if_they_are_zero(
    sound: Path, tmp_path: Path, topology: Any
) -> None:
    zero = with_biases(sound, tmp_path / "zero", SPARE, 0.0)
    model = archzoo.load(zero, kv_slots=16, **topology)
    skipped = {name for report in model.reports for name in report.skipped.get("zero bias", ())}
    assert skipped == {f"{name}.bias" for name in SPARE}
    assert torch.equal(
        model.logits([1, 2, 3]), archzoo.load(sound, kv_slots=16, **topology).logits([1, 2, 3])
    )
    told = archzoo.preflight(zero, **topology)
    assert told.ok and set(told.skipped["zero bias"]) == skipped
    assert any("if all their values are zero" in note for note in told.notes)
    one = with_biases(sound, tmp_path / "one", SPARE[1:2], 1e-30)
    with pytest.raises(CoverageError, match=r"o_proj\.bias.*not all its values are zero") as caught:
        archzoo.load(one, check_values=False, kv_slots=16, **topology)
    assert [fault.name for fault in caught.value.report.unexpected] == [f"{SPARE[1]}.bias"]


@pytest.mark.parametrize("name", ["model.norm", "model.layers.9.mlp.up_proj", "model.layers.0.fc"])
def test_a_zero_bias_of_what_has_no_matrix_here_is_unexpected(
    sound: Path, tmp_path: Path, name: str
) -> None:
    """A LayerNorm's bias shows another norm, zero or not; other names show another model."""
    folder = with_biases(sound, tmp_path / "bias", ["model.norm"], 0.0)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{name}.bias"] = tensors.pop("model.norm.bias")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CoverageError, match=rf"unexpected: 1(.|\n)*{name}\.bias"):
        archzoo.load(folder, kv_slots=16)


@pytest.mark.parametrize("topology", [{}, {"tp": 2}, {"pp": 3}], ids=str)
def test_a_zero_matrix_is_named_in_a_warning(sound: Path, tmp_path: Path, topology: Any) -> None:
    folder = shutil.copytree(sound, tmp_path / "zero")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name].zero_()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match=rf"all values are zero in {name};"):
        model = archzoo.load(folder, kv_slots=16, **topology)
    assert {zero for report in model.reports for zero in report.zeros} == {name}
    assert any("warning: " in str(report) for report in model.reports)


def test_looking_warns_of_nothing(toy: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = toy(dtype=torch.float16).checkpoint()
        AutoWeightsLoader(toy(dtype=torch.float16).model(), name_map=toy.names).load_weights(
            full, check_values=True
        )
