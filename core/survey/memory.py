"""RankMemory: what one rank holds, and how many tokens fit beside it.

Letters: T rows of a forward in one attention group, A attention groups, D hidden size, V vocabulary,
k experts of a row, F width of one expert here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..forward import KVCacheLayout
from ..layers import ParallelLMHead, QKVParallelLinear, RotaryEmbedding
from ..layers.linear import LinearBase
from ..layers.moe import Experts
from ..layers.rope_tables import table_bytes
from ..models import DecoderBase


@dataclass(frozen=True)
class Load:
    """The work that memory is planned for.

    Args:
        batch: requests at once, all attention groups together.
        chunk: rows of the largest forward, in each attention group.
        groups: attention groups.
    """

    batch: int
    chunk: int
    groups: int

    @property
    def rows(self) -> int:
        """Rows of the largest forward, all attention groups together."""
        return self.chunk * self.groups

    @property
    def requests(self) -> int:
        """Requests of the attention group that has most."""
        return -(-self.batch // self.groups)


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank.

    Args:
        weights: parameters, padding and copies included; as loaded, before a CPU packs them.
        tables: rotary tables.
        kv_per_token: of the KV cache, copies of KV heads included.
        activations: the most that is alive inside a forward, estimated from above.
    """

    weights: int
    tables: int
    kv_per_token: int
    activations: int

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the context."""
        return self.weights + self.tables + self.activations

    def tokens(self, memory: int) -> int:
        """Tokens of KV cache that fit into so many bytes beside the rest; below 0: not even that."""
        left = memory - self.fixed
        return left if left < 0 else left // max(1, self.kv_per_token)

    def need(self, tokens: int) -> int:
        """Bytes with so many tokens cached."""
        return self.fixed + tokens * self.kv_per_token


def memory_of(module: DecoderBase, load: Load) -> RankMemory:
    """What a rank holds, from its empty shell."""
    modules, width = list(module.modules()), module.dtype.itemsize
    ropes = {each.config for each in modules if isinstance(each, RotaryEmbedding)}
    heads = [each for each in modules if isinstance(each, ParallelLMHead)]
    linears = [each for each in modules if isinstance(each, LinearBase) and each not in heads]
    experts = [each for each in modules if isinstance(each, Experts)]
    hidden, moe = module.config.hidden_size, module.config.moe
    top_k = 0 if moe is None else moe.num_experts_per_tok
    held = [*module.parameters(), *module.buffers()]
    return RankMemory(
        weights=sum(each.numel() * each.element_size() for each in held),
        tables=sum(table_bytes(config, module.dtype) for config in ropes),
        kv_per_token=KVCacheLayout.of(module.attention_specs(), module.dtype).bytes_per_slot,
        activations=max(
            _in_stream(hidden, width, load)
            + max(_in_linears(linears, width, load), _in_experts(experts, top_k, width, load)),
            _in_head(heads, hidden, width, load),
        ),
    )


def _in_stream(hidden: int, width: int, load: Load) -> int:
    """Residual and normed rows and what a layer gives, of all groups where these are gathered."""
    return 3 * load.rows * hidden * width


def _in_linears(linears: Iterable[LinearBase], width: int, load: Load) -> int:
    """Twice the widest product: itself and what is made of it.

    A product has T rows in attention and up to A * T elsewhere, where groups are gathered.
    """
    products = (
        (load.chunk if isinstance(each, QKVParallelLinear) else load.rows)
        * each.partition.out_features
        for each in linears
    )
    return 2 * max(products, default=0) * width


def _in_experts(experts: Iterable[Experts], top_k: int, width: int, load: Load) -> int:
    """For each expert of a row a copy, twice its product, and what came of it; sums in float32.

    The worst case: experts of this rank are the choice of every row, and with an exchange all rows
    of the group come here.
    """
    most = 0
    for each in experts:
        gated = each.gate_up_proj.partition.linear
        pairs = load.rows * min(top_k, len(each.layout.here))
        spread = load.rows * (top_k + (each.exchange is not None)) * gated.in_features
        sums = 2 * load.rows * gated.in_features * torch.float32.itemsize
        taken = pairs * (gated.in_features + 2 * gated.out_features)
        most = max(most, (taken + spread) * width + sums)
    return most


def _in_head(heads: Sequence[ParallelLMHead], hidden: int, width: int, load: Load) -> int:
    """Rows of hidden states, and logits of every request: gathered, then in float32."""
    logits = sum(load.batch * head.num_embeddings * (width + 4) for head in heads)
    return logits + load.chunk * hidden * width if heads else 0
