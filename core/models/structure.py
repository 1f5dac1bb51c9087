"""What was built, held against the module tree: only what is in the tree is loaded and runs.

A boundary keeps the norms it reads through, the decoder turns rows once for all layers, and an
attention finds its cache by a number: each of them goes on working, on something else, when a module
is replaced or numbered after the fact. These checks need no weights; a ``meta`` model has them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import nn

from ..boundary import StageBoundary
from ..errors import BoundaryError, ShapeError
from ..layers import QKVParallelLinear, RadixAttention, RotaryEmbedding
from ..parallel import Elsewhere

if TYPE_CHECKING:
    from .base import DecoderBase
    from .decoder import DecoderModel


def check_structure(module: DecoderBase) -> None:
    """Refuse a model that would run on other modules than those it loads.

    Raises:
        ShapeError: a layer or an attention that is not where its number says, two attentions of one
            number, or one whose heads are not those of the linear beside it.
        BoundaryError: a boundary, norm or rotation that is not the one in the module tree, a module
            that is kept outside of it, or one whose prefix is not its path.
    """
    where = f"{module.prefix}." if module.prefix else ""
    paths: dict[nn.Module, list[str]] = {}
    for name, each in module.named_modules(remove_duplicate=False):
        paths.setdefault(each, []).append(f"{where}{name}")
    _check_layers(module.model, f"{where}model.layers")
    parameters = {id(each) for each in module.parameters()}
    for each, names in paths.items():
        _check_kept(each, names[0], parameters, paths)
        _check_prefix(each, names)
        _check_heads(each, names[0])
    _check_numbers(module, paths)
    _check_boundaries(module.model, paths)


def _check_layers(model: DecoderModel, where: str) -> None:
    """Layer n is the n-th of all, and so is everything in it that says so."""
    count, here = model.stage.num_layers, model.stage.layers
    if len(model.layers) != count:
        raise ShapeError(
            f"{where}: {len(model.layers)} layers of a model of {count}; keep an entry for every "
            "layer, an Elsewhere for those of other pipeline stages"
        )
    for at, layer in enumerate(model.layers):
        if isinstance(layer, Elsewhere) != (at not in here):
            raise ShapeError(
                f"{where}.{at}: is a {type(layer).__name__}, this pipeline stage holds layers "
                f"{here.start} to {here.stop - 1}; number layers by their place in the whole model"
            )
        said = getattr(layer, "layer_id", at)
        if said != at:
            raise ShapeError(
                f"{where}.{at}: its layer_id is {said}; pass the number of the layer in the whole "
                "model, never its place in a pipeline stage"
            )
        for name, each in layer.named_modules(remove_duplicate=False):
            if isinstance(each, RadixAttention) and each.spec.layer_id != at:
                raise ShapeError(
                    f"{where}.{at}.{name}: attention of layer {at} says layer_id="
                    f"{each.spec.layer_id}; pass the number of the layer in the whole model, which "
                    "names its KV cache, never its place in a pipeline stage"
                )
        _check_rotation(model, layer, at, f"{where}.{at}")


def _check_rotation(model: DecoderModel, layer: nn.Module, at: int, where: str) -> None:
    """Rows come to a layer turned by the config's rotation, whatever module it has for it."""
    if isinstance(layer, Elsewhere):
        return
    given = model.rope_of(at)
    own = {name: each for name, each in layer.named_modules() if isinstance(each, RotaryEmbedding)}
    if given is None or not own or any(each.config == given.config for each in own.values()):
        return
    name, rope = next(iter(own.items()))
    raise BoundaryError(
        f"{where}.{name}: rotates by {rope.config}, and the rows that the layer is given are turned "
        f"by {given.config}, as the config says; state the rotation in the config's rope block, or "
        "per layer by the adapter"
    )


def _check_numbers(module: DecoderBase, paths: Mapping[nn.Module, list[str]]) -> None:
    seen: dict[int, str] = {}
    for each in module.attention_layers():
        path = paths[each][0]
        other = seen.setdefault(each.spec.layer_id, path)
        if other != path:
            raise ShapeError(
                f"{path} and {other} both say layer_id={each.spec.layer_id} and would share a KV "
                "cache; give every attention layer a number of its own"
            )


def _check_boundaries(model: DecoderModel, paths: Mapping[nn.Module, list[str]]) -> None:
    """What the plan's boundaries read through and were proven on is in the tree, and they are used."""
    known = model.stack.boundaries
    for boundary in known:
        for role, each in boundary.modules():
            if each not in paths:
                raise BoundaryError(
                    f"{boundary.where}: the {role} of its boundary, {type(each).__name__} "
                    f"{getattr(each, 'prefix', '')!r}, is not in the module tree, so it was replaced "
                    "after the boundary was made and its weights are never loaded; replace it "
                    "before (in make_boundaries, or as the class attribute that builds it)"
                )
    for layer in model.layers:
        for name, value in vars(layer).items():
            for used in _within(value):
                if isinstance(used, StageBoundary) and used not in known:
                    raise BoundaryError(
                        f"{used.where}: the boundary in {name} is not the one that the stack was "
                        "given; make_boundaries must return the boundaries that forward crosses"
                    )


def _check_kept(
    module: nn.Module, path: str, parameters: set[int], paths: Mapping[nn.Module, list[str]]
) -> None:
    """Modules in plain lists and dictionaries are found by no loader and no backend."""
    for name, value in vars(module).items():
        if isinstance(value, nn.Module):
            continue
        for each in _within(value):
            kept = each.parameters() if isinstance(each, nn.Module) else [each]
            unread = any(isinstance(p, nn.Parameter) and id(p) not in parameters for p in kept)
            if unread or (isinstance(each, RadixAttention) and each not in paths):
                raise BoundaryError(
                    f"{path or 'the model'}.{name}: keeps a {type(each).__name__} outside the module "
                    "tree, where its weights are never loaded; use nn.ModuleList, nn.ModuleDict or nn.ParameterList"
                )


def _check_prefix(module: nn.Module, names: list[str]) -> None:
    """A prefix decides by which method a module is quantized; it must be the path."""
    if isinstance(module, RadixAttention):
        prefix = module.spec.prefix
    elif hasattr(module, "quant_method"):
        prefix = str(getattr(module, "prefix", ""))
    else:
        return
    if prefix and prefix not in names:
        raise BoundaryError(
            f"{names[0]}: was built with prefix={prefix!r}; pass the module's own path, by which "
            "quantization and messages know it"
        )


def _check_heads(module: nn.Module, path: str) -> None:
    """One attention beside one QKV linear has its KV heads, and query heads that divide its."""
    children = list(module.children())
    linears = [each for each in children if isinstance(each, QKVParallelLinear)]
    attentions = [each for each in children if isinstance(each, RadixAttention)]
    if len(linears) != 1 or len(attentions) != 1:
        return
    heads, spec = linears[0].heads, attentions[0].spec
    if spec.num_kv_heads != heads.num_kv_heads or heads.num_heads % spec.num_heads:
        raise ShapeError(
            f"{path}: its attention has {spec.num_heads} query and {spec.num_kv_heads} KV heads, "
            f"its linear gives {heads.num_heads} and {heads.num_kv_heads} on this rank; use "
            "RadixAttention.of(qkv_proj.heads, …)"
        )


def _within(value: object, depth: int = 3) -> Iterator[object]:
    """A value, and what is in it if it is a plain container."""
    yield value
    if depth and isinstance(value, Mapping):
        for each in value.values():
            yield from _within(each, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _within(each, depth - 1)
