from __future__ import annotations

from typing import Any

import pytest

from archzoo.config import (
    LLAMA_LIKE,
    ModelConfig,
    window_everywhere,
    window_everywhere_if_switched_on,
    window_if_switched_on,
)
from archzoo.errors import ConfigError

MISTRAL = LLAMA_LIKE.extend("mistral", window=window_everywhere, defaults={"sliding_window": 4096})
QWEN = LLAMA_LIKE.extend(
    "qwen2",
    window=window_if_switched_on,
    defaults={"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": False},
)
FULL, SLIDING = "full_attention", "sliding_attention"
ALTERNATING = [SLIDING, FULL, SLIDING, FULL]


def windows(raw: dict[str, Any], adapter: Any) -> tuple[int | None, ...]:
    config = ModelConfig.from_dict(raw, adapter, "c.json")
    assert config.ledger.unread == () and config.ledger.unknown == ()
    assert tuple(config.window(i) for i in range(4)) == config.sliding_windows
    return config.sliding_windows


@pytest.mark.parametrize(
    "over",
    [
        {"sliding_window": 5, "use_sliding_window": False},
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 4},
        {"sliding_window": 5, "layer_types": [FULL] * 4},
        {"sliding_window": 256},
        {"sliding_window": None},
    ],
)
def test_llama_ignores_a_window_that_no_layer_would_have(llama: Any, over: dict[str, Any]) -> None:
    assert windows(llama(**over), LLAMA_LIKE) == (None,) * 4


@pytest.mark.parametrize(
    ("over", "field"),
    [
        ({"sliding_window": 5}, "sliding_window"),
        ({"sliding_window": 5, "use_sliding_window": True}, "sliding_window"),
        ({"sliding_window": 5, "layer_types": ALTERNATING}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types"),
    ],
)
def test_llama_refuses_a_window_unless_told_to_ignore_it(
    llama: Any, over: dict[str, Any], field: str
) -> None:
    raw = llama(**over)
    with pytest.raises(ConfigError, match=f"{field}: .*--ignore-field {field}"):
        ModelConfig.from_dict(raw)
    config = ModelConfig.from_dict(raw, ignore_fields=list(over))
    assert config.sliding_windows == (None,) * 4 and set(config.ledger.overruled) == set(over)


def test_mistral_windows_every_layer(llama: Any) -> None:
    assert windows(llama(sliding_window=8), MISTRAL) == (8,) * 4
    assert windows(llama(sliding_window=None), MISTRAL) == (None,) * 4
    assert windows(llama(), MISTRAL) == (4096,) * 4
    assert windows(llama(sliding_window=8, use_sliding_window=True), MISTRAL) == (8,) * 4
    assert windows(llama(sliding_window=8, layer_types=[SLIDING] * 4), MISTRAL) == (8,) * 4


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"sliding_window": 8, "use_sliding_window": False}, "false beside sliding_window=8"),
        ({"sliding_window": 8, "layer_types": ALTERNATING}, "layer_types"),
        ({"sliding_window": None, "layer_types": [SLIDING] * 4}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window: 0 is out of range"),
        ({"sliding_window": -1}, "sliding_window: -1 is out of range"),
        ({"sliding_window": True}, "sliding_window"),
        ({"sliding_window": "8"}, "sliding_window"),
    ],
)
def test_mistral_contradictions(llama: Any, over: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        windows(llama(**over), MISTRAL)


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, (None,) * 4),
        ({"sliding_window": 8, "max_window_layers": 1}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": None, "max_window_layers": 1}, (None,) * 4),
        ({"sliding_window": 8, "use_sliding_window": True}, (None,) * 4),
        ({"sliding_window": None, "use_sliding_window": True}, (None,) * 4),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            (None, 8, 8, 8),
        ),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, (8,) * 4),
        (
            {
                "sliding_window": 5,
                "use_sliding_window": True,
                "max_window_layers": 28,
                "layer_types": ALTERNATING,
            },
            (5, None, 5, None),
        ),
        ({"use_sliding_window": True, "layer_types": ALTERNATING}, (4096, None, 4096, None)),
        ({"sliding_window": 5, "layer_types": [FULL] * 4}, (None,) * 4),
    ],
)
def test_qwen_needs_the_switch_and_layer_types_decide(
    llama: Any, over: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert windows(llama(**over), QWEN) == expected


def test_switched_off_window_shows_in_the_ledger(llama: Any) -> None:
    raw = llama(sliding_window=8, use_sliding_window=False, max_window_layers=1)
    ledger = ModelConfig.from_dict(raw, QWEN).ledger
    assert ledger.ignored["sliding_window"] == "use_sliding_window is off"


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"layer_types": ALTERNATING, "sliding_window": 8}, "while the window is off"),
        (
            {"layer_types": ALTERNATING, "sliding_window": None, "use_sliding_window": True},
            "while the window is off",
        ),
        ({"layer_types": [FULL] * 3}, "3 entries for num_hidden_layers=4"),
        ({"layer_types": [FULL] * 3 + ["mamba"]}, r"layer_types\[3\]: 'mamba' is not one of"),
        ({"layer_types": FULL}, "layer_types"),
        ({"layer_types": []}, "0 entries"),
        ({"use_sliding_window": "false"}, "use_sliding_window"),
        ({"max_window_layers": -1}, "max_window_layers"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window: 0 is out of range"),
    ],
)
def test_qwen_contradictions(llama: Any, over: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        windows(llama(**over), QWEN)


def test_switch_without_a_first_layer_is_refused(llama: Any) -> None:
    adapter = LLAMA_LIKE.extend("bare", window=window_if_switched_on)
    with pytest.raises(ConfigError, match="max_window_layers: missing while sliding_window=8"):
        windows(llama(sliding_window=8, use_sliding_window=True), adapter)


def test_a_switch_for_all_layers(llama: Any) -> None:
    """As ``transformers``' Qwen3-MoE, which has no list of layers to obey."""
    adapter = QWEN.extend("all or none", window=window_everywhere_if_switched_on)
    on = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}
    assert windows(llama(**on), adapter) == (8,) * 4
    assert windows(llama(**on, layer_types=[SLIDING] * 4), adapter) == (8,) * 4
    off = {**on, "use_sliding_window": False}
    assert windows(llama(**off, layer_types=[FULL] * 4), adapter) == (None,) * 4
    for raw in ({**on, "layer_types": ALTERNATING}, {**off, "layer_types": [SLIDING] * 4}):
        with pytest.raises(ConfigError, match="layer_types: asks for other layers"):
            windows(llama(**raw), adapter)


def test_a_plugin_brings_its_own_policy(llama: Any) -> None:
    def every_second(fields: Any, num_layers: int) -> tuple[int | None, ...]:
        size = fields.required("local_window", lambda value, where: int(value))
        return tuple(size if i % 2 else None for i in range(num_layers))

    adapter = LLAMA_LIKE.extend("acme", window=every_second)
    assert windows(llama(local_window=3), adapter) == (None, 3, None, 3)
