"""A small stacked, sharded, padded, packed model and the checkpoint that fills it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from archzoo.parallel import (
    IN,
    OUT,
    Dim,
    LinearPartition,
    ParameterFactory,
    Piece,
    Segment,
    ShardSpec,
    Span,
)
from archzoo.weights import (
    STANDARD_GATE_UP_MAPPING,
    STANDARD_QKV_MAPPING,
    STANDARD_SKIPS,
    NameMap,
)

HIDDEN, HEAD_DIM, HEADS, FFN, VOCAB, PACK = 10, 4, 6, 18, 13, 3
NAMES = NameMap((), STANDARD_SKIPS, STANDARD_QKV_MAPPING + STANDARD_GATE_UP_MAPPING)


@dataclass(frozen=True)
class Toy:
    """Builds rank `rank` of `tp` of a model with `layers` layers and `kv` KV heads."""

    tp: int = 1
    rank: int = 0
    layers: int = 2
    kv: int = 6
    tied: bool = False
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    names = NAMES

    def model(self) -> nn.Module:
        """NaN-filled parameters, as a checkpoint finds them."""
        top = nn.Module()
        top.model = nn.Module()
        top.model.embed_tokens = self._vocab()
        top.model.layers = nn.ModuleList(self._layer() for _ in range(self.layers))
        top.model.norm = self._norm()
        top.lm_head = self._vocab()
        if self.tied:
            top.lm_head.weight = top.model.embed_tokens.weight
        return top

    def checkpoint(self, seed: int = 0) -> dict[str, Tensor]:
        """Full tensors under Hugging Face names."""
        make = torch.Generator().manual_seed(seed)
        kv = self.kv * HEAD_DIM
        out = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=make)}
        for layer in range(self.layers):
            for name, shape in (
                ("self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)),
                ("self_attn.k_proj.weight", (kv, HIDDEN)),
                ("self_attn.v_proj.weight", (kv, HIDDEN)),
                ("self_attn.q_proj.bias", (HEADS * HEAD_DIM,)),
                ("self_attn.k_proj.bias", (kv,)),
                ("self_attn.v_proj.bias", (kv,)),
                ("self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)),
                ("mlp.gate_proj.weight", (FFN, HIDDEN)),
                ("mlp.up_proj.weight", (FFN, HIDDEN)),
                ("mlp.down_proj.weight", (HIDDEN, FFN)),
                ("input_layernorm.weight", (HIDDEN,)),
            ):
                out[f"model.layers.{layer}.{name}"] = torch.randn(shape, generator=make)
            packed = torch.randint(-(2**31), 2**31 - 1, (FFN // PACK, HIDDEN), generator=make)
            out[f"model.layers.{layer}.mlp.down_proj.packed"] = packed.to(torch.int32)
        out["model.norm.weight"] = torch.randn(HIDDEN, generator=make)
        if not self.tied:
            out["lm_head.weight"] = torch.randn(VOCAB, HIDDEN, generator=make)
        return out

    def expected(self, full: dict[str, Tensor]) -> dict[str, Tensor]:
        """This rank's parameters, cut by hand."""
        out = {}
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in full:
                rows = -(-VOCAB // self.tp)
                padded = torch.zeros(rows * self.tp, HIDDEN)
                padded[:VOCAB] = full[name]
                out[name] = padded[self.rank * rows :][:rows]
        out["model.norm.weight"] = full["model.norm.weight"]
        for layer in range(self.layers):
            at = f"model.layers.{layer}."
            for kind in ("weight", "bias"):
                q, k, v = (full[f"{at}self_attn.{x}_proj.{kind}"] for x in "qkv")
                out[f"{at}self_attn.qkv_proj.{kind}"] = torch.cat(
                    [self._rows(q), self._kv_rows(k), self._kv_rows(v)]
                )
            gate, up = (full[f"{at}mlp.{x}_proj.weight"] for x in ("gate", "up"))
            out[f"{at}mlp.gate_up_proj.weight"] = torch.cat([self._rows(gate), self._rows(up)])
            for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                out[at + name] = full[at + name].chunk(self.tp, dim=1)[self.rank]
            out[f"{at}mlp.down_proj.packed"] = self._rows(full[f"{at}mlp.down_proj.packed"])
            out[f"{at}input_layernorm.weight"] = full[f"{at}input_layernorm.weight"]
        return {name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
                for name, tensor in out.items()}  # fmt: skip

    def _rows(self, full: Tensor) -> Tensor:
        return full.chunk(self.tp)[self.rank]

    def _kv_rows(self, full: Tensor) -> Tensor:
        return full if self.kv == 1 else self._rows(full)

    def _make(self) -> ParameterFactory:
        return ParameterFactory(self.dtype, torch.device(self.device), poison=True)

    def _span(self, shard_id: str | int | None, total: int, offset: int = 0) -> Span:
        size = total // self.tp
        return Span(shard_id, total, self.rank * size, size, offset)

    def _whole(self, shard_id: str | int | None, total: int, offset: int = 0) -> Span:
        return Span(shard_id, total, 0, total, offset)

    def _linear(self, outputs: list[Span], inputs: Span, *, bias: bool = False) -> nn.Module:
        partition = LinearPartition(tuple(outputs), inputs)
        module = nn.Module()
        module.weight = self._make()(partition.spec(OUT, IN))
        if bias:
            module.bias = self._make()(partition.spec(OUT))
        return module

    def _layer(self) -> nn.Module:
        layer = nn.Module()
        layer.self_attn, layer.mlp = nn.Module(), nn.Module()
        q = self._span("q", HEADS * HEAD_DIM)
        cut = self._whole if self.kv == 1 else self._span
        k = cut("k", self.kv * HEAD_DIM, q.size)
        v = cut("v", self.kv * HEAD_DIM, q.size + k.size)
        hidden = self._whole(None, HIDDEN)
        layer.self_attn.qkv_proj = self._linear([q, k, v], hidden, bias=True)
        layer.self_attn.o_proj = self._linear([hidden], self._span(None, HEADS * HEAD_DIM))
        gate = self._span(0, FFN)
        layer.mlp.gate_up_proj = self._linear([gate, self._span(1, FFN, gate.size)], hidden)
        layer.mlp.down_proj = self._linear([hidden], self._span(None, FFN))
        packed = LinearPartition((hidden,), self._span(None, FFN)).spec(Dim("in", PACK), OUT)
        layer.mlp.down_proj.packed = self._make()(packed, torch.int32)
        layer.input_layernorm = self._norm()
        return layer

    def _norm(self) -> nn.Module:
        module = nn.Module()
        data = torch.full((HIDDEN,), float("nan"), dtype=self.dtype, device=self.device)
        module.weight = nn.Parameter(data, requires_grad=False)
        return module

    def _vocab(self) -> nn.Module:
        """Rows padded to a multiple of the ranks."""
        rows = -(-VOCAB // self.tp)
        start = self.rank * rows
        real = max(0, min(VOCAB - start, rows))
        full, columns = (VOCAB, HIDDEN), (0, HIDDEN)
        piece = Piece(((start, start + real), columns), ((0, real), columns))
        padding = (((real, rows), columns),) if real < rows else ()
        spec = ShardSpec((rows, HIDDEN), (Segment(None, full, (piece,)),), padding=padding)
        module = nn.Module()
        module.weight = self._make()(spec)
        return module


@pytest.fixture
def toy() -> type[Toy]:
    """The builder of the toy model."""
    return Toy
