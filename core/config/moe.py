"""MoEConfig: how many experts there are, how rows choose among them, which layers have them."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import FieldReader
from .values import Where, flag, integer, refuse, show

_MOST_EXPERTS = 2**12
"""Of a layer. Real models have up to 512; each costs time in every plan."""
_WIDEST = 2**22
"""Features of an expert. With as many experts and the largest hidden size, bytes still fit 64 bits."""


@dataclass(frozen=True)
class MoEConfig:
    """The experts of a model.

    Args:
        num_experts: E, of each sparse layer, all ranks together.
        num_experts_per_tok: k, that each row goes to.
        intermediate_size: F, width of one expert.
        norm_topk_prob: the weights of a row's experts add up to 1.
        sparse_layers: for each layer, whether its MLP has experts.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    sparse_layers: tuple[bool, ...]


def read_moe(fields: FieldReader, layers: int) -> MoEConfig | None:
    """The experts, as fields of the file and defaults of the family say; None without any.

    A layer has experts where ``decoder_sparse_step`` divides its number counted from 1, unless
    ``mlp_only_layers`` names it.

    Args:
        fields: of a family with experts.
        layers: of the model.

    Raises:
        ConfigError: a field is missing, of the wrong kind or out of range.
    """
    experts = fields.required(
        "num_experts", lambda value, where: integer(value, where, low=0, high=_MOST_EXPERTS)
    )
    chosen = fields.required("num_experts_per_tok", integer)
    width = fields.required(
        "moe_intermediate_size", lambda value, where: integer(value, where, high=_WIDEST)
    )
    normalised = fields.required("norm_topk_prob", flag)
    step = fields.required("decoder_sparse_step", integer)
    dense = fields.required("mlp_only_layers", _layer_ids)
    if not experts:
        return None
    if chosen > experts:
        refuse(
            fields.where("num_experts_per_tok"),
            f"{chosen} of num_experts={experts}; a token goes to each expert once at most",
        )
    sparse = tuple((at + 1) % step == 0 and at not in dense for at in range(layers))
    return MoEConfig(experts, chosen, width, normalised, sparse)


def _layer_ids(value: object, where: Where) -> tuple[int, ...]:
    """Layer numbers; one that no layer has, as -1, names none, as in the reference."""
    if not isinstance(value, list | tuple):
        refuse(where, f"{show(value)} is not a list of layer numbers")
    items = enumerate(value)
    return tuple(
        integer(each, Where(f"{where.field}[{at}]", where.file), low=-(2**30)) for at, each in items
    )
