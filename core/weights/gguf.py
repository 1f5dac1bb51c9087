"""WeightSource over a GGUF model: dequantised on read, rows in Hugging Face order."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.gguf import ROPE_DIVISORS, one_for_all_layers, unread_architecture
from ..config.values import Where, integer
from ..errors import ConfigError
from ..parallel import Box, box_slices, whole
from .gguf_file import GGUFFile
from .gguf_names import GGUF_INTERLEAVED_QK
from .gguf_parser import GGUFPart, GGUFTensor, broken, require_gguf
from .mapping import give_back
from .source import Stored, TensorInfo

__all__ = ["GGUFFile", "GGUFSource", "GGUFTensor"]

_CHUNK = 1 << 18
"""Elements dequantised at a time: 1 MiB of float32 stays in the cache with its temporaries."""


class GGUFSource:
    """Tensors of a GGUF model under their GGUF names, as float32.

    A box costs its own rows and blocks only. Three things that llama.cpp's converter did are dealt
    with here, because they belong to the format and not to a model: rows of attn_q and attn_k go
    back to Hugging Face order, stacked experts are tensors of one expert each
    (``blk.0.ffn_up_exps.5.weight``), and rope divisors are not lost in silence.

    Args:
        file: a path, or a file already parsed.
        accept_rope_divisors: the caller gives ``rope_divisors`` to the config, so a file whose
            divisors change results may be opened.

    Attributes:
        file: the parsed header.
        rope_divisors: values of ``rope_freqs.weight``, None where the file has none.
        description: for reports.
        notes: what was left out; nothing here.

    Raises:
        CheckpointFileError: the file is broken, a part of it is missing, it is of an architecture
            whose row order is not known, or holds a type that cannot be dequantised.
    """

    format = "gguf"

    def __init__(
        self, file: GGUFFile | str | os.PathLike[str], *, accept_rope_divisors: bool = False
    ) -> None:
        """Check the header and map the file."""
        self.file = file if isinstance(file, GGUFFile) else GGUFFile(file)
        parts = len(self.file.parts)
        more = f" and {parts - 1} more" if parts > 1 else ""
        self.description = f"GGUF file {self.file.path.name}{more}"
        self.notes: tuple[str, ...] = ()
        self._head_size = _interleaved_heads(self.file)
        self._tensors = {t.name: t for each in self.file.tensors.values() for t in _unstacked(each)}
        self._check_types()
        self._mappings = {part.path: _map(part) for part in self.file.parts}
        self._memory = {
            path: np.frombuffer(mapping, np.uint8) for path, mapping in self._mappings.items()
        }
        self.rope_divisors = self._read_divisors(accept_rope_divisors)

    def infos(self) -> Mapping[str, TensorInfo]:
        """Name, shape, dtype and file of every tensor."""
        return {
            tensor.name: TensorInfo(tensor.name, tensor.shape, torch.float32, str(tensor.path))
            for tensor in self._tensors.values()
        }

    def stored(self, name: str) -> Stored:
        """Where a tensor's bytes lie, and its block type."""
        tensor = self._tensors[name]
        stop = tensor.start + tensor.nbytes
        return Stored(str(tensor.path), tensor.start, stop, tensor.type_name)

    def read(self, name: str, box: Box) -> Tensor:
        """A box of a tensor, float32; float32 tensors are views of the mapping, not to be written.

        Raises:
            KeyError: no such tensor.
        """
        tensor = self._tensors[name]
        size = self._head_size.get(name)
        if size is None:
            return self._stored(tensor, box)
        # Whole heads are read, put in order, and cut: ranks ask for whole heads anyway.
        (start, stop), first = box[0], box[0][0] // size
        heads = -(-stop // size) - first
        stored = self._stored(tensor, ((first * size, (first + heads) * size), *box[1:]))
        # By numpy, like the dequantisation: torch's threads would spin beside its next block.
        pairs = stored.numpy().reshape(heads, size // 2, 2, *stored.shape[1:])
        ordered = pairs.swapaxes(1, 2).reshape(stored.shape)
        return torch.from_numpy(ordered[start - first * size : stop - first * size])

    def read_into(self, name: str, box: Box, out: Tensor) -> None:
        """Fill ``out``; the tensor's mapped pages are given back."""
        out.copy_(self.read(name, box))
        tensor = self._tensors[name]
        give_back(self._mappings[tensor.path], tensor.start, tensor.start + tensor.nbytes)

    def close(self) -> None:
        """Let the mappings go; tensors already handed out stay valid."""
        self._memory, self._mappings = {}, {}

    def _check_types(self) -> None:
        """Refuse types that nothing can turn into floats, before any byte is read."""
        for tensor in {t.type_id: t for t in self.file.tensors.values()}.values():
            try:
                _blocks_to_floats(np.zeros((1, tensor.block[1]), np.uint8), tensor)
            except NotImplementedError as error:
                raise self.file.broken(
                    f"{tensor.name} is stored as {tensor.type_name}, which cannot be dequantised; "
                    "use a file with F16, BF16, Q8_0, Q4_0 or K-quant tensors"
                ) from error

    def _read_divisors(self, accepted: bool) -> tuple[float, ...] | None:
        """The divisors; refused when they matter and nobody says that the config gets them."""
        tensor = self.file.tensors.get(ROPE_DIVISORS)
        if tensor is None:
            return None
        values = self._stored(tensor, whole(tensor.shape)).reshape(-1)
        if not accepted and not bool((values == 1).all()):
            raise self.file.broken(
                f"{ROPE_DIVISORS} divides rotary frequencies by up to {float(values.max()):g} "
                "(as in Llama 3.1), which the weights alone do not carry into a model; load the "
                "file as a checkpoint, or pass accept_rope_divisors=True and give rope_divisors "
                "to config_from_gguf"
            )
        return tuple(values.tolist())

    def _stored(self, tensor: GGUFTensor, box: Box) -> Tensor:
        """A box in the file's own row order; only blocks that it touches are dequantised."""
        memory = self._memory.get(tensor.path)
        if memory is None:
            raise self.file.broken(f"was closed, {tensor.name} cannot be read any more")
        shape = tuple(stop - start for start, stop in box)
        if 0 in shape:
            return torch.empty(shape)
        block, size = tensor.block
        *lead, width = tensor.shape or (1,)
        inner = prod(lead[1:])
        top, bottom = box[0] if lead else (0, 1)
        left, right = box[-1] if box else (0, 1)
        first, last = left // block, -(-right // block)
        raw = memory[tensor.start : tensor.start + tensor.nbytes]
        table = raw.reshape(prod(lead), width // block * size)
        cut = table[top * inner : bottom * inner, first * size : last * size]
        values = _dequantise(cut, tensor)[:, left - first * block : right - first * block]
        if not lead:
            return values.reshape(shape)
        values = values.reshape(bottom - top, *lead[1:], right - left)
        return values[(slice(None), *box_slices(box[1:-1]))]


def _map(part: GGUFPart) -> mmap.mmap:
    """A file's bytes. Copy-on-write: torch wants writable memory, the file stays as it is."""
    with part.path.open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    if len(mapping) != part.size:
        raise broken(
            part.path,
            f"has {len(mapping)} bytes now and had {part.size} when its header was read",
        )
    return mapping


def _interleaved_heads(file: GGUFFile) -> dict[str, int]:
    """Rows of one head, for each tensor whose rows are stored in interleaved order."""
    known = GGUF_INTERLEAVED_QK.get(file.architecture)
    if known is None:
        raise file.broken(f"general.architecture: {unread_architecture(file.architecture)}")
    if not known:
        return {}
    heads = _head_count(file, "attention.head_count")
    if heads is None:
        raise file.broken("does not say how many heads its attention has; convert the model again")
    kv_heads = _head_count(file, "attention.head_count_kv")
    counts = {"attn_q": heads, "attn_k": heads if kv_heads is None else kv_heads}
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        match tensor.name.split("."):
            case ["blk", _, ("attn_q" | "attn_k") as part, _]:
                sizes[tensor.name] = _head_size(file, tensor, counts[part])
    return sizes


def _head_count(file: GGUFFile, key: str) -> int | None:
    """Heads of every layer, None where the file does not say."""
    where = f"{file.architecture}.{key}"
    try:
        value = one_for_all_layers(file.metadata, where)
        return None if value is None else integer(value, Where(where))
    except ConfigError as error:
        raise file.broken(str(error)) from error


def _unstacked(tensor: GGUFTensor) -> Iterator[GGUFTensor]:
    """The tensor, or that of each expert where it stacks them."""
    stem, _, kind = tensor.name.rpartition(".")
    if not stem.endswith("_exps") or len(tensor.shape) != 3 or not tensor.nbytes:
        yield tensor
        return
    size = tensor.nbytes // tensor.shape[0]
    for at in range(tensor.shape[0]):
        name, start = f"{stem}.{at}.{kind}", tensor.start + at * size
        yield replace(tensor, name=name, shape=tensor.shape[1:], start=start, nbytes=size)


def _head_size(file: GGUFFile, tensor: GGUFTensor, heads: int) -> int:
    rows = tensor.shape[0] if tensor.shape else 0
    if heads < 1 or rows < 1 or rows % (2 * heads):
        raise file.broken(
            f"{tensor.name} has {rows} rows, which {heads} heads of an even size cannot share"
        )
    return rows // heads


def _dequantise(raw: NDArray[np.uint8], tensor: GGUFTensor) -> Tensor:
    """Rows of blocks as float32 rows."""
    match tensor.type_name:
        case "F32":
            return torch.from_numpy(raw.view(np.float32))
        case "F16":
            return torch.from_numpy(raw.view(np.float16)).float()
        case "BF16":
            return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16).float()
    block, size = tensor.block
    rows, columns = raw.shape[0], raw.shape[1] // size * block
    values = np.empty((rows, columns), np.float32)
    step = max(1, _CHUNK // columns)
    with np.errstate(all="ignore"):  # a scale of inf or NaN is data, the caller's to judge
        for at in range(0, rows, step):
            chunk = np.ascontiguousarray(raw[at : at + step])
            values[at : at + step] = _blocks_to_floats(chunk, tensor)
    return torch.from_numpy(values)


def _blocks_to_floats(blocks: NDArray[np.uint8], tensor: GGUFTensor) -> NDArray[np.float32]:
    """The reference implementation of every block type, from the ``gguf`` package."""
    gguf = require_gguf()
    values: NDArray[np.float32] = gguf.quants.dequantize(
        blocks, gguf.GGMLQuantizationType(tensor.type_id)
    )
    return values
