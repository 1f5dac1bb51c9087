"""Traces: what one forward leaves at the end of each stage of a model, ours and theirs.

Both give the same stages: embedding, the residual stream after each layer, the rows after the
final norm, and logits where the model has a head. Rows are (T, D), logits (T, V); scores of a
classifier are (1, labels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..boundary import ResidualStream
from ..errors import InputError
from ..models import DecoderBase
from ..runtime import Model

Trace = dict[str, Tensor]
"""Stage -> its values, in the order of computation."""

EMBEDDING, NORM, LOGITS = "embedding", "final norm", "logits"

Hook = Callable[[nn.Module, tuple[Any, ...], Any], None]


def layer_name(number: int) -> str:
    """The stage of one layer."""
    return f"layer {number}"


def our_trace(model: Model, ids: Sequence[int]) -> Trace:
    """Stages of our model, as the first local rank holds them.

    Every rank is watched: settling the residual stream is a collective.
    """
    trace: Trace = {}
    with _hooks(
        [
            hook
            for at, runner in enumerate(model.engine.runners)
            for hook in _our_hooks(runner.module, trace if at == 0 else {})
        ]
    ):
        if "logits" in model.module.serves:
            trace[LOGITS] = model.logits(ids)
        elif "classify" in model.module.serves:
            trace[LOGITS] = model.classify(ids)
        else:
            model.embed(ids)
    return trace


def reference_trace(model: Any, ids: Sequence[int]) -> Trace:
    """Stages of a ``transformers`` model.

    Raises:
        InputError: it is not laid out as embedding, layers and norm.
    """
    trace: Trace = {}
    base = model.base_model
    layers, norm = getattr(base, "layers", None), getattr(base, "norm", None)
    if layers is None or norm is None:
        raise InputError(
            f"transformers' {type(model).__name__} has no layers and norm of that name; it cannot "
            "be compared layer by layer"
        )
    hooks: list[tuple[nn.Module, Hook]] = [(base.get_input_embeddings(), _keep(trace, EMBEDDING))]
    hooks += [(layer, _keep(trace, layer_name(at))) for at, layer in enumerate(layers)]
    hooks.append((norm, _keep(trace, NORM)))
    with _hooks(hooks), torch.inference_mode():
        output = model(input_ids=torch.tensor([list(ids)]), use_cache=False)
    if getattr(output, "logits", None) is not None:
        trace[LOGITS] = output.logits.flatten(0, -2)
    return trace


def _our_hooks(module: DecoderBase, trace: Trace) -> Iterator[tuple[nn.Module, Hook]]:
    decoder = module.model
    yield decoder.embed_tokens, _keep(trace, EMBEDDING)
    for at, layer in enumerate(decoder.layers):
        yield layer, _keep_stream(trace, layer_name(at))
    yield decoder.norm, _keep(trace, NORM)


def _keep(trace: Trace, stage: str) -> Hook:
    """Keep a module's output, without the batch dimension that transformers adds."""

    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        rows = cast(Tensor, output[0] if isinstance(output, tuple) else output)
        trace[stage] = rows.reshape(-1, rows.shape[-1]).clone()

    return hook


def _keep_stream(trace: Trace, stage: str) -> Hook:
    """Keep the residual stream that a layer leaves behind."""

    def hook(_module: nn.Module, args: tuple[Any, ...], _output: Any) -> None:
        stream = next(each for each in args if isinstance(each, ResidualStream))
        trace[stage] = stream.settled().clone()

    return hook


@contextmanager
def _hooks(wanted: Sequence[tuple[nn.Module, Hook]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in wanted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
