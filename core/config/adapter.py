"""ConfigAdapter: what a model family adds to the common reader, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .values import Where
from .windows import WindowPolicy, no_window

Check = Callable[[object, Where], Any]
"""Turns a raw value into a field's value or raises ConfigError (see ``config.values``)."""

STANDARD_NAMES: dict[str, tuple[str, ...]] = {
    "attention_bias": ("attention_bias", "qkv_bias", "bias"),
    "o_proj_bias": ("attention_bias", "bias"),
    "dtype": ("dtype", "torch_dtype"),
    "attn_logit_softcap": (),
    "final_logit_softcap": (),
    "rope_interleaved": (),
    "eos_token_ids": ("eos_token_id",),
    "num_experts": ("num_experts", "num_local_experts"),
}
"""ModelConfig field -> names in the file, the first stated one wins. Others: their own name.

Without a name are those that a family must declare, since most references ignore them.
"""


@dataclass(frozen=True, eq=False)
class ConfigAdapter:
    """How one family's config.json is read.

    Args:
        name: family, shown in the ledger.
        defaults: values of fields that the file may leave out, equal to the reference's.
        names: field -> names in the file, best first; replaces the entry of STANDARD_NAMES.
            An empty tuple: this family has no such field, its default holds. Soft caps and
            interleaved rotation must be declared here (``{"attn_logit_softcap":
            ("attn_logit_softcapping",)}``).
        window: policy for per-layer attention windows.
        rope_types: family's own names of rope types -> standard names.
        rotary: the family uses rotary embeddings.
        experts: the family has layers of experts (see ``config.moe``).
        recomputes_keys: the family's reference computes a sequence anew when its length changes its
            rotation (longrope, past the original length); the others keep the keys they have.
        partial_rotary: the family's reference obeys ``partial_rotary_factor``; a family whose
            reference ignores it refuses any other than 1.
        extra: further fields -> check of their value; they land in ``ModelConfig.extra``.
        ignored: fields this family ignores -> rule, by name; keys of its rotary block too.
        strict: the family has no reference that ignores fields, so a field that nobody knows is
            refused unless it is null, false or empty.
    """

    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    window: WindowPolicy = no_window
    rope_types: Mapping[str, str] = field(default_factory=dict)
    rotary: bool = True
    experts: bool = False
    recomputes_keys: bool = False
    partial_rotary: bool = False
    extra: Mapping[str, Check] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False

    def names_of(self, field_name: str) -> tuple[str, ...]:
        """Names under which the file may state a field, best first."""
        own = self.names.get(field_name)
        return STANDARD_NAMES.get(field_name, (field_name,)) if own is None else own

    def extend(self, name: str, **changes: Any) -> ConfigAdapter:
        """A relative of this family: mappings are merged over this one's, the rest replaced.

        >>> LLAMA_LIKE.extend("tied", defaults={"tie_word_embeddings": True}).defaults["hidden_act"]
        'silu'
        """
        values: dict[str, Any] = {**vars(self), "name": name}
        for key, change in changes.items():
            values[key] = {**values[key], **change} if isinstance(change, Mapping) else change
        return ConfigAdapter(**values)

    def with_labels(self) -> ConfigAdapter:
        """This family with a classification head: two labels where the file states none.

        ``transformers`` means two by default, and then writes neither number nor names.
        """
        return self.extend(self.name, defaults={"num_labels": 2})


LLAMA_LIKE = ConfigAdapter(
    name="llama",
    defaults={
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "o_proj_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_ids": 2,
    },
)
"""Llama's defaults; other families extend it."""
