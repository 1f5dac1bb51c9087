"""Provider: one distribution's claim on one architecture, and why it serves or does not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Stable codes of the reasons; programs compare these, never the text."""

    NOT_SELECTED = "plugin-not-selected"
    DISABLED = "architecture-disabled"
    REQUIREMENT_MISSING = "requirement-missing"
    REQUIREMENT_VERSION = "requirement-version"
    CORE_VERSION = "core-version"
    EXTRA_UNDECLARED = "extra-undeclared"
    ENTRY_POINT_INVALID = "entry-point-invalid"
    METADATA_INVALID = "metadata-invalid"
    SETTING_UNMATCHED = "setting-unmatched"


@dataclass(frozen=True)
class Reason:
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


class ProviderState(StrEnum):
    """Whether a provider can serve, judged from metadata alone."""

    READY = "ready"
    SKIPPED = "skipped"  # a requirement is not met
    BROKEN = "broken"  # its metadata cannot be trusted
    DISABLED = "disabled"  # the architecture is switched off
    EXCLUDED = "excluded"  # the distribution is not among those to use


_STATE_OF_CODE = {
    ReasonCode.NOT_SELECTED: ProviderState.EXCLUDED,
    ReasonCode.DISABLED: ProviderState.DISABLED,
    ReasonCode.EXTRA_UNDECLARED: ProviderState.BROKEN,
    ReasonCode.ENTRY_POINT_INVALID: ProviderState.BROKEN,
    ReasonCode.METADATA_INVALID: ProviderState.BROKEN,
}


@dataclass(frozen=True)
class Provider:
    """One distribution's claim on one architecture.

    Args:
        architecture: name as in config.json.
        module: module to import; empty when the entry point cannot be read.
        attr: dotted name of the class inside it; empty likewise.
        extras: extras of the distribution that the entry point needs, normalised.
        distribution: what pip installed.
        version: its version; empty when its metadata does not say.
        reasons: why it cannot serve; none when it can.
    """

    architecture: str
    module: str
    attr: str
    extras: tuple[str, ...]
    distribution: str
    version: str
    reasons: tuple[Reason, ...] = ()

    @property
    def state(self) -> ProviderState:
        """What the reasons amount to."""
        states = {_STATE_OF_CODE.get(reason.code, ProviderState.SKIPPED) for reason in self.reasons}
        # An explicit choice of the user outranks a defect, a defect outranks an unmet requirement.
        for state in (ProviderState.EXCLUDED, ProviderState.DISABLED, ProviderState.BROKEN):
            if state in states:
                return state
        return ProviderState.SKIPPED if states else ProviderState.READY

    @property
    def label(self) -> str:
        """Distribution and version, as messages name them."""
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def target(self) -> str:
        """``module:Class``, with the extras it needs; empty when it cannot be read."""
        if not self.module:
            return ""
        extras = f" [{','.join(self.extras)}]" if self.extras else ""
        return f"{self.module}:{self.attr}{extras}"

    @property
    def reason(self) -> str:
        """Every reason on one line; empty for a provider that is ready."""
        return "; ".join(map(str, self.reasons))

    def __str__(self) -> str:
        """Architecture, distribution, state, reasons."""
        text = f"{self.architecture} of {self.label} is {self.state}"
        return f"{text}: {self.reason}" if self.reasons else text
