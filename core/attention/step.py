"""From a batch to its plan: facts checked on the host, requests laid out as spans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..errors import CapacityError, InputError
from ..forward import (
    AttentionSpec,
    AttentionType,
    ForwardBatch,
    ForwardMode,
    KVPool,
    RequestRows,
    TokenRows,
)
from .jobs import Span
from .plan import LayerPlan
from .reach import Reach


@dataclass(frozen=True)
class LayerKind:
    """What layers must have in common to share a LayerPlan."""

    reach: Reach
    cached: bool

    @staticmethod
    def of(spec: AttentionSpec) -> LayerKind:
        """The kind of a layer."""
        return LayerKind(Reach.of(spec), spec.attn_type is not AttentionType.ENCODER_ONLY)


@dataclass(frozen=True)
class StepPlan:
    """One forward, planned.

    Args:
        num_rows: T, padding included.
        num_real: rows that carry a token.
        fresh_rows: new K/V rows of all requests.
        slots: where they are written, one each; empty when no layer may write.
        layers: the plan of each kind of layer, in the order the kinds were given.
    """

    num_rows: int
    num_real: int
    fresh_rows: int
    slots: Tensor
    layers: tuple[LayerPlan, ...]


def plan_step(batch: ForwardBatch, kinds: Iterable[LayerKind], pool: KVPool) -> StepPlan:
    """Check a batch and plan it for every kind of layer.

    Raises:
        InputError: the batch contradicts itself, or carries no scheduler facts.
        CapacityError: a request lies outside the pool's slot table.
    """
    tokens, requests = _facts(batch)
    _check(tokens, requests, pool)
    fresh = [
        t - p for t, p in zip(requests.seq_lens_cpu, requests.extend_prefix_lens_cpu, strict=True)
    ]
    layers = []
    for kind in kinds:
        own = fresh if kind.cached else requests.extend_seq_lens_cpu
        layer = LayerPlan(_spans(requests, own, kind.cached), kind.reach, pool.req_to_token)
        layer.jobs(stored=kind.cached)
        layers.append(layer)
    return StepPlan(
        tokens.num_rows, tokens.num_real, sum(fresh), tokens.out_cache_loc, tuple(layers)
    )


def _facts(batch: ForwardBatch) -> tuple[TokenRows, RequestRows]:
    if batch.tokens is not None and batch.requests is not None:
        return batch.tokens, batch.requests
    if batch.mode is ForwardMode.IDLE:
        rows = batch.tokens or TokenRows(0, 0, torch.empty(0, dtype=torch.int64))
        return rows, batch.requests or RequestRows.of((), (), ())
    raise InputError(
        f"a {batch.mode.value} batch without token and request rows cannot be planned here; fill "
        "in tokens and requests, or use the backend of the engine that owns them"
    )


def _spans(requests: RequestRows, fresh: Iterable[int], cached: bool) -> list[Span]:
    """Requests that have a query row, laid end to end; without a cache only new rows count."""
    fresh = tuple(fresh)
    queries = requests.extend_seq_lens_cpu
    totals = requests.seq_lens_cpu if cached else queries
    rows = accumulate(queries, initial=0)
    fresh_rows = accumulate(fresh, initial=0)
    facts = zip(
        rows, queries, fresh_rows, fresh, totals, requests.req_pool_indices_cpu, strict=False
    )
    return [Span(*numbers) for numbers in facts if numbers[1]]


def _check(tokens: TokenRows, requests: RequestRows, pool: KVPool) -> None:
    """Refuse what would read or write a wrong place."""
    queries = sum(requests.extend_seq_lens_cpu)
    if not queries == tokens.num_real <= tokens.num_rows:
        raise InputError(
            f"{queries} query rows in extend_seq_lens, {tokens.num_real} real rows of "
            f"{tokens.num_rows}; the first two must be equal and not exceed the third"
        )
    total_fresh = 0
    for index, prefix, extend, total in zip(
        requests.req_pool_indices_cpu,
        requests.extend_prefix_lens_cpu,
        requests.extend_seq_lens_cpu,
        requests.seq_lens_cpu,
        strict=True,
    ):
        if total < prefix + extend:
            raise InputError(
                f"request in table row {index}: seq_lens {total} is less than prefix {prefix} + "
                f"{extend} query rows; count every token of the sequence"
            )
        if index >= pool.max_requests or total > pool.max_context:
            raise CapacityError(
                f"request in table row {index} with {total} tokens; the slot table has "
                f"{pool.max_requests} rows of {pool.max_context} positions"
            )
        total_fresh += total - prefix
    slots = tokens.out_cache_loc.shape[0]
    if slots not in (0, total_fresh):
        raise InputError(
            f"out_cache_loc has {slots} slots for {total_fresh} new K/V rows; give one for each "
            "row that is not padding (none when nothing is written)"
        )
