"""Policies for per-layer attention windows, one for each way families state them.

A policy reads its fields and gives, for every layer, the tokens a query sees including itself, or
None for full attention. Plugins may bring their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .values import Where, flag, integer, refuse, show, texts

if TYPE_CHECKING:
    from .fields import FieldReader

Windows = tuple[int | None, ...]
WindowPolicy = Callable[["FieldReader", int], Windows]
"""(fields, number of layers) -> one window for each layer."""

_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
_FIELDS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")


def no_window(fields: FieldReader, num_layers: int) -> Windows:
    """Full attention in every layer (Llama); window fields are ignored by that rule.

    A window that another family would apply is refused: whoever made the file expects one.
    """
    if not fields.family_chosen:
        _refuse_window(fields, num_layers)
    for name in _FIELDS:
        fields.ignore(name, f"{fields.adapter.name} has no attention window")
    return (None,) * num_layers


def _refuse_window(fields: FieldReader, num_layers: int) -> None:
    """Refuse a window that other families would apply, where this one has none."""
    family, kinds = fields.adapter.name, fields.peek("layer_types")
    if isinstance(kinds, list):
        other = next((kind for kind in kinds if kind != "full_attention"), None)
        if other is not None:
            fields.overrulable(
                fields.where("layer_types").field,
                f"asks for {show(other)}, but {family} has full attention in every layer",
            )
        return
    window, context = fields.peek("sliding_window"), fields.peek("max_position_embeddings")
    first = fields.peek("max_window_layers") if fields.peek("use_sliding_window") else None
    applies = isinstance(window, int) and fields.peek("use_sliding_window") is not False
    reaches = not isinstance(first, int) or first < num_layers
    if applies and reaches and not (isinstance(context, int) and window >= context):
        fields.overrulable(
            fields.where("sliding_window").field,
            f"{window}, but {family} has no attention window: every layer would see all tokens",
        )


def window_everywhere(fields: FieldReader, num_layers: int) -> Windows:
    """``sliding_window`` in every layer, null for none (Mistral).

    The family has neither a switch nor a list of layers; a file that states one which says
    something else is refused rather than half obeyed.
    """
    window = _sliding_window(fields)
    switch = fields.value("use_sliding_window", flag)
    if window is not None and switch is False:
        refuse(
            fields.where("use_sliding_window"),
            f"false beside sliding_window={window}, but {fields.adapter.name} has no such switch; "
            "set sliding_window to null",
        )
    return _the_same_everywhere(fields, window, num_layers)


def window_everywhere_if_switched_on(fields: FieldReader, num_layers: int) -> Windows:
    """``sliding_window`` in every layer, only with ``use_sliding_window`` (Qwen3-MoE)."""
    window = _switched_window(fields)
    return _the_same_everywhere(fields, window, num_layers)


def window_if_switched_on(fields: FieldReader, num_layers: int) -> Windows:
    """``sliding_window`` only with ``use_sliding_window``; in the layers that ``layer_types`` names.

    Without ``layer_types``: in layers from ``max_window_layers`` on (Qwen2, Qwen3).
    """
    window = _switched_window(fields)
    kinds = _layer_types(fields, num_layers)
    if kinds is None:
        first = fields.value("max_window_layers", lambda v, w: integer(v, w, low=0))
        if window is not None and first is None:
            refuse(
                fields.where("max_window_layers"),
                f"missing while sliding_window={window} is on; state it or layer_types",
            )
        kinds = tuple(first is not None and i >= first for i in range(num_layers))
    else:
        fields.ignore("max_window_layers", "layer_types decides")
        if window is None and any(kinds):
            refuse(
                fields.where("layer_types"),
                "names sliding_attention while the window is off (use_sliding_window and "
                "sliding_window); set both, or full_attention for every layer",
            )
    return tuple(window if sliding else None for sliding in kinds)


def _the_same_everywhere(fields: FieldReader, window: int | None, num_layers: int) -> Windows:
    """One window for all layers; a list of layers that says something else is refused."""
    kinds = _layer_types(fields, num_layers)
    if kinds is not None and kinds != (window is not None,) * num_layers:
        refuse(
            fields.where("layer_types"),
            f"asks for other layers than sliding_window={window}, which {fields.adapter.name} "
            "applies to every layer; remove layer_types or name the architecture that has them",
        )
    fields.ignore("max_window_layers", f"{fields.adapter.name} windows every layer or none")
    return (window,) * num_layers


def _switched_window(fields: FieldReader) -> int | None:
    """``sliding_window`` where ``use_sliding_window`` is true."""
    if fields.value("use_sliding_window", flag) is True:
        return _sliding_window(fields)
    fields.ignore("sliding_window", "use_sliding_window is off")
    return None


def _sliding_window(fields: FieldReader) -> int | None:
    value: int | None = fields.value("sliding_window", integer, null_is_value=True)
    return value


def _layer_types(fields: FieldReader, num_layers: int) -> tuple[bool, ...] | None:
    """For each layer whether it slides; None when the file has no list."""
    kinds = fields.value("layer_types", texts)
    if kinds is None:
        return None
    where = fields.where("layer_types")
    if len(kinds) != num_layers:
        refuse(where, f"{len(kinds)} entries for num_hidden_layers={num_layers}")
    for i, kind in enumerate(kinds):
        if kind not in _LAYER_TYPES:
            at = Where(f"{where.field}[{i}]", where.file)
            refuse(at, f"{show(kind)} is not one of {', '.join(_LAYER_TYPES)}")
    return tuple(_LAYER_TYPES[kind] for kind in kinds)
