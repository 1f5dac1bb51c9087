"""TorchAttention: every kind of attention over a KV pool, in plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..errors import BackendUnavailableError, InputError, ShapeError
from ..forward import AttentionSpec, AttentionType, ForwardBatch, KVPool, LayerKV
from .checks import check_rows, check_spec
from .jobs import Block, GroupJob, SequenceJob
from .kernels import attend, by_head, fold, unfold
from .plan import LayerPlan
from .scratch import Scratch
from .step import LayerKind, StepPlan, plan_step

Part = tuple[slice | Tensor, Tensor]
"""Query rows and what attention made of them, (rows, N, Hv)."""


class TorchAttention:
    """Attention over a KV pool by torch's own operations; any device, meant for the CPU.

    Only rows that carry a token are read, so what padding and unwritten slots hold, NaN included,
    reaches nothing. One object serves one rank, one forward of a layer at a time; forwards of
    several batches may alternate layer by layer.

    Args:
        pool: keys, values and the slot table.
    """

    name = "torch"
    padded_rows: Literal["zero", "undefined"] = "zero"

    def __init__(self, pool: KVPool) -> None:
        """Over a pool; ``bind`` says which layers."""
        self._pool = pool
        self._bound: dict[int, tuple[AttentionSpec, int]] = {}
        self._kinds: list[LayerKind] = []
        self._scratch = Scratch()

    def bind(self, specs: Sequence[AttentionSpec]) -> Mapping[int, LayerKV | None]:
        """Take the layers; give each its cache, None to those that cache nothing.

        Raises:
            BackendUnavailableError: a layer asks for what this backend does not do.
            ShapeError: a layer's heads do not divide, or differ from its cache's.
        """
        handles = {spec.layer_id: self._handle(spec) for spec in specs}
        if len(handles) < len(specs):
            raise ShapeError(
                f"layer ids {sorted(spec.layer_id for spec in specs)} repeat, so layers would share "
                "a cache; give every attention layer its global number"
            )
        for spec in specs:
            kind = LayerKind.of(spec)
            if kind not in self._kinds:
                self._kinds.append(kind)
            self._bound[spec.layer_id] = spec, self._kinds.index(kind)
        return handles

    def plan(self, batch: ForwardBatch) -> StepPlan:
        """Index work for all layers that were bound; needs the slot table up to date.

        Raises:
            InputError: the batch contradicts itself, or carries no scheduler facts.
            CapacityError: a request lies outside the slot table.
        """
        return plan_step(batch, self._kinds, self._pool)

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        spec: AttentionSpec,
        batch: ForwardBatch,
        kv: LayerKV | None = None,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attention of one layer; see ``AttentionBackend.forward``. Padded rows come out zero.

        Raises:
            InputError: no plan, an unbound layer, or rows that do not fit the plan.
        """
        step: StepPlan = batch.plan
        layer = self._layer(step, spec)
        check_rows(step, q, k, v, spec, kv)
        stored = kv is not None and (k is None or save_kv_cache)
        if kv is not None and k is not None and v is not None:
            k, v = _fit(k, kv.k, step), _fit(v, kv.v, step)
            if stored:
                _store(kv, k, v, step, spec)
        parts: list[Part] = []
        for job in layer.jobs(stored):
            if isinstance(job, GroupJob):
                assert kv is not None
                parts.append(self._group(job, layer, q, kv, spec))
            else:
                parts += self._sequence(job, layer, q, (k, v), kv, spec)
        return _assemble(parts, q, step.num_real, spec)

    def _handle(self, spec: AttentionSpec) -> LayerKV | None:
        check_spec(spec)
        if spec.attn_type is AttentionType.ENCODER_ONLY:
            return None
        cache = self._pool.layer(spec.layer_id)
        if cache is None:
            raise BackendUnavailableError(
                f"{spec.prefix}: the KV cache of layer {spec.layer_id}",
                "this pool",
                "build the pool from the same attention specs",
            )
        found = tuple(cache.k.shape[1:]), tuple(cache.v.shape[1:])
        heads = spec.num_kv_heads
        if found != ((heads, spec.head_dim), (heads, spec.v_head_dim)):
            raise ShapeError(
                f"{spec.prefix}: {heads} KV heads of {spec.head_dim} and {spec.v_head_dim}, but "
                f"the pool has K and V rows of {found[0]} and {found[1]} for layer "
                f"{spec.layer_id}; build the pool from the same attention specs"
            )
        return cache

    def _layer(self, step: StepPlan | None, spec: AttentionSpec) -> LayerPlan:
        if step is None:
            raise InputError(f"{spec.prefix}: the batch has no plan; set batch.plan = plan(batch)")
        bound, kind = self._bound.get(spec.layer_id, (None, 0))
        if (bound is not spec and bound != spec) or kind >= len(step.layers):
            raise InputError(
                f"{spec.prefix}: layer {spec.layer_id} was not bound when this batch was planned; "
                "call bind with every attention spec, then plan"
            )
        return step.layers[kind]

    def _group(
        self, job: GroupJob, layer: LayerPlan, q: Tensor, kv: LayerKV, spec: AttentionSpec
    ) -> Part:
        """Requests with one query each."""
        keys = by_head(self._scratch.gather("k", kv.k, job.slots).to(q.dtype), job.sequences)
        values = by_head(self._scratch.gather("v", kv.v, job.slots).to(q.dtype), job.sequences)
        folded = fold(q[job.rows], job.sequences, spec.num_kv_heads)
        out = attend(folded, keys, values, layer.group_bias(job, q), spec)
        return job.rows, unfold(out, spec.num_heads // spec.num_kv_heads)

    def _sequence(
        self,
        job: SequenceJob,
        layer: LayerPlan,
        q: Tensor,
        fresh: tuple[Tensor | None, Tensor | None],
        kv: LayerKV | None,
        spec: AttentionSpec,
    ) -> list[Part]:
        """The blocks of one request."""
        group = spec.num_heads // spec.num_kv_heads
        cached = (None, None) if kv is None else (kv.k, kv.v)
        keys = by_head(self._rows("k", job, cached[0], fresh[0]).to(q.dtype))
        values = by_head(self._rows("v", job, cached[1], fresh[1]).to(q.dtype))
        parts: list[Part] = []
        for block in job.blocks:
            rows = slice(job.row + block.start, job.row + block.stop)
            out = attend(
                fold(q[rows], 1, spec.num_kv_heads),
                _seen(keys, block),
                _seen(values, block),
                layer.block_bias(block, group, q),
                spec,
            )
            parts.append((rows, unfold(out, group)))
        return parts

    def _rows(
        self, name: str, job: SequenceJob, cache: Tensor | None, fresh: Tensor | None
    ) -> Tensor:
        """(L, K, H): the job's cached rows, then its new ones."""
        own = job.fresh.stop - job.fresh.start
        if own == job.keys:
            assert fresh is not None
            return fresh[job.fresh]
        assert cache is not None
        if job.run is not None:
            cached = cache[job.run : job.run + job.keys - own]
        else:
            assert job.slots is not None
            cached = self._scratch.gather(name, cache, job.slots)
        if not own:
            return cached
        assert fresh is not None
        return torch.cat((cached, fresh[job.fresh]))


def _seen(rows: Tensor, block: Block) -> Tensor:
    """The keys or values (1, K, L, H) a block reads."""
    count = block.key_stop - block.key_start
    return rows if count == rows.shape[2] else rows.narrow(2, block.key_start, count)


def _fit(rows: Tensor, cache: Tensor, step: StepPlan) -> Tensor:
    """New K or V rows without padding, in the dtype every later step will read them in."""
    if rows.shape[0] > step.fresh_rows:
        rows = rows[: step.fresh_rows]
    return rows.to(cache.dtype)


def _store(kv: LayerKV, k: Tensor, v: Tensor, step: StepPlan, spec: AttentionSpec) -> None:
    """Write new rows to their slots."""
    if step.slots.shape[0] != step.fresh_rows:
        raise InputError(
            f"{spec.prefix}: {step.fresh_rows} new K/V rows and no slots to write them to; fill in "
            "out_cache_loc or pass save_kv_cache=False"
        )
    kv.k.index_copy_(0, step.slots, k)
    kv.v.index_copy_(0, step.slots, v)


def _assemble(parts: Sequence[Part], q: Tensor, num_real: int, spec: AttentionSpec) -> Tensor:
    """(T, N, Hv): the parts in their rows, zeros in padding."""
    rows = q.shape[0]
    if len(parts) == 1 and parts[0][1].shape[0] == rows:
        return parts[0][1]
    out = q.new_empty(rows, spec.num_heads, spec.v_head_dim)
    out[num_real:] = 0
    for where, part in parts:
        out[where] = part
    return out
