"""LoadPlan: where every checkpoint tensor goes, from names, shapes and shard specs alone.

Nothing is read and nothing is written here: a plan works on a ``meta`` model and on headers, and
every fault that names, shapes and dtypes can show is in it before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import ClassVar

from ..errors import ShapeError, WeightError
from ..parallel import Piece, Segment, ShardId, box_numel
from .conversion import conversion, dtype_problem
from .findings import Findings
from .layouts import Fill, Layout, Layouts, Placement
from .ledger import Ledger
from .misfits import dtype_status, shape_problem
from .parameters import ParameterTable
from .patterns import Parts, split
from .remap import NameMap, describe
from .routing import Claim, ClaimGroup, Routes, route
from .skip_rules import ArgumentRule
from .source import TensorInfo
from .ties import TieCheck, Ties


@dataclass(frozen=True, slots=True)
class BiasCheck:
    """A stored bias that its module has no place for, which is left out if it adds nothing.

    Args:
        tensor: the stored bias.
        owner: the module, which has a matrix.
    """

    tensor: TensorInfo
    owner: str

    rule: ClassVar[str] = "zero bias"
    why: ClassVar[str] = "its module has no bias by the config, and all its values are zero"

    @property
    def fault(self) -> str:
        """The line to report when it adds something."""
        return (
            f"{self.tensor.name} (shape {list(self.tensor.shape)}): {self.owner} has no bias by the "
            "config, and not all its values are zero"
        )


@dataclass
class LoadPlan:
    """What a load will do.

    Args:
        fills: parameters that are written.
        delegated: module prefix -> (relative name, checkpoint name) of tensors that the module's
            own ``load_weights`` takes.
        tie_checks: stored tensors that must be equal.
        bias_checks: stored biases without a place, which are left out if they are zero.
        findings: fates and faults so far.
        names: the name rules as this checkpoint uses them; they give its names back.
    """

    fills: list[Fill] = field(default_factory=list)
    delegated: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    tie_checks: list[TieCheck] = field(default_factory=list)
    bias_checks: list[BiasCheck] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    names: NameMap = field(default_factory=NameMap)

    @cached_property
    def placements(self) -> list[Placement]:
        """Writes, in storage order of the tensors."""
        numbered = [each for fill in self.fills for each in fill.placements]
        return [placement for _, placement in sorted(numbered, key=itemgetter(0))]


class Planner:
    """Makes the plan of one model.

    Args:
        table: its parameters.
        names: name rules.
        ties: which parameters share elements.
        skips: the loader's skip arguments.
        delegates: prefixes of modules that load themselves.
        layouts: found before, maybe on other ranks; what is found here is added.
    """

    def __init__(
        self,
        table: ParameterTable,
        names: NameMap,
        ties: Ties,
        skips: Iterable[ArgumentRule],
        delegates: Iterable[str],
        layouts: Layouts | None = None,
    ) -> None:
        """See the class for the arguments."""
        self._table, self._names, self._ties = table, names, ties
        self._layouts = Layouts() if layouts is None else layouts
        rules = tuple(skips)
        self._skips = [rule for rule in rules if rule.kind != "ignore_unexpected_suffixes"]
        self._ignores = [rule for rule in rules if rule.kind == "ignore_unexpected_suffixes"]
        self._delegates = {split(prefix): prefix for prefix in delegates}

    def plan(self, infos: Mapping[str, TensorInfo]) -> LoadPlan:
        """The plan for a checkpoint with these tensors.

        Raises:
            WeightError: names that are wrapped in different ways.
        """
        return self.follow(route(infos, self._names, self._skips))

    def follow(self, routes: Routes) -> LoadPlan:
        """The plan for a checkpoint whose names lead there."""
        self._names = routes.names
        plan = LoadPlan(
            delegated={prefix: [] for prefix in self._delegates.values()}, names=routes.names
        )
        for note in plan.names.notes:
            plan.findings.note(note)
        plan.findings.tied.update(self._ties.names)
        for tensor in routes.skipped:
            plan.findings.skip(tensor.name, tensor.rule, tensor.why)
        claimed: set[str] = set()
        for root, by_name in self._by_root(routes, plan).items():
            targets = self._ties.targets(root)
            claimed.update(targets)
            if not targets:
                for group in by_name.values():
                    self._leave(group, plan)
                continue
            feeder = self._settle_ties(root, by_name, plan)
            for parameter in targets:
                self._fill(parameter, by_name[feeder], plan)
        for parameter in self._table:
            if parameter not in claimed and not self.delegate_of(split(parameter)):
                self._cover(parameter, {}, plan)
        return plan

    def delegate_of(self, name: Parts) -> str | None:
        """Prefix of the outermost module that loads itself and owns this name."""
        if self._delegates:
            for depth in range(1, len(name)):
                prefix = self._delegates.get(name[:depth])
                if prefix is not None:
                    return prefix
        return None

    def _by_root(self, routes: Routes, plan: LoadPlan) -> dict[str, dict[str, ClaimGroup]]:
        """Groups by the parameter their elements belong to, and by name."""
        found: dict[str, dict[str, ClaimGroup]] = {}
        groups: Iterable[ClaimGroup] = routes.groups.values()
        if self._delegates:
            groups = self._without_delegated(groups, plan)
        for group in groups:
            found.setdefault(self._ties.root(group.parameter), {})[group.parameter] = group
        return found

    def _without_delegated(
        self, groups: Iterable[ClaimGroup], plan: LoadPlan
    ) -> Iterator[ClaimGroup]:
        """Hand tensors to modules that load themselves; what is left of each group."""
        handed: list[tuple[Claim, str]] = []
        left: list[ClaimGroup] = []
        for group in groups:
            owners = [self.delegate_of(split(claim.canonical)) for claim in group.claims]
            paired = list(zip(group.claims, owners, strict=True))
            handed += [(claim, owner) for claim, owner in paired if owner is not None]
            claims = [claim for claim, owner in paired if owner is None]
            if claims:
                left.append(ClaimGroup.of(group.parameter, claims, {}))
        for claim, owner in sorted(handed, key=lambda pair: pair[0].at):
            plan.delegated[owner].append((claim.canonical[len(owner) + 1 :], claim.tensor.name))
        return iter(left)

    def _settle_ties(self, root: str, by_name: dict[str, ClaimGroup], plan: LoadPlan) -> str:
        """The name whose tensors fill the group; the others' tensors must equal them."""
        feeder = root if root in by_name else next(iter(by_name))
        fed_by = {claim.shard_id: claim.tensor.name for claim in by_name[feeder].claims}
        for name, group in by_name.items():
            for claim in group.claims if name != feeder else ():
                tensor = claim.tensor.name
                if claim.shard_id in fed_by:
                    plan.tie_checks.append(TieCheck(tensor, fed_by[claim.shard_id], name, root))
                    continue
                plan.findings.tensor_fault(
                    "tie",
                    tensor,
                    f"{tensor} fills {describe(name, claim.shard_id)}, tied to {root}, which the "
                    f"checkpoint stores in another form ({', '.join(fed_by.values())})",
                )
        return feeder

    def _leave(self, group: ClaimGroup, plan: LoadPlan) -> None:
        """No parameter here has that name: another pipeline stage's business, or a fault."""
        parameter = group.parameter
        if self._table.elsewhere(parameter):
            plan.findings.elsewhere(group.names)
            return
        why = self._table.explain_absence(parameter)
        status = "extra layer" if self._table.beyond(parameter) else "unexpected"
        for claim in group.claims:
            name, canonical = claim.tensor.name, claim.canonical
            ignored = (rule for rule in self._ignores if rule.matches(split(canonical)))
            rule = next(ignored, None) or self._names.leftover(canonical)
            if rule is not None:
                plan.findings.skip(name, rule.rule, rule.why)
                continue
            owner, _, last = parameter.rpartition(".")
            if last == "bias" and len(claim.tensor.shape) == 1 and self._table.multiplies(owner):
                plan.bias_checks.append(BiasCheck(claim.tensor, owner))
                continue
            text = f"{name} (shape {list(claim.tensor.shape)}): {why}"
            plan.findings.tensor_fault("unexpected", name, text, status)

    def _fill(self, parameter: str, group: ClaimGroup, plan: LoadPlan) -> None:
        """Place all tensors that claim one parameter, and see whether they cover it.

        How they do is decided by spec, dtype and the tensors' form. Where the same has been found
        without a fault before, it is not worked out again.
        """
        wanted = self._table.parameters[parameter].dtype
        case = (self._table.spec(parameter), wanted, group.form)
        layout = None if self._table.relaid(parameter) else self._layouts.get(*case)
        if layout is None:
            layout, sound = self._lay_out(parameter, group.claims, plan)
            if sound:
                self._layouts.put(*case, layout)
        for number, _ in layout.parts:
            plan.findings.loaded(group.claims[number].tensor.name)
        for change in layout.conversions:
            plan.findings.converted(change)
        plan.fills.append(Fill(parameter, group, layout))

    def _lay_out(
        self, parameter: str, claims: Sequence[Claim], plan: LoadPlan
    ) -> tuple[Layout, bool]:
        """The layout of what fits, and whether that is all and covers the parameter."""
        seen: dict[ShardId, Claim] = {}
        parts: list[tuple[int, tuple[Piece, ...]]] = []
        ledger = Ledger()
        sound = True
        for number, claim in enumerate(claims):
            rival = seen.get(claim.shard_id)
            if seen and (claim.shard_id is None or None in seen):
                rival = rival or next(iter(seen.values()))
            if rival is not None:
                self._duplicate(parameter, claim, rival.tensor.name, plan)
                sound = False
                continue
            seen[claim.shard_id] = claim
            pieces = self._place(parameter, claim, ledger, plan)
            if pieces is None:
                sound = False
            else:
                parts.append((number, pieces))
        sound = self._cover(parameter, seen, plan) and sound
        sound = sound and self._check_volume(parameter, ledger, plan)
        wanted = self._table.parameters[parameter].dtype
        stored = (claims[number].tensor.dtype for number, _ in parts)
        changes = tuple(conversion(dtype, wanted) for dtype in stored if dtype != wanted)
        spec = self._table.spec(parameter)
        nbytes = sum(
            claims[number].tensor.nbytes(piece.source)
            for number, pieces in parts
            for piece in pieces
        )
        return Layout(tuple(parts), changes, nbytes, spec.shape, spec.padding), sound

    def _place(
        self, parameter: str, claim: Claim, ledger: Ledger, plan: LoadPlan
    ) -> tuple[Piece, ...] | None:
        """The slices of one tensor that hold anything; None with a fault when it does not fit."""
        tensor = claim.tensor
        segment = self._segment(parameter, claim, plan)
        if segment is None:
            return None
        where = describe(parameter, claim.shard_id)
        misfit = shape_problem(tensor, where, segment.source_shape)
        if misfit is None and self._table.relaid(parameter):
            misfit = self._relaid(parameter, tensor), "relaid"
        if misfit is not None:
            plan.findings.tensor_fault("shape", tensor.name, *misfit)
            return None
        wanted = self._table.parameters[parameter].dtype
        problem = dtype_problem(tensor.dtype, wanted)
        if problem is not None:
            text = f"{tensor.name} -> {parameter}: {problem}"
            plan.findings.tensor_fault("dtype", tensor.name, text, dtype_status(tensor, wanted))
            return None
        for piece in segment.pieces:
            rival = ledger.write(parameter, piece.target, tensor.name)
            if rival is not None:
                self._duplicate(parameter, claim, rival, plan)
                return None
        return tuple(piece for piece in segment.pieces if box_numel(piece.source))

    def _relaid(self, parameter: str, tensor: TensorInfo) -> str:
        """Why a parameter that holds a derived layout cannot be written."""
        return (
            f"{parameter} was loaded before and holds a derived layout now, "
            f"{list(self._table.parameters[parameter].shape)} instead of "
            f"{list(self._table.spec(parameter).shape)}; build the model anew to load {tensor.name}"
        )

    def _segment(self, parameter: str, claim: Claim, plan: LoadPlan) -> Segment | None:
        try:
            return self._table.spec(parameter).segment(claim.shard_id)
        except ShapeError as error:
            name = claim.tensor.name
            plan.findings.tensor_fault("unexpected", name, f"{name} -> {parameter}: {error}")
            return None

    def _duplicate(self, parameter: str, claim: Claim, rival: str, plan: LoadPlan) -> None:
        name = claim.tensor.name
        where = describe(parameter, claim.shard_id)
        plan.findings.tensor_fault("duplicate", name, f"{name} and {rival} both fill {where}")

    def _cover(self, parameter: str, seen: Mapping[ShardId, Claim], plan: LoadPlan) -> bool:
        """Whether every part has a tensor; otherwise missing, partial, or left out on purpose."""
        spec = self._table.spec(parameter)
        absent = [shard for shard in spec.shard_ids if shard not in seen]
        if None in seen or not absent:
            return True
        if not seen and spec.optional:
            plan.findings.derived.append(parameter)
        elif not seen:
            names = ", ".join(self._expected(parameter, shard, plan) for shard in absent)
            fused = f" (or {parameter} stored whole)" if spec.can_be_fused else ""
            text = f"{parameter}: expected {names}{fused}"
            plan.findings.parameter_fault("missing", parameter, text)
        else:
            for shard in absent:
                expected = self._expected(parameter, shard, plan)
                text = f"{describe(parameter, shard)}: expected {expected}"
                plan.findings.parameter_fault("partial", parameter, text)
        return False

    def _expected(self, parameter: str, shard_id: ShardId, plan: LoadPlan) -> str:
        """The checkpoint name that would have filled a part, and why it did not if it is there."""
        try:
            name = self._names.to_checkpoint(parameter, shard_id)
        except WeightError as error:
            return str(error)
        rule = plan.findings.rule_of(name)
        return name if rule is None else f"{name} (in the checkpoint, left out by {rule})"

    def _check_volume(self, parameter: str, ledger: Ledger, plan: LoadPlan) -> bool:
        """Whether the boxes of all parts and the padding add up to the parameter; or faults."""
        spec, sound = self._table.spec(parameter), True
        for box in spec.padding:
            rival = ledger.write(parameter, box, "padding")
            if rival is not None:
                text = f"{parameter}: its padding {box} overlaps what {rival} fills"
                plan.findings.parameter_fault("duplicate", parameter, text)
                sound = False
        gap = ledger.unwritten(parameter, spec.shape)
        if gap:
            text = (
                f"{parameter}: its shard spec gives {gap} of the elements of {list(spec.shape)} no "
                f"source, parts {spec.shard_ids}; correct the layer's partition"
            )
            plan.findings.parameter_fault("partial", parameter, text)
        return sound and not gap
