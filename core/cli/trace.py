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

from ..errors import InputError
from ..layers import LogitsProcessorOutput
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
    """Stages of our model, captured by itself as auxiliary hidden states.

    A model in pipeline stages must run a prompt in one micro-batch, for a trace has all its rows.
    """
    trace: Trace = {}
    modules = [runner.module for runner in model.engine.runners]
    for module in modules:
        module.set_aux_layers(range(model.config.num_hidden_layers + 1))
    # Simulated, all ranks are here; a process of torchrun has one.
    last = modules[max(0, len(modules) - model.engine.executor.topology.tp)]
    try:
        with _hooks([(last, _keep_captured(trace))]):
            if "logits" in last.serves:
                trace[LOGITS] = model.logits(ids)
            elif "classify" in last.serves:
                trace[LOGITS] = model.classify(ids)
            else:
                model.embed(ids, normalize=True)
    finally:
        for module in modules:
            module.set_aux_layers(())
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


def _keep(trace: Trace, stage: str) -> Hook:
    """Keep a module's output, without the batch dimension that transformers adds."""

    def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        rows = cast(Tensor, output[0] if isinstance(output, tuple) else output)
        trace[stage] = rows.reshape(-1, rows.shape[-1]).clone()

    return hook


def _keep_captured(trace: Trace) -> Hook:
    """Keep what the last pipeline stage gives beside its output."""

    def hook(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        embedded, *layers = cast(LogitsProcessorOutput, output).aux_hidden_states
        trace[EMBEDDING] = embedded.clone()
        for number, rows in enumerate(layers):
            trace[layer_name(number)] = rows.clone()
        trace[NORM] = cast(DecoderBase, module).model.norm(layers[-1])

    return hook


@contextmanager
def _hooks(wanted: Sequence[tuple[nn.Module, Hook]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in wanted]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
