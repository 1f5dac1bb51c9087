"""Provider: one claim on a name, and why it serves or does not."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from .groups import Group


class ReasonCode(StrEnum):
    """Stable codes of the reasons; programs compare these, never the text."""

    # What the user asked for.
    NOT_SELECTED = "plugin-not-selected"
    NOT_CHOSEN = "provider-not-chosen"
    DISABLED = "architecture-disabled"
    SETTING_UNMATCHED = "setting-unmatched"
    # What metadata tells.
    REQUIREMENT_MISSING = "requirement-missing"
    REQUIREMENT_VERSION = "requirement-version"
    CORE_VERSION = "core-version"
    EXTRA_UNDECLARED = "extra-undeclared"
    ENTRY_POINT_INVALID = "entry-point-invalid"
    NAME_RESERVED = "name-reserved"
    METADATA_INVALID = "metadata-invalid"
    INSTALLED_TWICE = "installed-twice"
    # What the source of an external package tells.
    EXTERNAL_NOT_FOUND = "external-not-found"
    MODULE_UNREADABLE = "module-unreadable"
    # What an import tells.
    DEPENDENCY_MISSING = "dependency-missing"
    MODULE_MISSING = "module-missing"
    MODULE_SHADOWED = "module-shadowed"
    IMPORT_FAILED = "import-failed"
    IMPORT_EXITED = "import-exited"
    NAME_MISSING = "name-missing"
    NOT_A_CLASS = "not-a-class"
    NOTHING_DECLARED = "nothing-declared"
    # What hooks tell.
    HOOK_LOAD_FAILED = "hook-load-failed"
    HOOK_INVALID = "hook-invalid"
    HOOK_VERSION = "hook-version"
    HOOK_RAISED = "hook-raised"


class Reason(NamedTuple):
    """Why something installed cannot be used.

    Args:
        code: stable code.
        problem: what is wrong, with values.
        fix: what to do about it, a pip command where one mends it.
    """

    code: ReasonCode
    problem: str
    fix: str

    def __str__(self) -> str:
        """Problem and fix on one line."""
        return f"{self.problem}; {self.fix}"


class Problem(NamedTuple):
    """Something wrong that belongs to no provider.

    Args:
        source: the distribution, or the environment variable.
        reason: what is wrong with it.
    """

    source: str
    reason: Reason

    def __str__(self) -> str:
        """Source, problem, fix."""
        return f"{self.source}: {self.reason}"


class ProviderState(StrEnum):
    """Whether a provider can serve, judged without importing it."""

    READY = "ready"
    SKIPPED = "skipped"  # a requirement is not met
    BROKEN = "broken"  # its metadata cannot be trusted
    DISABLED = "disabled"  # the architecture is switched off
    EXCLUDED = "excluded"  # the distribution is not among those to use
    OVERRIDDEN = "overridden"  # the user chose another claim on the same name


_STATE_OF_CODE = {
    ReasonCode.NOT_SELECTED: ProviderState.EXCLUDED,
    ReasonCode.DISABLED: ProviderState.DISABLED,
    ReasonCode.NOT_CHOSEN: ProviderState.OVERRIDDEN,
    ReasonCode.EXTRA_UNDECLARED: ProviderState.BROKEN,
    ReasonCode.ENTRY_POINT_INVALID: ProviderState.BROKEN,
    ReasonCode.METADATA_INVALID: ProviderState.BROKEN,
    ReasonCode.NAME_RESERVED: ProviderState.BROKEN,
}
_STRONGEST_FIRST = (
    # An explicit choice of the user outranks a defect, a defect outranks an unmet requirement.
    ProviderState.EXCLUDED,
    ProviderState.DISABLED,
    ProviderState.OVERRIDDEN,
    ProviderState.BROKEN,
    ProviderState.SKIPPED,
)


def spelled(module: str, attr: str) -> str:
    """A target as entry points spell it: ``module:attr``, or the module alone."""
    return ":".join(filter(None, (module, attr)))


class Origin(StrEnum):
    """Where a claim was made."""

    ENTRY_POINT = "entry point"
    EXTERNAL = "external package"
    HOOK = "hook"


class Provider(NamedTuple):
    """One claim on a name: an architecture, an attention backend, a quantization method.

    Args:
        name: what is claimed; an architecture as in config.json.
        module: module to import; empty when the claim cannot be read.
        attr: dotted name of the class inside it; empty likewise.
        extras: extras of the distribution that the claim needs, normalised.
        distribution: what pip installed; for an external package its import name.
        version: its version; empty when nothing says.
        reasons: why it cannot serve; none when it can.
        group: which kind of name.
        origin: where the claim was made.
        variable: the environment variable that names an external package; else empty.
        found: the class, where a hook gave the class itself.
    """

    name: str
    module: str
    attr: str
    extras: tuple[str, ...]
    distribution: str
    version: str
    reasons: tuple[Reason, ...] = ()
    group: Group = Group.MODELS
    origin: Origin = Origin.ENTRY_POINT
    variable: str = ""
    found: type | None = None

    @property
    def state(self) -> ProviderState:
        """What the reasons amount to."""
        states = {_STATE_OF_CODE.get(reason.code, ProviderState.SKIPPED) for reason in self.reasons}
        return next((state for state in _STRONGEST_FIRST if state in states), ProviderState.READY)

    @property
    def label(self) -> str:
        """Distribution and version, as messages name them."""
        text = f"{self.distribution} {self.version}".rstrip()
        if self.origin is Origin.EXTERNAL:
            return f"{text} ({self.variable})"
        return f"{text} (hook)" if self.origin is Origin.HOOK else text

    @property
    def path(self) -> str:
        """``module:Class``, or the module where that itself is meant; empty when unreadable."""
        return spelled(self.module, self.attr)

    @property
    def target(self) -> str:
        """``module:Class``, with the extras it needs; empty when it cannot be read."""
        extras = f" [{','.join(self.extras)}]" if self.module and self.extras else ""
        return f"{self.path}{extras}"

    @property
    def entry(self) -> str:
        """The claim as a line of ``entry_points.txt``."""
        return f"{self.name} = {self.target}"

    @property
    def reason(self) -> str:
        """Every reason on one line; empty for a provider that is ready."""
        return "; ".join(map(str, self.reasons))

    def __str__(self) -> str:
        """Name, distribution, state, reasons."""
        text = f"{self.name} of {self.label} is {self.state}"
        return f"{text}: {self.reason}" if self.reasons else text
