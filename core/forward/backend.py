"""AttentionBackend: the contract between model code and whatever computes attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor

from .spec import AttentionSpec

if TYPE_CHECKING:
    from .batch import ForwardBatch


class AttentionBackend(Protocol):
    """Serves the attention of all layers of one rank.

    ``bind`` once at build, ``plan`` once for each forward (may be a no-op), ``forward`` once for
    each layer. A backend may be an ``nn.Module``.
    """

    name: str
    padded_rows: Literal["zero", "undefined"]
    """What ``forward`` leaves in rows past the real ones. RadixAttention zeroes the latter."""

    def bind(self, specs: Sequence[AttentionSpec]) -> Mapping[int, Any]:
        """Take the layers to serve; give back, by layer_id, the handle each layer passes on.

        For a backend over a KV pool the handle is that layer's own cache tensors, so that layer
        code never indexes a pool by a number that differs between layers.

        Raises:
            BackendUnavailableError: a spec asks for what this backend cannot do.
        """
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Whatever of this forward is equal for all layers; the runner stores it as batch.plan."""
        ...

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        spec: AttentionSpec,
        batch: ForwardBatch,
        kv: Any = None,
        save_kv_cache: bool = True,
    ) -> Tensor:
        """Attention of one layer.

        Args:
            q: (T, N, H), padded rows included.
            k: (T', K, H) new keys, T' may exceed T; None when all keys are in the cache.
            v: (T', K, Hv) new values; None likewise.
            spec: the layer.
            batch: the forward.
            kv: the handle bind gave for this layer.
            save_kv_cache: write k and v into the cache at ``out_cache_loc``. False reads the
                new rows from k and v (or from the cache, when they are None) and writes nothing.

        Returns:
            (T, N, Hv), q's dtype.
        """
        ...
