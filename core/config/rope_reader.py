"""Reads RopeConfig out of a config file: every spelling, every type, every key.

Semantics follow transformers' ``modeling_rope_utils``: values in the block come before those at
the top level, except the original length, where the top level comes first; a type that needs an
original length and finds none takes ``max_position_embeddings``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from .adapter import Check
from .fields import FieldReader
from .rope import RopeConfig, RopeType, yarn_scale
from .rope_block import RopeBlock, joined_block
from .values import Where, flag, integer, number, numbers, refuse, show, text

_ORIGINAL = "original_max_position_embeddings"
_PARTIAL = "partial_rotary_factor"
_TYPE_NAMES = {"su": "longrope"}


def read_rope(
    fields: FieldReader, head_dim: int, max_positions: int, layer_types: set[str]
) -> RopeConfig | None:
    """The rotary embedding of all layers; None for a family that has none.

    Args:
        fields: reader of the file.
        head_dim: H.
        max_positions: positions the model is configured for.
        layer_types: kinds of attention layers the model has (``full_attention``, …).

    Raises:
        ConfigError: a type or key that is unknown, missing, out of range, or contradicted.
    """
    if not fields.adapter.rotary:
        return None
    block = joined_block(fields)
    nested = block.nested()
    if not nested:
        return _read_block(fields, block, head_dim, max_positions)
    block.finish("one block for each layer type")
    return _one_for_all(fields, block, nested, head_dim, max_positions, layer_types)


def _one_for_all(
    fields: FieldReader,
    block: RopeBlock,
    nested: dict[str, RopeBlock],
    head_dim: int,
    max_positions: int,
    layer_types: set[str],
) -> RopeConfig:
    ropes = {
        kind: _read_block(fields, child, head_dim, max_positions) for kind, child in nested.items()
    }
    used = {}
    for kind in sorted(layer_types):
        if kind not in ropes:
            refuse(block.where(kind), f"missing, and layers are of type {kind!r}")
        used[kind] = ropes[kind]
    first = next(iter(used.values()))
    if any(rope != first for rope in used.values()):
        refuse(
            Where(block.path, fields.file),
            f"differs between layer types {' and '.join(used)}; one rotary embedding for all "
            "layers is what this version reads",
        )
    return first


def _read_block(
    fields: FieldReader, block: RopeBlock, head_dim: int, max_positions: int
) -> RopeConfig:
    rope_type = _rope_type(fields, block)
    base = RopeConfig(
        head_dim=head_dim,
        rotary_dim=_rotary_dim(fields, block, head_dim),
        theta=_block_first(fields, block, "rope_theta", number),
        max_position_embeddings=max_positions,
        interleaved=fields.value("rope_interleaved", flag) or False,
    )
    values = _TYPES[rope_type](_Reading(fields, block, base, rope_type))
    for key, rule in fields.adapter.ignored.items():
        block.skip(key, rule)
    fields.ignore(_ORIGINAL, f"rope type {rope_type!r} has no original length")
    block.finish(rope_type)
    return replace(base, rope_type=rope_type, **values)


def _rope_type(fields: FieldReader, block: RopeBlock) -> RopeType:
    aliases = {**_TYPE_NAMES, **fields.adapter.rope_types}
    new, old = (block.take(key, text) for key in ("rope_type", "type"))
    kinds = [aliases.get(kind, kind) for kind in (new, old) if kind is not None]
    if not kinds:
        fields.defaulted("rope.rope_type", "rope without a type", "default")
        return "default"
    where = block.where("type" if new is None else "rope_type")
    for kind in kinds:
        if kind == "mrope":
            refuse(where, "'mrope' rotates by several position axes; only one axis is served")
        if kind not in _TYPES:
            refuse(where, f"{show(kind)} is not a known rope type; known: {', '.join(_TYPES)}")
    if len(set(kinds)) > 1:
        refuse(where, f"{new!r} here and {old!r} under 'type'; remove one")
    return cast(RopeType, kinds[0])  # a key of _TYPES, checked above


def _block_first(fields: FieldReader, block: RopeBlock, key: str, check: Check) -> Any:
    """A value of the block, else of the top level, else the family's default."""
    result = block.take(key, check)
    if result is None:
        return fields.value(key, check) if key != "rope_theta" else fields.required(key, check)
    fields.ignore(key, f"{block.where(key).field} decides")
    return result


def _where_stated(fields: FieldReader, block: RopeBlock, key: str) -> Where:
    """Place of the value that ``_block_first`` takes, for messages."""
    return block.where(key) if block.states(key) else fields.where(key)


def _rotary_dim(fields: FieldReader, block: RopeBlock, head_dim: int) -> int:
    where = _where_stated(fields, block, _PARTIAL)
    factor = _block_first(fields, block, _PARTIAL, number)
    if factor is None:
        factor = 1.0
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        refuse(
            where,
            f"{factor:g} of head_dim={head_dim} rotates {rotary_dim} features; "
            f"expected an even number from 2 to {head_dim}",
        )
    if factor != 1 and not fields.adapter.partial_rotary:
        family = fields.adapter.name
        refuse(
            where,
            f"{factor:g} rotates {rotary_dim} of head_dim={head_dim} features, but the {family} "
            "family rotates all of them whatever this field says; remove it, or set "
            "partial_rotary=True in the ConfigAdapter of a family that obeys it",
        )
    return rotary_dim


@dataclass(frozen=True)
class _Reading:
    """What the reader of one rope type needs: the block, and what is known already."""

    fields: FieldReader
    block: RopeBlock
    base: RopeConfig
    rope_type: str

    def optional(self, key: str, check: Check = number) -> Any:
        return self.block.take(key, check)

    def required(self, key: str, check: Check = number) -> Any:
        return self.block.require(key, check, self.rope_type)

    def original(self, low: int = 1) -> int:
        """Positions before extension: top level, family, block, max_position_embeddings."""

        def check(value: object, where: Where) -> int:
            return integer(value, where, low=low)

        outside = self.fields.value(_ORIGINAL, check)
        if outside is not None:
            self.block.skip(_ORIGINAL, f"top-level {_ORIGINAL} or its default decides")
            return int(outside)
        inside = self.block.take(_ORIGINAL, check)
        if inside is None:
            inside = self.base.max_position_embeddings
            self.fields.defaulted(f"rope.{_ORIGINAL}", "max_position_embeddings", inside)
        return int(inside)

    def ratio(self, original: int) -> float:
        """Extension that the two lengths imply, where no factor is stated."""
        result = self.base.max_position_embeddings / original
        self.fields.defaulted("rope.factor", f"max_position_embeddings / {_ORIGINAL}", result)
        return result

    def fail_unless(self, good: bool, key: str, problem: str) -> None:
        if not good:
            refuse(self.block.where(key), problem)


def _factor(value: object, where: Where) -> float:
    return number(value, where, low=1.0, above=False)


def _non_negative(value: object, where: Where) -> float:
    return number(value, where, above=False)


def _default(read: _Reading) -> dict[str, Any]:
    return {}


def _linear(read: _Reading) -> dict[str, Any]:
    return {"factor": read.required("factor", _factor)}


def _dynamic(read: _Reading) -> dict[str, Any]:
    configured = read.base.max_position_embeddings
    stated = read.optional(_ORIGINAL, integer)
    read.fail_unless(
        stated in (None, configured),
        _ORIGINAL,
        f"{stated} beside max_position_embeddings={configured}, which is the original length of "
        "rope type 'dynamic'; make them equal or remove it",
    )
    read.fail_unless(
        read.base.rotary_dim > 2, "rope_type", "'dynamic' needs more than 2 rotary features"
    )
    return {"factor": read.required("factor", _factor), _ORIGINAL: configured}


def _yarn(read: _Reading) -> dict[str, Any]:
    theta = read.base.theta
    read.fail_unless(theta > 1, "rope_theta", f"{theta:g} must be > 1 for rope type 'yarn'")
    original = read.original(low=2)
    if read.block.is_null("factor"):
        factor = read.ratio(original)
    else:
        factor = read.required("factor", _factor)
    fast, slow = (read.optional(key) or d for key, d in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    read.fail_unless(fast >= slow, "beta_fast", f"{fast:g} is below beta_slow={slow:g}")
    # The reference asks for the truth of the value: null says no, as false does.
    truncate = not read.block.is_null("truncate") and read.optional("truncate", flag) is not False
    read.block.skip("finetuned", "yarn's tables do not depend on it")
    return {
        "factor": factor,
        _ORIGINAL: original,
        "beta_fast": fast,
        "beta_slow": slow,
        "attention_factor": _yarn_attention(read, factor),
        "mscale": read.optional("mscale", _non_negative) or None,
        "mscale_all_dim": read.optional("mscale_all_dim", _non_negative) or None,
        "truncate": truncate,
    }


def _yarn_attention(read: _Reading, factor: float) -> float | None:
    """The factor on cos and sin where the block states one, in either of its two spellings.

    ``attention_factor`` (transformers) is the factor itself; ``attn_factor`` multiplies the one that
    follows from ``factor``. transformers passes over the second, but whoever writes it means it:
    DeepSeek-R1-0528-Qwen3-8B states 0.878, which makes the product 1.

    Source:
        YaRN's authors' code (jquesnelle/yarn) and vLLM's ``YaRNScalingRotaryEmbedding``.
    """
    stated: float | None = read.optional("attention_factor")
    multiplier = read.optional("attn_factor")
    if multiplier is None:
        return stated
    read.fail_unless(
        not any(map(read.block.states, ("attention_factor", "mscale", "mscale_all_dim"))),
        "attn_factor",
        f"{multiplier:g} beside another statement of the same factor (attention_factor, mscale, "
        "mscale_all_dim); state one",
    )
    return float(multiplier * yarn_scale(factor))


def _llama3(read: _Reading) -> dict[str, Any]:
    low, high = read.required("low_freq_factor"), read.required("high_freq_factor")
    read.fail_unless(
        high > low, "high_freq_factor", f"{high:g} must be greater than low_freq_factor={low:g}"
    )
    return {
        "factor": read.required("factor", _factor),
        _ORIGINAL: read.original(),
        "low_freq_factor": low,
        "high_freq_factor": high,
    }


def _longrope(read: _Reading) -> dict[str, Any]:
    def divisors(value: object, where: Where) -> tuple[float, ...]:
        return numbers(value, where, length=read.base.rotary_dim // 2)

    original = read.original(low=2)
    factor = read.optional("factor", _factor)
    return {
        "factor": read.ratio(original) if factor is None else factor,
        _ORIGINAL: original,
        "attention_factor": read.optional("attention_factor"),
        "short_factor": read.required("short_factor", divisors),
        "long_factor": read.required("long_factor", divisors),
    }


_TYPES: dict[RopeType, Callable[[_Reading], dict[str, Any]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
