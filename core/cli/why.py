"""why: the whole decision on a name or a checkpoint. The same data as ``resolve`` acts on."""

from __future__ import annotations

from typing import NamedTuple

from ..registry import Catalog, Decision, Group, Provider, Reason, Verdict, decide
from ..registry.resolution import strict_verdict, unable
from ..settings import variables_in_force
from .question import Question
from .records import Record, external_record, problem_record, provider_record


class Answer(NamedTuple):
    """A decision and what surrounds it.

    Args:
        question: what was asked.
        catalog: out of what it was decided.
        decision: what was decided.
        group: which kind of name.
        strict_faults: why strict mode refuses to go on whatever is decided; else empty.
    """

    question: Question
    catalog: Catalog
    decision: Decision
    group: Group
    strict_faults: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        """Whether ``resolve`` would import a class for it, as far as metadata tells."""
        return self.decision.provider is not None and not self.strict_faults

    @property
    def _is_open(self) -> bool:
        """Whether nobody claims any of the architectures, so that running code would be asked."""
        return self.group is Group.MODELS and self.decision.verdict is Verdict.UNKNOWN

    @property
    def hook_plugins(self) -> tuple[Provider, ...]:
        """Hook plugins that ``resolve`` would ask, in order; only when nobody claims a name."""
        if not self._is_open:
            return ()
        return tuple(each for each in self.catalog.providers(Group.PLUGINS) if not each.reasons)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Modules of external packages that it would import to learn what they claim."""
        if not self._is_open:
            return ()
        packages = self.catalog.external_packages()
        return tuple(module for package in packages for module in package.undecided)

    @property
    def tombstone(self) -> str:
        """Distribution known to serve the first such name; empty when none is known."""
        if not self._is_open:
            return ""
        homes = map(self.catalog.tombstone, self.question.names)
        return next((home for home in homes if home), "")


def answer(question: Question, catalog: Catalog, group: Group = Group.MODELS) -> Answer:
    """Decide, importing nothing.

    Args:
        question: what was asked.
        catalog: who claims what, under the settings.
        group: which kind of name.
    """
    decision = decide(catalog, question.names, group)
    faults = unable(catalog) if catalog.settings.strict else ()
    return Answer(question, catalog, decision, group, faults)


def conclusion(found: Answer) -> str:
    """The verdict in a sentence: who serves, or why nobody does and what to do."""
    decision = found.decision
    if found.strict_faults:
        return f"Nothing is served: {strict_verdict(found.strict_faults)}"
    if decision.provider is not None:
        served = f"{decision.name} is served by {decision.provider.label}"
        return f"{served} ({decision.provider.target})"
    name = decision.name or " or ".join(decision.names)
    return f"{name} is not served: {_because(found)}" if name else _nameless(found.question)


def as_record(found: Answer) -> Record:
    """Everything, for programs."""
    decision, catalog, question = found.decision, found.catalog, found.question
    provider = decision.provider
    return {
        "asked": {
            "argument": question.asked,
            "names": list(question.names),
            "file": question.file,
            "model_type": question.model_type,
        },
        "group": str(found.group),
        "served": found.served,
        "verdict": str(decision.verdict),
        "name": decision.name,
        "provider": provider_record(provider, catalog) if provider else None,
        "candidates": [provider_record(each, catalog) for each in decision.candidates],
        "choice": decision.choice,
        "setting": decision.setting,
        "near": list(decision.near),
        "tombstone": found.tombstone,
        "hint": decision.hint,
        "strict": list(found.strict_faults),
        "run_time": {
            "hook_plugins": [provider_record(each, catalog) for each in found.hook_plugins],
            "modules": list(found.undecided),
        },
        "external": [external_record(package) for package in catalog.external_packages()],
        "variables": variables_in_force(),
        "problems": [problem_record(each) for each in catalog.problems()],
        "conclusion": conclusion(found),
    }


def _because(found: Answer) -> str:
    """Why a name is not served, and what to do."""
    decision = found.decision
    labels = [candidate.label for candidate in decision.candidates]
    match decision.verdict:
        case Verdict.DISABLED:
            return f"{decision.setting} switches it off; {decision.hint}"
        case Verdict.CONTESTED:
            return f"{' and '.join(labels)} claim it and nothing chooses; {decision.hint}"
        case Verdict.MISCHOSEN:
            return decision.hint
        case Verdict.UNUSABLE:
            reasons = [each.reasons[0] for each in decision.candidates if each.reasons]
            said = "; ".join(map(_briefly, reasons))
            return f"{said}; {decision.hint}" if decision.hint else said
    if found.hook_plugins or found.undecided:
        return f"nobody claims it, as far as can be told without running code; {decision.hint}"
    return f"nobody claims it; {decision.hint}"


def _briefly(reason: Reason) -> str:
    return f"{reason.problem.splitlines()[0]}; {reason.fix}"


def _nameless(question: Question) -> str:
    if question.gguf:
        from ..config.gguf import unread_architecture  # names alone need no config

        return f"Nothing is served: {unread_architecture(question.model_type)}"
    return (
        f"Nothing is served: {question.file} states no architectures; add such as "
        '"architectures": ["LlamaForCausalLM"] to it'
    )
