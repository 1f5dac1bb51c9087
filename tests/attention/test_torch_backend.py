"""TorchAttention against the dense reference, in every mode, over random shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention.scene import Case, Scene
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.attention import AttentionType, TorchAttention
from archzoo.forward import ForwardMode, KVCacheLayout, KVPool, RequestRows, TokenRows

DECODER = AttentionType.DECODER
BIDIRECTIONAL = AttentionType.DECODER_BIDIRECTIONAL
ENCODER = AttentionType.ENCODER_ONLY

Requests = list[tuple[int, int, int]]

BATCHES: dict[str, Requests] = {
    "prefill": [(0, 5, 5), (0, 1, 1), (0, 9, 9)],
    "cached prefix": [(4, 5, 5), (1, 1, 1), (17, 3, 3)],
    "decode": [(6, 1, 1), (7, 1, 1), (9, 1, 1), (5, 1, 1)],
    "decode, one request": [(11, 1, 1)],
    "decode, equal lengths": [(6, 1, 1), (6, 1, 1), (6, 1, 1)],
    "decode, very unequal lengths": [(40, 1, 1), (3, 1, 1), (41, 1, 1), (2, 1, 1), (0, 1, 1)],
    "mixed": [(6, 1, 1), (0, 7, 7), (8, 1, 1), (5, 3, 3), (7, 1, 1)],
    "zero-length requests": [(0, 0, 0), (6, 1, 1), (4, 0, 0), (7, 1, 1), (3, 2, 2), (9, 0, 0)],
    "more keys than queries": [(3, 2, 6), (0, 1, 5), (4, 1, 2), (2, 0, 3), (0, 4, 4)],
    "no requests": [],
    "blocks": [(130, 260, 260), (0, 129, 129)],
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 3},
    "window of one": {"window": 1},
    "window past every length": {"window": 10_000},
    "soft cap": {"cap": 1.5},
    "window and cap": {"window": 4, "cap": 0.7},
    "narrow values": {"dims": (8, 5)},
    "wide values": {"dims": (6, 9), "cap": 2.0},
    "one KV head": {"heads": (6, 1)},
    "no grouping": {"heads": (3, 3)},
    "nine on three": {"heads": (9, 3)},
    "bidirectional": {"kind": BIDIRECTIONAL},
    "bidirectional window": {"kind": BIDIRECTIONAL, "window": 4},
    "bidirectional cap": {"kind": BIDIRECTIONAL, "cap": 0.8},
}


def check(case: Case, tolerance: float = 1e-12) -> Scene:
    """Right rows, zeros in padding, and nothing written but the new slots."""
    scene = Scene(case)
    before = None if scene.kv is None else (scene.kv.k.clone(), scene.kv.v.clone())
    out = scene.run()
    assert out.dtype == case.dtype
    torch.testing.assert_close(out.double(), scene.expected(), rtol=0, atol=tolerance)
    assert torch.equal(out[scene.real :], torch.zeros_like(out[scene.real :]))
    if before is not None and scene.kv is not None:
        for after, old, new in zip(
            (scene.kv.k, scene.kv.v), before, (scene.k, scene.v), strict=True
        ):
            if case.save and new is not None:
                old[scene.new_slots] = new[: len(scene.new_slots)].to(old.dtype)
            torch.testing.assert_close(after, old, rtol=0, atol=0, equal_nan=True)
    return scene


@pytest.mark.parametrize(("save", "consecutive"), [(True, False), (False, True)])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
def test_equals_reference(
    requests: Requests, features: dict[str, Any], save: bool, consecutive: bool
) -> None:
    check(Case(requests, save=save, consecutive=consecutive, pad=2, **features))


@pytest.mark.parametrize("in_cache", [False, True])
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
def test_keys_in_consecutive_slots(requests: Requests, in_cache: bool) -> None:
    check(Case(requests, consecutive=True, in_cache=in_cache))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any case."""
    kind = draw(st.sampled_from([DECODER, DECODER, BIDIRECTIONAL, ENCODER]))
    size = st.integers(0, 12)
    requests = []
    for _ in range(draw(st.integers(0, 6))):
        queries = draw(st.sampled_from([0, 1, 1, 1, 2, 3, 7]))
        if kind is ENCODER:
            requests.append((0, queries, queries))
        else:
            requests.append((draw(size), queries, queries + draw(st.sampled_from([0, 0, 0, 1, 4]))))
    kv_heads = draw(st.integers(1, 3))
    return Case(
        requests,
        heads=(kv_heads * draw(st.integers(1, 4)), kv_heads),
        dims=(draw(st.sampled_from([1, 3, 8])), draw(st.sampled_from([1, 3, 8]))),
        window=draw(st.none() | st.integers(1, 9)),
        cap=draw(st.none() | st.floats(0.1, 50)),
        kind=kind,
        mode=draw(st.sampled_from([mode for mode in ForwardMode if mode is not ForwardMode.IDLE])),
        pad=draw(st.integers(0, 3)),
        consecutive=draw(st.booleans()),
        shared_prefix=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
        save=draw(st.booleans()),
        in_cache=kind is not ENCODER and draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(cases())
def test_equals_reference_for_random_cases(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("features", [{}, {"window": 5}, {"cap": 3.0}, {"kind": BIDIRECTIONAL}])
@pytest.mark.parametrize("requests", [BATCHES["decode"], BATCHES["mixed"], BATCHES["blocks"]])
def test_dtypes_of_models(
    requests: Requests,
    features: dict[str, Any],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    case = Case(requests, heads=(9, 3), dims=(64, 64), dtype=dtype, pad=1, **features)
    check(case, tolerance)


@pytest.mark.parametrize("features", [{}, {"cap": 2.0}, {"window": 3}, {"dims": (8, 5)}])
@pytest.mark.parametrize("requests", [[(0, 5, 5), (0, 1, 1), (0, 0, 0), (0, 200, 200)], []])
def test_encoder_only_needs_no_cache(requests: Requests, features: dict[str, Any]) -> None:
    scene = check(Case(requests, kind=ENCODER, pad=2, **features))
    assert scene.kv is None


def test_encoder_only_ignores_prefix_and_sequence_lengths() -> None:
    scene = Scene(Case([(0, 4, 4), (0, 3, 3)], kind=ENCODER))
    expected = scene.run()
    rows = scene.batch.requests
    assert rows is not None
    claimed = RequestRows.of(rows.req_pool_indices_cpu, [1, 0], [4, 3], seq_lens=[6, 3])
    scene.batch.requests = claimed
    scene.batch.tokens = TokenRows(7, 7, torch.empty(0, dtype=torch.int64))
    assert torch.equal(scene.run(), expected)


@pytest.mark.parametrize("requests", [BATCHES["decode"], BATCHES["cached prefix"]])
def test_cache_of_a_narrower_dtype(requests: Requests) -> None:
    """New rows are rounded to the cache's dtype, stored or not: what later steps will read."""
    outs = []
    for save in (True, False):
        case = Case(requests, dtype=torch.float32, cache_dtype=torch.bfloat16, save=save)
        outs.append(check(case, 5e-2).attend())
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("features", [{}, {"window": 6}, {"cap": 1.0}])
def test_chunks_and_decode_give_what_one_prefill_gives(features: dict[str, Any]) -> None:
    whole = Scene(Case([(0, 23, 23)], **features))
    expected = whole.run()
    step = Scene(Case([(0, 23, 23)], **features))
    kv, rows = step.kv, step.batch.requests
    assert kv is not None and rows is not None and step.k is not None and step.v is not None
    done = 0
    for size in (1, 7, 4, 1, 1, 9):
        new = slice(done, done + size)
        tokens = TokenRows(size, size, step.new_slots[new])
        step.batch.tokens = tokens
        step.batch.requests = RequestRows.of(rows.req_pool_indices_cpu, [done], [size])
        step.batch.plan = step.backend.plan(step.batch)
        out = step.backend.forward(step.q[new], step.k[new], step.v[new], step.spec, step.batch, kv)
        torch.testing.assert_close(out, expected[new], rtol=0, atol=1e-12)
        done += size
    assert done == 23


def test_batch_equals_alone() -> None:
    case = Case(BATCHES["decode, very unequal lengths"], dtype=torch.float64)
    together = Scene(case).run()
    for index, request in enumerate(case.requests):
        scene = Scene(case)
        rows = scene.batch.requests
        assert rows is not None and scene.k is not None and scene.v is not None
        one = slice(index, index + 1)
        scene.batch.requests = RequestRows.of(
            rows.req_pool_indices_cpu[one], [request[0]], [request[1]]
        )
        scene.batch.tokens = TokenRows(1, 1, scene.new_slots[one])
        scene.q, scene.k, scene.v = scene.q[one], scene.k[one], scene.v[one]
        torch.testing.assert_close(scene.run()[0], together[index], rtol=0, atol=1e-12)


def test_two_forwards_interleave_layer_by_layer() -> None:
    first, second = Scene(Case(BATCHES["decode"])), Scene(Case(BATCHES["mixed"], seed=1))
    first.run()
    second.run()
    for scene in (first, second, first, second):
        torch.testing.assert_close(scene.attend().double(), scene.expected(), rtol=0, atol=1e-12)


def test_layers_of_one_pool_differ_in_window_and_keep_their_own_cache() -> None:
    scene = Scene(Case(BATCHES["cached prefix"]))
    specs = [scene.spec, replace(scene.spec, layer_id=9, sliding_window=2)]
    pool = KVPool(KVCacheLayout.of(specs, torch.float64), scene.pool.num_slots, 5, 30)
    pool.req_to_token[:, : scene.pool.max_context] = scene.pool.req_to_token
    scene.backend = TorchAttention(pool)
    handles = scene.backend.bind(specs)
    scene.batch.plan = scene.backend.plan(scene.batch)
    for scene.spec in specs:
        scene.kv = handles[scene.spec.layer_id]
        assert scene.kv is not None
        scene.fill(scene.kv)
        torch.testing.assert_close(scene.attend(), scene.expected(), rtol=0, atol=1e-12)


def test_strided_rows_of_one_projection() -> None:
    """q, k and v as slices of one (T, N*H + K*H + K*Hv) tensor, as a fused projection gives."""
    scene = Scene(Case(BATCHES["mixed"], heads=(4, 2), dims=(8, 8), pad=1))
    assert scene.k is not None and scene.v is not None
    joined = torch.cat([x.flatten(1) for x in (scene.q, scene.k, scene.v)], dim=1)
    q, k, v = joined.split([32, 16, 16], dim=1)
    scene.q, scene.k, scene.v = q.view(-1, 4, 8), k.view(-1, 2, 8), v.view(-1, 2, 8)
    torch.testing.assert_close(scene.run(), scene.expected(), rtol=0, atol=1e-12)


def test_rows_written_in_inference_mode_can_be_written_outside_it() -> None:
    scene = Scene(Case(BATCHES["decode"]))
    with torch.inference_mode():
        inside = scene.run()
    assert torch.equal(scene.run(), inside)
