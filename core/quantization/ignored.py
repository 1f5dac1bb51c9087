"""IgnoreList: which layers a quantized checkpoint left plain, by the names it has for its modules.

A list names modules as the checkpoint does: split where the model is stacked, perhaps inside a
wrapper. The name map that serves its tensors is asked, so a layer and its weights cannot disagree.
An entry is a run of whole dotted components (``lm_head``, ``layers.3.self_attn``), or a regular
expression after ``re:`` that a module's name begins with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import QuantizationError
from ..weights import NameMap
from .base import ExpertsMethod, QuantConfig, QuantMethod, QuantTarget
from .unquantized import UnquantizedLinearMethod
from .unquantized_experts import UnquantizedExpertsMethod

IGNORE_KEYS = ("ignore", "modules_to_not_convert", "ignored_layers")
"""What writers call the list: compressed-tensors; AWQ, GPTQ and FP8 of transformers; vLLM."""

_REGEX = "re:"
_LONGEST, _MOST_REPEATS = 256, 4
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_TENSOR = ".weight"
"""Rules are over tensors; a module's name is that of its weight without this."""


@dataclass(frozen=True)
class IgnoreList:
    """Entries of one checkpoint, asked with the model's own module paths.

    Args:
        entries: as the checkpoint states them.
        names: the name map of the checkpoint's tensors.

    Raises:
        QuantizationError: an entry that is empty, or an expression that is wrong or may take
            forever.
    """

    entries: tuple[str, ...]
    names: NameMap = field(default_factory=NameMap)

    def __post_init__(self) -> None:
        """Read every entry now, not at the first layer."""
        _ = (self._runs, self._expressions)

    def covers(self, prefix: str, experts: int = 0) -> bool:
        """Whether a layer keeps plain weights.

        Args:
            prefix: its module path in the model, ``model.layers.0.self_attn.qkv_proj``.
            experts: how many of them the layer stacks; 0 where it is no expert's.

        Raises:
            QuantizationError: of the tensors stacked in it some are listed and others are not.
        """
        if self._lists(prefix, prefix):
            return True
        parts = dict(self._parts(prefix, experts))
        listed = [part for part, stored in parts.items() if self._lists(part, stored)]
        if listed and len(listed) < len(parts):
            others = [part for part in parts if part not in listed]
            raise QuantizationError(
                f"{prefix} is one matrix of {len(parts)} parts; the checkpoint's ignore list has "
                f"{_some(listed)} and not {_some(others)}; list all of them or none"
            )
        return bool(listed)

    def _parts(self, prefix: str, experts: int) -> Iterator[tuple[str, str]]:
        """Modules that fill a layer: by their own names, and as the checkpoint calls them."""
        for shard, part in self.names.parts(prefix + _TENSOR, experts).items():
            stored = self.names.to_checkpoint(prefix + _TENSOR, shard)
            yield part.removesuffix(_TENSOR), stored.removesuffix(_TENSOR)

    def _lists(self, module: str, stored: str) -> bool:
        """Whether any entry names a module, under either of its names."""
        parts = module.split(".")
        return any(
            parts[at : at + len(run)] == run for run in self._runs for at in range(len(parts))
        ) or any(each.match(name) for each in self._expressions for name in (module, stored))

    @cached_property
    def _runs(self) -> list[list[str]]:
        """Entries that are names, as the model has them."""
        plain = [entry.strip(".") for entry in self.entries if not entry.startswith(_REGEX)]
        if "" in plain:
            raise QuantizationError(
                f"the ignore list {list(self.entries)} has an empty entry; name whole modules"
            )
        renamed = (self.names.rename(entry + _TENSOR) for entry in plain)
        return [name.removesuffix(_TENSOR).split(".") for name in renamed]

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        texts = [entry for entry in self.entries if entry.startswith(_REGEX)]
        return [_expression(text.removeprefix(_REGEX)) for text in texts]


def _some(names: Sequence[str]) -> str:
    """The first few names; a layer may stack hundreds of experts."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _expression(text: str) -> re.Pattern[str]:
    repeats = sum(text.count(sign) for sign in "*+{")
    if len(text) > _LONGEST or repeats > _MOST_REPEATS or _REPEATED_GROUP.search(text):
        raise QuantizationError(
            f"ignore list: expression {text[:_LONGEST]!r} is longer than {_LONGEST} characters, "
            f"repeats more than {_MOST_REPEATS} things, or repeats a group; it might never end: "
            "write it as several entries"
        )
    try:
        return re.compile(text)
    except re.error as error:
        raise QuantizationError(
            f"ignore list: {text!r} is no regular expression ({error}); correct it"
        ) from error


@dataclass(frozen=True)
class PartlyPlain(QuantConfig):
    """A checkpoint's quantization, with plain weights where its ignore list says so.

    Args:
        method: of all other layers.
        ignored: asked for each layer.
    """

    method: QuantConfig
    ignored: IgnoreList

    @property
    def name(self) -> str:  # type: ignore[override]  # the method's own, which is set late
        """The method's."""
        return self.method.name

    def method_for(self, target: QuantTarget) -> QuantMethod:
        """The plain method of a listed layer, else the method's."""
        if self.ignored.covers(target.prefix):
            return UnquantizedLinearMethod()
        return self.method.method_for(target)

    def experts_method_for(self, target: QuantTarget) -> ExpertsMethod:
        """As ``method_for``, of a linear layer of experts."""
        if self.ignored.covers(target.prefix, target.experts):
            return UnquantizedExpertsMethod()
        return self.method.experts_method_for(target)


def ignored_modules(settings: Mapping[str, Any], names: NameMap) -> IgnoreList:
    """The ignore list of a ``quantization_config``; empty when it states none.

    Raises:
        QuantizationError: two lists under two keys, or something that is no list of names.
    """
    stated = {key: settings[key] for key in IGNORE_KEYS if settings.get(key)}
    if len(stated) > 1:
        raise QuantizationError(
            f"quantization_config has {' and '.join(stated)}; one of them says which modules are "
            "plain: leave the other out"
        )
    for key, entries in stated.items():
        if not _is_names(entries):
            raise QuantizationError(
                f"quantization_config.{key} is {str(entries)[:80]}; expected a list of module names"
            )
        return IgnoreList(tuple(entries), names)
    return IgnoreList((), names)


def _is_names(entries: object) -> bool:
    return (
        isinstance(entries, Sequence)
        and not isinstance(entries, str)
        and all(isinstance(entry, str) for entry in entries)
    )
