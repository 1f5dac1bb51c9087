"""Model: logits, log-probabilities, vectors and generation over one pool and several ranks."""

from __future__ import annotations

import gc
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import archzoo
from archzoo.errors import (
    BackendUnavailableError,
    CapacityError,
    CheckpointFileError,
    ConfigError,
    CoverageError,
    InputError,
    LogitsError,
    QuantizationError,
    ShapeError,
    TopologyError,
)
from archzoo.runtime import memory
from archzoo.runtime.options import device_of
from tiny import ids_of, reference_logits, tiny_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(llama: tuple[Path, Any]) -> archzoo.Model:
    return archzoo.load(llama[0], dtype=torch.float32)


def test_logits_of_one_prompt_a_batch_and_nothing(
    model: archzoo.Model, llama: tuple[Path, Any]
) -> None:
    ids = ids_of(6)
    want = reference_logits(llama[1], ids)
    got = model.logits(ids)
    assert got.dtype is torch.float32 and got.shape == (6, 130)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-4)
    torch.testing.assert_close(model.logits(torch.tensor(ids)), want, rtol=0, atol=2e-4)
    batch = model.logits([ids, [], ids[:1]])
    assert [one.shape[0] for one in batch] == [6, 0, 1]
    torch.testing.assert_close(batch[0], want, rtol=0, atol=2e-4)
    assert model.logits([]).shape == (0, 130)
    assert model.engine.free_slots == model.engine.limits.pool.slots, "slots leaked"


def test_more_prompts_than_one_forward_takes(model: archzoo.Model) -> None:
    prompts = [ids_of(1 + n % 5, seed=n) for n in range(70)]
    for ids, got in zip(prompts, model.logits(prompts), strict=True):
        torch.testing.assert_close(got, model.logits(ids), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 130], "130.*vocabulary of 130"),
        ([-1], "-1"),
        ([1.5], "1.5"),
        ([True], "True"),
        ("text", "str"),
        (ids_of(129), "129 tokens.*128"),
    ],
)
def test_bad_prompts_are_refused_before_the_model_runs(
    model: archzoo.Model, ids: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.logits(ids)
    assert model.engine.free_slots == model.engine.limits.pool.slots


@pytest.mark.parametrize("chunk", [0, -3, True])
def test_bad_chunk_sizes_are_refused(model: archzoo.Model, chunk: int) -> None:
    with pytest.raises(InputError, match="chunk_size"):
        model.logits([1, 2], chunk_size=chunk)


@pytest.mark.parametrize("chunk", [None, 1, 4, 7, 100])
@pytest.mark.parametrize("start", [0, 1, 3, 12])
def test_logprobs_of_input_tokens(
    model: archzoo.Model, llama: tuple[Path, Any], chunk: int | None, start: int
) -> None:
    ids = ids_of(12)
    want = torch.log_softmax(reference_logits(llama[1], ids), -1)
    result = model.logprobs(ids, start=start, top_k=2, chunk_size=chunk)
    assert result.token_ids == ids and len(result.token_logprobs) == 12
    for at, value in enumerate(result.token_logprobs):
        if at < max(start, 1):
            assert value is None and result.top_logprobs[at] is None
            continue
        assert value == pytest.approx(float(want[at - 1, ids[at]]), abs=2e-4)
        top = want[at - 1].topk(2)
        pairs = result.top_logprobs[at]
        assert pairs is not None and [token for token, _ in pairs] == top.indices.tolist()
        assert [p for _, p in pairs] == pytest.approx(top.values.tolist(), abs=2e-4)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_scales_logits_before_the_softmax(
    model: archzoo.Model, llama: tuple[Path, Any], temperature: float
) -> None:
    ids = ids_of(5)
    want = torch.log_softmax(reference_logits(llama[1], ids) / temperature, -1)
    got = model.logprobs(ids, temperature=temperature).token_logprobs
    assert got[1:] == pytest.approx([float(want[at - 1, ids[at]]) for at in range(1, 5)], abs=2e-4)


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"start": 9}, {"start": -1}, {"top_k": 131}, {"top_k": -1}]
)
def test_logprob_options_out_of_range(model: archzoo.Model, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        model.logprobs([1, 2, 3], **options)
    with pytest.raises(InputError, match="empty"):
        model.logprobs([])


def test_one_token_has_no_logprob(model: archzoo.Model) -> None:
    assert model.logprobs([5], top_k=1).token_logprobs == [None]


@pytest.mark.parametrize("dimensions", [0, 49])
def test_embedding_dimensions_are_refused_outside_the_width(
    model: archzoo.Model, dimensions: int
) -> None:
    with pytest.raises(InputError, match=f"dimensions={dimensions}.*48"):
        model.embed([[1, 2]], dimensions=dimensions)
    with pytest.raises(InputError, match="empty"):
        model.embed([[1], []])
    assert model.embed([]).shape == (0, 48)


def test_generation_ends_where_it_should(model: archzoo.Model) -> None:
    whole = model.generate(ids_of(4), max_new_tokens=20, ignore_eos=True)
    assert len(whole.token_ids) == 20 and whole.finish_reason == "length"
    assert whole.prompt_token_ids == ids_of(4) and whole.text == ""
    stopper = whole.token_ids[5]
    first = whole.token_ids.index(stopper)
    cut = model.generate(ids_of(4), max_new_tokens=20, ignore_eos=True, stop_token_ids=[stopper])
    assert cut.token_ids == whole.token_ids[: first + 1] and cut.finish_reason == "stop"
    with pytest.raises(InputError, match="no tokenizer"):
        model.generate(ids_of(4), max_new_tokens=2, stop="x")
    with pytest.raises(InputError, match="no tokenizer beside the checkpoint"):
        model.generate("text", max_new_tokens=2)


def test_sampling_with_a_seed_does_not_depend_on_the_batch(model: archzoo.Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.5, "ignore_eos": True}
    prompts = [ids_of(3, seed=n) for n in range(4)]
    alone = [model.generate(ids, seed=7, **options).token_ids for ids in prompts]
    together = [one.token_ids for one in model.generate(prompts, seed=7, **options)]
    assert alone == together
    other = [one.token_ids for one in model.generate(prompts, seed=8, **options)]
    assert other != alone
    free = {tuple(model.generate(prompts[0], **options).token_ids) for _ in range(4)}
    assert len(free) > 1, "without a seed every call draws its own"


def test_streams_interleave_and_may_be_left(model: archzoo.Model) -> None:
    want = [model.generate(ids_of(n), max_new_tokens=9, ignore_eos=True) for n in (3, 5)]
    streams = [
        model.generate(ids_of(n), max_new_tokens=9, ignore_eos=True, stream=True) for n in (3, 5)
    ]
    left = model.generate(ids_of(7), max_new_tokens=50, ignore_eos=True, stream=True)
    next(left)
    pieces: list[list[Any]] = [[], []]
    for parts in itertools.zip_longest(*streams):
        for mine, part in zip(pieces, parts, strict=True):
            mine += [part] if part is not None else []
    left.close()
    for mine, result in zip(pieces, want, strict=True):
        assert [t for part in mine for t in part.token_ids] == result.token_ids
        assert [part.finish_reason for part in mine][-1] == "length"
        assert {part.finish_reason for part in mine[:-1]} <= {None}
    assert model.engine.free_slots == model.engine.limits.pool.slots, "slots leaked"
    assert not model.engine.has_work


def test_a_pool_too_small_for_all_queues_and_preempts(llama: tuple[Path, Any]) -> None:
    """Twelve requests over room for about two: same tokens as with room for all."""
    roomy = archzoo.load(llama[0], dtype=torch.float32)
    tight = archzoo.load(
        llama[0], dtype=torch.float32, kv_slots=40, max_requests=5, prefill_chunk=3
    )
    rng = random.Random(0)
    prompts = [ids_of(rng.randint(1, 14), seed=n) for n in range(12)]
    options: dict[str, Any] = {"max_new_tokens": 15, "ignore_eos": True}
    want = [one.token_ids for one in roomy.generate(prompts, **options)]
    assert [one.token_ids for one in tight.generate(prompts, **options)] == want
    assert tight.engine.free_slots == 40
    with pytest.raises(InputError, match="context of 40"):
        tight.generate([ids_of(2), ids_of(30)], max_new_tokens=20)
    assert not tight.engine.has_work, "a refused batch left requests behind"
    with pytest.raises(InputError, match="context of 40"):
        tight.logits(ids_of(41))


def test_scoring_has_requests_put_back_that_hold_its_slots(llama: tuple[Path, Any]) -> None:
    model = archzoo.load(llama[0], dtype=torch.float32, kv_slots=30)
    want = model.generate(ids_of(20), max_new_tokens=8, ignore_eos=True).token_ids
    score = model.logits(ids_of(25))
    stream = model.generate(ids_of(20), max_new_tokens=8, ignore_eos=True, stream=True)
    tokens = list(next(stream).token_ids)
    for part in stream:
        tokens += part.token_ids
        assert torch.equal(model.logits(ids_of(25)), score)
    assert tokens == want
    held = model.engine.lanes[0].slots.alloc(10)
    with pytest.raises(CapacityError, match="25"):
        model.logits(ids_of(25))
    model.engine.lanes[0].slots.free(held)


def test_a_failing_forward_leaves_the_engine_usable(
    model: archzoo.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = model.generate(ids_of(4), max_new_tokens=3, ignore_eos=True).token_ids
    with monkeypatch.context() as patch:
        patch.setattr(type(model.module), "forward", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.generate(ids_of(4), max_new_tokens=3)
        with pytest.raises(ZeroDivisionError):
            model.logits(ids_of(4))
    assert model.engine.free_slots == model.engine.limits.pool.slots
    assert model.generate(ids_of(4), max_new_tokens=3, ignore_eos=True).token_ids == want


def test_three_simulated_ranks_equal_one(llama: tuple[Path, Any], model: archzoo.Model) -> None:
    three = archzoo.load(llama[0], dtype=torch.float32, tp=3)
    prompts = [ids_of(n) for n in (1, 5, 17)]
    for got, want in zip(three.logits(prompts), model.logits(prompts), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-4)
    options: dict[str, Any] = {"max_new_tokens": 7, "ignore_eos": True}
    assert [r.token_ids for r in three.generate(prompts, **options)] == [
        r.token_ids for r in model.generate(prompts, **options)
    ]
    want_vectors = model.embed(prompts)
    torch.testing.assert_close(three.embed(prompts), want_vectors, rtol=0, atol=1e-5)
    assert len(three.reports) == 3 and all(report.ok for report in three.reports)


@pytest.mark.parametrize("dtype", ["float64", torch.float64, "bfloat16"])
def test_dtypes(llama: tuple[Path, Any], model: archzoo.Model, dtype: Any) -> None:
    other = archzoo.load(llama[0], dtype=dtype)
    got = other.logits(ids_of(6))
    wide = "float64" in str(dtype)
    assert got.dtype is (torch.float64 if wide else torch.float32)
    want = model.logits(ids_of(6))
    tolerance = 1e-4 if wide else 0.05 * float(want.abs().max())
    torch.testing.assert_close(got.float(), want, rtol=0, atol=tolerance)


def edit_config(path: Path, target: Path, **changes: Any) -> Path:
    shutil.copytree(path, target)
    file = target / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return target


def test_float16_runs_as_float32_on_a_cpu_unless_asked_for(
    llama: tuple[Path, Any], tmp_path: Path
) -> None:
    path = edit_config(llama[0], tmp_path / "half", dtype="float16")
    assert archzoo.load(path).module.dtype is torch.float32
    assert archzoo.load(path, dtype=torch.float16).module.dtype is torch.float16


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tp": 4}, ShapeError, "6 query heads.*tp=4"),
        ({"tp": 0}, TopologyError, "tp=0"),
        ({"tp": 2**31}, TopologyError, "tp=2147483648 must be an integer in 1…2147483647"),
        ({"pp": 4}, ShapeError, "pp=4.*3 layers"),
        ({"pp": 0}, TopologyError, "pp=0"),
        ({"pp_layers": (2, 1)}, TopologyError, "for 2 pipeline stages, pp=1"),
        ({"pp": 2, "pp_layers": (2, 2)}, ShapeError, "add up to 4, the model has 3 layers"),
        ({"topology": archzoo.Topology(pp=2), "pp_layers": (2, 1)}, TopologyError, "pp_layers"),
        ({"pp": 2, "pp_micro_batches": 0}, InputError, "pp_micro_batches=0"),
        ({"tp": 3, "attn_dp": 2}, TopologyError, "attn_dp=2 does not divide tp=3"),
        ({"tp": 2, "ep": 2}, TopologyError, r"ep=2: LlamaForCausalLM has no experts"),
        ({"quantization": "fp8"}, QuantizationError, "fp8"),
        ({"compile": True}, BackendUnavailableError, "compile"),
        ({"backend": "flash9"}, BackendUnavailableError, "flash9"),
        ({"dtype": "int8"}, InputError, "int8"),
        ({"dtype": "nonsense"}, InputError, "nonsense"),
        ({"topology": archzoo.Topology(tp=3), "tp": 2}, TopologyError, "tp=2"),
        ({"kv_slots": 0}, InputError, "kv_slots=0"),
        ({"kv_slots": 1.5}, InputError, "kv_slots=1.5"),
        ({"kv_slots": 10**13}, CapacityError, "kv_slots=10000000000000 need .* GiB"),
        ({"kv_slots": 2**63}, InputError, r"kv_slots=\d+ must be an integer in 1…"),
        ({"max_requests": 0}, InputError, "max_requests=0"),
        ({"max_requests": 10**12}, CapacityError, "max_requests=1000000000000 need .* GiB for"),
        ({"prefill_chunk": 0}, InputError, "prefill_chunk=0"),
        ({"compile": "yes"}, InputError, "compile='yes'"),
        ({"dtype": "float8_e4m3fn"}, InputError, "float8_e4m3fn.*must be float32"),
        ({"device": "banana"}, BackendUnavailableError, "device 'banana'"),
        ({"device": 5.5}, BackendUnavailableError, "device 5.5"),
    ],
)
def test_load_refuses_by_name_before_reading(
    llama: tuple[Path, Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from archzoo.weights import SafetensorsSource

    monkeypatch.setattr(memory, "available_bytes", lambda device: 2**34)
    for name in ("read", "read_into"):
        monkeypatch.setattr(SafetensorsSource, name, lambda *a: pytest.fail("bytes were read"))
    with pytest.raises(error, match=message):
        archzoo.load(llama[0], **options)


def test_one_rank_needs_no_number_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of several may have one GPU each; ranks that share a model must be told apart."""
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "here")):
        monkeypatch.setenv(name, value)
    assert device_of("cuda") == torch.device("cuda")
    with pytest.raises(TopologyError, match="LOCAL_RANK='' must be a number"):
        device_of("cuda", ranks=2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("cuda") == device_of("cuda", ranks=2) == torch.device("cuda", 1)


def test_a_topology_may_be_given_whole(llama: tuple[Path, Any]) -> None:
    assert len(archzoo.load(llama[0], topology=archzoo.Topology(tp=3)).reports) == 3


def test_what_is_not_there_is_said(tmp_path: Path, llama: tuple[Path, Any]) -> None:
    with pytest.raises(CheckpointFileError, match="does not exist"):
        archzoo.load(tmp_path / "nothing")
    with pytest.raises(CheckpointFileError, match=r"owner/nothing.*offline"):
        archzoo.load("owner/nothing", offline=True)
    only_config = tmp_path / "only-config"
    only_config.mkdir()
    shutil.copy(llama[0] / "config.json", only_config)
    with pytest.raises(CheckpointFileError, match="no safetensors"):
        archzoo.load(only_config)


def test_a_model_that_cannot_fit_is_refused_before_reading(
    llama: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from archzoo.weights import SafetensorsSource

    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    for name in ("read", "read_into"):
        monkeypatch.setattr(SafetensorsSource, name, lambda *a: pytest.fail("bytes were read"))
    with pytest.raises(CapacityError, match="GiB are available on cpu"):
        archzoo.load(llama[0])


def test_a_tied_config_beside_another_stored_head_warns_and_keeps_the_head(
    tmp_path: Path,
) -> None:
    path, reference = tiny_llama(tmp_path / "untied")
    edited = edit_config(path, tmp_path / "tied", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match=r"tie_word_embeddings.*lm_head\.weight"):
        model = archzoo.load(edited, dtype=torch.float32)
    want = reference_logits(reference, ids_of(5))
    torch.testing.assert_close(model.logits(ids_of(5)), want, rtol=0, atol=2e-4)


def test_an_untied_config_without_a_head_is_refused(tmp_path: Path) -> None:
    path, _ = tiny_llama(tmp_path / "tied", tie_word_embeddings=True)
    edited = edit_config(path, tmp_path / "untied", tie_word_embeddings=False)
    with pytest.raises(CoverageError, match=r"lm_head\.weight"):
        archzoo.load(edited)


def test_the_report_says_what_was_loaded(llama: tuple[Path, Any], model: archzoo.Model) -> None:
    assert model.report.ok
    assert len(model.report.loaded) == 3 * 9 + 3
    assert "model.layers.2.mlp.gate_up_proj.weight" in model.report.parameter_names


def test_build_and_load_weights_for_engines_of_their_own(llama: tuple[Path, Any]) -> None:
    raw = json.loads((llama[0] / "config.json").read_text())
    ctx = archzoo.BuildContext.of(poison=True)
    for weights in (llama[0], llama[1].state_dict().items(), llama[1].state_dict()):
        module = archzoo.build(raw, ctx)
        report = archzoo.load_weights(module, weights)
        assert set(report.parameter_names) == {name for name, _ in module.named_parameters()}
    with pytest.raises(InputError, match="Linear is no archzoo model"):
        archzoo.load_weights(torch.nn.Linear(1, 1), llama[0])


def test_loading_twice_into_one_module_equals_a_cold_load(
    llama: tuple[Path, Any], tmp_path: Path
) -> None:
    other, _ = tiny_llama(tmp_path / "other", seed=9)
    raw = json.loads((llama[0] / "config.json").read_text())
    warm = archzoo.build(raw, archzoo.BuildContext.of())
    cold = archzoo.build(raw, archzoo.BuildContext.of())
    archzoo.load_weights(warm, llama[0])
    archzoo.load_weights(warm, other)
    archzoo.load_weights(cold, other)
    rows = torch.randn(3, 48)
    assert torch.equal(warm.head(rows), cold.head(rows))
    for one, two in zip(warm.model.layers, cold.model.layers, strict=True):
        assert torch.equal(one.mlp(rows), two.mlp(rows))


def test_unusable_logits_end_their_request_only(llama: tuple[Path, Any]) -> None:
    """An embedding row of NaN spoils the request that holds its token, not its neighbour."""
    raw = json.loads((llama[0] / "config.json").read_text())
    assert not raw["tie_word_embeddings"]
    model = archzoo.load(llama[0], dtype=torch.float32)
    want = model.generate(ids_of(4), max_new_tokens=6, ignore_eos=True).token_ids
    bad = next(token for token in range(3, 130) if token not in [*ids_of(4), *want])
    model.module.model.embed_tokens.weight.data[bad] = float("nan")
    good = model.generate(ids_of(4), max_new_tokens=6, ignore_eos=True, stream=True)
    spoilt = model.generate([bad, 5], max_new_tokens=6, stream=True)
    tokens = list(next(good).token_ids)
    with pytest.raises(LogitsError, match=r"request \d+ hold NaN"):
        next(spoilt)
    tokens += [token for part in good for token in part.token_ids]
    assert tokens == want
    assert model.engine.free_slots == model.engine.limits.pool.slots


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, 40),
        ({"rope_type": "linear", "factor": 4.0}, 90),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}, 90),
    ],
)
def test_prompts_reach_into_the_extended_context(
    tmp_path: Path, scaling: dict[str, Any], length: int
) -> None:
    rope = {"rope_theta": 10000.0, **scaling}
    path, reference = tiny_llama(tmp_path, max_position_embeddings=24, rope_parameters=rope)
    model = archzoo.load(path, dtype=torch.float32)
    ids = ids_of(length)
    want = reference_logits(reference, ids)
    torch.testing.assert_close(model.logits(ids), want, rtol=0, atol=2e-4)
    torch.testing.assert_close(model.logits(ids, chunk_size=7), want, rtol=0, atol=2e-4)
    with pytest.raises(InputError, match="context of"):
        model.logits(ids_of(200))


def test_preemption_changes_no_token_where_rotation_depends_on_length(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 12,
        "factor": 8.0,
        "short_factor": [1.0, 1.1, 1.2, 1.5],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
    }
    path, _ = tiny_llama(tmp_path, rope_parameters=rope)
    roomy = archzoo.load(path, dtype=torch.float32)
    tight = archzoo.load(path, dtype=torch.float32, kv_slots=36, max_requests=6)
    prompts = [ids_of(6, seed=n) for n in range(6)]
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    want = [one.token_ids for one in roomy.generate(prompts, **options)]
    assert [one.token_ids for one in tight.generate(prompts, **options)] == want


@pytest.mark.parametrize("stated", ["LlamaForCausalLM", 5, [5], {"a": 1}])
def test_architectures_must_be_a_list_of_names(
    llama: tuple[Path, Any], tmp_path: Path, stated: Any
) -> None:
    path = edit_config(llama[0], tmp_path / "edited", architectures=stated)
    with pytest.raises(ConfigError, match=r"config\.json: architectures"):
        archzoo.load(path)


def test_a_batch_larger_than_the_pool_goes_through_in_groups(llama: tuple[Path, Any]) -> None:
    model = archzoo.load(llama[0], dtype=torch.float32, kv_slots=100)
    prompts = [ids_of(60, seed=n) for n in range(5)]
    for ids, got in zip(prompts, model.logits(prompts), strict=True):
        torch.testing.assert_close(got, model.logits(ids), rtol=0, atol=2e-4)
    assert model.embed(prompts).shape == (5, 48)


def test_results_are_ordinary_tensors(model: archzoo.Model) -> None:
    for logits in (model.logits(ids_of(5)), model.logits(ids_of(5), chunk_size=2)):
        assert logits.is_contiguous() and not logits.is_inference()
        logits.div_(2)
    assert model.logits([ids_of(5), ids_of(3)])[0].untyped_storage().nbytes() == 5 * 130 * 4
    assert not model.embed([ids_of(5)]).is_inference()


def test_kinds_of_prompts(model: archzoo.Model) -> None:
    ids = ids_of(4)
    for given in (torch.tensor(ids), numpy.array(ids), tuple(ids)):
        assert model.logits(given).shape == (4, 130)
        assert model.embed(given).shape == (1, 48)
        assert model.logprobs(given).token_ids == ids
    for text in ("", "some text"):
        with pytest.raises(InputError, match="tokenizer"):
            model.embed(text)
    for wrong in (5, None, 2.5):
        with pytest.raises(InputError):
            model.logits(wrong)
        with pytest.raises(InputError):
            model.embed(wrong)
        with pytest.raises(InputError):
            model.generate(wrong, max_new_tokens=1)


@pytest.mark.parametrize("wrong", ["a", 2.5, None, [1]])
def test_options_of_the_wrong_kind_are_named(model: archzoo.Model, wrong: Any) -> None:
    ids = ids_of(3)
    for name in ("start", "top_k", "temperature"):
        if not (name == "temperature" and wrong == 2.5):
            with pytest.raises(InputError, match=name):
                model.logprobs(ids, **{name: wrong})
    if wrong is not None:
        with pytest.raises(InputError, match="chunk_size"):
            model.logits(ids, chunk_size=wrong)
        with pytest.raises(InputError, match="dimensions"):
            model.embed([ids], dimensions=wrong)
    with pytest.raises(InputError, match="top_k"):
        model.generate(ids, 1, top_k=wrong)


def test_none_means_no_stop(model: archzoo.Model) -> None:
    plain = model.generate(ids_of(3), max_new_tokens=2, ignore_eos=True)
    options: dict[str, Any] = {"stop": None, "stop_token_ids": None}
    assert model.generate(ids_of(3), 2, ignore_eos=True, **options) == plain
    with pytest.raises(InputError, match="stop=5"):
        model.generate(ids_of(3), 2, stop=5)


def test_a_stream_that_is_let_go_of_leaves_nothing_behind(model: archzoo.Model) -> None:
    unread = model.generate(ids_of(3), 10, stream=True)
    del unread
    gc.collect()
    assert not model.engine.has_work
    started = model.generate(ids_of(3), 10, ignore_eos=True, stream=True)
    next(started)
    del started
    gc.collect()
    assert not model.engine.has_work
    assert model.engine.free_slots == model.engine.limits.pool.slots


def test_a_refused_reload_leaves_the_model_as_it_was(llama: tuple[Path, Any]) -> None:
    model = archzoo.load(llama[0], dtype=torch.float32)
    before, method = model.logits(ids_of(4)), model.module.lm_head.quant_method
    packed = method.packed
    weights = dict(llama[1].state_dict())
    del weights["lm_head.weight"]
    with pytest.raises(CoverageError, match="lm_head"):
        archzoo.load_weights(model.module, weights)
    assert torch.equal(model.logits(ids_of(4)), before)
    assert (method.packed is None) is (packed is None)


def test_memory_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    host = memory.available_bytes(torch.device("cpu"))
    assert host is not None
    (tmp_path / "memory.current").write_text("300\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes(torch.device("cpu")) > 300
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.available_bytes(torch.device("cpu")) == 700


def test_a_directory_of_several_gguf_files_leaves_the_choice_to_the_caller(tmp_path: Path) -> None:
    for name in ("model.Q4_0.gguf", "model.Q8_0.GGUF"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointFileError, match=r"several checkpoints.*Q4_0.*Q8_0"):
        archzoo.load(tmp_path)
