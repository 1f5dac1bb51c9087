"""Rotary tables: from a RopeConfig to cos and sin, and one table for all layers of equal config.

Letters: T rows, P positions, C pairs of features that rotate together (rotary_dim / 2).

Feature pair c of a token at position p turns by the angle ``p * f[c]``. The rope types differ in
the frequencies f, radians per position, and in one factor on cos and sin::

    default    f[c] = theta^(-2c / rotary_dim)
    linear     f / factor
    dynamic    theta grows with the sequence's length once that passes max_position_embeddings
    yarn       fast pairs keep f, slow pairs get f / factor, a ramp between; cos and sin scaled
    llama3     the same idea with the band given in wavelengths
    longrope   f / short_factor or f / long_factor, by the sequence's length; cos and sin scaled

Frequencies and angles are float32 whatever the model's dtype, in the order of operations of
transformers' modeling_rope_utils: at position 100 000 one float32 rounding of f moves the angle
by 0.006, so an equally good formula in another order would not give the same model.

Source:
    RoPE arXiv 2104.09864; position interpolation 2306.15595; YaRN 2309.00071; LongRoPE 2402.13753.
"""

from __future__ import annotations

import math
import threading
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..config.rope import RopeConfig, yarn_scale
from ..errors import ConfigError, InputError

MAX_STORED_POSITIONS = 2**18
"""Longest context whose cos and sin are stored (64 MiB at rotary_dim 128 in bfloat16).

Past it, and for dynamic, whose frequencies have no end, rows are computed in each forward.
"""


def check_rope(config: RopeConfig) -> None:
    """Refuse a config that has no well-defined table.

    Raises:
        ConfigError: names the field, its value and what it must be.
    """
    kind, pairs = config.rope_type, config.rotary_dim // 2

    def require(good: bool, field: str, expected: str) -> None:
        if not good:
            value = getattr(config, field)
            raise ConfigError(f"{value!r} with rope_type {kind!r}; must be {expected}", field)

    least = 4 if kind == "dynamic" else 2
    even = config.rotary_dim % 2 == 0
    fits = least <= config.rotary_dim <= config.head_dim
    require(even and fits, "rotary_dim", f"even, {least} to head_dim={config.head_dim}")
    require(config.max_position_embeddings > 0, "max_position_embeddings", "positive")
    require(0 < config.theta < math.inf, "theta", "positive and finite")
    require(0 < config.factor < math.inf, "factor", "positive and finite")
    if kind in ("yarn", "llama3", "longrope"):
        original = config.original_max_position_embeddings or 0
        require(original > 1, "original_max_position_embeddings", "above 1")
    if kind == "yarn":
        require(config.theta > 1, "theta", "above 1")
        require(min(config.beta_fast, config.beta_slow) > 0, "beta_slow", "positive, as beta_fast")
    if kind == "llama3":
        require(config.low_freq_factor > 0, "low_freq_factor", "positive")
        above = config.high_freq_factor > config.low_freq_factor
        require(above, "high_freq_factor", f"above low_freq_factor={config.low_freq_factor}")
    if kind == "longrope":
        for field in ("short_factor", "long_factor"):
            factors = getattr(config, field)
            good = len(factors) == pairs and all(0 < f < math.inf for f in factors)
            require(good, field, f"{pairs} positive numbers, one for each pair of features")


def num_positions(config: RopeConfig) -> int:
    """P, positions the config speaks of, extension by a factor included."""
    if config.rope_type in ("linear", "dynamic"):
        return max(
            config.max_position_embeddings, int(config.max_position_embeddings * config.factor)
        )
    extended = int((config.original_max_position_embeddings or 0) * config.factor)
    return max(config.max_position_embeddings, extended)


def stored_positions(config: RopeConfig) -> int:
    """Positions whose cos and sin are stored; 0 where rows are computed."""
    size = num_positions(config)
    return size if config.rope_type != "dynamic" and size <= MAX_STORED_POSITIONS else 0


def table_bytes(config: RopeConfig, dtype: torch.dtype) -> int:
    """Bytes of the stored table."""
    variants = 2 if config.rope_type == "longrope" else 1
    return stored_positions(config) * variants * config.rotary_dim * dtype.itemsize


def same_turns_up_to(config: RopeConfig) -> int | None:
    """Tokens of the longest sequence whose rows turn as those of a short one; None for any length."""
    if config.rope_type == "dynamic":
        return config.max_position_embeddings
    return _original(config) if config.rope_type == "longrope" else None


def attention_scale(config: RopeConfig) -> float:
    """The factor on cos and sin; it sharpens attention over contexts that were stretched."""
    if config.rope_type not in ("yarn", "longrope"):
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.rope_type == "longrope":
        if config.factor <= 1.0:
            return 1.0
        return math.sqrt(1 + math.log(config.factor) / math.log(_original(config)))
    if config.mscale and config.mscale_all_dim:
        numerator = yarn_scale(config.factor, config.mscale)
        return numerator / yarn_scale(config.factor, config.mscale_all_dim)
    return yarn_scale(config.factor, 1.0)


def frequencies(config: RopeConfig) -> Tensor:
    """Radians per position of each pair.

    Returns:
        (V, C) float32 on the CPU. V = 2 for longrope, short then long; else 1. For dynamic these
        are the frequencies of sequences within max_position_embeddings.
    """
    powers = config.theta ** _exponents(config)
    if config.rope_type == "longrope":
        factors = torch.tensor(
            (config.short_factor, config.long_factor), dtype=torch.float32, device="cpu"
        )
        return 1.0 / (factors * powers)
    if config.rope_type == "yarn":
        return _yarn_frequencies(config, powers).unsqueeze(0)
    plain = 1.0 / powers
    if config.rope_type == "linear":
        plain = plain / config.factor
    elif config.rope_type == "llama3":
        plain = _llama3_frequencies(config, plain)
    return plain.unsqueeze(0)


def dynamic_frequencies(config: RopeConfig, plain: Tensor, seq_lens: Tensor) -> Tensor:
    """Frequencies of dynamic NTK for rows of sequences of different lengths.

    Args:
        plain: (1, C) float32, frequencies of sequences within max_position_embeddings.
        seq_lens: (T,) length of each row's sequence.

    Returns:
        (T, C) float32.
    """
    limit, dim = config.max_position_embeddings, config.rotary_dim
    lengths = seq_lens.clamp(min=limit).to(torch.float32)
    stretch = (config.factor * lengths / limit) - (config.factor - 1)
    # In float64, because float32 powers differ in the last bit between vector lanes and single
    # numbers: a row must not depend on how many others are in the batch.
    power = (stretch.double() ** (dim / (dim - 2))).to(torch.float32)
    base = config.theta * power
    grown = 1.0 / base.unsqueeze(-1) ** _exponents(config).to(base.device)
    return torch.where((seq_lens > limit).unsqueeze(-1), grown, plain)


def _exponents(config: RopeConfig) -> Tensor:
    """(C,) float32: 0, 2/dim, 4/dim, … On the CPU also inside a device context."""
    steps = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64, device="cpu")
    return steps.to(torch.float32) / config.rotary_dim


def _original(config: RopeConfig) -> int:
    """Context before extension; check_rope has seen to it that there is one."""
    assert config.original_max_position_embeddings is not None
    return config.original_max_position_embeddings


def _yarn_frequencies(config: RopeConfig, powers: Tensor) -> Tensor:
    """Blend of f (pairs that turn often within the original context) and f / factor."""
    dim, original = config.rotary_dim, _original(config)

    def pair_that_turns(rotations: float) -> float:
        turns = math.log(original / (rotations * 2 * math.pi))
        return (dim * turns) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    pairs = torch.arange(dim // 2, dtype=torch.float32, device="cpu")
    keep = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return 1.0 / (config.factor * powers) * (1 - keep) + 1.0 / powers * keep


def _llama3_frequencies(config: RopeConfig, plain: Tensor) -> Tensor:
    """f for short wavelengths, f / factor for long ones, a blend between the two limits."""
    original, low, high = _original(config), config.low_freq_factor, config.high_freq_factor
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    blend = (1 - smooth) * plain / config.factor + smooth * plain
    stretched = torch.where(wavelengths > original / low, plain / config.factor, blend)
    return torch.where(wavelengths < original / high, plain, stretched)


class RopeTable:
    """cos and sin of one RopeConfig in one dtype on one device. Never written after it is made.

    Args:
        config: must pass check_rope.
        dtype: of the stored numbers, the model's.
        device: meta gives shapes only.

    Attributes:
        values: (P * V, 2C) in dtype, cos beside sin; V = 2 variants for longrope, short and long
            of one position side by side, so that no position past the end can land in the other
            variant. None where rows are computed.
    """

    def __init__(self, config: RopeConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Compute everything that does not depend on a forward."""
        self.config, self.dtype = config, dtype
        self._scale = attention_scale(config)
        self._frequencies = frequencies(config).to(device)
        size = stored_positions(config)
        self.values: Tensor | None = None
        if size:
            positions = torch.arange(size, dtype=torch.float32, device=device)
            angles = positions[:, None, None] * self._frequencies
            self.values = self._cos_sin(angles.flatten(0, 1))

    def rows(self, positions: Tensor, seq_lens: Tensor | None) -> Tensor:
        """cos beside sin of each row.

        Args:
            positions: (T,) integers.
            seq_lens: (T,) length of each row's sequence, for dynamic and longrope.

        Returns:
            (T, 2C) in the table's dtype.

        Raises:
            InputError: a position outside a stored table. Known on the CPU only; on a GPU it is a
                device-side assertion, as checking would stop the host.
        """
        if self.values is None:
            angles = positions.to(torch.float32).unsqueeze(-1) * self._row_frequencies(seq_lens)
            return self._cos_sin(angles)
        index = positions
        if seq_lens is not None and self.config.rope_type == "longrope":
            index = positions * 2 + (seq_lens > _original(self.config))
        try:
            return self.values.index_select(0, index)
        except IndexError as error:
            low, high = int(positions.min()), int(positions.max())
            raise InputError(
                f"positions {low} to {high} given, this model's rotary table has 0 to "
                f"{num_positions(self.config) - 1} (max_position_embeddings="
                f"{self.config.max_position_embeddings}, rope_type {self.config.rope_type!r}); "
                "shorten the sequence"
            ) from error

    def _row_frequencies(self, seq_lens: Tensor | None) -> Tensor:
        """(T, C), or (1, C) where all rows have the same."""
        if seq_lens is not None and self.config.rope_type == "dynamic":
            return dynamic_frequencies(self.config, self._frequencies, seq_lens)
        if seq_lens is not None and self.config.rope_type == "longrope":
            short, long = self._frequencies
            is_long = (seq_lens > _original(self.config)).unsqueeze(-1)
            return torch.where(is_long, long, short)
        return self._frequencies

    def _cos_sin(self, angles: Tensor) -> Tensor:
        """(…, C) angles to (…, 2C) cos beside sin, scaled in float32, then rounded to dtype."""
        pairs = angles.shape[-1]
        out = angles.new_empty((*angles.shape[:-1], 2 * pairs), dtype=self.dtype)
        out[..., :pairs] = angles.cos() * self._scale
        out[..., pairs:] = angles.sin() * self._scale
        return out


_Key = tuple[RopeConfig, torch.dtype, torch.device]
_tables: WeakValueDictionary[_Key, RopeTable] = WeakValueDictionary()
_tables_lock = threading.Lock()


def shared_table(config: RopeConfig, dtype: torch.dtype, device: torch.device) -> RopeTable:
    """The table of that value; the same object for as long as anyone holds it.

    Layers, models and ranks of one process that ask with equal values share one storage.

    Args:
        device: with its index, so that equal devices have equal keys.
    """
    key = (config, dtype, device)
    with _tables_lock:
        table = _tables.get(key)
        if table is None:
            table = RopeTable(config, dtype, device)
            _tables[key] = table
        return table
