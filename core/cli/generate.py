"""generate: a prompt's continuation, piece by piece, and how long it took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TypeGuard, cast

from ..errors import InputError
from ..parallel.launch import process_count, shutdown
from ..runtime import Model, StreamChunk, load
from ..runtime.checkpoint import local_path, require_tokenizer
from ..runtime.request import SamplingParams
from .console import Screen

__all__ = ["Options", "SamplingParams", "prompt_of", "run"]

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Options:
    """What to generate.

    Args:
        path: checkpoint.
        prompt: text, token ids, or chat messages.
        sampling: how tokens are chosen and when it ends.
        tp: ranks; None for all processes there are.
        dtype: of the weights; None for the checkpoint's.
        stream: show pieces as they come.
        output: file for the result.
        offline: never ask the hub.
    """

    path: str
    prompt: Prompt
    sampling: SamplingParams
    tp: int | None = None
    dtype: str | None = None
    stream: bool = True
    output: Path | None = None
    offline: bool = False


@dataclass
class Result:
    """What came out, and when: seconds since the request, one for each token that came.

    Attributes:
        token_seconds: when each token was there.
    """

    prompt_token_ids: list[int]
    load_seconds: float
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    token_seconds: list[float] = field(default_factory=list)

    def add(self, chunk: StreamChunk, seconds: float) -> None:
        """Take in a piece that came after so many seconds."""
        self.token_ids += chunk.token_ids
        self.token_seconds += [seconds] * len(chunk.token_ids)
        self.text += chunk.text
        self.finish_reason = chunk.finish_reason

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
        ]
        return " · ".join(parts)

    def as_json(self) -> str:
        """Tokens, text and timing, a line for each."""
        content = asdict(self)
        del content["token_seconds"], content["load_seconds"]
        content["timing"] = {
            "load_seconds": self.load_seconds,
            "first_token_seconds": self.token_seconds[0],
            "total_seconds": self.token_seconds[-1],
            "decode_tokens_per_second": self.tokens_per_second,
        }
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"


def prompt_of(
    text: str | None, ids: Sequence[int] | None, chat: bool, system: str | None
) -> Prompt:
    """The prompt that the options mean: ids, a text, or a conversation that a text begins."""
    if text is None:
        return list(ids or ())
    if not chat:
        return text
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


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
    if not _is_ids(options.prompt):
        require_tokenizer(path)
    with screen.loading() as progress:
        begin = perf_counter()
        model = load(
            path,
            tp=process_count() if options.tp is None else options.tp,
            dtype=options.dtype,
            offline=options.offline,
            progress=progress,
        )
        seconds = perf_counter() - begin
        result = Result(_encode(model, options.prompt), seconds)
    _stream(model, options, result, screen)
    return result


def _stream(model: Model, options: Options, result: Result, screen: Screen) -> None:
    """Generate; the line is closed whatever happens, Ctrl-C included."""
    begin = perf_counter()
    try:
        for chunk in model.generate(options.prompt, stream=True, **asdict(options.sampling)):
            result.add(chunk, perf_counter() - begin)
            if options.stream:
                screen.write(chunk.text)
        if not options.stream:
            screen.write(result.text)
    finally:
        if result.text and not result.text.endswith("\n"):
            screen.write("\n")
    if not result.text and not _has_tokenizer(model):
        screen.write(",".join(map(str, result.token_ids)) + "\n")


def _encode(model: Model, prompt: Prompt) -> list[int]:
    """The prompt as tokens, for the record."""
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt)
    if _is_ids(prompt):
        return list(prompt)
    return model.tokenizer.apply_chat(cast(Sequence[Mapping[str, str]], prompt))


def _is_ids(prompt: Prompt) -> TypeGuard[Sequence[int]]:
    return not isinstance(prompt, str) and all(isinstance(each, int) for each in prompt)


def _has_tokenizer(model: Model) -> bool:
    try:
        return model.tokenizer is not None
    except InputError:
        return False
