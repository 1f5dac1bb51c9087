"""What ``load`` is asked for, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch

from ..attention import require_backend
from ..config import ModelConfig
from ..errors import BackendUnavailableError, InputError, QuantizationError, TopologyError
from ..parallel import Topology
from ..parallel.launch import local_device, started_by_torchrun
from .request import MAX_INT64, integer

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
"""Dtypes a model can run in, by name."""


def sizes_of(
    topology: Topology | None,
    tp: int,
    pp: int,
    attn_dp: int,
    ep: int,
    pp_layers: Sequence[int] | None = None,
) -> Topology:
    """The topology asked for, refused where it is not served.

    Raises:
        TopologyError: sizes beside a topology, or sizes that do not go together.
    """
    if topology is None:
        sizes = Topology(tp=tp, pp=pp, attn_dp=attn_dp, ep=ep, pp_layers=pp_layers)
    elif (tp, pp, attn_dp, ep, pp_layers) == (1, 1, 1, 1, None):
        sizes = topology
    else:
        raise TopologyError(
            f"{topology} was given beside tp={tp}, pp={pp}, attn_dp={attn_dp}, ep={ep}, "
            f"pp_layers={pp_layers}; give the topology or the sizes"
        )
    return sizes


def check_experts(config: ModelConfig, sizes: Topology) -> None:
    """Refuse to deal the experts of a model that has none.

    Raises:
        TopologyError: ep beside a dense model.
    """
    if sizes.ep != 1 and config.moe is None:
        raise TopologyError(
            f"ep={sizes.ep}: {', '.join(config.architectures) or 'this model'} has no experts to "
            "deal to ranks; use tp, pp and attn_dp"
        )


def check_quantization(quantization: str | None) -> None:
    """Refuse a method that the caller, not the checkpoint, names.

    Raises:
        QuantizationError: another than ``none``.
    """
    if quantization not in (None, "none"):
        raise QuantizationError(
            f"quantization={quantization!r} is not served; 'none' takes the weights as plain ones, "
            "whatever the config says; else leave it out"
        )


def check_methods(quantization: str | None, backend: str, compile: Literal["auto"] | bool) -> None:
    """Refuse ways of running that are not served.

    Raises:
        QuantizationError, BackendUnavailableError, InputError: which, and what to use.
    """
    check_quantization(quantization)
    require_backend(backend)
    if compile is True:
        raise BackendUnavailableError(
            "compile=True", "this version", "use compile='auto', which runs eagerly"
        )
    if compile not in ("auto", False):
        raise InputError(f"compile={compile!r} must be 'auto', True or False")


def check_room(
    kv_slots: int | None,
    max_requests: int,
    prefill_chunk: int | None,
    pp_micro_batches: int | None,
) -> None:
    """Refuse sizes of the engine that cannot be.

    Raises:
        InputError: which, and its range.
    """
    integer("max_requests", max_requests, 1, MAX_INT64)
    optional = {
        "kv_slots": kv_slots,
        "prefill_chunk": prefill_chunk,
        "pp_micro_batches": pp_micro_batches,
    }
    for name, value in optional.items():
        if value is not None:
            integer(name, value, 1, MAX_INT64)


def device_of(device: torch.device | str | None, ranks: int = 1) -> torch.device:
    """The device asked for; on a host of several processes each takes its own GPU.

    Args:
        device: asked for; None for the CPU.
        ranks: of the model. One rank alone may be in a job whose launcher numbers no GPUs.

    Raises:
        BackendUnavailableError: this installation of torch has no such device.
    """
    try:
        place = torch.device("cpu" if device is None else device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise BackendUnavailableError(
            f"device {device!r}",
            "this installation of torch",
            f"use 'cpu', or install torch for that device ({str(error).splitlines()[0]})",
        ) from error
    numbered = ranks > 1 or "LOCAL_RANK" in os.environ
    if place == torch.device("cuda") and started_by_torchrun() and numbered:
        return local_device("cuda")
    return place


def check_dtype(asked: Any) -> torch.dtype | None:
    """The dtype asked for, by name or as torch's; None leaves it to the checkpoint.

    Raises:
        InputError: one that no model runs in.
    """
    if asked is None:
        return None
    dtype = DTYPES.get(asked) if isinstance(asked, str) else asked
    if dtype not in DTYPES.values():
        raise InputError(f"dtype={asked!r} must be {', '.join(DTYPES)}, or torch's dtype of it")
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_for(asked: torch.dtype | None, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The dtype to run in: the one asked for, else the checkpoint's.

    A CPU has no usable float16 multiplication, so a float16 checkpoint runs in float32 there
    unless float16 was asked for.
    """
    if asked is not None:
        return asked
    own = DTYPES.get(config.dtype or "float32", torch.float32)
    return torch.float32 if own is torch.float16 and device.type == "cpu" else own


def is_offline(offline: bool | None) -> bool:
    """Whether the hub must not be asked; None follows HF_HUB_OFFLINE."""
    if offline is not None:
        return offline
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
