"""A campaign: inputs without end against one target, and what escaped."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from archzoo.errors import ArchzooError

from .mutator import mutate
from .targets import run_target

CORPUS = Path(__file__).parent / "corpus"
SLOW_S = 2.0
"""Seconds of processor that no input of a few kilobytes may take; a busy machine does not count."""
HANG_S = 900.0
"""Seconds by the clock after which the process is ended."""


@dataclass(frozen=True)
class Escape:
    """An input that raised something else than an ArchzooError, or took too long."""

    target: str
    content: bytes
    what: str


@dataclass
class Outcome:
    """How a campaign went."""

    runs: int = 0
    refused: int = 0
    escape: Escape | None = None


def seeds(target: str) -> list[bytes]:
    """The kept corpus of a target, in a fixed order."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def try_input(target: str, content: bytes, folder: Path) -> tuple[bool, Escape | None]:
    """Whether an input was refused, and whether it escaped."""
    started = time.process_time()
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    refused = False
    try:
        run_target(target, content, folder)
    except ArchzooError as error:
        refused = bool(str(error))
    except BaseException:
        return False, Escape(target, content, traceback.format_exc())
    finally:
        faulthandler.cancel_dump_traceback_later()
    took = time.process_time() - started
    slow = Escape(target, content, f"took {took:.1f} s of processor") if took > SLOW_S else None
    return refused, slow


def campaign(target: str, seconds: float, seed: int, folder: Path, least: int = 0) -> Outcome:
    """Mutate the corpus until the time is up, for ``least`` inputs anyway, or something escapes."""
    dice, corpus, outcome = random.Random(f"{target} {seed}"), seeds(target), Outcome()
    stop = time.perf_counter() + seconds
    while (time.perf_counter() < stop or outcome.runs < least) and outcome.escape is None:
        content = mutate(dice, corpus, framed=target == "safetensors")
        refused, outcome.escape = try_input(target, content, folder)
        outcome.runs += 1
        outcome.refused += refused
    return outcome
