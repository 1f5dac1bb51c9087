"""Rotary: equal to transformers for every type, per sequence, shared tables, hostile input."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, GlmConfig, LlamaConfig, Phi3Config
from transformers.models.cohere import modeling_cohere
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

from archzoo.config.rope import RopeConfig
from archzoo.errors import ConfigError, InputError, ShapeError
from archzoo.layers import rope_tables
from archzoo.layers.rotary import RotaryEmbedding, RotaryRows, get_rope

H, N, K = 16, 4, 2
SHORT = tuple(1.0 + 0.05 * i for i in range(H // 2))
LONG = tuple(1.0 + 2.0 * i for i in range(H // 2))
BASE = RopeConfig(head_dim=H, rotary_dim=H, theta=10000.0, max_position_embeddings=256)
YARN = replace(BASE, rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
LONGROPE = replace(
    BASE,
    rope_type="longrope",
    factor=4.0,
    original_max_position_embeddings=64,
    short_factor=SHORT,
    long_factor=LONG,
)
DYNAMIC = replace(BASE, rope_type="dynamic", factor=3.0, max_position_embeddings=64)
LLAMA3 = replace(
    BASE,
    rope_type="llama3",
    theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

LLAMA_CASES = {
    "default": BASE,
    "default_big_theta": replace(BASE, theta=1e6, max_position_embeddings=40000),
    "linear": replace(BASE, rope_type="linear", factor=2.5),
    "dynamic": DYNAMIC,
    "yarn": YARN,
    "yarn_untruncated": replace(YARN, truncate=False),
    "yarn_attention_factor": replace(YARN, attention_factor=0.7),
    "yarn_mscale": replace(YARN, factor=40.0, mscale=1.0, mscale_all_dim=0.5),
    "yarn_one_mscale": replace(YARN, mscale=2.0),
    "yarn_bands": replace(YARN, beta_fast=16.0, beta_slow=2.0, theta=1e6),
    "yarn_bands_below_the_first_pair": replace(YARN, beta_fast=1e9, beta_slow=1e9),
    "yarn_bands_past_the_last_pair": replace(YARN, theta=10.0, beta_slow=0.01),
    "yarn_meeting_bands": replace(YARN, beta_fast=4.0, beta_slow=4.0, truncate=False),
    "yarn_factor_below_one": replace(YARN, factor=0.5),
    "llama3": LLAMA3,
    "llama3_bands": replace(LLAMA3, low_freq_factor=2.0, high_freq_factor=9.0, factor=32.0),
}


def hf_parameters(c: RopeConfig) -> dict[str, object]:
    """rope_parameters as transformers wants them, only the keys of that type."""
    out: dict[str, object] = {"rope_type": c.rope_type, "rope_theta": c.theta}
    if c.rope_type in ("linear", "dynamic", "yarn", "llama3", "longrope"):
        out["factor"] = c.factor
    if c.rope_type in ("yarn", "llama3", "longrope"):
        out["original_max_position_embeddings"] = c.original_max_position_embeddings
    if c.rope_type == "llama3":
        out |= {"low_freq_factor": c.low_freq_factor, "high_freq_factor": c.high_freq_factor}
    if c.rope_type == "longrope":
        out |= {"short_factor": list(c.short_factor), "long_factor": list(c.long_factor)}
    if c.rope_type == "yarn":
        out |= {"beta_fast": c.beta_fast, "beta_slow": c.beta_slow, "truncate": c.truncate}
        out |= {k: getattr(c, k) for k in ("mscale", "mscale_all_dim") if getattr(c, k)}
    if c.attention_factor is not None:
        out["attention_factor"] = c.attention_factor
    return out


def hf_sizes(c: RopeConfig) -> dict[str, object]:
    return dict(
        hidden_size=N * c.head_dim,
        num_attention_heads=N,
        num_key_value_heads=K,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position_embeddings,
    )


def hf_turn(module, cls, config, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """transformers' rotary of one sequence, in our layout."""
    rotary = getattr(module, cls)(config)
    cos, sin = rotary(q, positions[None])
    q4, k4 = (x.unflatten(-1, (-1, H)).transpose(0, 1)[None] for x in (q, k))
    out = module.apply_rotary_pos_emb(q4, k4, cos, sin)
    turned_q, turned_k = (x[0].transpose(0, 1).flatten(1) for x in out)
    return turned_q, turned_k


def hf_llama(c: RopeConfig, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    config = LlamaConfig(rope_parameters=hf_parameters(c), **hf_sizes(c))
    return hf_turn(modeling_llama, "LlamaRotaryEmbedding", config, positions, q, k)


def hf_phi3(c: RopeConfig, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    parameters = hf_parameters(c) | {"partial_rotary_factor": c.rotary_dim / c.head_dim}
    sizes = hf_sizes(c)
    if c.original_max_position_embeddings is not None:
        sizes["original_max_position_embeddings"] = c.original_max_position_embeddings
    config = Phi3Config(rope_parameters=parameters, **sizes)
    return hf_turn(modeling_phi3, "Phi3RotaryEmbedding", config, positions, q, k)


def heads(rows: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """q and k as slices of one qkv tensor."""
    gen = torch.Generator().manual_seed(seed)
    qkv = torch.randn(rows, (N + 2 * K) * H, generator=gen).to(dtype)
    q, k, _ = qkv.split((N * H, K * H, K * H), -1)
    return q, k


def lens(positions: Tensor) -> Tensor:
    """Every row belongs to one sequence that ends with the last position."""
    return torch.full_like(positions, int(positions.max()) + 1)


def assert_turned(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tol: float
) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tol)


# --- against transformers ------------------------------------------------------------------


@pytest.mark.parametrize("name", LLAMA_CASES)
@pytest.mark.parametrize("length", [1, 64, 65, 256])
def test_llama_types_equal_transformers(name: str, length: int) -> None:
    config = LLAMA_CASES[name]
    positions = torch.arange(length)
    q, k = heads(length)
    found = get_rope(config, dtype=torch.float32)(positions, q, k, lens(positions))
    assert_turned(found, hf_llama(config, positions, q, k), 1e-6)


@pytest.mark.parametrize("name", ["default_big_theta", "llama3", "yarn"])
def test_far_positions_equal_transformers(name: str) -> None:
    config = replace(LLAMA_CASES[name], max_position_embeddings=40000)
    positions = torch.tensor([39999, 31234, 16384, 8191])
    q, k = heads(4)
    found = get_rope(config, dtype=torch.float32)(positions, q, k)
    assert_turned(found, hf_llama(config, positions, q, k), 1e-6)


@pytest.mark.parametrize("name", ["default", "yarn", "llama3", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_round_as_transformers(name: str, dtype: torch.dtype) -> None:
    config = LLAMA_CASES[name]
    positions = torch.arange(50)
    q, k = heads(50, dtype)
    found = get_rope(config, dtype=dtype)(positions, q, k, lens(positions))
    assert found[0].dtype == dtype
    assert_turned(found, hf_llama(config, positions, q, k), 0.0)


@pytest.mark.parametrize("length", [1, 7, 64, 65, 200])
@pytest.mark.parametrize("rotary_dim", [H, 12])
@pytest.mark.parametrize("attention_factor", [None, 1.3])
def test_longrope_equals_transformers(
    length: int, rotary_dim: int, attention_factor: float | None
) -> None:
    config = replace(
        LONGROPE,
        rotary_dim=rotary_dim,
        short_factor=SHORT[: rotary_dim // 2],
        long_factor=LONG[: rotary_dim // 2],
        attention_factor=attention_factor,
    )
    positions = torch.arange(length)
    q, k = heads(length)
    found = get_rope(config, dtype=torch.float32)(positions, q, k, lens(positions))
    assert_turned(found, hf_phi3(config, positions, q, k), 1e-6)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_longrope_without_extension_has_no_scale(factor: float) -> None:
    assert rope_tables.attention_scale(replace(LONGROPE, factor=factor)) == 1.0


@pytest.mark.parametrize("rotary_dim", [4, 8, 12])
def test_partial_equals_transformers(rotary_dim: int) -> None:
    config = replace(BASE, rotary_dim=rotary_dim)
    positions = torch.arange(100)
    q, k = heads(100)
    found = get_rope(config, dtype=torch.float32)(positions, q, k)
    assert_turned(found, hf_phi3(config, positions, q, k), 1e-6)
    rest = found[0].view(100, N, H)[..., rotary_dim:]
    assert torch.equal(rest, q.reshape(100, N, H)[..., rotary_dim:])


def test_interleaved_equals_transformers() -> None:
    config = replace(BASE, interleaved=True)
    theirs = CohereConfig(rope_parameters=hf_parameters(config), **hf_sizes(config))
    positions = torch.arange(100)
    q, k = heads(100)
    found = get_rope(config, dtype=torch.float32)(positions, q, k)
    expected = hf_turn(modeling_cohere, "CohereRotaryEmbedding", theirs, positions, q, k)
    assert_turned(found, expected, 1e-6)


def test_interleaved_partial_equals_transformers() -> None:
    config = replace(BASE, interleaved=True, rotary_dim=8)
    parameters = hf_parameters(config) | {"partial_rotary_factor": 0.5}
    theirs = GlmConfig(rope_parameters=parameters, **hf_sizes(config))
    positions = torch.arange(100)
    q, k = heads(100)
    found = get_rope(config, dtype=torch.float32)(positions, q, k)
    expected = hf_turn(modeling_glm, "GlmRotaryEmbedding", theirs, positions, q, k)
    assert_turned(found, expected, 1e-6)


# --- against a plain float64 twin ----------------------------------------------------------


def twin_frequency(c: RopeConfig, pair: int, seq_len: int) -> float:
    """One pair's radians per position, by the papers' formulas."""
    exponent = 2 * pair / c.rotary_dim
    plain = c.theta**-exponent
    original = c.original_max_position_embeddings or 0
    if c.rope_type == "linear":
        return plain / c.factor
    if c.rope_type == "dynamic":
        ratio = max(seq_len, c.max_position_embeddings) / c.max_position_embeddings
        grown = c.factor * ratio - (c.factor - 1)
        return (c.theta * grown ** (c.rotary_dim / (c.rotary_dim - 2))) ** -exponent
    if c.rope_type == "longrope":
        return plain / (c.long_factor if seq_len > original else c.short_factor)[pair]
    if c.rope_type == "llama3":
        turns = original * plain / (2 * math.pi)
        blend = (turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)
        keep = min(max(blend, 0.0), 1.0)
        return keep * plain + (1 - keep) * plain / c.factor
    if c.rope_type == "yarn":
        bands = [
            c.rotary_dim * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(c.theta))
            for beta in (c.beta_fast, c.beta_slow)
        ]
        low, high = max(math.floor(bands[0]), 0), min(math.ceil(bands[1]), c.rotary_dim - 1)
        ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        return (1 - ramp) * plain + ramp * plain / c.factor
    return plain


def twin_scale(c: RopeConfig) -> float:
    if c.rope_type == "yarn":
        return 0.1 * math.log(c.factor) + 1
    if c.rope_type == "longrope":
        return math.sqrt(1 + math.log(c.factor) / math.log(c.original_max_position_embeddings or 0))
    return 1.0


def twin(c: RopeConfig, positions: list[int], seq_lens: list[int], x: Tensor) -> Tensor:
    """(T, n*H) turned pair by pair in Python floats."""
    out = x.double().clone().view(len(positions), -1, c.head_dim)
    source = out.clone()
    half, scale = c.rotary_dim // 2, twin_scale(c)
    for row, (position, seq_len) in enumerate(zip(positions, seq_lens, strict=True)):
        for pair in range(half):
            angle = position * twin_frequency(c, pair, seq_len)
            cos, sin = math.cos(angle) * scale, math.sin(angle) * scale
            i, j = (2 * pair, 2 * pair + 1) if c.interleaved else (pair, pair + half)
            a, b = source[row, :, i], source[row, :, j]
            out[row, :, i], out[row, :, j] = a * cos - b * sin, b * cos + a * sin
    return out.view(len(positions), -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [H, 10])
@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
def test_every_type_and_style_equals_a_plain_twin(
    kind: str, rotary_dim: int, interleaved: bool
) -> None:
    config = (LLAMA_CASES | {"longrope": LONGROPE})[kind]
    config = replace(config, rotary_dim=rotary_dim, interleaved=interleaved)
    if kind == "longrope":
        half = rotary_dim // 2
        config = replace(config, short_factor=SHORT[:half], long_factor=LONG[:half])
    positions, seq_lens = [0, 1, 63, 64, 130, 5], [1, 2, 64, 65, 131, 200]
    q, k = heads(len(positions))
    found = get_rope(config, dtype=torch.float32)(
        torch.tensor(positions), q, k, torch.tensor(seq_lens)
    )
    for ours, given in zip(found, (q, k), strict=True):
        expected = twin(config, positions, seq_lens, given)
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-4)


# --- lengths are each sequence's own -------------------------------------------------------


@pytest.mark.parametrize("config", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@pytest.mark.parametrize("order", [(7, 100, 64, 65, 1), (200, 3)])
def test_batch_gives_each_sequence_what_it_gets_alone(
    config: RopeConfig, order: tuple[int, ...]
) -> None:
    rope = get_rope(config, dtype=torch.float32)
    parts = [(torch.arange(n), *heads(n, seed=n)) for n in order]
    alone = [rope(p, q, k, lens(p)) for p, q, k in parts]
    positions, q, k = (torch.cat([part[i] for part in parts]) for i in range(3))
    together = rope(positions, q, k, torch.cat([lens(part[0]) for part in parts]))
    for i in range(2):
        assert torch.equal(together[i], torch.cat([pair[i] for pair in alone]))


@pytest.mark.parametrize("config", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_length_decides_at_the_same_position(config: RopeConfig) -> None:
    rope = get_rope(config, dtype=torch.float32)
    positions = torch.tensor([40, 40, 40])
    rows = rope.rows(positions, torch.tensor([41, 64, 65]))
    assert torch.equal(rows.cos[0], rows.cos[1])
    assert not torch.allclose(rows.cos[1], rows.cos[2])


def test_dynamic_leaves_short_sequences_exactly_alone() -> None:
    limit = 1000
    lengths = torch.arange(1, limit + 1)
    for factor in (1.3, 1.7, 2.3, 6.1):
        config = replace(DYNAMIC, factor=factor, max_position_embeddings=limit)
        plain = rope_tables.frequencies(config)
        found = rope_tables.dynamic_frequencies(config, plain, lengths)
        assert torch.equal(found, plain.expand(limit, -1))


@pytest.mark.parametrize("config", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_missing_or_bad_lengths_are_refused(config: RopeConfig) -> None:
    rope = get_rope(config, dtype=torch.float32)
    assert rope.needs_seq_lens
    positions, (q, k) = torch.arange(3), heads(3)
    with pytest.raises(InputError, match="give seq_lens"):
        rope(positions, q, k)
    for bad in (torch.tensor([3]), torch.tensor(3), torch.ones(3)):
        with pytest.raises(InputError, match="one integer for each row"):
            rope.rows(positions, bad)


@pytest.mark.parametrize("name", ["default", "linear", "yarn", "llama3"])
def test_other_types_do_not_read_lengths(name: str) -> None:
    rope = get_rope(LLAMA_CASES[name], dtype=torch.float32)
    assert not rope.needs_seq_lens
    positions = torch.arange(5)
    assert torch.equal(rope.rows(positions).sin, rope.rows(positions, lens(positions) + 9).sin)


# --- tables ---------------------------------------------------------------------------------


def test_32_layers_hold_one_storage() -> None:
    layers = [get_rope(replace(BASE), dtype=torch.float32) for _ in range(32)]
    tables = [layer.table(torch.device("cpu")) for layer in layers]
    assert len({table.values.data_ptr() for table in tables if table.values is not None}) == 1
    assert sum(table.values is None for table in tables) == 0
    assert tables[0].values is not None
    assert tables[0].values.shape == (256, H)


def test_unequal_values_do_not_share() -> None:
    cpu = torch.device("cpu")
    base = get_rope(BASE, dtype=torch.float32).table(cpu)
    assert get_rope(BASE, dtype=torch.bfloat16).table(cpu).dtype == torch.bfloat16
    other = get_rope(replace(BASE, theta=10001.0), dtype=torch.float32).table(cpu)
    assert base.values is not None and other.values is not None
    assert not torch.equal(base.values, other.values)


def test_a_table_nobody_holds_is_dropped() -> None:
    config = replace(BASE, theta=12345.0)
    layers = [get_rope(config, dtype=torch.float32) for _ in range(3)]
    key = (config, torch.float32, torch.device("cpu"))
    assert key in rope_tables._tables
    del layers[1:]
    gc.collect()
    assert key in rope_tables._tables
    layers.clear()
    gc.collect()
    assert key not in rope_tables._tables


def test_threads_get_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    config, count = replace(BASE, theta=54321.0), 8
    built: list[RopeConfig] = []
    init = rope_tables.RopeTable.__init__

    def counting(self: rope_tables.RopeTable, config: RopeConfig, *args: object) -> None:
        built.append(config)
        threading.Event().wait(0.02)
        init(self, config, *args)

    monkeypatch.setattr(rope_tables.RopeTable, "__init__", counting)
    gate, found = threading.Barrier(count), []

    def ask() -> None:
        gate.wait()
        found.append(get_rope(config, dtype=torch.float32).table(torch.device("cpu")))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len({id(table) for table in found}) == 1


@pytest.mark.parametrize(
    "config", [BASE, DYNAMIC, LONGROPE, YARN], ids=["default", "dynamic", "longrope", "yarn"]
)
def test_meta_gives_shapes_and_never_reaches_the_cpu(config: RopeConfig) -> None:
    with torch.device("meta"):
        rope = get_rope(config, dtype=torch.float32, device="meta")
        positions = torch.arange(5)
        q, k = rope(positions, torch.empty(5, N * H), torch.empty(5, K * H), positions + 1)
    assert q.is_meta and q.shape == (5, N * H) and k.shape == (5, K * H)
    positions = torch.arange(5)
    with torch.device("meta"):  # a table must not follow an ambient device either
        cos = rope.rows(positions, positions + 1).cos
    expected = get_rope(config, dtype=torch.float32).rows(positions, positions + 1).cos
    assert not cos.is_meta and torch.equal(cos, expected)


def test_ambient_dtype_changes_nothing() -> None:
    seq_lens, positions = torch.full((5,), 99), torch.arange(5)
    for config in (replace(LONGROPE, theta=777.0), replace(DYNAMIC, theta=777.0)):
        torch.set_default_dtype(torch.float64)
        try:
            ambient = get_rope(config, dtype=torch.float32).rows(positions, seq_lens)
        finally:
            torch.set_default_dtype(torch.float32)
        gc.collect()
        plain = get_rope(config, dtype=torch.float32).rows(positions, seq_lens)
        assert torch.equal(ambient.cos, plain.cos) and torch.equal(ambient.sin, plain.sin)


def test_nothing_to_save_and_copies_carry_no_table() -> None:
    rope = get_rope(replace(BASE, max_position_embeddings=4096), dtype=torch.float32)
    assert not rope.state_dict() and not list(rope.parameters()) and not list(rope.buffers())
    assert len(pickle.dumps(rope)) < 5000
    positions, (q, k) = torch.arange(4), heads(4)
    for other in (pickle.loads(pickle.dumps(rope)), copy.deepcopy(rope)):
        assert torch.equal(other(positions, q, k)[0], rope(positions, q, k)[0])
        cpu = torch.device("cpu")
        assert other.table(cpu) is rope.table(cpu)


@pytest.mark.parametrize("config", [BASE, LONGROPE, YARN], ids=["default", "longrope", "yarn"])
def test_computed_rows_equal_stored_ones(
    config: RopeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = torch.tensor([0, 3, 63, 64, 255, 10])
    seq_lens = torch.tensor([1, 4, 64, 65, 256, 70])
    stored = RotaryEmbedding(config, torch.bfloat16).rows(positions, seq_lens)
    gc.collect()
    monkeypatch.setattr(rope_tables, "MAX_STORED_POSITIONS", 10)
    rope = RotaryEmbedding(config, torch.bfloat16)
    assert rope.table(torch.device("cpu")).values is None
    computed = rope.rows(positions, seq_lens)
    assert torch.equal(stored.cos, computed.cos) and torch.equal(stored.sin, computed.sin)


def test_ten_million_positions_allocate_no_table() -> None:
    config = replace(BASE, max_position_embeddings=10_485_760)
    rope = get_rope(config, dtype=torch.float32)
    positions, (q, k) = torch.tensor([9_999_999, 0]), heads(2)
    assert rope.table(torch.device("cpu")).values is None
    assert_turned(rope(positions, q, k), hf_llama(config, positions, q, k), 1e-6)


# --- positions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (BASE, 256),
        (replace(BASE, rope_type="linear", factor=2.5), 640),
        (YARN, 256),
        (replace(YARN, max_position_embeddings=64), 256),
        (LLAMA3, 512),
        (LONGROPE, 256),
    ],
    ids=["default", "linear", "yarn", "yarn_config_not_extended", "llama3", "longrope"],
)
def test_positions_past_the_table_are_named(config: RopeConfig, size: int) -> None:
    rope = get_rope(config, dtype=torch.float32)
    for seq_len in (1, 10_000):
        length = torch.tensor([seq_len])
        rope.rows(torch.tensor([size - 1]), length)
        for bad in (size, size + 1, 2 * size, -1, -size):
            with pytest.raises(InputError, match=rf"{bad}.*has 0 to {size - 1}.*shorten"):
                rope.rows(torch.tensor([bad]), length)


@pytest.mark.parametrize(
    "bad",
    [torch.tensor(3), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2), torch.ones(2) > 0],
)
def test_positions_of_another_kind_are_refused(bad: Tensor) -> None:
    with pytest.raises(InputError, match="one int64 or int32 for each row"):
        get_rope(BASE, dtype=torch.float32).rows(bad)


@pytest.mark.parametrize(
    "config", [BASE, LONGROPE, DYNAMIC], ids=["default", "longrope", "dynamic"]
)
def test_int32_positions_give_the_same(config: RopeConfig) -> None:
    rope = get_rope(config, dtype=torch.float32)
    positions = torch.tensor([0, 5, 100, 63])
    wide, narrow = (rope.rows(p, p + 1) for p in (positions, positions.int()))
    assert torch.equal(wide.cos, narrow.cos) and torch.equal(wide.sin, narrow.sin)


# --- queries and keys -----------------------------------------------------------------------

STYLES = [BASE, replace(BASE, interleaved=True), replace(BASE, rotary_dim=6)]


@pytest.mark.parametrize("config", STYLES, ids=["neox", "interleaved", "partial"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_layouts_and_views_agree(config: RopeConfig, rows: int) -> None:
    rope = get_rope(config, dtype=torch.float32)
    positions, (q, k) = torch.arange(rows) * 7, heads(rows)
    before = q.clone(), k.clone()
    expected = rope(positions, q, k)
    assert expected[0].shape == q.shape and expected[1].shape == k.shape
    prepared = rope.rows(positions)
    assert isinstance(prepared, RotaryRows)
    strided_q = torch.empty(rows, 2 * N * H)[:, ::2].copy_(q)
    for found in (
        rope(prepared, q, k),
        rope(prepared, q.contiguous(), k.contiguous()),
        rope(prepared, strided_q, k.t().contiguous().t()),
    ):
        assert_turned(found, expected, 0.0)
    q3, k3 = q.view(rows, N, H), k.view(rows, K, H)
    by_head = rope(prepared, q3, k3)
    assert by_head[0].shape == q3.shape and by_head[1].shape == k3.shape
    assert_turned((by_head[0].flatten(1), by_head[1].flatten(1)), expected, 0.0)
    mixed = rope(prepared, q, k3.transpose(0, 1).contiguous().transpose(0, 1))
    assert_turned((mixed[0], mixed[1].flatten(1)), expected, 0.0)
    assert torch.equal(q, before[0]) and torch.equal(k, before[1])
    no_q, only_k = rope(prepared, q[:, :0], k)
    assert no_q.shape == (rows, 0) and torch.equal(only_k, expected[1])


@pytest.mark.parametrize("config", STYLES, ids=["neox", "interleaved", "partial"])
def test_a_poisoned_row_stays_alone(config: RopeConfig) -> None:
    rope = get_rope(config, dtype=torch.float32)
    positions, (q, k) = torch.arange(4), heads(4)
    clean = rope(positions, q, k)
    q, k = q.clone(), k.clone()
    q[2], k[2] = math.nan, math.inf
    dirty = rope(positions, q, k)
    live = [0, 1, 3]
    assert_turned((dirty[0][live], dirty[1][live]), (clean[0][live], clean[1][live]), 0.0)
    assert dirty[0][2].isnan().all()


def test_features_beyond_rotary_dim_pass_even_when_infinite() -> None:
    rope = get_rope(replace(BASE, rotary_dim=6), dtype=torch.float32)
    q, k = (x.clone() for x in heads(2))
    q.view(2, N, H)[..., 6:] = math.inf
    turned = rope(torch.arange(2), q, k)[0].view(2, N, H)
    assert turned[..., :6].isfinite().all() and (turned[..., 6:] == math.inf).all()


def test_position_zero_is_the_identity_and_length_is_kept() -> None:
    rope = get_rope(BASE, dtype=torch.float32)
    q, k = heads(3)
    assert torch.equal(rope(torch.zeros(3, dtype=torch.int64), q, k)[0], q)
    turned = rope(torch.tensor([1, 100, 255]), q, k)[0]
    torch.testing.assert_close(turned.view(3, N, H).norm(dim=-1), q.reshape(3, N, H).norm(dim=-1))


def test_scores_depend_on_distance_only() -> None:
    rope = get_rope(replace(BASE, interleaved=True), dtype=torch.float64)
    q, k = (x[:1].expand(2, -1) for x in heads(1, torch.float64))
    near, far = rope(torch.tensor([3, 103]), q, k), rope(torch.tensor([10, 110]), q, k)
    score = near[0][:, : K * H] * near[1], far[0][:, : K * H] * far[1]
    cross = [(pair[0][0, : K * H] * pair[1][1]).sum() for pair in (near, far)]
    torch.testing.assert_close(score[0].sum(1), score[1].sum(1))
    torch.testing.assert_close(cross[0], cross[1], rtol=1e-4, atol=1e-4)


def test_wrong_shapes_and_dtypes_are_named() -> None:
    rope = get_rope(BASE, dtype=torch.float32)
    positions, (q, k) = torch.arange(4), heads(4)
    for args in ((positions[:1], q, k), (positions, q[:1], k), (rope.rows(positions[:1]), q, k)):
        with pytest.raises(ShapeError, match="one position, query and key for each row"):
            rope(*args)
    for bad in (q[:, :-1], q.view(4, 2 * N, H // 2), q.view(4, 1, N, H), q[:, 0]):
        with pytest.raises(ShapeError, match=r"\(rows, heads \* 16\)"):
            rope(positions, bad, k)
    with pytest.raises(InputError, match=r"built for torch.float32 got k in torch.bfloat16"):
        rope(positions, q, k.bfloat16())


@pytest.mark.parametrize("config", STYLES, ids=["neox", "interleaved", "partial"])
def test_gradients_reach_queries_and_keys(config: RopeConfig) -> None:
    with torch.inference_mode():  # the table is first made here and used under autograd later
        rope = get_rope(replace(config, theta=4321.0), dtype=torch.float64)
    qkv = torch.randn(2, 4 * H, dtype=torch.float64, requires_grad=True)

    def turn(qkv: Tensor) -> tuple[Tensor, Tensor]:
        q, k, _ = qkv.split((2 * H, H, H), -1)
        q_out, k_out = rope(torch.tensor([3, 200]), q, k)
        return q_out, k_out

    assert torch.autograd.gradcheck(turn, (qkv,))


def test_prepared_rows_trace_into_one_graph() -> None:
    rope = get_rope(BASE, dtype=torch.float32)
    rows, (q, k) = rope.rows(torch.arange(3)), heads(3)
    compiled = torch.compile(rope, backend="eager", fullgraph=True)
    assert_turned(compiled(rows, q, k), rope(rows, q, k), 0.0)


# --- configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (replace(BASE, rotary_dim=7), "rotary_dim"),
        (replace(BASE, rotary_dim=0), "rotary_dim"),
        (replace(BASE, rotary_dim=H + 2), "rotary_dim"),
        (replace(DYNAMIC, rotary_dim=2), "rotary_dim"),
        (replace(BASE, max_position_embeddings=0), "max_position_embeddings"),
        (replace(BASE, theta=0.0), "theta"),
        (replace(BASE, theta=math.nan), "theta"),
        (replace(YARN, theta=1.0), "theta"),
        (replace(BASE, rope_type="linear", factor=0.0), "factor"),
        (replace(YARN, factor=math.inf), "factor"),
        (replace(YARN, original_max_position_embeddings=None), "original_max_position_embeddings"),
        (
            replace(LLAMA3, original_max_position_embeddings=None),
            "original_max_position_embeddings",
        ),
        (replace(LONGROPE, original_max_position_embeddings=1), "original_max_position_embeddings"),
        (replace(YARN, beta_slow=0.0), "beta_slow"),
        (replace(LLAMA3, low_freq_factor=0.0), "low_freq_factor"),
        (replace(LLAMA3, high_freq_factor=1.0), "high_freq_factor"),
        (replace(LONGROPE, short_factor=SHORT[:-1]), "short_factor"),
        (replace(LONGROPE, long_factor=()), "long_factor"),
        (replace(LONGROPE, long_factor=(0.0, *LONG[1:])), "long_factor"),
    ],
)
def test_configs_without_a_table_are_refused(config: RopeConfig, field: str) -> None:
    with pytest.raises(ConfigError, match="must be") as caught:
        get_rope(config, dtype=torch.float32, device="meta")
    assert caught.value.field == field
    assert str(getattr(config, field)) in str(caught.value)


def test_repr_tells_type_style_and_sizes() -> None:
    text = repr(get_rope(replace(YARN, interleaved=True, rotary_dim=8), dtype=torch.float32))
    assert "yarn, interleaved, rotary_dim=8 of 16, theta=10000.0" in text
