"""Rotary position embedding of queries and keys.

Letters: T rows, N query heads here, K KV heads here, H head dim, C pairs (rotary_dim / 2).

A pair (a, b) of features of a head turns by the angle of its row::

    a' = a cos - b sin        neox style:   a = x[c],  b = x[c + C]
    b' = b cos + a sin        interleaved:  a = x[2c], b = x[2c + 1]

With both members of a pair along one axis of size 2 that is, for either style, one expression::

    x' = x * [cos, cos] + swapped(x) * [-sin, sin]

which runs over queries and keys together: 4 small kernels for a layer. The bracketed rows depend
on the positions only, so a model makes them once in a forward and hands them to every layer::

    rows = rope.rows(positions, seq_lens)
    q, k = rope(rows, q, k)              # in each layer; rope(positions, q, k) does both
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config.rope import RopeConfig
from ..errors import InputError, ShapeError
from .rope_tables import RopeTable, check_rope, shared_table


class RotaryRows(NamedTuple):
    """Rotation of each row of one forward, the same for all layers of one RopeConfig.

    Both are (T, 1, 2, C), interleaved (T, 1, C, 2): the axis of 2 holds the members of a pair.

    Args:
        cos: cosine, twice.
        sin: minus the sine, then the sine.
    """

    cos: Tensor
    sin: Tensor


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions.

    Holds no parameter and no buffer: the table is shared by value with every other layer, made
    for the device of the first positions seen, and left out of state_dict, pickles and copies.

    For dynamic and longrope the rotation depends on the length of the row's own sequence, so a
    sequence gets the same numbers alone and in a batch. Keys that are in the cache keep the
    rotation of the forward that wrote them; whoever keeps the cache makes them again where the
    family says so (``ConfigAdapter.recomputes_keys``). A prompt that is fed in chunks equals the
    whole prompt if seq_lens gives the whole prompt's length for each chunk.

    Args:
        config: everything that decides the rotation.
        dtype: of queries and keys. Angles are float32; cos and sin are rounded to dtype and the
            products taken in it, which makes Llama's numbers bitwise those of transformers.

    Raises:
        ConfigError: the config has no well-defined table.
    """

    def __init__(self, config: RopeConfig, dtype: torch.dtype) -> None:
        """Check the config; nothing is allocated yet."""
        super().__init__()
        check_rope(config)
        self.config, self.dtype = config, dtype
        pairs = config.rotary_dim // 2
        self._pair_shape = (pairs, 2) if config.interleaved else (2, pairs)
        self._pair_axis = 3 if config.interleaved else 2
        self._table: tuple[torch.device, RopeTable] | None = None

    @property
    def needs_seq_lens(self) -> bool:
        """Whether rows depend on the length of their sequence."""
        return self.config.rope_type in ("dynamic", "longrope")

    def table(self, device: torch.device) -> RopeTable:
        """The shared table on a device with its index; made when nobody has it yet."""
        held = self._table
        if held is None or held[0] != device:
            held = (device, shared_table(self.config, self.dtype, device))
            self._table = held
        return held[1]

    def rows(self, positions: Tensor, seq_lens: Tensor | None = None) -> RotaryRows:
        """Rotations for one forward.

        Args:
            positions: (T,) int64 or int32, from 0.
            seq_lens: (T,) integers, tokens of each row's sequence, this forward included. Only
                read when needs_seq_lens.

        Raises:
            InputError: shapes or dtypes differ from these, seq_lens is needed and missing, or a
                position is outside the table (on a GPU: a device-side assertion).
        """
        self._check_positions(positions, seq_lens)
        table = self.table(positions.device)
        cos, sin = table.rows(positions, seq_lens).unsqueeze(1).chunk(2, dim=2)
        axis = self._pair_axis
        return RotaryRows(torch.stack((cos, cos), axis), torch.stack((-sin, sin), axis))

    def forward(
        self,
        positions: Tensor | RotaryRows,
        q: Tensor,
        k: Tensor,
        seq_lens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Turned queries and keys; the inputs are left as they are.

        Args:
            positions: (T,), or what rows made of them, on the device of q.
            q: (T, N*H) or (T, N, H).
            k: (T, K*H) or (T, K, H).
            seq_lens: as for rows; not read when rows are given.

        Returns:
            q and k, shapes and dtype as given, as slices of one new tensor.

        Raises:
            ShapeError: widths are no multiple of H, or rows differ in number.
            InputError: a dtype other than the one this was built for; and as rows.
        """
        rows = positions if isinstance(positions, RotaryRows) else self.rows(positions, seq_lens)
        self._check_heads(rows, q, k)
        flat_q, flat_k = q.flatten(1), k.flatten(1)
        # One pass over both. Copying them together is no slower than finding out that they
        # already lie side by side in one qkv row.
        turned = self._turn(torch.cat((flat_q, flat_k), 1), rows)
        new_q, new_k = turned.split_with_sizes([flat_q.shape[1], flat_k.shape[1]], 1)
        return (
            new_q if q.dim() == 2 else new_q.view(q.shape),
            new_k if k.dim() == 2 else new_k.view(k.shape),
        )

    def _turn(self, x: Tensor, rows: RotaryRows) -> Tensor:
        """(T, W) heads side by side to the same, turned, in new memory."""
        head, dim = self.config.head_dim, self.config.rotary_dim
        num_rows, width = x.shape
        num_heads = width // head
        if head == dim:
            pairs = x.view(num_rows, num_heads, *self._pair_shape)
            return self._turn_pairs(pairs, rows).view(num_rows, width)
        first, rest = x.view(num_rows, num_heads, head).split_with_sizes([dim, head - dim], 2)
        pairs = first.view(num_rows, num_heads, *self._pair_shape)
        turned = self._turn_pairs(pairs, rows).view(num_rows, num_heads, dim)
        return torch.cat((turned, rest), 2).view(num_rows, width)

    def _turn_pairs(self, x: Tensor, rows: RotaryRows) -> Tensor:
        """(T, heads, 2, C) or (T, heads, C, 2); rolling the axis of 2 by one swaps a pair.

        Product and sum are rounded apart, as in transformers; a fused multiply-add would save
        one kernel and differ from it in bfloat16.
        """
        return (x * rows.cos).add_(x.roll(1, self._pair_axis).mul_(rows.sin))

    def _check_positions(self, positions: Tensor, seq_lens: Tensor | None) -> None:
        if positions.dim() != 1 or positions.dtype not in (torch.int64, torch.int32):
            raise InputError(
                f"positions are {list(positions.shape)} {positions.dtype}; "
                "one int64 or int32 for each row is expected"
            )
        if not self.needs_seq_lens:
            return
        if seq_lens is None:
            raise InputError(
                f"rope_type {self.config.rope_type!r} turns a row by the length of its sequence; "
                "give seq_lens, one length for each row"
            )
        if seq_lens.shape != positions.shape or seq_lens.is_floating_point():
            raise InputError(
                f"seq_lens are {list(seq_lens.shape)} {seq_lens.dtype} for "
                f"{positions.shape[0]} rows; one integer for each row is expected"
            )

    def _check_heads(self, rows: RotaryRows, q: Tensor, k: Tensor) -> None:
        if not rows.cos.shape[0] == q.shape[0] == k.shape[0]:
            raise ShapeError(
                f"rotary got {rows.cos.shape[0]} positions, {q.shape[0]} query rows and "
                f"{k.shape[0]} key rows; one position, query and key for each row is expected"
            )
        head = self.config.head_dim
        for name, x in (("q", q), ("k", k)):
            fits = x.shape[-1] % head == 0 if x.dim() == 2 else x.dim() == 3 and x.shape[-1] == head
            if not fits:
                raise ShapeError(
                    f"rotary got {name} of shape {list(x.shape)}; (rows, heads * {head}) or "
                    f"(rows, heads, {head}) is expected"
                )
            if x.dtype != self.dtype:
                raise InputError(
                    f"rotary built for {self.dtype} got {name} in {x.dtype}; "
                    "build it with the dtype the model runs in"
                )

    def extra_repr(self) -> str:
        """Type and sizes."""
        c = self.config
        style = "interleaved" if c.interleaved else "neox"
        return f"{c.rope_type}, {style}, rotary_dim={c.rotary_dim} of {c.head_dim}, theta={c.theta}"

    def __getstate__(self) -> dict[str, Any]:
        """Without the table: copies and other processes find or make their own."""
        return {**self.__dict__, "_table": None}


def get_rope(
    config: RopeConfig, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> RotaryEmbedding:
    """A rotary embedding whose table is ready on a device.

    Args:
        config: everything that decides the rotation.
        dtype: the model's.
        device: where positions will be. Another one makes its table when first used; on meta
            nothing is made.

    Raises:
        ConfigError: the config has no well-defined table.
    """
    rope = RotaryEmbedding(config, dtype)
    where = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
    if where.type != "meta":
        rope.table(where)
    return rope
