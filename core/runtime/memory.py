"""Memory: does a model fit, and how many KV slots are left beside it. Asked before reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from ..config import ModelConfig
from ..errors import CapacityError
from ..forward import KVCacheLayout
from ..layers.rope_tables import num_positions
from ..models import DecoderBase
from ..weights import WeightSource
from .engine import Engine
from .executor import Executor
from .runner import PoolSize

KV_SHARE = 0.4
"""Part of the memory left beside the weights that KV slots may take by default."""
DEFAULT_CONTEXTS = 8
"""Default pool: room for this many sequences of full length, if memory allows."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Files of a container's limit and use, cgroup versions 2 and 1."""


def available_bytes(device: torch.device) -> int | None:
    """Memory that can be used now, in bytes; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [size for size in (_of_host(), _of_container()) if size is not None]
    return min(found, default=None)


def _of_host() -> int | None:
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    """What the container may still take. Its page cache counts as used, though it could go."""
    for limit, used in _LIMITS:
        if (_CGROUP / limit).exists() and (_CGROUP / used).exists():
            most = (_CGROUP / limit).read_text().strip()
            if most.isdecimal():
                return max(0, int(most) - int((_CGROUP / used).read_text()))
    return None


def weight_bytes(source: WeightSource, dtype: torch.dtype) -> int:
    """Bytes of all tensors of a checkpoint once they are in dtype."""
    elements = sum(math.prod(info.shape) for info in source.infos().values())
    return elements * dtype.itemsize


def check_fits(
    source: WeightSource, dtype: torch.dtype, device: torch.device, executor: Executor
) -> None:
    """Refuse a model that cannot fit, before a byte of it is read.

    Raises:
        CapacityError: the weights of the ranks that share this memory need more than there is.
    """
    free = available_bytes(device)
    share = min(1.0, executor.ranks_in_memory / executor.topology.world_size)
    need = int(weight_bytes(source, dtype) * share)
    if free is not None and need > free:
        raise CapacityError(
            f"{source.description}: weights in {str(dtype).removeprefix('torch.')} need "
            f"{need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are available on {device}; use a "
            "narrower dtype, more ranks on more machines, or a smaller model"
        )


def pool_size(
    models: Sequence[DecoderBase],
    executor: Executor,
    device: torch.device,
    kv_slots: int | None,
    max_requests: int,
) -> PoolSize:
    """Room of each rank's pool, equal on all ranks.

    Args:
        models: of all local ranks; pipeline stages may cache different numbers of layers.
        executor: the ranks.
        device: where the pool will be.
        kv_slots: slots asked for; None for several contexts, within memory.
        max_requests: generating requests at once.

    Raises:
        CapacityError: the slots or requests asked for need more memory than there is.
    """
    context = context_of(models[0].config)
    layouts = [KVCacheLayout.of(model.attention_specs(), model.dtype) for model in models]
    per_slot = sum(layout.bytes_per_slot for layout in layouts)
    free = available_bytes(device)
    here = max(1, per_slot * (executor.ranks_in_memory // len(models)))
    if kv_slots is None:
        wanted = DEFAULT_CONTEXTS * context
        slots = wanted if free is None else max(1, min(wanted, int(free * KV_SHARE) // here))
    elif free is not None and kv_slots * here > free:
        raise CapacityError(
            f"kv_slots={kv_slots} need {kv_slots * here / 2**30:.1f} GiB, {free / 2**30:.1f} GiB "
            f"are available on {device}; ask for at most {free // here}"
        )
    else:
        slots = kv_slots
    # Each process reads its own free memory; ranks must plan with one number.
    slots = executor.least(slots)
    size = PoolSize(slots, Engine.table_rows(max_requests), min(context, slots))
    table = size.requests * size.context * torch.int64.itemsize * executor.ranks_in_memory
    if free is not None and table > free:
        raise CapacityError(
            f"max_requests={max_requests} need {table / 2**30:.1f} GiB for their table of slots, "
            f"{free / 2**30:.1f} GiB are available on {device}; ask for fewer"
        )
    return size


def context_of(config: ModelConfig) -> int:
    """Tokens of the longest sequence, extension of the rotary embedding included."""
    return config.max_position_embeddings if config.rope is None else num_positions(config.rope)
