"""generate: a prompt's continuation, piece by piece, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter

from ..parallel.launch import process_count, shutdown
from ..planning.plan import Mode
from ..runtime import Model, SpeculationReport, StreamChunk, load
from ..runtime.checkpoint import local_path, require_tokenizer
from ..runtime.prompts import Prompt
from ..runtime.reading import Overrides
from ..runtime.request import SamplingParams
from .console import Screen

__all__ = ["Options", "Overrides", "SamplingParams", "run"]

NEW_TOKENS = 128
"""Tokens to generate at most when nobody says; fewer where the context holds fewer."""


@dataclass(frozen=True)
class Options:
    """What to generate.

    Args:
        path: checkpoint.
        text: the prompt, or a user's message; None where there are token ids.
        token_ids: the prompt as it is; None where there is a text.
        chat: the text is a message to a chat model.
        system: message before it.
        sampling: how tokens are chosen and when it ends.
        tp: ranks of a pipeline stage; None for all processes there are.
        pp: pipeline stages.
        attn_dp: attention groups of a stage.
        ep: parts of a stage that experts are dealt to.
        plan: how collectives between stages are chosen.
        dp_lm_head: split the head's vocabulary over each attention group.
        dtype: of the weights; None for the checkpoint's.
        prefix_cache: keep keys and values for prompts that begin alike.
        check_values: refuse weights with NaN or infinities, the draft's as well.
        draft: checkpoint of a draft model; None for none.
        draft_tokens: tokens it proposes at once; None for the default.
        stream: show pieces as they come.
        output: file for the result.
        overrides: of the checkpoint's config.
        offline: never ask the hub.
        quantization: ``none`` takes the weights as plain ones, whatever the config says.
    """

    path: str
    text: str | None = None
    token_ids: Sequence[int] | None = None
    chat: bool = False
    system: str | None = None
    sampling: SamplingParams = SamplingParams()
    tp: int | None = None
    pp: int = 1
    attn_dp: int = 1
    ep: int = 1
    plan: Mode = "cheapest"
    dp_lm_head: bool = False
    dtype: str | None = None
    prefix_cache: bool = True
    check_values: bool = True
    draft: str | None = None
    draft_tokens: int | None = None
    stream: bool = True
    output: Path | None = None
    overrides: Overrides = Overrides()
    offline: bool = False
    quantization: str | None = None

    @property
    def prompt(self) -> Prompt:
        """Ids, a text, or the conversation that the text begins."""
        if self.text is None:
            return list(self.token_ids or ())
        if not self.chat:
            return self.text
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, {"role": "user", "content": self.text}]


@dataclass
class Result:
    """What came out, and when: seconds since the request, one for each token that came.

    Attributes:
        token_seconds: when each token was there.
        speculation: what the draft was worth; None without one.
    """

    prompt_token_ids: list[int]
    load_seconds: float
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    token_seconds: list[float] = field(default_factory=list)
    speculation: SpeculationReport | None = None

    def add(self, chunk: StreamChunk, seconds: float) -> None:
        """Take in a piece that came after so many seconds."""
        self.token_ids += chunk.token_ids
        self.token_seconds += [seconds] * len(chunk.token_ids)
        self.text += chunk.text
        self.finish_reason = chunk.finish_reason
        self.speculation = chunk.speculation

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token; None where there is no second one."""
        if len(self.token_seconds) < 2:
            return None
        return (len(self.token_seconds) - 1) / (self.token_seconds[-1] - self.token_seconds[0])

    @property
    def summary(self) -> str:
        """One line: tokens, rate, first token, loading, why it ended."""
        count, rate = len(self.token_ids), self.tokens_per_second
        parts = [
            f"{count} token{'' if count == 1 else 's'}",
            *([] if rate is None else [f"{rate:.1f} tokens/s"]),
            f"first token {self.token_seconds[0]:.2f} s",
            f"load {self.load_seconds:.1f} s",
            f"end: {self.finish_reason}",
            *([] if self.speculation is None else [_worth(self.speculation)]),
        ]
        return " · ".join(parts)

    def as_json(self) -> str:
        """Tokens, text and timing, a line for each."""
        content = asdict(self)
        del content["token_seconds"], content["load_seconds"]
        if self.speculation is None:
            del content["speculation"]
        content["timing"] = {
            "load_seconds": self.load_seconds,
            "first_token_seconds": self.token_seconds[0],
            "total_seconds": self.token_seconds[-1],
            "decode_tokens_per_second": self.tokens_per_second,
        }
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _worth(report: SpeculationReport) -> str:
    """What a draft was worth, in a few words."""
    return (
        f"draft: {report.accepted} of {report.proposed} accepted ({report.acceptance:.0%}), "
        f"{report.target_forwards} forwards"
    )


def run(options: Options, screen: Screen) -> None:
    """Load, generate, show.

    Raises:
        ArchzooError: whatever is wrong with checkpoint, topology, prompt or options.
    """
    try:
        result = _generate(options, screen)
    finally:
        shutdown()
    screen.note(result.summary)
    if options.output is not None and screen.leads:
        options.output.write_text(result.as_json(), encoding="utf-8")


def _generate(options: Options, screen: Screen) -> Result:
    path = local_path(options.path, options.offline)
    if options.text is not None:
        require_tokenizer(path)
    with screen.loading() as progress:
        begin = perf_counter()
        model = load(
            path,
            tp=max(1, process_count() // options.pp) if options.tp is None else options.tp,
            pp=options.pp,
            attn_dp=options.attn_dp,
            ep=options.ep,
            plan=options.plan,
            dp_lm_head=options.dp_lm_head,
            dtype=options.dtype,
            prefix_cache=options.prefix_cache,
            check_values=options.check_values,
            offline=options.offline,
            quantization=options.quantization,
            progress=progress,
            **asdict(options.overrides),
        )
        draft = _draft(options, model)
        seconds = perf_counter() - begin
        result = Result(list(model.encode(options.prompt)), seconds)
    _stream(model, draft, options, result, screen)
    return result


def _draft(options: Options, model: Model) -> Model | None:
    """The draft: on every process where there are several, else on one rank."""
    if options.draft is None:
        return None
    path = local_path(options.draft, options.offline)
    return load(
        path,
        tp=model.engine.executor.processes,
        dtype=options.dtype,
        check_values=options.check_values,
        offline=options.offline,
        target=model,
    )


def _stream(
    model: Model, draft: Model | None, options: Options, result: Result, screen: Screen
) -> None:
    """Generate; the line is closed whatever happens, Ctrl-C included."""
    ids, sampling = result.prompt_token_ids, _sampling(model, options, result)
    begin, count = perf_counter(), options.draft_tokens
    try:
        for chunk in model.generate(
            ids, stream=True, draft=draft, draft_tokens=count, **asdict(sampling)
        ):
            result.add(chunk, perf_counter() - begin)
            if options.stream:
                screen.write(chunk.text)
        if not options.stream:
            screen.write(result.text)
    finally:
        if result.text and not result.text.endswith("\n"):
            screen.write("\n")
    if not result.text and not model.has_tokenizer:
        screen.write(",".join(map(str, result.token_ids)) + "\n")


def _sampling(model: Model, options: Options, result: Result) -> SamplingParams:
    """The options' own, completed by what only the loaded model knows."""
    sampling = options.sampling
    if sampling.max_new_tokens is None:
        room = model.engine.limits.pool.context - len(result.prompt_token_ids)
        sampling = replace(sampling, max_new_tokens=max(1, min(NEW_TOKENS, room)))
    if options.text is not None and not sampling.ignore_eos:
        # The model sees ids; that they were a text, which its tokenizer's end ids end, we know.
        ends = (each for each in model.stop_ids() if each < model.config.vocab_size)
        sampling = replace(sampling, stop_token_ids=tuple(ends))
    return sampling
