"""WeightReport: where every checkpoint tensor went and what every parameter got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import CoverageError

_SHOWN = 12
"""Names printed of each kind before the rest is counted."""

FAULT_KINDS: Mapping[str, tuple[str, str]] = {
    "missing": (
        "parameters without a tensor",
        "the checkpoint is incomplete, or the config asks for more than it holds",
    ),
    "partial": (
        "parameters filled in part",
        "every part of a stacked parameter must be in the checkpoint",
    ),
    "unexpected": (
        "tensors without a parameter",
        "the config describes another model, or a name rule is missing; leave tensors out on "
        "purpose with a Skip rule or skip_prefixes",
    ),
    "duplicate": (
        "parameter elements with two tensors",
        "two names lead to one place; remove one tensor or correct the name rules",
    ),
    "shape": ("tensors of another shape", "config and checkpoint disagree; compare their sizes"),
    "dtype": (
        "tensors of another kind of number",
        "name the checkpoint's quantization in its config, or convert the checkpoint",
    ),
    "tie": (
        "tied tensors that differ",
        "set tie_word_embeddings to false to use the stored copy, or remove it from the checkpoint",
    ),
    "value": (
        "tensors with values that no model has",
        "fetch the file again, or ask whoever saved it; a NaN that was trained cannot be served",
    ),
    "unread": (
        "tensors of which no rank takes some elements",
        "correct the layer's partition, or the split into pipeline stages",
    ),
}
"""Fault kinds with their headline and what to do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Args:
        name: the checkpoint tensor, or for missing and partial the parameter.
        text: the whole line, names and values included.
        status: what is wrong in a word or two, finer than the kind: ``transposed``, ``truncated``,
            ``extra layer``; the kind where there is nothing finer to say.
    """

    name: str
    text: str
    status: str = ""

    def __str__(self) -> str:
        """The line."""
        return self.text


@dataclass(frozen=True)
class WeightReport:
    """The outcome of one load, on one rank. Plain data; pickles.

    Args:
        source: what was read.
        loaded: checkpoint tensors that were written (this rank's slices of them).
        tied: parameter or checkpoint tensor -> the parameter whose elements it shares.
        derived: optional parameters the checkpoint leaves out; they keep their initial value.
        skipped: rule -> checkpoint tensors it left out.
        converted: "from -> to" dtype -> number of tensors.
        missing, partial, unexpected, duplicate, shape, dtype, tie, value, unread: the faults. Only
            a preflight, which sees all ranks, finds unread ones.
        notes: what the source left aside and why.
        parameter_names: parameters written, exactly as the model names them.
        bytes_read: checkpoint bytes copied on this rank.
        seconds: wall time.
        elsewhere: checkpoint tensors of other pipeline stages; nothing of them is read here.
        skip_reasons: rule -> why it leaves tensors out.
        zeros: checkpoint matrices all of whose values are zero; meant, or saved too early.
    """

    source: str
    loaded: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    converted: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[Fault, ...] = ()
    partial: tuple[Fault, ...] = ()
    unexpected: tuple[Fault, ...] = ()
    duplicate: tuple[Fault, ...] = ()
    shape: tuple[Fault, ...] = ()
    dtype: tuple[Fault, ...] = ()
    tie: tuple[Fault, ...] = ()
    value: tuple[Fault, ...] = ()
    unread: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    parameter_names: tuple[str, ...] = ()
    bytes_read: int = 0
    seconds: float = 0.0
    elsewhere: tuple[str, ...] = ()
    skip_reasons: Mapping[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No fault of any kind."""
        return not self.faults()

    def faults(self) -> dict[str, tuple[Fault, ...]]:
        """Faults by kind, without empty kinds."""
        found = {kind: getattr(self, kind) for kind in FAULT_KINDS}
        return {kind: faults for kind, faults in found.items() if faults}

    def explain_skips(self) -> str:
        """Every tensor that was left out, under the rule that did it and why."""
        return explained_skips(self.skipped, self.skip_reasons)

    @property
    def warning(self) -> str:
        """What is legal and may be a mistake; empty where nothing is."""
        if not self.zeros:
            return ""
        return (
            f"{self.source}: all values are zero in {_some(self.zeros)}; right for layers that add "
            "nothing yet and for routers of upcycled experts, wrong if the file was saved before "
            "it was filled"
        )

    def raise_for_faults(self) -> None:
        """Nothing when the load is whole.

        Raises:
            CoverageError: there are faults; it carries this report.
        """
        if not self.ok:
            raise CoverageError(self)

    def __str__(self) -> str:
        """A report to read: counts, what was left out, then each fault with its remedy."""
        return "\n".join([self._headline(), *self._counts(), *fault_lines(self.faults())])

    def _headline(self) -> str:
        faults = self.faults()
        if faults:
            return refusal(self.source, faults)
        return (
            f"{self.source}: {len(self.loaded)} tensors fill {len(self.parameter_names)} parameters "
            f"({self.bytes_read / 1e6:.1f} MB in {self.seconds:.2f} s)"
        )

    def _counts(self) -> list[str]:
        lines: list[str] = []
        if self.tied:
            pairs = [f"{name} = {other}" for name, other in self.tied.items()]
            lines.append(f"  tied: {_some(pairs)}")
        if self.derived:
            lines.append(f"  optional, not in the checkpoint: {_some(self.derived)}")
        for rule, names in self.skipped.items():
            lines.append(f"  skipped by {rule}: {len(names)} ({_some(names, 2)})")
        if self.elsewhere:
            lines.append(f"  on other pipeline stages: {len(self.elsewhere)}")
        for change, count in self.converted.items():
            lines.append(f"  converted {change}: {count}")
        if self.zeros:
            lines.append(f"  warning: {self.warning}")
        return lines + [f"  note: {note}" for note in self.notes]


def explained_skips(skipped: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> str:
    """Every tensor that was left out, under the rule that did it and why."""
    lines: list[str] = []
    for rule, names in skipped.items():
        lines.append(f"{rule} ({reasons[rule]}): {len(names)}")
        lines += [f"  {name}" for name in names]
    return "\n".join(lines) or "nothing was left out"


def refusal(source: str, faults: Mapping[str, Sequence[Fault]]) -> str:
    """One line: what was read does not fill the model, with counts."""
    counts = ", ".join(f"{len(found)} {FAULT_KINDS[kind][0]}" for kind, found in faults.items())
    return f"{source} does not fill the model: {counts}"


def fault_lines(faults: Mapping[str, Sequence[Fault]]) -> list[str]:
    """Each kind with its remedy, and under it the first faults of it."""
    lines: list[str] = []
    for kind, found in faults.items():
        headline, remedy = FAULT_KINDS[kind]
        lines.append(f"{kind}: {len(found)} {headline}; {remedy}")
        lines += [f"  {fault.text}" for fault in found[:_SHOWN]]
        if found[_SHOWN:]:
            lines.append(f"  ... and {len(found) - _SHOWN} more")
    return lines


def _some(names: list[str] | tuple[str, ...], shown: int = 4) -> str:
    """The first few names and a count of the rest."""
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
