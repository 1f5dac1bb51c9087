"""One ``Requires-Dist`` line: what it names, in which range, and when it counts.

``packaging`` has the whole grammar, and reads every line that this module does not. The common
spelling, a name, extras, plain releases and at most one ``extra ==`` marker, is judged here: the
import of that library costs a third of what finding a model may take.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ..naming import normalised

UNPARSABLE = (ValueError, RecursionError)
"""What hostile metadata makes ``packaging`` raise; deep nesting exhausts its parser."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_RELEASE = r"\d+(?:\.\d+)*"
_CLAUSE = rf"(?:[<>]=?|[=!]=)\s*{_RELEASE}"
_COMMON = re.compile(
    rf"\s*({_NAME})\s*(?:\[\s*({_NAME}(?:\s*,\s*{_NAME})*)\s*\])?"
    rf"\s*({_CLAUSE}(?:\s*,\s*{_CLAUSE})*)?"
    rf"\s*(?:;\s*extra\s*==\s*(?:'({_NAME})'|\"({_NAME})\"))?\s*",
    re.ASCII,
)
_PLAIN = re.compile(_RELEASE, re.ASCII)
_PLAIN_CLAUSE = re.compile(rf"([<>=!]=?)({_RELEASE})", re.ASCII)
_HOLDS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Need(NamedTuple):
    """A requirement.

    Args:
        name: the distribution, as the line spells it.
        extras: extras of that distribution, as the line spells them, sorted.
        versions: the range as pip takes it, clauses sorted; empty for any version.
        url: where it must come from; empty for an index.
        extra: normalised extra of the owner that it belongs to, where that is the whole marker.
        marker: any other marker, as ``packaging`` writes it; empty without one.
    """

    name: str
    extras: tuple[str, ...] = ()
    versions: str = ""
    url: str = ""
    extra: str = ""
    marker: str = ""

    @property
    def spelled(self) -> str:
        """The requirement as pip takes it on the command line."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{f' @ {self.url}' if self.url else self.versions}"

    def applies(self, extra: str) -> bool:
        """Whether it is mandatory (extra is empty), or is what this extra adds.

        Args:
            extra: normalised.
        """
        if not self.marker:
            return self.extra == extra
        always = _holds(self.marker, "")
        return always if not extra else not always and _holds(self.marker, extra)

    def allows(self, version: str) -> bool:
        """Whether a version lies in the range; development and pre-releases count as installed.

        Args:
            version: as metadata spells it; one that is no version lies in no range.
        """
        return not self.versions or _contains(self.versions, version)


@lru_cache(maxsize=4096)
def parse_need(line: str) -> Need:
    """Read one line.

    Args:
        line: what follows ``Requires-Dist:``.

    Raises:
        ValueError, RecursionError: it cannot be read; see ``UNPARSABLE``.
    """
    match = _COMMON.fullmatch(line)
    if match is None:
        return _parse_any(line)
    name, extras, versions, single, double = match.groups()
    clauses = {"".join(clause.split()) for clause in (versions or "").split(",")}
    return Need(
        name,
        tuple(sorted({extra.strip() for extra in (extras or "").split(",")} - {""})),
        ",".join(sorted(clauses)),
        extra=normalised(single or double or ""),
    )


def _parse_any(line: str) -> Need:
    from packaging.requirements import Requirement

    read = Requirement(line)
    marker = "" if read.marker is None else str(read.marker)
    extras = tuple(sorted(read.extras))
    return Need(read.name, extras, str(read.specifier), read.url or "", marker=marker)


@lru_cache(maxsize=4096)
def _holds(marker: str, extra: str) -> bool:
    """Whether a marker holds here when one extra, or none, is asked for."""
    from packaging.markers import Marker

    return Marker(marker).evaluate({"extra": extra})


@lru_cache(maxsize=4096)
def _contains(versions: str, version: str) -> bool:
    clauses = [_PLAIN_CLAUSE.fullmatch(clause) for clause in versions.split(",")]
    if all(clauses) and _PLAIN.fullmatch(version):
        ours = _release(version)
        return all(_HOLDS[clause[1]](ours, _release(clause[2])) for clause in clauses if clause)
    return _contains_any(versions, version)


@lru_cache(maxsize=4096)
def _release(version: str) -> tuple[int, ...]:
    """Numbers of a version that is nothing but a release; 1.0 and 1 are one version."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _contains_any(versions: str, version: str) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
