"""The screen of ``why``: what was asked, who could serve, what decided, the verdict last."""

from __future__ import annotations

from collections.abc import Iterator

from ..registry import Catalog, Provider, Verdict
from ..settings import variables_in_force
from . import layout
from .records import place_of
from .why import Answer, conclusion


def as_text(found: Answer, columns: int) -> str:
    """The whole decision.

    Args:
        found: the answer.
        columns: width of the page.
    """
    blocks = [
        list(layout.fields(_asked(found), columns)),
        list(_candidates(found, columns)),
        list(layout.fields(_surroundings(found), columns)),
        list(_problems(found, columns)),
        layout.wrapped(conclusion(found), columns),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _asked(found: Answer) -> Iterator[tuple[str, str]]:
    question, decision = found.question, found.decision
    yield "asked", question.asked
    if question.file and question.file != question.asked:
        yield "file", question.file
    yield "general.architecture" if question.gguf else "model_type", question.model_type
    if question.file:
        yield "architectures", ", ".join(question.names) or "none stated"
    if len(question.names) > 1 and decision.name:
        yield "decides", f"{decision.name}, the first that anyone claims; {_passed_over(found)}"


def _passed_over(found: Answer) -> str:
    names = found.question.names
    at = names.index(found.decision.name)
    unclaimed, ignored = ", ".join(names[:at]), ", ".join(names[at + 1 :])
    parts = [f"nobody claims {unclaimed}"] if unclaimed else []
    parts += [f"not looked at: {ignored}"] if ignored else []
    return "; ".join(parts)


def _candidates(found: Answer, columns: int) -> Iterator[str]:
    candidates = found.decision.candidates
    if not candidates:
        return
    yield f"candidates for {layout.printable(found.decision.name)}"
    for each in candidates:
        yield from _candidate(each, found.catalog, columns)


def _candidate(provider: Provider, catalog: Catalog, columns: int) -> Iterator[str]:
    yield f"  {layout.printable(provider.label)}: {provider.state}"
    for reason in provider.reasons:
        yield from layout.reason_lines(reason, columns, 4, code=True)
    pairs = (("target", provider.target), ("place", place_of(provider, catalog)))
    yield from layout.fields(pairs, columns, 4)


def _surroundings(found: Answer) -> Iterator[tuple[str, str]]:
    """What else took part: settings, near names, what runs only at run time."""
    catalog, decision = found.catalog, found.decision
    yield "choice", decision.choice
    values = (f"{name}={value}" for name, value in variables_in_force().items())
    yield "variables", "\n".join(values)
    yield "near names", ", ".join(decision.near)
    yield "known plugin", found.tombstone
    yield (
        "external",
        "\n".join(
            f"{package.name} claims {', '.join(e.name for e in package.entries) or 'nothing'}"
            for package in catalog.external_packages()
        ),
    )
    asked = [f"hooks of {each.label} ({each.path})" for each in found.hook_plugins]
    asked += [f"module {name}" for name in found.undecided]
    yield "at run time", "\n".join(f"{each} would be asked" for each in asked)


def _problems(found: Answer, columns: int) -> Iterator[str]:
    """Faults that may have hidden a claim, or that the user did not mean."""
    if found.strict_faults:
        yield "strict mode refuses"
        yield from layout.wrapped("\n".join(found.strict_faults), columns, 2, 2)
    source = found.catalog
    decided = found.decision.verdict is not Verdict.UNKNOWN
    hidden = source.external_problems() if decided else source.plugin_problems()
    problems = (*hidden, *source.setting_problems())
    if problems:
        yield "problems beside it" if decided else "problems that may hide a claim"
    for each in problems:
        yield from layout.problem_lines(each, columns)
