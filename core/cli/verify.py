"""verify: our layers beside those of transformers, on the same checkpoint and prompt.

Instead of running transformers, a recording of what it computed can be compared with; then a
checkpoint that departs is also asked which of its tensors are not those that were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import torch

from ..errors import InputError, TopologyError
from ..parallel import Topology
from ..parallel.launch import process_count, shutdown
from ..planning.plan import Mode
from ..runtime import Model, load
from ..runtime.checkpoint import Checkpoint, local_path, require_tokenizer
from ..runtime.options import check_quantization
from ..runtime.reading import Overrides
from ..runtime.request import check_prompt
from ..runtime.resolved import resolve_checkpoint
from .comparison import TOLERANCES, Comparison, compare
from .console import LoadProgress, Screen
from .fingerprints import changes, fingerprints
from .pace import pace
from .recording import Recording, read_recording
from .reference import reference_model
from .trace import our_trace, reference_trace
from .verify_text import change_lines, comparison_table, verdict

__all__ = ["Options", "Overrides", "combined", "run"]

LENGTH = 64
"""Tokens of a random prompt when nobody says; fewer where the context holds fewer."""


@dataclass(frozen=True)
class Options:
    """What to verify.

    Args:
        path: checkpoint.
        topologies: to check, one after the other.
        plan: how collectives between stages are chosen.
        dp_lm_head: split the head's vocabulary over each attention group.
        dtype: of both models.
        prompt: text or token ids; None for random ids.
        length: tokens of a random prompt; None for 64, or what the context holds.
        seed: of the random prompt.
        tolerance: largest error that agrees; None for the dtype's own.
        record: where the reference is kept when every topology agrees with it.
        against: a recording to compare with; its prompt is taken, transformers is not started.
        check_values: refuse weights with NaN or infinities.
        overrides: of the checkpoint's config.
        offline: never ask the hub.
        quantization: ``none`` takes the weights as plain ones, whatever the config says.
    """

    path: str
    topologies: tuple[Topology, ...] = (Topology(),)
    plan: Mode = "cheapest"
    dp_lm_head: bool = False
    dtype: str = "float32"
    prompt: str | Sequence[int] | None = None
    length: int | None = None
    seed: int = 0
    tolerance: float | None = None
    record: Path | None = None
    against: Path | None = None
    check_values: bool = True
    overrides: Overrides = Overrides()
    offline: bool = False
    quantization: str | None = None


def combined(
    tps: Sequence[int], pps: Sequence[int], attn_dps: Sequence[int], eps: Sequence[int]
) -> tuple[tuple[Topology, ...], list[str]]:
    """Every topology of these sizes, and why each combination that is none was left out.

    Raises:
        TopologyError: no combination is a topology.
    """
    found: list[Topology] = []
    refusals: list[TopologyError] = []
    for pp, attn_dp, ep, tp in product(pps, attn_dps, eps, tps):
        try:
            found.append(Topology(tp=tp, pp=pp, attn_dp=attn_dp, ep=ep))
        except TopologyError as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    return tuple(found), list(dict.fromkeys(map(str, refusals)))


def run(options: Options, screen: Screen) -> bool:
    """Compare and show; whether everything agrees.

    Raises:
        ArchzooError: something cannot be loaded, or there is nothing to compare with.
    """
    check_quantization(options.quantization)
    path = local_path(options.path, options.offline)
    try:
        reference = _reference(path, options, screen)
        tolerance = _tolerance(options, reference)
        results: dict[str, Comparison] = {}
        for topology in options.topologies:
            name = _name(topology)
            count = len(reference.ids)
            with screen.busy(f"Loading, {name}") as doing:
                model = _load(path, options, topology, count, pace(f"Loading, {name}", doing))
                doing(f"Running archzoo, {name}")
                ours = our_trace(model, reference.ids)
                del model  # before the next one is loaded
            results[name] = compare(ours, reference.trace, tolerance)
            tokens = f"{count} token{'' if count == 1 else 's'}"
            screen.show(comparison_table(results[name], f"{name}, {options.dtype}, {tokens}"))
    finally:
        shutdown()
    for name, result in results.items():
        screen.say(verdict(name, result, tolerance))
    agrees = all(result.first_departure is None for result in results.values())
    if screen.leads:
        _conclude(path, options, reference, agrees, screen)
    return agrees


def _reference(path: Path, options: Options, screen: Screen) -> Recording:
    """What to compare with: a recording, or transformers on this machine."""
    with screen.busy("Reading the configuration") as doing:
        if options.against is not None:
            recorded = read_recording(options.against)
            _prepare(path, replace(options, prompt=recorded.ids), recorded)
            screen.note(f"comparing with {options.against}, computed by {recorded.made_by}")
            return recorded
        ids = _prepare(path, options)
        doing("Running transformers")
        model = reference_model(
            path,
            getattr(torch, options.dtype),
            overrides=options.overrides,
            quantization=options.quantization,
        )
        trace = reference_trace(model, ids)
        return Recording(tuple(ids), trace, _maker(options.dtype), {})


def _maker(dtype: str) -> str:
    import transformers

    return f"transformers {transformers.__version__} in {dtype}"


def _tolerance(options: Options, reference: Recording) -> float:
    """What was asked for, or what the narrower of the two number formats allows."""
    if options.tolerance is not None:
        return options.tolerance
    return max(TOLERANCES[getattr(torch, options.dtype)], TOLERANCES[reference.dtype])


def _conclude(
    path: Path, options: Options, reference: Recording, agrees: bool, screen: Screen
) -> None:
    """Keep the reference that everything agrees with; or say what became of the checkpoint."""
    if options.record is not None and agrees:
        with screen.busy("Reading every tensor"):
            marks = fingerprints(path)
        replace(reference, tensors=marks).write(options.record)
        screen.note(f"recorded in {options.record}: {len(marks)} tensors")
    elif options.record is not None:
        screen.warning(f"{options.record} is not written: only what we agree with is recorded")
    elif reference.tensors and not agrees:
        with screen.busy("Reading every tensor"):
            found = changes(path, reference.tensors)
        for line in change_lines(found):
            screen.say(line)


def _prepare(path: Path, options: Options, recorded: Recording | None = None) -> list[int]:
    """The prompt; and refuse what we could not run, before transformers is started."""
    prompt = options.prompt
    for topology in options.topologies:
        _check_local(topology)
    if isinstance(prompt, str):
        require_tokenizer(path)
    with closing(Checkpoint(path, quantization=options.quantization)) as checkpoint:
        resolved = resolve_checkpoint(
            checkpoint, options.overrides, options.topologies, headers_only=True
        )
        for topology in options.topologies:
            resolved.build(resolved.context(topology, device="meta", dp_lm_head=options.dp_lm_head))
        config = resolved.config
        size, context = config.vocab_size, config.max_position_embeddings
        if recorded is not None:
            recorded.check_fits(config, options.against)
        if isinstance(prompt, str):
            prompt = checkpoint.tokenizer.encode(prompt)
    if prompt is None:
        length = min(LENGTH, context) if options.length is None else options.length
        _check_length(length, context)
        generator = torch.Generator().manual_seed(options.seed)
        numbers: list[int] = torch.randint(size, (length,), generator=generator).tolist()
        return numbers
    ids = check_prompt(prompt, size)
    _check_length(len(ids), context)
    return ids


def _check_length(length: int, context: int) -> None:
    if length > context:
        raise InputError(
            f"the prompt has {length} tokens, more than the context of {context}; shorten it"
        )


def _check_local(topology: Topology) -> None:
    """Refuse layers or rows that are in other processes, where nobody here sees them."""
    for option, size in (("--pp", topology.pp), ("--attn-dp", topology.attn_dp)):
        if size > 1 and process_count() > 1:
            raise InputError(
                f"{option} {size} under torchrun: what other processes hold cannot be compared "
                "here; run verify without torchrun, which simulates all ranks"
            )


def _load(
    path: Path, options: Options, topology: Topology, tokens: int, progress: LoadProgress
) -> Model:
    return load(
        path,
        dtype=options.dtype,
        topology=topology,
        plan=options.plan,
        dp_lm_head=options.dp_lm_head,
        **asdict(options.overrides),
        kv_slots=tokens,
        max_requests=1,
        pp_micro_batches=1,
        check_values=options.check_values,
        quantization=options.quantization,
        progress=progress,
    )


def _name(topology: Topology) -> str:
    """``tp 3``, ``tp 4 pp 2 attn_dp 2``."""
    sizes = {"pp": topology.pp, "attn_dp": topology.attn_dp, "ep": topology.ep}
    more = "".join(f" {name} {size}" for name, size in sizes.items() if size > 1)
    return f"tp {topology.tp}{more}"
