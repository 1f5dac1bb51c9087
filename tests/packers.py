"""Packers with the two answers that a CPU can give, for tests on any CPU; and what this one's is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from archzoo.quantization.packing import ONEDNN, PACKED_DTYPES, WeightPacker


class Transposing(WeightPacker):
    """Packs every float matrix: transposed, so that only its own product reads it rightly."""

    def serves(self, weight: Tensor) -> bool:
        return weight.is_floating_point() and weight.numel() > 0

    def pack(self, weight: Tensor) -> Tensor:
        return weight.t().clone(memory_format=torch.contiguous_format)

    def unpack(self, packed: Tensor) -> Tensor:
        return self.pack(packed)

    def multiply(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, packed.t(), bias)


class Refusing(WeightPacker):
    """Packs nothing, and is never asked for more than that."""

    def serves(self, weight: Tensor) -> bool:
        return False

    def pack(self, weight: Tensor) -> Tensor:
        raise AssertionError("asked to pack what it does not serve")

    unpack = pack

    def multiply(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        raise AssertionError("asked to multiply what it has not packed")


PACKERS: dict[str, WeightPacker] = {
    "this CPU": ONEDNN,
    "packs": Transposing(),
    "does not": Refusing(),
}


def packer_line() -> str:
    """What the real packer does on this CPU, for the output of the tests."""
    answers = [
        f"{dtype} {'by oneDNN' if ONEDNN.serves(torch.ones(2, 2, dtype=dtype)) else 'not'}"
        for dtype in PACKED_DTYPES
    ]
    cpu = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    return f"weights packed here: {', '.join(answers)} ({cpu}, torch threads: {threads})"
