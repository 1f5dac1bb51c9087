"""why: the whole decision about an architecture or a checkpoint. Imports no plugin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import architectures_of, read_config
from ..registry import (
    Catalog,
    Decision,
    Group,
    Problem,
    Provider,
    Verdict,
    decide,
    refusal,
)
from ..settings import variables_in_force
from .plain import (
    as_problem,
    as_provider,
    explained,
    pairs,
    printable,
    problem_lines,
    table,
    wrapped,
)


@dataclass(frozen=True)
class Question:
    """What is asked about.

    Args:
        names: architectures, best first.
        file: the configuration they stand in; empty when a name was given.
        model_type: as that file states it.
    """

    names: tuple[str, ...]
    file: str = ""
    model_type: str = ""


def question(asked: str) -> Question:
    """An architecture's name, or what a checkpoint's configuration says it is.

    Args:
        asked: a name; or a path: whatever exists, or holds a separator.

    Raises:
        ConfigError: a configuration that is not there or cannot be read.
    """
    if not (os.sep in asked or "/" in asked or os.path.exists(asked)):
        return Question((asked,))
    path = Path(asked)
    if path.suffix == ".gguf":
        return _gguf_question(path)
    file = path if path.suffix == ".json" else (path if path.is_dir() else path.parent)
    file = file / "config.json" if file.is_dir() else file
    return _of(read_config(file), str(file))


def as_text(asked: Question, catalog: Catalog) -> str:
    """The decision, step by step; the last line is the verdict."""
    decision = decide(catalog, asked.names)
    lines = pairs(_facts(asked, catalog, decision), indent=0)
    if decision.candidates:
        lines += ["", *_candidates(decision, catalog)]
    lines += problem_lines(_problems(catalog))
    return "\n".join([*lines, "", *_verdict(decision)])


def as_json(asked: Question, catalog: Catalog) -> str:
    """The same as an object."""
    decision = decide(catalog, asked.names)
    content = {
        "asked": list(asked.names),
        "file": asked.file,
        "model_type": asked.model_type,
        "verdict": str(decision.verdict),
        "decided_by": decision.name,
        "provider": None if decision.provider is None else as_provider(decision.provider),
        "candidates": [
            {**as_provider(each), "place": place_of(each, catalog)} for each in decision.candidates
        ],
        "choice": decision.choice,
        "near": list(decision.near),
        "hint": decision.hint,
        "variables": variables_in_force(),
        "asked_at_run_time": list(_run_time(catalog)),
        "problems": [as_problem(problem) for problem in _problems(catalog)],
    }
    return json.dumps(content, indent=2)


def served(asked: Question, catalog: Catalog) -> bool:
    """Whether somebody serves it, judged without running any plugin's code."""
    return decide(catalog, asked.names).verdict is Verdict.SERVED


def place_of(provider: Provider, catalog: Catalog) -> str:
    """Where a provider's metadata lies; the package's name for an external one."""
    plugin = catalog.installed(provider)
    return plugin.place if plugin else provider.label


def _gguf_question(path: Path) -> Question:
    from ..runtime.checkpoint import Checkpoint  # heavy, and only this format needs it

    checkpoint = Checkpoint(path)
    try:
        return _of(checkpoint.raw, str(path))
    finally:
        checkpoint.close()


def _of(raw: Mapping[str, Any], file: str) -> Question:
    model_type = raw.get("model_type")
    return Question(architectures_of(raw, file), file, str(model_type or ""))


def _facts(asked: Question, catalog: Catalog, decision: Decision) -> list[tuple[str, str]]:
    facts = []
    if asked.file:
        facts += [("file", asked.file), ("model_type", asked.model_type or "(none)")]
    facts.append(("architectures" if asked.file else "asked", ", ".join(asked.names) or "(none)"))
    if decision.name and len(asked.names) > 1:
        facts.append(("decided by", f"{decision.name}, the first that anyone claims"))
    facts += [(name, value or "(empty)") for name, value in variables_in_force().items()]
    facts += [("external", _external(package)) for package in catalog.external_packages()]
    if decision.verdict is Verdict.UNKNOWN and _run_time(catalog):
        facts.append(("at run time", f"would be asked: {', '.join(_run_time(catalog))}"))
    return facts


def _external(package: Any) -> str:
    claims = ", ".join(entry.name for entry in package.entries) or "nothing that can be read"
    return f"{package.name} claims {claims}"


def _candidates(decision: Decision, catalog: Catalog) -> list[str]:
    rows = []
    for each in decision.candidates:
        chosen = each is decision.provider and decision.choice
        notes = [f"{each.target or '(target cannot be read)'} in {place_of(each, catalog)}"]
        notes += [decision.choice] if chosen else []
        notes += [explained(reason) for reason in each.reasons]
        rows.append(((each.name, each.label, str(each.state)), notes))
    return table(("CLAIM", "PLUGIN", "STATE"), rows)


def _verdict(decision: Decision) -> list[str]:
    if decision.provider is not None:
        provider = decision.provider
        return wrapped(f"{decision.name} is served by {provider.label} ({provider.target})")
    lines: list[str] = []
    for line in str(refusal(decision)).splitlines():
        indent = len(line) - len(line.lstrip())
        lines += wrapped(line.strip(), indent)
    return [printable(line) for line in lines]


def _run_time(catalog: Catalog) -> tuple[str, ...]:
    """Who could still answer when code runs: undecided external modules, hook plugins."""
    undecided = [name for package in catalog.external_packages() for name in package.undecided]
    hooks = [each.label for each in catalog.providers(Group.PLUGINS) if not each.reasons]
    return (*undecided, *hooks)


def _problems(catalog: Catalog) -> tuple[Problem, ...]:
    return (*catalog.plugin_problems(), *catalog.setting_problems())
