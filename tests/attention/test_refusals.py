"""What the backend refuses, and how it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention.scene import Case, Scene

from archzoo.attention import (
    AttentionBackend,
    AttentionType,
    TorchAttention,
    make_backend,
)
from archzoo.errors import BackendUnavailableError, CapacityError, InputError, ShapeError
from archzoo.forward import ForwardBatch, ForwardMode, RequestRows, TokenRows

NONE = torch.empty(0, dtype=torch.int64)


@pytest.fixture
def scene() -> Scene:
    return Scene(Case([(3, 2, 2), (0, 1, 1)]))


def test_make_backend_gives_the_named_one(scene: Scene) -> None:
    backend: AttentionBackend = make_backend("torch", scene.pool)
    assert isinstance(backend, TorchAttention)
    assert (backend.name, backend.padded_rows) == ("torch", "zero")


def test_make_backend_names_what_there_is(scene: Scene) -> None:
    with pytest.raises(BackendUnavailableError, match=r"'flashy'.*choose one of: torch"):
        make_backend("flashy", scene.pool)


def test_cross_attention_is_refused_by_name(scene: Scene) -> None:
    spec = replace(scene.spec, attn_type=AttentionType.ENCODER_DECODER)
    with pytest.raises(BackendUnavailableError, match=r"layers\.5.*cross-attention.*encoder_dec"):
        scene.backend.bind([spec])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, "3 query heads are not a positive multiple of 2 KV heads"),
        ({"num_heads": 0}, "0 query heads"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"logit_cap": 0.0}, "logit_cap=0.0"),
        ({"logit_cap": float("nan")}, "logit_cap=nan"),
        ({"head_dim": 16}, r"2 KV heads of 16 and 8.*pool has K and V rows of \(2, 8\)"),
        ({"num_kv_heads": 4}, "4 KV heads of 8 and 8"),
    ],
)
def test_specs_that_do_not_fit(scene: Scene, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        scene.backend.bind([replace(scene.spec, **change)])


def test_a_layer_the_pool_does_not_hold(scene: Scene) -> None:
    with pytest.raises(BackendUnavailableError, match="KV cache of layer 0"):
        scene.backend.bind([replace(scene.spec, layer_id=0)])


def test_repeated_layer_ids(scene: Scene) -> None:
    with pytest.raises(ShapeError, match=r"layer ids \[5, 5\] repeat"):
        scene.backend.bind([scene.spec, replace(scene.spec, prefix="other")])


def test_no_plan(scene: Scene) -> None:
    with pytest.raises(InputError, match="no plan"):
        scene.attend()


def test_unbound_layer(scene: Scene) -> None:
    scene.run()
    scene.spec = replace(scene.spec, sliding_window=3)
    with pytest.raises(InputError, match="layer 5 was not bound"):
        scene.attend()
    scene.backend.bind([scene.spec])
    with pytest.raises(InputError, match="layer 5 was not bound when this batch was planned"):
        scene.attend()


def test_wrong_rows(scene: Scene) -> None:
    scene.run()
    scene.q = scene.q[:-1]
    with pytest.raises(InputError, match="2 query rows in a forward planned for 3"):
        scene.attend()


def test_too_few_key_rows(scene: Scene) -> None:
    scene.run()
    assert scene.k is not None
    scene.k = scene.k[:-1]
    with pytest.raises(InputError, match="2 key and 3 value rows.*3 new ones"):
        scene.attend()


def test_half_of_a_pair(scene: Scene) -> None:
    scene.run()
    scene.v = None
    with pytest.raises(InputError, match="k is given and v is missing"):
        scene.attend()


def test_no_handle(scene: Scene) -> None:
    scene.run()
    scene.kv = None
    with pytest.raises(InputError, match="no KV handle.*decoder"):
        scene.attend()


def test_encoder_only_without_keys() -> None:
    scene = Scene(Case([(0, 2, 2)], kind=AttentionType.ENCODER_ONLY))
    scene.run()
    scene.k = scene.v = None
    with pytest.raises(InputError, match="k is missing and v is missing"):
        scene.attend()


def test_nowhere_to_write(scene: Scene) -> None:
    scene.batch.tokens = TokenRows(3, 3, NONE)
    with pytest.raises(InputError, match="no slots to write them to"):
        scene.run()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TokenRows(3, 2, NONE), "3 query rows in extend_seq_lens, 2 real rows of 3"),
        (TokenRows(2, 3, NONE), "3 real rows of 2"),
        (TokenRows(3, 3, NONE.new_zeros(2)), "2 slots for 3 new K/V rows"),
    ],
)
def test_token_facts_that_contradict(scene: Scene, tokens: TokenRows, message: str) -> None:
    scene.batch.tokens = tokens
    with pytest.raises(InputError, match=message):
        scene.run()


@pytest.mark.parametrize(
    ("requests", "error", "message"),
    [
        (RequestRows.of([0], [3], [3], seq_lens=[5]), InputError, "seq_lens 5 is less than"),
        (RequestRows.of([4], [0], [3]), CapacityError, "table row 4.*has 4 rows"),
        (RequestRows.of([0], [30], [3]), CapacityError, "33 tokens.*8 positions"),
    ],
)
def test_request_facts_that_contradict(
    scene: Scene, requests: RequestRows, error: type[Exception], message: str
) -> None:
    scene.batch.requests = requests
    with pytest.raises(error, match=message):
        scene.run()


def test_a_batch_of_another_engine(scene: Scene) -> None:
    with pytest.raises(InputError, match="without token and request rows"):
        scene.backend.plan(ForwardBatch.external(scene.backend))


@pytest.mark.parametrize("rows", [0, 2])
def test_idle_gives_zeros(scene: Scene, rows: int) -> None:
    assert scene.kv is not None
    tokens = TokenRows(rows, 0, NONE) if rows else None
    batch = ForwardBatch(scene.backend, ForwardMode.IDLE, tokens)
    batch.plan = scene.backend.plan(batch)
    q = torch.full((rows, 4, 8), float("nan"), dtype=torch.float64)
    kv_rows = torch.full((rows, 2, 8), float("nan"), dtype=torch.float64)
    before = scene.kv.k.clone()
    out = scene.backend.forward(q, kv_rows, kv_rows, scene.spec, batch, scene.kv)
    assert torch.equal(out, torch.zeros(rows, 4, 8, dtype=torch.float64))
    torch.testing.assert_close(scene.kv.k, before, rtol=0, atol=0, equal_nan=True)
