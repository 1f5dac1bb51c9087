"""StageBoundary: how an attention or FFN stage enters and leaves the residual stream.

A layer's forward shows neither a ``+`` nor a collective::

    hidden_states = self.attn_boundary.prepare(stream)
    self.attn_boundary.finish(stream, self.self_attn(positions, hidden_states, batch))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from ..errors import BoundaryError
from ..parallel import Group
from ..planning.facts import Branch, StageFacts
from .execute import AddNorm, Norm
from .stream import ResidualStream

T = TypeVar("T")


class Place(NamedTuple):
    """Where a boundary is in its stack.

    Args:
        at: index of its stage.
        facts: of its stage, with what is captured there.
    """

    at: int
    facts: StageFacts


class StageBoundary:
    """Entry and exit of one stage; usable once its stack is closed.

    Args:
        facts: what the stage declares.
        compute: its module, or one for each branch by name.
        norm: what it reads through, or one for each branch by name; None where it reads plainly.
        post: norm of its complete output, likewise.
        where: dotted module path of the stage.

    Raises:
        BoundaryError: modules or norms that do not fit the facts, or a linear that would complete
            a sum that the boundary pays (a double sum).
    """

    def __init__(
        self,
        facts: StageFacts,
        compute: nn.Module | Mapping[str, nn.Module],
        *,
        norm: AddNorm | Mapping[str, AddNorm] | None = None,
        post: Norm | Mapping[str, Norm] | None = None,
        where: str,
    ) -> None:
        self.facts, self.where = facts, where
        names = [branch.name for branch in facts.branches]
        reads = names if facts.read in ("norm", "replace") else []
        self._norms = _by_name(norm, reads, "norm", where)
        for each in self._norms.values():
            _refuse_one_argument(each, where)
        posts = _by_name(post, [b.name for b in facts.branches if b.post], "post", where)
        self._posts = [posts.get(name) for name in names]
        computed = names if facts.kind == "layer" else []  # a head is multiplied elsewhere
        self._compute = _by_name(compute, computed, "compute", where)
        for name in computed:
            self._refuse_double_sum(next(b for b in facts.branches if b.name == name))
        self._place: Place | None = None

    def check_groups(self, group: Callable[[str], Group]) -> None:
        """Refuse outputs that are partial over other ranks than the facts say.

        Args:
            group: this rank's group of a name.

        Raises:
            BoundaryError: which linear; its sum would be taken over the wrong ranks, or never.
        """
        for branch in self.facts.branches if self._compute else ():
            declared = group(branch.group)
            for name, module in self._compute[branch.name].named_modules():
                if getattr(module, "reduce_results", True):
                    continue
                found = getattr(module, "group", None)
                if isinstance(found, Group) and found.ranks != declared.ranks:
                    raise BoundaryError(
                        f"{self._path(branch, name)}: its output is partial over {found.name} "
                        f"(ranks {found.ranks}), the stage declares {branch.group} (ranks "
                        f"{declared.ranks}); build it on that group, or declare its own"
                    )

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Modules that it reads through or was proven on, each with its role."""
        held: list[tuple[str, object]] = [
            *(("norm", each) for each in self._norms.values()),
            *(("post-norm", each) for each in self._posts),
            *(("compute", each) for each in self._compute.values()),
        ]
        for role, each in held:
            if isinstance(each, nn.Module):
                yield role, each

    def bind(self, place: Place) -> None:
        """Take its place; done by the stack when it closes, and when captures change."""
        self._place = place

    def prepare(self, stream: ResidualStream) -> Tensor:
        """(T, D) rows for a stage of one branch to compute on.

        Raises:
            BoundaryError: the stack is not closed, or it is not this stage's turn.
        """
        (rows,) = self.prepare_branches(stream)
        return rows

    def prepare_branches(self, stream: ResidualStream) -> tuple[Tensor, ...]:
        """(T, D) rows for each branch, in the order of the facts.

        Raises:
            BoundaryError: as ``prepare``.
        """
        place = self._bound()
        rows = stream.enter(place.at, place.facts, self._norms, self.where)
        return tuple(rows.values())

    def finish(self, stream: ResidualStream, *outputs: Tensor) -> None:
        """Record what each branch gave, (T, D), partial over its group.

        Raises:
            BoundaryError: without ``prepare``, or another number of outputs than branches.
        """
        stream.leave(self._bound().at, outputs, self._posts, self.where)

    def read(self, stream: ResidualStream) -> Tensor:
        """(S, D) rows of the head, which ends the stream.

        Raises:
            BoundaryError: the stack is not closed, or a stage has not run.
        """
        place = self._bound()
        return stream.read(place.at, place.facts, self._norms, self.where)

    def _refuse_double_sum(self, branch: Branch) -> None:
        for name, module in self._compute[branch.name].named_modules():
            if branch.group != "none" and getattr(module, "reduce_results", False):
                raise BoundaryError(
                    f"{self._path(branch, name)}: reduce_results=True under a stage boundary would "
                    f"sum its output twice over {branch.group}; build it with reduce_results=False"
                )

    def _path(self, branch: Branch, name: str) -> str:
        """Dotted path of a module under a branch."""
        parts = (self.where, branch.name if len(self.facts.branches) > 1 else "", name)
        return ".".join(filter(None, parts))

    def _bound(self) -> Place:
        if self._place is None:
            raise BoundaryError(
                f"{self.where}: its boundary is used before its stack is closed; build layers "
                "inside `with LayerStack(...) as stack` and append their boundaries there"
            )
        return self._place


def _refuse_one_argument(norm: AddNorm, where: str) -> None:
    """Refuse a norm that cannot take the residual as well."""
    call = norm.forward if isinstance(norm, nn.Module) else norm
    try:
        inspect.signature(call).bind(None, None)
    except TypeError:
        raise BoundaryError(
            f"{where}: its norm is a {type(norm).__name__}, which takes rows alone; a boundary adds "
            "the residual in the norm: use archzoo.layers.RMSNorm (make_norm), or one with "
            "forward(x, residual=None) that gives (normed, x + residual) when there is one"
        ) from None
    except ValueError:  # a builtin that tells nothing of its arguments
        return


def _by_name(
    given: T | Mapping[str, T] | None, names: list[str], what: str, where: str
) -> dict[str, T]:
    """One thing for each name; a single one serves all."""
    found: dict[str, T] = {}
    if isinstance(given, Mapping):
        found = dict(given)
    elif given is not None:
        found = dict.fromkeys(names or ["(any)"], given)
    if set(found) != set(names):
        raise BoundaryError(
            f"{where}: {what} is given for branches {sorted(found)}, the facts want it for "
            f"{sorted(names)}"
        )
    return found
