"""Checkpoint names of a model class: its own rules and those of its parents."""

from __future__ import annotations

from ..weights import NameMap, NameRules, RemapRegistry

RULES_ATTRIBUTE = "name_rules"
"""Class attribute that declares rules: a mapping of format to NameRules."""


def name_map(model_class: type, fmt: str) -> NameMap:
    """Every name rule of a class for a checkpoint format, inherited ones included.

    Args:
        model_class: each class of its MRO may declare ``name_rules``.
        fmt: ``hf`` or ``gguf``.

    Raises:
        WeightError: the class declares nothing for that format, or rules overlap.
    """
    registry = RemapRegistry()
    for base in model_class.__mro__:
        declared: dict[str, NameRules] = vars(base).get(RULES_ATTRIBUTE, {})
        for each, rules in declared.items():
            registry.register(base, each, rules)
    return registry.for_class(model_class, fmt)
