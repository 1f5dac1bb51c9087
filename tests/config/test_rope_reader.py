from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import LLAMA_LIKE, ModelConfig, RopeConfig, window_if_switched_on
from archzoo.errors import ConfigError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LONG = {"short_factor": [1.0 + i for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}


def config_of(raw: dict[str, Any], adapter: Any = LLAMA_LIKE) -> ModelConfig:
    config = ModelConfig.from_dict(raw, adapter, "c.json")
    assert config.ledger.unread == ()
    return config


def rope_of(raw: dict[str, Any], adapter: Any = LLAMA_LIKE) -> RopeConfig:
    rope = config_of(raw, adapter).rope
    assert rope is not None
    return rope


def refused(raw: dict[str, Any], *says: str, adapter: Any = LLAMA_LIKE) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(raw, adapter)
    for part in ("c.json: ", *says):
        assert part in str(caught.value), str(caught.value)


# -------------------------------------------------------------------------- spellings


@pytest.mark.parametrize(
    "block",
    [
        {"type": "linear", "factor": 4.0},
        {"rope_type": "linear", "factor": 4},
        {"type": "linear", "rope_type": "linear", "factor": 4.0},
        {"rope_type": "linear", "type": None, "factor": 4.0, "beta_fast": None},
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_old_and_new_spelling_mean_the_same(llama: Any, name: str, block: dict[str, Any]) -> None:
    assert rope_of(llama(**{name: block})) == RopeConfig(
        head_dim=16,
        rotary_dim=16,
        theta=50000.0,
        max_position_embeddings=256,
        rope_type="linear",
        factor=4.0,
    )


@pytest.mark.parametrize(
    "block", [None, {}, {"rope_type": "default"}, {"type": "default"}, {"rope_type": None}]
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_block_does_not_mean_scaling(llama: Any, name: str, block: Any) -> None:
    rope = rope_of(llama(**{name: block}))
    assert (rope.rope_type, rope.factor, rope.theta) == ("default", 1.0, 50000.0)


def test_theta_inside_the_block_comes_first(llama: Any) -> None:
    inside = {"rope_type": "default", "rope_theta": 500000.0}
    alone = llama(absent=("rope_theta",), rope_parameters=inside)
    assert rope_of(alone).theta == 500000.0
    both = config_of(llama(rope_parameters=inside))
    assert both.rope is not None and both.rope.theta == 500000.0
    assert both.ledger.ignored["rope_theta"] == "rope_parameters.rope_theta decides"
    assert rope_of(llama(rope_parameters={"rope_theta": None})).theta == 50000.0


def test_theta_stated_nowhere_is_the_family_default(llama: Any) -> None:
    config = config_of(llama(absent=("rope_theta",)))
    assert config.rope is not None and config.rope.theta == 10000.0
    assert config.ledger.defaulted["rope_theta"] == "llama default"
    silent = LLAMA_LIKE.extend("silent", defaults={"rope_theta": None})
    refused(llama(absent=("rope_theta",)), "rope_theta: missing", adapter=silent)


def test_both_blocks_may_stand_where_they_agree(llama: Any) -> None:
    old = {"type": "linear", "factor": 4.0, "note": None}
    new = {"rope_type": "linear", "factor": 4.0, "rope_theta": 7.0}
    rope = rope_of(llama(rope_scaling=old, rope_parameters=new, rope_theta=7.0))
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 4.0, 7.0)
    new["factor"] = 8.0
    refused(
        llama(rope_scaling=old, rope_parameters=new),
        "rope_parameters.factor: 8.0 here",
        "rope_scaling is stated too, which decides alone and says 4.0",
    )
    refused(llama(rope_scaling=old, rope_parameters={"rope_type": "default"}), "says 'linear'")
    alone = llama(rope_scaling=old, rope_parameters={"rope_theta": 7.0}, absent=("rope_theta",))
    refused(alone, "rope_parameters.rope_theta: 7.0 here", "says 10000.0")
    assert rope_of(llama(rope_scaling={}, rope_parameters=new)).theta == 7.0
    defaults = {"rope_theta": 10000.0, "rope_type": "linear", "partial_rotary_factor": 1.0}
    same = llama(rope_scaling=old, rope_parameters=defaults, absent=("rope_theta",))
    assert rope_of(same).theta == 10000.0


def test_contradicting_types_are_refused(llama: Any) -> None:
    block = {"rope_type": "linear", "type": "dynamic", "factor": 2.0}
    refused(llama(rope_scaling=block), "'linear' here and 'dynamic' under 'type'")


@pytest.mark.parametrize("block", ["linear", 4.0, ["linear", 4.0], True, 0, False])
def test_a_block_must_be_an_object(llama: Any, block: Any) -> None:
    refused(llama(rope_scaling=block), "rope_scaling: ", "is not an object")


GLM = LLAMA_LIKE.extend("glm", partial_rotary=True)


def test_partial_rotary(llama: Any) -> None:
    assert rope_of(llama(partial_rotary_factor=0.5), GLM).rotary_dim == 8
    inside = {"rope_type": "default", "partial_rotary_factor": 0.25}
    raw = llama(partial_rotary_factor=0.5, rope_parameters=inside)
    assert rope_of(raw, GLM).rotary_dim == 4
    assert rope_of(llama(partial_rotary_factor=0.4), GLM).rotary_dim == 6


@pytest.mark.parametrize("factor", [0.45, 0.1, 0.0, -0.5, 1.5, "0.5", True, float("nan")])
def test_partial_rotary_out_of_range(llama: Any, factor: Any) -> None:
    refused(llama(partial_rotary_factor=factor), "partial_rotary_factor", adapter=GLM)
    refused(llama(partial_rotary_factor=factor), "partial_rotary_factor")


@pytest.mark.parametrize("kind", ["default", "linear"])
@pytest.mark.parametrize("factor", [0.5, 0.25, 0.999, 1.01])
def test_a_family_that_rotates_everything_refuses_a_factor(
    llama: Any, factor: float, kind: str
) -> None:
    block = {"rope_type": kind} | ({"factor": 2.0} if kind == "linear" else {})
    inside = {**block, "partial_rotary_factor": factor}
    assert rope_of(llama(rope_parameters=block, partial_rotary_factor=1)).rotary_dim == 16
    assert rope_of(llama(rope_parameters={**inside, "partial_rotary_factor": 1.0})).rotary_dim == 16
    for raw, field in (
        (llama(rope_parameters=block, partial_rotary_factor=factor), "partial_rotary_factor: "),
        (llama(rope_parameters=inside), "rope_parameters.partial_rotary_factor: "),
        (llama(rope_scaling=inside), "rope_scaling.partial_rotary_factor: "),
    ):
        refused(raw, f"c.json: {field}{factor:g}", "head_dim=16")


def test_the_refusal_of_a_factor_names_family_and_fix(llama: Any) -> None:
    says = ("0.5 rotates 8 of head_dim=16", "llama family rotates all", "remove it")
    refused(llama(partial_rotary_factor=0.5), *says, "partial_rotary=True")
    by_name = LLAMA_LIKE.extend("neo", names={"partial_rotary_factor": ("rotary_pct",)})
    refused(llama(rotary_pct=0.5), "rotary_pct: 0.5", "neo family", adapter=by_name)
    default = LLAMA_LIKE.extend("half", defaults={"partial_rotary_factor": 0.5})
    refused(llama(), "0.5 rotates 8", "half family", adapter=default)


def test_odd_head_dim_cannot_be_rotated(llama: Any) -> None:
    refused(llama(head_dim=15), "head_dim=15 rotates 15 features")


def test_interleaved(llama: Any) -> None:
    refused(llama(rope_interleaved=True), "llama is none of them")
    named = LLAMA_LIKE.extend("named", names={"rope_interleaved": ("rope_interleaved",)})
    assert rope_of(llama(rope_interleaved=True), named).interleaved is True
    gptj = LLAMA_LIKE.extend("gptj", defaults={"rope_interleaved": True})
    assert rope_of(llama(), gptj).interleaved is True


def test_family_without_rotary(llama: Any) -> None:
    adapter = LLAMA_LIKE.extend("bare", rotary=False)
    assert config_of(llama(absent=("rope_theta",)), adapter).rope is None
    refused(llama(), "rope_theta", "bare family", adapter=adapter)


# ------------------------------------------------------------------------------- types


def test_llama3(llama: Any) -> None:
    rope = rope_of(llama(rope_scaling=LLAMA3))
    assert rope.rope_type == "llama3"
    assert (rope.factor, rope.low_freq_factor, rope.high_freq_factor) == (8.0, 1.0, 4.0)
    assert rope.original_max_position_embeddings == 16


def test_dynamic_takes_the_configured_length_for_the_original(llama: Any) -> None:
    block: dict[str, Any] = {"type": "dynamic", "factor": 2.0}
    rope = rope_of(llama(rope_scaling=block))
    assert (rope.rope_type, rope.original_max_position_embeddings) == ("dynamic", 256)
    assert rope_of(llama(rope_scaling={**block, "original_max_position_embeddings": 256})) == rope
    block["original_max_position_embeddings"] = 128
    refused(llama(rope_scaling=block), "128 beside max_position_embeddings=256")
    refused(llama(rope_scaling={"type": "dynamic", "factor": 2.0}, head_dim=2), "more than 2")


def test_yarn_defaults_and_options(llama: Any) -> None:
    plain = config_of(llama(rope_scaling={"rope_type": "yarn", "factor": 2.0}))
    rope = plain.rope
    assert rope is not None
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, True)
    assert rope.attention_factor is rope.mscale is rope.mscale_all_dim is None
    assert rope.original_max_position_embeddings == 256
    source = plain.ledger.defaulted["rope.original_max_position_embeddings"]
    assert source == "max_position_embeddings"
    options = {
        "attention_factor": 1.25,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 0,
        "truncate": False,
        "original_max_position_embeddings": 64,
        "finetuned": True,
    }
    config = config_of(llama(rope_scaling={"type": "yarn", "factor": 4, **options}))
    rope = config.rope
    assert rope is not None
    assert (rope.attention_factor, rope.beta_fast, rope.beta_slow) == (1.25, 16.0, 2.0)
    assert (rope.mscale, rope.mscale_all_dim, rope.truncate) == (0.7, None, False)
    assert (rope.factor, rope.original_max_position_embeddings) == (4.0, 64)
    assert "rope_scaling.finetuned" in config.ledger.ignored


def test_yarn_null_factor_is_the_ratio_of_lengths(llama: Any) -> None:
    block = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64}
    config = config_of(llama(rope_scaling=block))
    assert config.rope is not None and config.rope.factor == 4.0
    assert "rope.factor" in config.ledger.defaulted


@pytest.mark.parametrize("name", ["su", "longrope"])
@pytest.mark.parametrize("top_level", [True, False])
def test_longrope_and_where_its_original_length_stands(
    llama: Any, name: str, top_level: bool
) -> None:
    original = {"original_max_position_embeddings": 16}
    block = {"type": name, **LONG, **({} if top_level else original)}
    rope = rope_of(llama(rope_scaling=block, **(original if top_level else {})))
    assert rope.rope_type == "longrope"
    assert rope.original_max_position_embeddings == 16
    assert rope.factor == 256 / 16
    assert rope.short_factor == tuple(LONG["short_factor"])
    assert rope.long_factor == tuple(LONG["long_factor"])
    assert rope_of(llama(rope_scaling={**block, "factor": 32.0}, **original)).factor == 32.0


def test_top_level_original_length_comes_before_the_block(llama: Any) -> None:
    block = {"type": "longrope", "original_max_position_embeddings": 64, **LONG}
    config = config_of(llama(rope_scaling=block, original_max_position_embeddings=16))
    assert config.rope is not None
    assert config.rope.original_max_position_embeddings == 16
    assert "rope_scaling.original_max_position_embeddings" in config.ledger.ignored


def test_top_level_original_length_without_scaling(llama: Any) -> None:
    config = config_of(llama(original_max_position_embeddings=256))
    assert config.rope is not None and config.rope.original_max_position_embeddings is None
    rule = config.ledger.ignored["original_max_position_embeddings"]
    assert rule == "rope type 'default' has no original length"


def test_family_default_of_the_original_length_decides_as_in_the_reference(llama: Any) -> None:
    phi = LLAMA_LIKE.extend(
        "phi3",
        defaults={"original_max_position_embeddings": 32},
        rope_types={"yarn": "longrope"},
    )
    assert rope_of(llama(rope_scaling={"type": "yarn", **LONG}), phi).factor == 8.0
    block = {"type": "su", "original_max_position_embeddings": 64, **LONG}
    assert rope_of(llama(rope_scaling=block), phi).factor == 8.0


def test_attn_factor_multiplies_what_follows_from_the_factor(llama: Any) -> None:
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    rope = rope_of(llama(rope_scaling={**block, "attn_factor": 0.8782488562869419}))
    assert rope.attention_factor == pytest.approx(1.0)
    for other in ("attention_factor", "mscale", "mscale_all_dim"):
        both = {**block, "attn_factor": 0.5, other: 1.0}
        refused(llama(rope_scaling=both), "attn_factor: 0.5 beside another statement")


def test_truncate_null_says_no_as_in_the_reference(llama: Any) -> None:
    block = {"rope_type": "yarn", "factor": 4.0}
    found = [
        rope_of(llama(rope_scaling={**block, **more})).truncate
        for more in ({}, {"truncate": None}, {"truncate": False}, {"truncate": True})
    ]
    assert found == [True, False, False, True]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("linear", ["factor"]),
        ("dynamic", ["factor"]),
        ("yarn", ["factor"]),
        ("llama3", ["factor", "low_freq_factor", "high_freq_factor"]),
        ("longrope", ["short_factor", "long_factor"]),
    ],
)
def test_missing_keys_are_named(llama: Any, kind: str, keys: list[str]) -> None:
    whole: dict[str, Any] = {"factor": 2.0}
    whole |= {"llama3": LLAMA3, "longrope": LONG}.get(kind, {})
    whole["rope_type"] = kind
    rope_of(llama(rope_scaling=whole))
    for key in keys:
        partial = {k: v for k, v in whole.items() if k != key}
        refused(llama(rope_scaling=partial), f"rope_scaling.{key}: missing", kind)


@pytest.mark.parametrize(
    "block",
    [
        {"factor": 4.0},
        {"rope_type": "default", "factor": 4.0},
        {"rope_type": "linear", "factor": 4.0, "facter": 2.0},
        {"rope_type": "dynamic", "factor": 4.0, "alpha": 1000.0},
        {"rope_type": "linear", "factor": 4.0, "low_freq_factor": 1.0},
        {**LLAMA3, "beta_fast": 32},
        {"rope_type": "default", "mrope_section": [2, 3, 3]},
        {"rope_type": "linear", "factor": 4.0, "finetuned": True},
        {"rope_type": "longrope", "short_mscale": 1.1, **LONG},
    ],
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_unread_keys_are_named(llama: Any, name: str, block: dict[str, Any]) -> None:
    known = {"rope_type", "factor", *LLAMA3, *LONG}
    culprit = next((key for key in block if key not in known), None)
    if culprit is None:
        culprit = "low_freq_factor" if "low_freq_factor" in block else "factor"
    refused(llama(**{name: block}), f"{name}.{culprit}: ", "has no meaning for rope type")


@pytest.mark.parametrize("kind", ["Linear", "ntk", "", "proportional", 3, ["linear"]])
def test_unknown_types_are_refused(llama: Any, kind: Any) -> None:
    refused(llama(rope_scaling={"rope_type": kind, "factor": 2.0}), "rope_scaling.rope_type")


@pytest.mark.parametrize("extra", [{}, {"rope_type": "default"}])
def test_multi_axis_rope_is_refused(llama: Any, extra: dict[str, Any]) -> None:
    block = {"type": "mrope", "mrope_section": [2, 3, 3], **extra}
    refused(llama(rope_scaling=block), "mrope")


YARN = {"rope_type": "yarn", "factor": 2.0}
LONGROPE = {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("block", "change"),
    [
        ({"type": "linear"}, {"factor": "4.0"}),
        ({"type": "linear"}, {"factor": True}),
        ({"type": "linear"}, {"factor": 0.5}),
        ({"type": "linear"}, {"factor": 0}),
        ({"type": "linear"}, {"factor": float("inf")}),
        (YARN, {"beta_fast": 0.5}),
        (YARN, {"beta_slow": -1}),
        (YARN, {"truncate": 1}),
        (YARN, {"attention_factor": 0}),
        (YARN, {"mscale": -1.0}),
        (YARN, {"original_max_position_embeddings": 1}),
        (YARN, {"original_max_position_embeddings": 64.5}),
        (YARN, {"rope_theta": 1.0}),
        (LLAMA3, {"high_freq_factor": 1.0}),
        (LLAMA3, {"low_freq_factor": 0}),
        (LLAMA3, {"original_max_position_embeddings": 0}),
        (LONGROPE, {"short_factor": LONG["short_factor"][:-1]}),
        (LONGROPE, {"long_factor": []}),
        (LONGROPE, {"long_factor": 2.0}),
        (LONGROPE, {"long_factor": [1.0] * 7 + [0.0]}),
        (LONGROPE, {"long_factor": [1.0] * 7 + ["1"]}),
        (LONGROPE, {"short_factor": [float("nan")] * 8}),
    ],
)
def test_values_out_of_range(llama: Any, block: dict[str, Any], change: dict[str, Any]) -> None:
    (key,) = change
    refused(llama(rope_scaling={**block, **change}), f"rope_scaling.{key}")


# ---------------------------------------------------------------------- by layer type

FULL, SLIDING = "full_attention", "sliding_attention"
QWEN = LLAMA_LIKE.extend("qwen", window=window_if_switched_on)


def by_type(llama: Any, full: Any, sliding: Any, windowed: bool) -> dict[str, Any]:
    kinds = [SLIDING, FULL] * 2 if windowed else [FULL] * 4
    return llama(
        rope_parameters={FULL: full, SLIDING: sliding},
        layer_types=kinds,
        use_sliding_window=True,
        sliding_window=8,
    )


def test_equal_blocks_for_all_layer_types_are_one(llama: Any) -> None:
    block = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}
    rope = rope_of(by_type(llama, block, dict(block), windowed=True), QWEN)
    assert (rope.rope_type, rope.theta) == ("linear", 7.0)


def test_blocks_of_layer_types_that_no_layer_has_do_not_count(llama: Any) -> None:
    full, other = {"rope_theta": 7.0}, {"rope_theta": 9.0}
    assert rope_of(by_type(llama, full, other, windowed=False), QWEN).theta == 7.0
    assert rope_of(by_type(llama, full, None, windowed=False), QWEN).theta == 7.0
    mixed = by_type(llama, {"rope_type": "default"}, other, windowed=False)
    assert rope_of(mixed, QWEN).theta == 50000.0


def test_layer_types_that_differ_or_lack_a_block_are_refused(llama: Any) -> None:
    full, other = {"rope_theta": 7.0}, {"rope_theta": 9.0}
    refused(by_type(llama, full, other, True), "differs between layer types", adapter=QWEN)
    refused(by_type(llama, full, None, True), f"rope_parameters.{SLIDING}: missing", adapter=QWEN)
    raw = by_type(llama, full, other, False)
    raw["rope_parameters"]["factor"] = 2.0
    refused(raw, "rope_parameters.factor", adapter=QWEN)
    raw = by_type(llama, {"rope_theta": 7.0, "x": 1}, full, False)
    refused(raw, f"rope_parameters.{FULL}.x", adapter=QWEN)
