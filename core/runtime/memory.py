"""Memory: does a model fit, and how many KV slots are left beside it. Asked before reading."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from ..config import ModelConfig
from ..errors import CapacityError
from ..forward import AttentionSpec, KVCacheLayout
from ..weights import WeightSource

KV_SHARE = 0.4
"""Part of the memory left beside the weights that KV slots may take by default."""
DEFAULT_CONTEXTS = 8
"""Default pool: room for this many sequences of full length, if memory allows."""
_MEMINFO = Path("/proc/meminfo")


def available_bytes(device: torch.device) -> int | None:
    """Memory that can be used now, in bytes; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def weight_bytes(source: WeightSource, dtype: torch.dtype) -> int:
    """Bytes of all tensors of a checkpoint once they are in dtype."""
    elements = sum(math.prod(info.shape) for info in source.infos().values())
    return elements * dtype.itemsize


def check_fits(
    source: WeightSource, dtype: torch.dtype, device: torch.device, share: float
) -> None:
    """Refuse a model that cannot fit, before a byte of it is read.

    Args:
        share: part of the weights that this process will hold.

    Raises:
        CapacityError: the weights alone need more memory than there is.
    """
    free = available_bytes(device)
    need = int(weight_bytes(source, dtype) * share)
    if free is not None and need > free:
        raise CapacityError(
            f"{source.description}: weights in {str(dtype).removeprefix('torch.')} need "
            f"{need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are available on {device}; use a "
            "narrower dtype, more ranks on more machines, or a smaller model"
        )


def default_slots(
    config: ModelConfig,
    specs: list[AttentionSpec],
    dtype: torch.dtype,
    device: torch.device,
    ranks_here: int,
) -> int:
    """KV slots of a pool when the caller does not say: several contexts, within memory."""
    wanted = DEFAULT_CONTEXTS * config.max_position_embeddings
    free = available_bytes(device)
    per_slot = KVCacheLayout.of(specs, dtype).bytes_per_slot * ranks_here
    if free is None or per_slot == 0:
        return wanted
    return max(1, min(wanted, int(free * KV_SHARE) // per_slot))
