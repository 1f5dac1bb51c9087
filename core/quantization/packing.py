"""WeightPacker: what re-lays a plain matrix so that a CPU multiplies it faster.

Which matrices can be packed depends on the CPU, so the packer is an argument of the methods for plain
weights: ``UnquantizedConfig(packer)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

PACKED_DTYPES = (torch.float32, torch.bfloat16)
PACKED_ROWS = 512
"""Rows the packed layout is chosen for. A layout for one row is no faster at one row and 1.5 times
slower at eight (float32, oneDNN 3.12, Zen 5)."""


class WeightPacker(ABC):
    """A packed form of (out_features, in_features) matrices, and the product with it.

    A packed matrix is a tensor of whatever layout; only its packer reads it.
    """

    @abstractmethod
    def serves(self, weight: Tensor) -> bool:
        """Whether matrices of this device, dtype and size are packed here."""

    @abstractmethod
    def pack(self, weight: Tensor) -> Tensor:
        """The packed form of a matrix, in memory of its own."""

    @abstractmethod
    def unpack(self, packed: Tensor) -> Tensor:
        """The matrix again, bit for bit, in memory of its own."""

    @abstractmethod
    def multiply(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + bias.

        Args:
            x: (T, in_features), of any strides; T may be 0.
            packed: of a matrix W in x's dtype.
            bias: (out_features,) or None.
        """


class OneDnnPacker(WeightPacker):
    """oneDNN's blocked layouts, float32 on every CPU that torch has oneDNN for.

    bfloat16 is packed where the CPU has instructions for it (AVX-512, AMX, AVX2-VNNI-2); elsewhere
    oneDNN refuses to.
    """

    def serves(self, weight: Tensor) -> bool:
        """Whether this CPU has a packed product for the weight."""
        return (
            weight.device.type == "cpu"
            and weight.dtype in PACKED_DTYPES
            and weight.numel() > 0
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's own
            and (weight.dtype is not torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    def pack(self, weight: Tensor) -> Tensor:
        """In the layout for many rows."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """A dense copy."""
        plain: Tensor = packed.to_dense()
        return plain

    def multiply(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """One oneDNN product."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, packed, bias, "none", [], ""
        )
        return product


ONEDNN = OneDnnPacker()
"""The packer of this machine's CPU."""
