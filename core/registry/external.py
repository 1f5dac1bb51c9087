"""External packages: modules outside any distribution that a variable names.

A module takes part by one of two variables at its top level::

    EntryClass = FooForCausalLM                      # or a list; claims the class's own name
    ARCHITECTURES = {"FooForCausalLM": FooForCausalLM,
                     "BarForCausalLM": ".bar:Bar"}   # claims the keys

They are read from the source of the package and everything below it, so that finding one class
imports no other. Where the source does not tell, the module is *undecided*: its import will.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from .entries import Entry, is_dotted
from .external_claims import claims_in, merged
from .external_imported import declared_by
from .external_names import VARIABLES
from .external_sources import Sources
from .modules import locate
from .provider import Reason, ReasonCode

__all__ = ["ExternalPackage", "declared_by", "read_package"]


class ExternalPackage(NamedTuple):
    """What the source of an external package tells.

    Args:
        name: as the variable spells it; a package, a sub-package or a plain module.
        entries: its claims, one for each architecture.
        undecided: modules that must be imported to learn what they claim. The package itself when
            nothing is declared anywhere, with the modules that have no source.
        faults: what is wrong with it and belongs to no claim.
        digest: SHA-256 over the name and source of each of its modules, in hexadecimal.
    """

    name: str
    entries: tuple[Entry, ...]
    undecided: tuple[str, ...]
    faults: tuple[Reason, ...]
    digest: str


def read_package(name: str, path: Sequence[str]) -> ExternalPackage:
    """What an external package claims, without running any of it.

    A package that is not there is a fault of the result, and so is a module that cannot be read.

    Args:
        name: dotted name of a package or a module.
        path: places to search, as ``sys.path``.
    """
    root = locate(name, path)
    if root is None:
        return ExternalPackage(name, (), (), (_not_found(name),), hashlib.sha256().hexdigest())
    sources = Sources(root)
    claims: list[tuple[str, Entry]] = []
    undecided: dict[str, None] = {}
    declared = [
        (module, variable)
        for module in sources.modules()
        for variable in VARIABLES
        if variable in sources.names(module)
    ]
    for module, variable in declared:
        entries = claims_in(sources, module, variable)
        if entries is None:
            undecided[module] = None
        else:
            claims += [(module, entry) for entry in entries]
    if not declared:
        undecided = dict.fromkeys((root.name, *sources.without_source))
    entries = merged(claims, sources)
    return ExternalPackage(name, entries, tuple(undecided), tuple(sources.faults), sources.digest())


def _not_found(name: str) -> Reason:
    if not is_dotted(name):
        problem = f"{name!r} is not the dotted name of a package or a module"
        return Reason(ReasonCode.EXTERNAL_NOT_FOUND, problem, "write it as an import would")
    problem = f"no package or module {name!r} is found on the import path"
    fix = "install it, put its folder on PYTHONPATH, or correct the name"
    return Reason(ReasonCode.EXTERNAL_NOT_FOUND, problem, fix)
