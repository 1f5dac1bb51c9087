"""LoadPlan: where every checkpoint tensor goes, from names, shapes and shard specs alone.

Nothing is read and nothing is written here: a plan works on a ``meta`` model and on headers, and
every fault that names, shapes and dtypes can show is in it before the first byte moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ..errors import ShapeError, WeightError, WeightShapeError
from ..parallel import Piece, Segment, ShardId, box_numel
from .conversion import conversion, dtype_problem
from .findings import Findings
from .ledger import Ledger
from .parameters import ParameterTable
from .patterns import Parts, split
from .remap import NameMap, Skipped, describe
from .skip_rules import ArgumentRule
from .source import TensorInfo
from .ties import TieCheck, Ties


@dataclass(frozen=True, slots=True)
class Placement:
    """The slices of one checkpoint tensor that fill one parameter, or one part of it."""

    tensor: TensorInfo
    parameter: str
    shard_id: ShardId
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Checkpoint bytes this rank reads."""
        return sum(self.tensor.nbytes(piece.source) for piece in self.pieces)


@dataclass
class LoadPlan:
    """What a load will do.

    Args:
        placements: writes, in storage order of the tensors.
        delegated: module prefix -> (relative name, checkpoint name) of tensors that the module's
            own ``load_weights`` takes.
        tie_checks: stored tensors that must be equal.
        findings: fates and faults so far.
        names: the name rules as this checkpoint uses them; they give its names back.
    """

    placements: list[Placement] = field(default_factory=list)
    delegated: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    tie_checks: list[TieCheck] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    names: NameMap = field(default_factory=NameMap)


@dataclass(frozen=True, slots=True)
class Claim:
    """A tensor that wants to fill a parameter, or a part of it."""

    tensor: TensorInfo
    shard_id: ShardId


class Planner:
    """Makes the plan of one model.

    Args:
        table: its parameters.
        names: name rules.
        ties: which parameters share elements.
        skips: the loader's skip arguments.
        delegates: prefixes of modules that load themselves.
    """

    def __init__(
        self,
        table: ParameterTable,
        names: NameMap,
        ties: Ties,
        skips: Iterable[ArgumentRule],
        delegates: Iterable[str],
    ) -> None:
        """See the class for the arguments."""
        self._table, self._names, self._ties = table, names, ties
        rules = tuple(skips)
        self._skips = [rule for rule in rules if rule.kind != "ignore_unexpected_suffixes"]
        self._ignores = [rule for rule in rules if rule.kind == "ignore_unexpected_suffixes"]
        self._delegates = {split(prefix): prefix for prefix in delegates}

    def plan(self, infos: Mapping[str, TensorInfo]) -> LoadPlan:
        """The plan for a checkpoint with these tensors.

        Raises:
            WeightError: names that are wrapped in different ways.
        """
        plan = LoadPlan(delegated={prefix: [] for prefix in self._delegates.values()})
        self._names = plan.names = self._names.bound(infos)
        for note in plan.names.notes:
            plan.findings.note(note)
        plan.findings.tied.update(self._ties.names)
        claims: dict[str, dict[str, list[Claim]]] = {}
        for info in infos.values():
            self._route(info, plan, claims)
        for root, by_name in claims.items():
            targets = self._ties.targets(root)
            if not targets:
                for parameter, unplaced in by_name.items():
                    self._leave(parameter, unplaced, plan)
                continue
            feeder = self._settle_ties(root, by_name, plan)
            for parameter in targets:
                self._fill(parameter, by_name[feeder], plan)
        claimed = {target for root in claims for target in self._ties.targets(root)}
        for parameter in self._table:
            if parameter not in claimed and not self.delegate_of(split(parameter)):
                self._cover(parameter, {}, plan)
        if plan.findings.any_fault:
            plan.tie_checks.clear()  # they read tensors, and nothing of a refused checkpoint is read
        order = {name: at for at, name in enumerate(infos)}
        plan.placements.sort(key=lambda placement: order[placement.tensor.name])
        return plan

    def delegate_of(self, name: Parts) -> str | None:
        """Prefix of the outermost module that loads itself and owns this name."""
        if self._delegates:
            for depth in range(1, len(name)):
                prefix = self._delegates.get(name[:depth])
                if prefix is not None:
                    return prefix
        return None

    def _route(
        self, info: TensorInfo, plan: LoadPlan, claims: dict[str, dict[str, list[Claim]]]
    ) -> None:
        """Skip a tensor, hand it to a module, or enter its claim on a parameter."""
        canonical = self._names.rename(info.name)
        parts = split(canonical)
        placed = self._names.place(canonical)
        argument = next((rule for rule in self._skips if rule.matches(parts)), None)
        if argument is not None:
            plan.findings.skip(info.name, argument.rule, argument.why)
        elif isinstance(placed, Skipped):
            plan.findings.skip(info.name, placed.rule, placed.why)
        elif (owner := self.delegate_of(parts)) is not None:
            plan.delegated[owner].append((canonical[len(owner) + 1 :], info.name))
        else:
            by_name = claims.setdefault(self._ties.root(placed.parameter), {})
            by_name.setdefault(placed.parameter, []).append(Claim(info, placed.shard_id))

    def _settle_ties(self, root: str, by_name: dict[str, list[Claim]], plan: LoadPlan) -> str:
        """The name whose tensors fill the group; the others' tensors must equal them."""
        feeder = root if root in by_name else next(iter(by_name))
        fed_by = {claim.shard_id: claim.tensor.name for claim in by_name[feeder]}
        for name, claims in by_name.items():
            for claim in claims if name != feeder else ():
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

    def _leave(self, parameter: str, claims: list[Claim], plan: LoadPlan) -> None:
        """No parameter here has that name: another pipeline stage's business, or a fault."""
        if self._table.elsewhere(parameter):
            for claim in claims:
                plan.findings.elsewhere(claim.tensor.name)
            return
        why = self._table.explain_absence(parameter)
        status = "extra layer" if self._table.beyond(parameter) else "unexpected"
        for claim in claims:
            name = claim.tensor.name
            canonical = self._names.rename(name)
            ignored = (rule for rule in self._ignores if rule.matches(split(canonical)))
            rule = next(ignored, None) or self._names.leftover(canonical)
            if rule is not None:
                plan.findings.skip(name, rule.rule, rule.why)
                continue
            text = f"{name} (shape {list(claim.tensor.shape)}): {why}"
            plan.findings.tensor_fault("unexpected", name, text, status)

    def _fill(self, parameter: str, claims: list[Claim], plan: LoadPlan) -> None:
        """Place all tensors that claim one parameter, and see whether they cover it."""
        seen: dict[ShardId, Claim] = {}
        ledger = Ledger()
        whole = True
        for claim in claims:
            rival = seen.get(claim.shard_id)
            if seen and (claim.shard_id is None or None in seen):
                rival = rival or next(iter(seen.values()))
            if rival is not None:
                self._duplicate(parameter, claim, rival.tensor.name, plan)
                whole = False
                continue
            seen[claim.shard_id] = claim
            whole = self._place(parameter, claim, ledger, plan) and whole
        whole = self._cover(parameter, seen, plan) and whole
        if whole:
            self._check_volume(parameter, ledger, plan)

    def _place(self, parameter: str, claim: Claim, ledger: Ledger, plan: LoadPlan) -> bool:
        """One tensor into its segment; False with a fault when it does not fit."""
        tensor = claim.tensor
        segment = self._segment(parameter, claim, plan)
        if segment is None:
            return False
        where = describe(parameter, claim.shard_id)
        misfit = _shape_problem(tensor, where, segment.source_shape)
        if misfit is None and self._table.relaid(parameter):
            misfit = self._relaid(parameter, tensor), "relaid"
        if misfit is not None:
            plan.findings.tensor_fault("shape", tensor.name, *misfit)
            return False
        wanted = self._table.parameters[parameter].dtype
        problem = dtype_problem(tensor.dtype, wanted)
        if problem is not None:
            text = f"{tensor.name} -> {parameter}: {problem}"
            plan.findings.tensor_fault("dtype", tensor.name, text, _dtype_status(tensor, wanted))
            return False
        for piece in segment.pieces:
            rival = ledger.write(parameter, piece.target, tensor.name)
            if rival is not None:
                self._duplicate(parameter, claim, rival, plan)
                return False
        if tensor.dtype != wanted:
            plan.findings.converted(conversion(tensor.dtype, wanted))
        plan.findings.loaded(tensor.name)
        pieces = tuple(piece for piece in segment.pieces if box_numel(piece.source))
        plan.placements.append(Placement(tensor, parameter, claim.shard_id, pieces))
        return True

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
            fused = f" (or {parameter} stored whole)" if spec.concat_dim is not None else ""
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

    def _check_volume(self, parameter: str, ledger: Ledger, plan: LoadPlan) -> None:
        """The boxes of all parts and the padding must add up to the parameter."""
        spec = self._table.spec(parameter)
        for box in spec.padding:
            rival = ledger.write(parameter, box, "padding")
            if rival is not None:
                text = f"{parameter}: its padding {box} overlaps what {rival} fills"
                plan.findings.parameter_fault("duplicate", parameter, text)
        gap = ledger.unwritten(parameter, spec.shape)
        if gap:
            text = (
                f"{parameter}: its shard spec gives {gap} of the elements of {list(spec.shape)} no "
                f"source, parts {spec.shard_ids}; correct the layer's partition"
            )
            plan.findings.parameter_fault("partial", parameter, text)


def _dtype_status(tensor: TensorInfo, wanted: torch.dtype) -> str:
    """What is wrong with a stored dtype, in a few words."""
    whole = not tensor.dtype.is_floating_point and wanted.is_floating_point
    return "integer for a float" if whole else "dtype"


def _shape_problem(
    tensor: TensorInfo, where: str, expected: tuple[int, ...]
) -> tuple[str, str] | None:
    """What is wrong with a stored shape, in full and in a word; None when nothing is."""
    found = tensor.shape
    if found == expected:
        return None
    status, hint = _shape_difference(found, expected)
    return str(WeightShapeError(tensor.name, found, where, expected, hint)), status


def _shape_difference(found: tuple[int, ...], expected: tuple[int, ...]) -> tuple[str, str]:
    """(status, hint) of two shapes that differ."""
    if 0 in found and 0 not in expected:
        return "empty", (
            "an empty placeholder, as ZeRO-3 training saves ungathered tensors; save it gathered"
        )
    if found == expected[::-1]:
        return "transposed", "it looks transposed"
    if len(found) != len(expected):
        return "other rank", f"{len(found)} dimensions are stored, {len(expected)} configured"
    differ = [at for at, size in enumerate(found) if size != expected[at]]
    hint = "; ".join(f"dimension {d}: {found[d]} stored, {expected[d]} configured" for d in differ)
    smaller = [found[d] < expected[d] for d in differ]
    return "truncated" if all(smaller) else "reshaped" if any(smaller) else "widened", hint
