"""ParameterTable: a model's parameters as the loader sees them; names, specs, shared storage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from torch import nn

from ..parallel import ShardedParameter, ShardSpec, plain_spec


class ParameterTable:
    """Every parameter by dotted name, with how a checkpoint fills it.

    Args:
        model: whose parameters.

    Attributes:
        parameters: each parameter object once, under the first name it has.
        alias: every further name of a shared parameter -> its first name.
    """

    def __init__(self, model: nn.Module) -> None:
        """Read the model's parameters as they are now."""
        first: dict[int, str] = {}
        self._own: dict[nn.Module, dict[str, str]] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.alias: dict[str, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            known = first.setdefault(id(parameter), name)
            if known == name:
                self.parameters[name] = parameter
            else:
                self.alias[name] = known
        self._specs = {name: _spec(parameter) for name, parameter in self.parameters.items()}
        for module in model.modules():
            own = module.named_parameters(recurse=False)
            self._own[module] = {attribute: first[id(parameter)] for attribute, parameter in own}

    def __contains__(self, name: str) -> bool:
        """Whether a parameter has this as its first name."""
        return name in self.parameters

    def __iter__(self) -> Iterator[str]:
        """First names, in module order."""
        return iter(self.parameters)

    def names_of(self, module: nn.Module) -> tuple[str, ...]:
        """First names of the parameters a module holds itself."""
        return tuple(dict.fromkeys(self._own[module].values()))

    def refresh(self, module: nn.Module) -> None:
        """Take over parameters that a module has put in the place of its own."""
        for attribute, name in self._own[module].items():
            replaced = module._parameters.get(attribute)
            if replaced is not None and name not in self.alias.values():
                self.parameters[name] = replaced

    def first_name(self, name: str) -> str:
        """The first name of the parameter that also has this name; the name itself otherwise."""
        return self.alias.get(name, name)

    def spec(self, name: str) -> ShardSpec:
        """How the parameter is filled; a plain parameter is held whole by every rank."""
        return self._specs[name]

    def relaid(self, name: str) -> bool:
        """Whether the parameter no longer has the shape its spec was made for."""
        return tuple(self.parameters[name].shape) != self._specs[name].shape

    def explain_absence(self, name: str) -> str:
        """How far a name that is no parameter leads into the model, and where it ends."""
        owner = ""
        for part in name.split("."):
            children = self._children.get(owner, set())
            if part not in children:
                where = owner or "the model"
                numbers = sorted(int(child) for child in children if child.isdecimal())
                if part.isdecimal() and numbers:
                    return f"{where} has {numbers[0]} to {numbers[-1]}, no {part}"
                return f"{where} has no {part!r}"
            owner = f"{owner}.{part}" if owner else part
        return f"{name} is a module, not a parameter"

    @cached_property
    def _children(self) -> dict[str, set[str]]:
        """Names below each dotted prefix."""
        children: dict[str, set[str]] = {}
        for name in (*self.parameters, *self.alias):
            while name:
                owner, _, part = name.rpartition(".")
                children.setdefault(owner, set()).add(part)
                name = owner
        return children


def _spec(parameter: nn.Parameter) -> ShardSpec:
    if isinstance(parameter, ShardedParameter):
        return parameter.shard_spec
    return plain_spec(tuple(parameter.shape))
