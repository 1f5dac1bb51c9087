"""Every error archzoo raises, as one tree.

::

    ArchzooError(Exception)
    ├ RegistryError
    │ ├ UnknownArchitectureError(LookupError)    near names, candidates with reasons
    │ ├ DisabledArchitectureError(LookupError)   which setting disabled it
    │ ├ DuplicateArchitectureError(ValueError)   both distributions, the setting that chooses
    │ ├ PluginLoadError(ImportError)             distribution, entry point, cause chained
    │ └ MissingDependency(ImportError)           what an optional feature needs, the pip command
    ├ ConfigError(ValueError)                    field, value, file
    ├ TopologyError(ValueError)                  sizes and groups
    ├ ShapeError(ValueError)                     heads, shards, vocabulary
    ├ BoundaryError(ValueError)                  a stage used against its declaration
    ├ CollectiveError(RuntimeError)              who did not enter which collective, where
    ├ CapacityError(RuntimeError)                slots or memory asked for and there
    ├ InputError(ValueError)                     a prompt or an option of a request
    ├ LogitsError(ArithmeticError)               rows from which no token can be chosen
    ├ WeightError(ValueError)
    │ ├ CheckpointFileError                      file, what is wrong with it
    │ ├ WeightShapeError                         tensor, parameter, both shapes
    │ ├ CoverageError                            carries the report
    │ ├ SpoiltWeightsError                       an update ended half-way
    │ └ UnloadedWeightsError                     nobody filled the module
    ├ QuantizationError(ValueError)
    └ BackendUnavailableError(RuntimeError)      feature, what would serve

A message says what failed with values, what was expected, where, and what to do. Facts that a
program may want are attributes. Every class pickles: constructors pass their own arguments to
``super().__init__`` and build the text in ``__str__``.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArchzooError",
    "BackendUnavailableError",
    "BoundaryError",
    "CapacityError",
    "CheckpointFileError",
    "CollectiveError",
    "ConfigError",
    "CoverageError",
    "DisabledArchitectureError",
    "DuplicateArchitectureError",
    "InputError",
    "LogitsError",
    "MissingDependency",
    "PluginLoadError",
    "QuantizationError",
    "RegistryError",
    "ShapeError",
    "SpoiltWeightsError",
    "TopologyError",
    "UnknownArchitectureError",
    "UnloadedWeightsError",
    "WeightError",
    "WeightShapeError",
]


class ArchzooError(Exception):
    """Base of every error archzoo raises on purpose."""


class RegistryError(ArchzooError):
    """No class can be given for an architecture."""


class UnknownArchitectureError(RegistryError, LookupError):
    """No installed plugin serves any of the architectures asked for.

    Args:
        architectures: names as the checkpoint states them.
        near: installed names that look alike, best first.
        reasons: one line for each candidate that was considered and refused.
        hint: what to do about it.
    """

    def __init__(
        self,
        architectures: tuple[str, ...],
        near: tuple[str, ...] = (),
        reasons: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        super().__init__(architectures, near, reasons, hint)
        self.architectures, self.near, self.reasons, self.hint = architectures, near, reasons, hint

    def __str__(self) -> str:
        """The names asked for, near ones, every refused candidate, the way out."""
        if not self.architectures:
            head = (
                "the checkpoint names no architecture; its config.json must state 'architectures'"
            )
        else:
            head = f"no installed plugin serves {' or '.join(map(repr, self.architectures))}"
        lines = [head]
        if self.near:
            lines.append(f"near names: {', '.join(self.near)}")
        lines += [f"considered: {reason}" for reason in self.reasons]
        if self.hint:
            lines.append(self.hint)
        return "; ".join(lines[:1]) + "".join(f"\n  {line}" for line in lines[1:])


class DisabledArchitectureError(RegistryError, LookupError):
    """The architecture is installed and switched off by a setting."""

    def __init__(self, architecture: str, setting: str) -> None:
        super().__init__(architecture, setting)
        self.architecture, self.setting = architecture, setting

    def __str__(self) -> str:
        """Which name, which setting, how to undo it."""
        return (
            f"architecture {self.architecture!r} is disabled by {self.setting}; "
            "remove it from that list to use it"
        )


class DuplicateArchitectureError(RegistryError, ValueError):
    """Several distributions claim one name and nothing chooses between them.

    Args:
        architecture: the name.
        distributions: who claims it.
        setting: what chooses.
        noun: what kind of name it is.
    """

    def __init__(
        self,
        architecture: str,
        distributions: tuple[str, ...],
        setting: str,
        noun: str = "architecture",
    ) -> None:
        super().__init__(architecture, distributions, setting, noun)
        self.architecture, self.distributions = architecture, distributions
        self.setting, self.noun = setting, noun

    def __str__(self) -> str:
        """Every claimant and the setting that chooses."""
        return (
            f"{self.noun} {self.architecture!r} is claimed by "
            f"{' and '.join(self.distributions)}; {self.setting}"
        )


class PluginLoadError(RegistryError, ImportError):
    """A plugin's module could not be imported, or lacks the class its entry point names.

    The original exception is chained as ``__cause__``.

    Args:
        entry: the line ``name = module:Class``.
        distribution: who wrote it, with its version.
        problem: what went wrong.
        fix: what to do about it.
        code: stable code of the problem, as a registry reason carries.
    """

    def __init__(
        self, entry: str, distribution: str, problem: str, fix: str = "", code: str = ""
    ) -> None:
        super().__init__(entry, distribution, problem, fix, code)
        self.entry, self.distribution, self.problem = entry, distribution, problem
        self.fix, self.code = fix, code

    def __str__(self) -> str:
        """Entry point, distribution, what went wrong, what to do."""
        text = f"entry point '{self.entry}' of {self.distribution} cannot be loaded: {self.problem}"
        return f"{text}; {self.fix}" if self.fix else text


class MissingDependency(RegistryError, ImportError):
    """An optional feature needs a distribution that is not installed.

    Args:
        feature: what was asked for.
        requirement: what is missing, as pip spells it.
        install: the command that mends it.
    """

    def __init__(self, feature: str, requirement: str, install: str) -> None:
        super().__init__(feature, requirement, install)
        self.feature, self.requirement, self.install = feature, requirement, install

    def __str__(self) -> str:
        """Feature, requirement, command."""
        return f"{self.feature} needs {self.requirement!r}, not installed; run: {self.install}"


class ConfigError(ArchzooError, ValueError):
    """A checkpoint's configuration cannot be understood or contradicts itself.

    Args:
        problem: what is wrong, with the value, the expectation and the fix.
        field: dotted name of the field, empty when the file as a whole is meant.
        file: where it stands.
    """

    def __init__(self, problem: str, field: str = "", file: str = "") -> None:
        super().__init__(problem, field, file)
        self.problem, self.field, self.file = problem, field, file

    def __str__(self) -> str:
        """File, field, problem."""
        where = ": ".join(part for part in (self.file, self.field) if part)
        return f"{where}: {self.problem}" if where else self.problem


class TopologyError(ArchzooError, ValueError):
    """Group sizes or ranks that do not fit together."""


class ShapeError(ArchzooError, ValueError):
    """Heads, shards or vocabulary that cannot be laid out as asked."""


class BoundaryError(ArchzooError, ValueError):
    """A stage boundary used against its declaration."""


class CollectiveError(ArchzooError, RuntimeError):
    """Ranks did not meet in a collective."""


class CapacityError(ArchzooError, RuntimeError):
    """More slots or memory asked for than there are."""


class InputError(ArchzooError, ValueError):
    """A prompt or a request option that cannot be served."""


class LogitsError(ArchzooError, ArithmeticError):
    """A row of logits from which nothing can be chosen.

    Args:
        rows: which rows.
        names: what they are called in the message.
    """

    def __init__(self, rows: tuple[int, ...], names: tuple[str, ...]) -> None:
        """Both are kept as attributes."""
        super().__init__(rows, names)
        self.rows, self.names = rows, names

    def __str__(self) -> str:
        """Which requests, likely causes."""
        return (
            f"the logits of {', '.join(self.names)} hold NaN, or have no finite maximum; look for "
            "damaged weights (archzoo verify), or for float16 overflow (load with bfloat16)"
        )


class WeightError(ArchzooError, ValueError):
    """A checkpoint's tensors and the model's parameters do not fit."""


class CheckpointFileError(WeightError):
    """A checkpoint file is absent, broken or refused.

    Args:
        file: the path.
        problem: what is wrong and what to do.
    """

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file, self.problem = file, problem

    def __str__(self) -> str:
        """File and problem."""
        return f"{self.file}: {self.problem}"


class WeightShapeError(WeightError):
    """A checkpoint tensor has another shape than the parameter it feeds.

    Args:
        tensor: checkpoint name.
        found: its shape in the checkpoint.
        parameter: parameter name (and shard) it feeds.
        expected: shape of the whole tensor, all ranks together.
        hint: likely cause or fix.
    """

    def __init__(
        self,
        tensor: str,
        found: tuple[int, ...],
        parameter: str,
        expected: tuple[int, ...],
        hint: str = "",
    ) -> None:
        super().__init__(tensor, found, parameter, expected, hint)
        self.tensor, self.found, self.parameter = tensor, found, parameter
        self.expected, self.hint = expected, hint

    def __str__(self) -> str:
        """Tensor, both shapes, parameter."""
        text = (
            f"{self.tensor} has shape {list(self.found)} in the checkpoint, "
            f"{self.parameter} needs {list(self.expected)}"
        )
        return f"{text}; {self.hint}" if self.hint else text


class CoverageError(WeightError):
    """A load did not write every element of every parameter exactly once.

    Args:
        report: the WeightReport that shows it (picklable).
    """

    def __init__(self, report: Any) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        """The report's faults."""
        return str(self.report)


class SpoiltWeightsError(WeightError):
    """A model whose weights were changed in part serves nothing.

    Args:
        cause: what ended the change.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        """Why, and what makes it serve again."""
        return (
            f"the model holds old and new weights side by side, since writing them ended with "
            f"{self.cause}; it serves again after update_weights(pairs, mode='full') or a new load "
            "(atomic=True keeps the old weights next time)"
        )


class UnloadedWeightsError(WeightError):
    """A module whose weights nobody filled computes nothing."""

    def __str__(self) -> str:
        """Who fills them, and how an engine with a loop of its own says that it did."""
        return (
            "the module was built and its weights were never loaded, so they are whatever its "
            "memory held; fill it with archzoo.load_weights(module, path), or after filling every "
            "parameter in a loop of your own call module.weights_ready()"
        )


class QuantizationError(ArchzooError, ValueError):
    """A quantization method is unknown, or does not fit the model."""


class BackendUnavailableError(ArchzooError, RuntimeError):
    """No backend here serves a feature.

    Args:
        feature: what was asked for.
        where: backend or device that was asked.
        remedy: what would serve it.
    """

    def __init__(self, feature: str, where: str, remedy: str = "") -> None:
        super().__init__(feature, where, remedy)
        self.feature, self.where, self.remedy = feature, where, remedy

    def __str__(self) -> str:
        """Feature, place, remedy."""
        text = f"{self.feature} is not available on {self.where}"
        return f"{text}; {self.remedy}" if self.remedy else text
