"""What is refused: attention specs no backend can serve, rows that do not fit a plan."""

from __future__ import annotations

from torch import Tensor

from ..errors import BackendUnavailableError, InputError, ShapeError
from ..forward import AttentionSpec, AttentionType, LayerKV
from .step import StepPlan


def check_spec(spec: AttentionSpec) -> None:
    """Refuse what cannot be served.

    Raises:
        BackendUnavailableError: cross-attention.
        ShapeError: numbers no attention can have.
    """
    if spec.attn_type is AttentionType.ENCODER_DECODER:
        raise BackendUnavailableError(
            f"{spec.prefix}: cross-attention ({spec.attn_type.value})",
            "attention backend 'torch'",
            "serve this model with a backend that keeps an encoder cache",
        )
    if spec.num_kv_heads < 1 or spec.num_heads < 1 or spec.num_heads % spec.num_kv_heads:
        raise ShapeError(
            f"{spec.prefix}: {spec.num_heads} query heads are not a positive multiple of "
            f"{spec.num_kv_heads} KV heads; correct the attention spec"
        )
    if spec.sliding_window is not None and spec.sliding_window < 1:
        raise ShapeError(
            f"{spec.prefix}: sliding_window={spec.sliding_window} lets a token not even see itself; "
            "use at least 1, or None for all"
        )
    if spec.logit_cap is not None and not spec.logit_cap > 0:
        raise ShapeError(
            f"{spec.prefix}: logit_cap={spec.logit_cap} must be above 0; use None for plain scores"
        )


def check_rows(
    step: StepPlan,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    spec: AttentionSpec,
    kv: LayerKV | None,
) -> None:
    """Refuse rows that do not fit the plan."""
    cached = spec.attn_type is not AttentionType.ENCODER_ONLY
    if cached != (kv is not None):
        raise InputError(
            f"{spec.prefix}: {'no' if cached else 'a'} KV handle for a layer of type "
            f"{spec.attn_type.value}; pass what bind gave for layer {spec.layer_id}"
        )
    if (k is None) != (v is None) or (k is None and not cached):
        raise InputError(
            f"{spec.prefix}: k is {'missing' if k is None else 'given'} and v is "
            f"{'missing' if v is None else 'given'}; give both (or, with a cache, neither)"
        )
    if q.shape[0] != step.num_rows:
        raise InputError(
            f"{spec.prefix}: {q.shape[0]} query rows in a forward planned for {step.num_rows}; "
            "plan the batch that is run"
        )
    needed = step.fresh_rows if cached else step.num_real
    if k is not None and v is not None and min(k.shape[0], v.shape[0]) < needed:
        raise InputError(
            f"{spec.prefix}: {k.shape[0]} key and {v.shape[0]} value rows in a forward planned for "
            f"{needed} new ones; plan the batch that is run"
        )
