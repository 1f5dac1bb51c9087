"""A scene: random sequences of known keys and values over a NaN-filled pool."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from archzoo.attention import (
    AttentionSpec,
    AttentionType,
    LayerKV,
    TorchAttention,
    reference_attention,
)
from archzoo.forward import (
    ForwardBatch,
    ForwardMode,
    KVCacheLayout,
    KVPool,
    RequestRows,
    TokenRows,
)

NAN = float("nan")


@dataclass
class Case:
    """One forward to be built: (prefix, query rows, new K/V rows) of each request."""

    requests: list[tuple[int, int, int]]
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (8, 8)
    window: int | None = None
    cap: float | None = None
    kind: AttentionType = AttentionType.DECODER
    mode: ForwardMode = ForwardMode.EXTEND
    dtype: torch.dtype = torch.float64
    cache_dtype: torch.dtype | None = None
    pad: int = 0
    consecutive: bool = False
    shared_prefix: bool = False
    seed: int = 0
    layer_id: int = 5
    save: bool = True
    in_cache: bool = False
    """k and v are None: every key is in the cache before."""


@dataclass
class Scene:
    """A case with its tensors."""

    case: Case
    spec: AttentionSpec = field(init=False)

    def __post_init__(self) -> None:
        case = self.case
        torch.manual_seed(case.seed)
        self.cached = case.kind is not AttentionType.ENCODER_ONLY
        self.spec = AttentionSpec(
            case.layer_id,
            "model.layers.5.attn",
            *case.heads,
            *case.dims,
            scaling=1.3 * case.dims[0] ** -0.5,
            sliding_window=case.window,
            logit_cap=case.cap,
            attn_type=case.kind,
        )
        self.totals = [prefix + fresh for prefix, _, fresh in case.requests]
        self._sequences()
        self._pool()
        self._rows()

    def _sequences(self) -> None:
        """keys, values: the truth, (total, K, dim) for each request."""
        _, kv_heads = self.case.heads
        self.keys, self.values = (
            [torch.randn(total, kv_heads, dim).to(self.case.dtype) for total in self.totals]
            for dim in self.case.dims
        )
        if self.case.shared_prefix:
            for index in range(len(self.totals)):
                common = self._common(index)
                self.keys[index][:common] = self.keys[0][:common]
                self.values[index][:common] = self.values[0][:common]

    def _common(self, index: int) -> int:
        """Prefix tokens a request shares with the first."""
        return min(self.case.requests[0][0], self.case.requests[index][0])

    def _pool(self) -> None:
        case, count = self.case, len(self.totals)
        layout = KVCacheLayout.of([self.spec], case.cache_dtype or case.dtype)
        self.pool = KVPool(layout, sum(self.totals) + 7, count + 2, max(self.totals, default=0) + 3)
        slots = torch.arange(3, 3 + sum(self.totals))
        if not case.consecutive:
            slots = torch.randperm(self.pool.num_slots)[: sum(self.totals)]
        self.table_rows = torch.randperm(count + 2)[:count].tolist()
        self.slots = list(slots.split(self.totals))
        for index, own in enumerate(self.slots):
            if case.shared_prefix:
                own[: self._common(index)] = self.slots[0][: self._common(index)]
        self.pool.req_to_token.fill_(10**9)
        for row, own in zip(self.table_rows, self.slots, strict=True):
            self.pool.req_to_token[row, : len(own)] = own
        self.backend = TorchAttention(self.pool)
        self.kv = self.backend.bind([self.spec])[case.layer_id]
        if self.kv is not None:
            self.fill(self.kv)

    def fill(self, kv: LayerKV) -> None:
        """NaN everywhere, then what the cache holds before this forward."""
        kv.k.fill_(NAN)
        kv.v.fill_(NAN)
        for index, (prefix, _, fresh) in enumerate(self.case.requests):
            known = prefix + fresh if self.case.in_cache else prefix
            kv.k[self.slots[index][:known]] = self.keys[index][:known].to(kv.k.dtype)
            kv.v[self.slots[index][:known]] = self.values[index][:known].to(kv.v.dtype)

    def _rows(self) -> None:
        case = self.case
        queries = [rows for _, rows, _ in case.requests]
        heads, kv_heads = case.heads
        self.real = sum(queries)
        self.q = self._padded(torch.randn(self.real, heads, case.dims[0]).to(case.dtype))
        prefixes = [prefix for prefix, _, _ in case.requests]
        self.new_slots = self._ends(self.slots, prefixes, torch.int64)
        self.k = self.v = None
        if not case.in_cache:
            shape = [(kv_heads, dim) for dim in case.dims]
            self.k = self._padded(self._ends(self.keys, prefixes, case.dtype, shape[0]))
            self.v = self._padded(self._ends(self.values, prefixes, case.dtype, shape[1]))
        self.batch = ForwardBatch(
            self.backend,
            case.mode,
            TokenRows(self.real + case.pad, self.real, self.new_slots),
            RequestRows.of(self.table_rows, prefixes, queries, seq_lens=self.totals),
        )

    @staticmethod
    def _ends(
        rows: list[Tensor], starts: list[int], dtype: torch.dtype, shape: tuple[int, ...] = ()
    ) -> Tensor:
        ends = [own[start:] for own, start in zip(rows, starts, strict=True)]
        return torch.cat(ends) if ends else torch.empty(0, *shape, dtype=dtype)

    def _padded(self, rows: Tensor) -> Tensor:
        return torch.cat((rows, rows.new_full((self.case.pad, *rows.shape[1:]), NAN)))

    def run(self) -> Tensor:
        """Plan and attend."""
        self.batch.plan = self.backend.plan(self.batch)
        return self.attend()

    def attend(self) -> Tensor:
        """Attend with the plan there is."""
        return self.backend.forward(
            self.q, self.k, self.v, self.spec, self.batch, self.kv, self.case.save
        )

    def expected(self) -> Tensor:
        """(T, N, Hv) float64 by the dense reference, request by request; zeros in padding."""
        heads, dim = self.case.heads[0], self.case.dims[1]
        out = torch.zeros(self.real + self.case.pad, heads, dim, dtype=torch.float64)
        row = 0
        for index, (_, queries, _) in enumerate(self.case.requests):
            own = slice(row, row + queries)
            total = self.totals[index]
            positions = torch.arange(total)
            out[own] = reference_attention(
                self.q[own],
                self.keys[index],
                self.values[index],
                self.spec,
                positions[total - queries :],
                positions,
            )
            row += queries
        return out
