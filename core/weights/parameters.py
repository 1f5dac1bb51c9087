"""ParameterTable: a model's parameters as the loader sees them; names, specs, shared storage."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

from torch import nn

from ..parallel import Elsewhere, ShardedParameter, ShardSpec, plain_spec


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
        self._holders: dict[str, tuple[nn.Module, str]] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.alias: dict[str, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            known = first.setdefault(id(parameter), name)
            if known == name:
                self.parameters[name] = parameter
            else:
                self.alias[name] = known
        self._specs = {name: _spec(parameter) for name, parameter in self.parameters.items()}
        self._elsewhere = {
            name for name, module in model.named_modules() if isinstance(module, Elsewhere)
        }
        for module in model.modules():
            self._own[module] = {
                attribute: first[id(parameter)]
                for attribute, parameter in module._parameters.items()
                if parameter is not None
            }
            for attribute, name in self._own[module].items():
                self._holders.setdefault(name, (module, attribute))

    def __contains__(self, name: str) -> bool:
        """Whether a parameter has this as its first name."""
        return name in self.parameters

    def __iter__(self) -> Iterator[str]:
        """First names, in module order."""
        return iter(self.parameters)

    def names_of(self, module: nn.Module) -> tuple[str, ...]:
        """First names of the parameters a module holds itself."""
        return tuple(dict.fromkeys(self._own[module].values()))

    def owners(self, names: Collection[str]) -> tuple[nn.Module, ...]:
        """Modules that hold one of these parameters themselves, in module order."""
        return tuple(
            module
            for module, own in self._own.items()
            if any(name in names for name in own.values())
        )

    def holder(self, name: str) -> tuple[nn.Module, str]:
        """The first module that holds a parameter itself, and under which attribute."""
        return self._holders[name]

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

    def elsewhere(self, name: str) -> bool:
        """Whether a name lies under a module that another pipeline stage holds."""
        ends = (at for at, char in enumerate(name) if char == ".")
        return any(name[:end] in self._elsewhere for end in ends)

    def multiplies(self, owner: str) -> bool:
        """Whether a module holds a matrix itself, so that a bias of it would be added."""
        names = (self.first_name(f"{owner}.{child}") for child in self._children.get(owner, ()))
        return any(name in self and self.parameters[name].dim() > 1 for name in names)

    def explain_absence(self, name: str) -> str:
        """How far a name that is no parameter leads into the model, and where it ends."""
        owner, part = self._departure(name)
        if not part:
            return f"{name} is a module, not a parameter"
        where, numbers = owner or "the model", self._numbers(owner)
        if part.isdecimal() and numbers:
            return f"{where} has {numbers[0]} to {numbers[-1]}, no {part}"
        return f"{where} has no {part!r}"

    def beyond(self, name: str) -> bool:
        """Whether a name that is no parameter leaves the model at a number: a layer too many."""
        owner, part = self._departure(name)
        return part.isdecimal() and bool(self._numbers(owner))

    def _departure(self, name: str) -> tuple[str, str]:
        """The last prefix of a name that is in the model, and the component that is not."""
        owner = ""
        for part in name.split("."):
            if part not in self._children.get(owner, set()):
                return owner, part
            owner = f"{owner}.{part}" if owner else part
        return owner, ""

    def _numbers(self, owner: str) -> list[int]:
        """Numbered children of a prefix."""
        return sorted(int(child) for child in self._children.get(owner, ()) if child.isdecimal())

    @cached_property
    def _children(self) -> dict[str, set[str]]:
        """Names below each dotted prefix."""
        children: dict[str, set[str]] = {}
        for name in (*self.parameters, *self.alias, *self._elsewhere):
            while name:
                owner, _, part = name.rpartition(".")
                children.setdefault(owner, set()).add(part)
                name = owner
        return children


def _spec(parameter: nn.Parameter) -> ShardSpec:
    if isinstance(parameter, ShardedParameter):
        return parameter.shard_spec
    return plain_spec(tuple(parameter.shape))


def self_loading(model: nn.Module) -> dict[str, nn.Module]:
    """Outermost submodules that load themselves, by prefix."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{prefix}.") for prefix in found)
        if name and not inside and callable(getattr(module, "load_weights", None)):
            found[name] = module
    return found
