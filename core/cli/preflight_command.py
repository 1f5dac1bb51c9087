"""The options of ``preflight``, which is two commands: the survey, and with --boundaries the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from .options import (
    Architecture,
    AsJson,
    Checkpoint,
    Debug,
    DPHead,
    Experts,
    Groups,
    IgnoreField,
    Link,
    Offline,
    OwnDType,
    PlanMode,
    Quantization,
    Stages,
)
from .values import byte_count, sizes


def preflight(
    path: Checkpoint,
    tp: Annotated[int, typer.Option(min=1, help="Ranks of a pipeline stage.")] = 1,
    pp: Stages = 1,
    attn_dp: Groups = 1,
    ep: Experts = 1,
    dp_lm_head: DPHead = False,
    dtype: OwnDType = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Requests at once.", show_default="1")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rows of a forward, in each attention group.", show_default="2048"
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of each request.", show_default="the model's own"),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="80GiB", help="Of one rank: does it fit?")
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Follow a tensor to its ranks, a parameter to its file."),
    ] = None,
    explain_skips: Annotated[
        bool, typer.Option("--explain-skips", help="List tensors that are left out, and why.")
    ] = False,
    boundaries: Annotated[
        bool,
        typer.Option("--boundaries", help="Show instead the plan of collectives between stages."),
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="64,8192",
            help="With --boundaries: rows of a batch, all groups together; one plan each.",
            show_default="64,8192",
        ),
    ] = None,
    plan: Annotated[
        PlanMode | None,
        typer.Option(help="With --boundaries: how they are chosen.", show_default="cheapest"),
    ] = None,
    link: Annotated[
        Link | None,
        typer.Option(help="With --boundaries: between all ranks.", show_default="nvlink"),
    ] = None,
    quantization: Quantization = None,
    architecture: Architecture = None,
    ignore_field: IgnoreField = None,
    as_json: AsJson = False,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Prove from config and headers that a checkpoint fills every rank; tell what ranks hold."""
    ours = {"--batch": batch, "--chunk": chunk, "--context": context, "--memory": memory}
    ours |= {"--explain": explain, "--explain-skips": explain_skips or None}
    theirs = {"--rows": rows, "--plan": plan, "--link": link}
    _refuse(ours if boundaries else theirs, boundaries)
    if explain is not None and explain_skips:
        raise typer.BadParameter("give --explain or --explain-skips, not both")
    batches = sizes("64,8192" if rows is None else rows, "--rows")
    room = None if memory is None else byte_count(memory, "--memory")

    from .console import session

    with session(debug) as screen:
        with screen.busy("Starting"):
            from ..parallel import Topology
        topology = Topology(tp=tp, pp=pp, attn_dp=attn_dp, ep=ep)
        if boundaries:
            from . import preflight as planning

            planning.run(
                planning.Options(
                    path=path,
                    topology=topology,
                    rows=batches,
                    plan=(plan or PlanMode.CHEAPEST).value,
                    link=link or Link.NVLINK,
                    dtype=dtype,
                    dp_lm_head=dp_lm_head,
                    quantization=quantization,
                    overrides=planning.Overrides(architecture, tuple(ignore_field or ())),
                    as_json=as_json,
                    offline=offline,
                ),
                screen,
            )
            return
        with screen.busy("Starting"):
            from . import survey as command
        good = command.run(
            command.Options(
                path=path,
                topology=topology,
                dtype=dtype,
                dp_lm_head=dp_lm_head,
                batch=1 if batch is None else batch,
                chunk=chunk,
                context=context,
                memory=room,
                explain=explain,
                explain_skips=explain_skips,
                quantization=quantization,
                overrides=command.Overrides(architecture, tuple(ignore_field or ())),
                as_json=as_json,
            ),
            screen,
        )
    if not good:
        raise typer.Exit(1)


def _refuse(others: Mapping[str, object], boundaries: bool) -> None:
    """Refuse options of the one command where the other was asked for."""
    for name, value in others.items():
        if value is not None:
            word = "without" if boundaries else "with"
            raise typer.BadParameter(f"goes {word} --boundaries only", param_hint=name)
