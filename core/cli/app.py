"""The commands and their options. What a command does is imported when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import quick
from .options import (
    Architecture,
    AsJson,
    Checkpoint,
    Debug,
    DPHead,
    DraftPath,
    DraftTokens,
    DType,
    Experts,
    Groups,
    IgnoreField,
    NoCheckValues,
    Offline,
    OwnDType,
    Plan,
    PlanMode,
    PromptText,
    Quantization,
    Stages,
    TokenIds,
)
from .preflight_command import preflight
from .values import check_writable, integers, sizes

app = typer.Typer(
    help="Run checkpoints, and check how they are run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from .. import __version__

        print(f"archzoo {__version__}")
        raise typer.Exit


def _quick(command: str) -> None:
    """Show a command whose options ``quick`` declares, and pass it on."""

    def pass_on(context: typer.Context) -> None:
        raise typer.Exit(quick.run(command, context.args))

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(command, help=quick.SUMMARIES[command], context_settings=settings)(pass_on)


for _command in quick.SUMMARIES:
    _quick(_command)


app.command()(preflight)


@app.command()
def generate(
    path: Checkpoint,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="The prompt; read from a pipe if left out."),
    ] = None,
    token_ids: TokenIds = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a user's message to a chat model.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message before it; with --chat.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens to generate at most.", show_default="128, or what the context holds"
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest with this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of the random numbers.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ends the output; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's end tokens.")
    ] = False,
    tp: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranks: the processes of torchrun, simulated without it.",
            show_default="all processes",
        ),
    ] = None,
    pp: Stages = 1,
    attn_dp: Groups = 1,
    ep: Experts = 1,
    plan: Plan = PlanMode.CHEAPEST,
    dp_lm_head: DPHead = False,
    dtype: OwnDType = None,
    no_check_values: NoCheckValues = False,
    no_prefix_cache: Annotated[
        bool,
        typer.Option("--no-prefix-cache", help="Keep no keys and values for prompts to come."),
    ] = False,
    draft: DraftPath = None,
    draft_tokens: DraftTokens = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Show the text when it is complete.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write tokens and timing, as JSON.")
    ] = None,
    quantization: Quantization = None,
    architecture: Architecture = None,
    ignore_field: IgnoreField = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Continue a prompt."""
    text, ids = _prompt(prompt, token_ids)
    if chat and ids is not None:
        raise typer.BadParameter(
            "needs a text, token ids are taken as they are", param_hint="--chat"
        )
    if system is not None and not chat:
        raise typer.BadParameter("is for chats; add --chat", param_hint="--system")
    if draft_tokens is not None and draft is None:
        raise typer.BadParameter("is for drafts; add --draft", param_hint="--draft-tokens")

    from .console import session

    with session(debug, None if tp is None else tp * pp) as screen:
        if output is not None and screen.leads:
            check_writable(output, "--output")
        if text is None and ids is None:
            text = _piped_prompt()
        with screen.busy("Starting"):
            from . import generate as command
        options = command.Options(
            path=path,
            text=text,
            token_ids=ids,
            chat=chat,
            system=system,
            sampling=command.SamplingParams(
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                stop=tuple(stop or ()),
                ignore_eos=ignore_eos,
            ),
            tp=tp,
            pp=pp,
            attn_dp=attn_dp,
            ep=ep,
            plan=plan.value,
            dp_lm_head=dp_lm_head,
            dtype=dtype,
            prefix_cache=not no_prefix_cache,
            check_values=not no_check_values,
            draft=draft,
            draft_tokens=draft_tokens,
            stream=not no_stream,
            output=output,
            quantization=quantization,
            overrides=command.Overrides(architecture, tuple(ignore_field or ())),
            offline=offline,
        )
        command.run(options, screen)


@app.command()
def verify(
    path: Checkpoint,
    tp: Annotated[
        str, typer.Option(metavar="1,3", help="Numbers of ranks to check, one after the other.")
    ] = "1",
    pp: Annotated[
        str,
        typer.Option(metavar="1,2", help="Numbers of pipeline stages to check, with each --tp."),
    ] = "1",
    attn_dp: Annotated[
        str,
        typer.Option(metavar="1,2", help="Numbers of attention groups to check, with each --tp."),
    ] = "1",
    ep: Annotated[
        str,
        typer.Option(
            metavar="1,2", help="Parts that experts are dealt to, to check with each --tp."
        ),
    ] = "1",
    plan: Plan = PlanMode.CHEAPEST,
    dp_lm_head: DPHead = False,
    dtype: Annotated[DType, typer.Option(help="Of both models.")] = DType.FLOAT32,
    prompt: PromptText = None,
    token_ids: TokenIds = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens of a random prompt.", show_default="64, or what the context holds"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the random prompt.")] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Largest error that agrees.",
            show_default="2e-4 in float32, else by dtype",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what transformers computed, if we agree with it."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare with a recording and its prompt, without transformers."
        ),
    ] = None,
    quantization: Quantization = None,
    no_check_values: NoCheckValues = False,
    architecture: Architecture = None,
    ignore_field: IgnoreField = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Compare every layer with transformers on the same checkpoint, or with a recording."""
    text, ids = _prompt(prompt, token_ids)
    if against is not None and (record, text, ids, length) != (None,) * 4:
        raise typer.BadParameter(
            "brings its own prompt and values; leave out --record, --prompt, --token-ids and "
            "--length",
            param_hint="--against",
        )
    ranks, stages, groups = sizes(tp, "--tp"), sizes(pp, "--pp"), sizes(attn_dp, "--attn-dp")
    parts = sizes(ep, "--ep")

    from .console import session

    with session(debug, max(ranks) * max(stages)) as screen:
        if record is not None and screen.leads:
            check_writable(record, "--record")
        with screen.busy("Starting"):
            from . import verify as command
        topologies, left_out = command.combined(ranks, stages, groups, parts)
        for each in left_out:
            screen.note(f"left out: {each}")
        options = command.Options(
            path=path,
            topologies=topologies,
            plan=plan.value,
            dp_lm_head=dp_lm_head,
            dtype=dtype,
            prompt=text if ids is None else ids,
            length=length,
            seed=seed,
            tolerance=tolerance,
            record=record,
            against=against,
            quantization=quantization,
            check_values=not no_check_values,
            overrides=command.Overrides(architecture, tuple(ignore_field or ())),
            offline=offline,
        )
        agrees = command.run(options, screen)
    if not agrees:
        raise typer.Exit(1)


@app.command()
def bench(
    path: Checkpoint,
    dtype: Annotated[
        list[DType] | None,
        typer.Option(help="To measure; repeatable.", show_default="the checkpoint's"),
    ] = None,
    batch: Annotated[
        str, typer.Option(metavar="1,8", help="Sequences that decode together.")
    ] = "1,8",
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Prompt of the prefill.", show_default="512, or what the context holds"
        ),
    ] = None,
    decode_tokens: Annotated[int, typer.Option(min=1, help="Tokens decoded.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over so many.")] = 5,
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave transformers out.")
    ] = False,
    as_json: AsJson = False,
    architecture: Architecture = None,
    ignore_field: IgnoreField = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Measure speed, load time and peak memory, beside transformers."""
    batches = sizes(batch, "--batch")

    from .console import session

    with session(debug) as screen:
        with screen.busy("Starting"):
            from . import bench as command
        options = command.Options(
            path=path,
            dtypes=tuple(dtype or ()),
            batches=batches,
            prompt_tokens=prompt_tokens,
            decode_tokens=decode_tokens,
            rounds=rounds,
            reference=not no_reference,
            as_json=as_json,
            overrides=command.Overrides(architecture, tuple(ignore_field or ())),
            offline=offline,
        )
        command.run(options, screen)


def _prompt(text: str | None, token_ids: str | None) -> tuple[str | None, list[int] | None]:
    """The prompt as a text, as token ids, or neither."""
    if text is not None and token_ids is not None:
        raise typer.BadParameter("give one of --prompt and --token-ids, not both")
    return text, None if token_ids is None else integers(token_ids, "--token-ids")


def _piped_prompt() -> str:
    """The prompt from a pipe, without the newline that ends it."""
    from ..parallel.launch import process_count

    if process_count() > 1:
        raise typer.BadParameter("give --prompt or --token-ids: several processes share one pipe")
    # Python has no stdin at all where its descriptor is closed.
    pipe = sys.stdin
    try:
        text = "" if pipe is None or pipe.isatty() else pipe.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"the pipe holds no {error.encoding} text: byte {error.start} is "
            f"{error.object[error.start]:#04x}; give text, or --token-ids"
        ) from None
    if not text:
        raise typer.BadParameter("give --prompt, --token-ids, or a text through a pipe")
    return text
