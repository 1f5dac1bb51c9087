"""Figures of one checkpoint in one dtype, ours and theirs in rounds.

Both are measured in every round and take turns in being first, so that a machine that grows slower
or is disturbed does it to both. Figures are medians; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch

from ..errors import InputError
from ..runtime import load
from ..runtime.reading import AS_STATED, Overrides
from .contenders import Contender, Ours, Theirs
from .footprint import measure
from .pace import pace
from .reference import reads_by_itself, reference_model

FRESH_PROCESSES = 3
"""Processes started on either side: each takes seconds, and they differ little."""

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What is measured. Prompts, their first new token and decode steps fit the context.

    Args:
        batches: numbers of sequences that decode together.
        prompt_tokens: tokens of the prompt whose prefill is timed.
        decode_prompt_tokens: tokens of a prompt after which decoding is timed.
        decode_tokens: decode steps timed.
        memory_decode_tokens: decode steps after the prefill's prompt when peak memory is
            measured: more would not need more.
        rounds: measurements of each time.
        reference: measure transformers as well.
    """

    batches: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    decode_prompt_tokens: int = 128
    decode_tokens: int = 64
    memory_decode_tokens: int = 8
    rounds: int = 5
    reference: bool = True

    def within(self, context: int) -> Plan:
        """This plan in a context: no prompt of decoding, and no decoding for memory, is too long.

        Args:
            context: tokens of the longest sequence.

        Raises:
            InputError: the prefill's prompt or the decode steps leave no room beside them.
        """
        most = context - 2  # the first new token, and one more: of the prompt, or to decode
        for count, option in (
            (self.prompt_tokens, "--prompt-tokens"),
            (self.decode_tokens, "--decode-tokens"),
        ):
            if count > most:
                raise InputError(
                    f"{option} {count} and two more tokens do not fit the context of {context}; "
                    + (f"give at most {most}" if most > 0 else "it is too short to be measured")
                )
        return replace(
            self,
            decode_prompt_tokens=min(self.decode_prompt_tokens, context - 1 - self.decode_tokens),
            memory_decode_tokens=min(self.memory_decode_tokens, context - 1 - self.prompt_tokens),
        )


@dataclass
class Figure:
    """One quantity, by rounds.

    Args:
        dtype: the models'.
        name: what is measured.
        unit: of the values; a rate (``…/s``) is better when it is larger.
        ours: a value for each round.
        theirs: likewise; empty where there is nothing to compare with.
    """

    dtype: str
    name: str
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How many times better ours is; None without theirs."""
        if not self.theirs:
            return None
        ratios = (mine / other for mine, other in zip(self.ours, self.theirs, strict=True))
        return median(ratios if self.unit.endswith("/s") else (1 / ratio for ratio in ratios))

    def as_dict(self) -> dict[str, Any]:
        """Medians, ratio, and the rounds."""
        return {
            "dtype": self.dtype,
            "measure": self.name,
            "unit": self.unit,
            "archzoo": median(self.ours),
            "transformers": median(self.theirs) if self.theirs else None,
            "ratio": self.ratio,
            "archzoo_rounds": self.ours,
            "transformers_rounds": self.theirs,
        }


@dataclass(frozen=True)
class _Task:
    """Something to time: a name, the tokens it makes or reads, how it is run."""

    name: str
    tokens: int
    seconds: Callable[[Contender], float]


class Measuring:
    """Measures one checkpoint in one dtype.

    Args:
        path: checkpoint on this disk.
        dtype: of both models; None for the checkpoint's.
        plan: what is measured.
        tell: told what is being done.
        overrides: of the checkpoint's config.
    """

    def __init__(
        self,
        path: Path,
        dtype: str | None,
        plan: Plan,
        tell: Callable[[str], None],
        overrides: Overrides = AS_STATED,
    ) -> None:
        """Load once: it warms the page cache, and shows the dtype."""
        self._path, self._plan, self._tell = path, plan, tell
        self._overrides, self._chosen = overrides, asdict(overrides)
        # transformers is timed in loading only what it reads by itself.
        self._both_load = plan.reference and reads_by_itself(path)
        tell("loading")
        model = load(path, dtype=dtype, progress=pace("loading", tell), **self._chosen)
        self._vocab_size = model.config.vocab_size
        self._torch_dtype = model.module.dtype
        self.dtype = str(self._torch_dtype).removeprefix("torch.")

    def figures(self) -> list[Figure]:
        """Speeds, load time, peak memory."""
        loading = self._load_times()
        return [*self._speeds(self._contenders()), *loading, *self._fresh_processes()]

    def _contenders(self) -> list[Contender]:
        plan = self._plan
        self._tell(f"loading in {self.dtype}")
        longest = plan.decode_prompt_tokens + 1 + plan.decode_tokens
        slots = max(plan.prompt_tokens + 1, max(plan.batches) * longest)
        rows = max(plan.batches)
        model = load(
            self._path,
            dtype=self._torch_dtype,
            kv_slots=slots,
            max_requests=rows,
            prefix_cache=False,  # the same prompts come round after round
            progress=pace(f"loading in {self.dtype}", self._tell),
            **self._chosen,
        )
        ours = Ours(model)
        return [ours, Theirs(self._reference())] if plan.reference else [ours]

    def _reference(self) -> Any:
        return reference_model(self._path, self._torch_dtype, "sdpa", overrides=self._overrides)

    def _load_times(self) -> list[Figure]:
        """The load call, and how many times as long it takes for looking at every value."""
        figure, plain = Figure(self.dtype, "load call", "s"), list[float]()
        ours = partial(load, self._path, dtype=self._torch_dtype, **self._chosen)
        loaders: list[tuple[list[float], Callable[[], object]]] = [
            (figure.ours, ours),
            (plain, partial(ours, check_values=False)),
        ]
        if self._both_load:
            self._reference()  # imports its modules
            loaders.append((figure.theirs, self._reference))
        for number in range(self._plan.rounds):
            self._tell(f"load time in {self.dtype}, round {number + 1} of {self._plan.rounds}")
            for seconds, loader in _taking_turns(loaders, number):
                gc.collect()
                begin = perf_counter()
                model = loader()
                seconds.append(perf_counter() - begin)
                del model
        cost = [slow / quick for slow, quick in zip(figure.ours, plain, strict=True)]
        return [figure, Figure(self.dtype, "load, values checked", "x unchecked load", cost)]

    def _speeds(self, contenders: Sequence[Contender]) -> list[Figure]:
        tasks = self._tasks()
        figures = [Figure(self.dtype, task.name, "tokens/s") for task in tasks]
        for contender in contenders:
            self._tell(f"warming up in {self.dtype}")
            for task in tasks:
                task.seconds(contender)
        for number in range(self._plan.rounds):
            self._tell(f"speed in {self.dtype}, round {number + 1} of {self._plan.rounds}")
            for figure, task in zip(figures, tasks, strict=True):
                # Without a reference there is one contender, and nothing to put into theirs.
                sides = list(zip((figure.ours, figure.theirs), contenders, strict=False))
                for rates, contender in _taking_turns(sides, number):
                    rates.append(task.tokens / task.seconds(contender))
        return figures

    def _tasks(self) -> list[_Task]:
        count, length = self._plan.decode_tokens, self._plan.prompt_tokens
        [prompt] = self._prompts(1, length)
        tasks = [_Task(f"prefill {length}", length, lambda each: each.prefill(prompt))]
        for batch in self._plan.batches:
            decoding = _decoding(self._prompts(batch, self._plan.decode_prompt_tokens), count)
            tasks.append(_Task(f"decode, batch {batch}", batch * count, decoding))
        return tasks

    def _fresh_processes(self) -> list[Figure]:
        """Start to first token, and peak memory; each process is started a few times."""
        start = Figure(self.dtype, "start to first token", "s")
        peak = Figure(self.dtype, "peak memory", "MiB")
        sides = [("ours", start.ours, peak.ours)]
        if self._both_load:
            sides.append(("theirs", start.theirs, peak.theirs))
        for number in range(min(self._plan.rounds, FRESH_PROCESSES)):
            self._tell(f"fresh processes in {self.dtype}, round {number + 1}")
            for who, seconds, mebibytes in _taking_turns(sides, number):
                tokens = (self._plan.prompt_tokens, self._plan.memory_decode_tokens)
                found = measure(who, self._path, self.dtype, *tokens, self._chosen)
                seconds.append(found.first_token)
                mebibytes.append(found.peak / 2**20)
        return [start, peak]

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(length)
        shape = (count, length)
        ids: list[list[int]] = torch.randint(self._vocab_size, shape, generator=generator).tolist()
        return ids


def _decoding(prompts: Sequence[Sequence[int]], count: int) -> Callable[[Contender], float]:
    return lambda contender: contender.decode(prompts, count)


def _taking_turns(sides: Sequence[T], number: int) -> Sequence[T]:
    """The sides in the order of this round."""
    return sides[::-1] if number % 2 else sides
