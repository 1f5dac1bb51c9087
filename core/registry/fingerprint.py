"""What two processes must agree on before they serve one model together."""

from __future__ import annotations

from collections.abc import Sequence

from ..version import __version__
from .groups import Group
from .index import Catalog

_SHOWN = 8  # differing facts that a message lists before it only counts the rest


def facts(source: Catalog) -> tuple[str, ...]:
    """Everything that decides which class serves what, one fact a line, sorted.

    Where things are installed is left out: hosts may keep them in different places.

    Args:
        source: the catalog of one process.
    """
    settings = source.settings
    lines = [f"archzoo {__version__}"]
    lines += [f"disabled {name}" for name in settings.disabled]
    lines += [f"prefer {name or '*'}={chosen}" for name, chosen in settings.prefer]
    lines += [f"external {each.name} {each.digest[:16]}" for each in source.external_packages()]
    for group in Group:
        for provider in source.providers(group):
            codes = ",".join(reason.code for reason in provider.reasons)
            lines.append(
                f"{group} {provider.name} = {provider.target or '?'} of {provider.label} "
                f"is {provider.state}{f' ({codes})' if codes else ''}"
            )
    return tuple(sorted(lines))


def fingerprint(source: Catalog) -> str:
    """Hexadecimal digest of the facts, equal in processes that resolve alike.

    Args:
        source: the catalog of one process.
    """
    from hashlib import sha256  # only jobs of several ranks need it

    return sha256("\n".join(facts(source)).encode()).hexdigest()


def differences(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """What differs between the facts of two processes, for a message.

    Args:
        ours: facts of the process that others are compared with.
        theirs: facts of another.
    """
    lines = [f"missing there: {fact}" for fact in ours if fact not in set(theirs)]
    lines += [f"only there: {fact}" for fact in theirs if fact not in set(ours)]
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "; ".join(lines[:_SHOWN] + more)
