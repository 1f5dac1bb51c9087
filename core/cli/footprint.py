"""Start-up and peak memory of a process that loads a model and runs it once.

``python -m archzoo.cli.footprint ours|theirs PATH DTYPE PROMPT_TOKENS DECODE_TOKENS OVERRIDES
STARTED`` prints seconds and bytes. A process of its own: memory once used is not always given back, and a
start happens once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CapacityError

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Footprint:
    """What a fresh process took.

    Args:
        first_token: seconds from its start to the first token of a one-token prompt: imports,
            loading, and reading what loading only mapped.
        peak: most bytes resident, Python and libraries included.
    """

    first_token: float
    peak: int


def measure(
    who: str,
    path: Path,
    dtype: str,
    prompt_tokens: int,
    decode_tokens: int,
    overrides: Mapping[str, Any] | None = None,
) -> Footprint:
    """Start a process that loads a model and runs it.

    Args:
        who: ``ours`` or ``theirs``.
        path: checkpoint on this disk.
        dtype: of the weights.
        prompt_tokens: tokens of the one prompt.
        decode_tokens: tokens generated after it.
        overrides: arguments of ``load`` that overrule the checkpoint's config; None for none.

    Raises:
        CapacityError: the process did not come through.
    """
    tokens, chosen = (str(prompt_tokens), str(decode_tokens)), json.dumps(overrides or {})
    arguments = (who, str(path), dtype, *tokens, chosen, repr(time.time()))
    done = subprocess.run(
        [sys.executable, "-m", "archzoo.cli.footprint", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CapacityError(
            f"the process that measures start and memory ({who}) ended with code "
            f"{done.returncode}: {last}; free memory, or choose a narrower dtype"
        )
    seconds, peak = done.stdout.split()[-2:]
    return Footprint(float(seconds), int(peak))


def peak_bytes() -> int:
    """Most memory this process has had resident."""
    if _STATUS.exists():
        # getrusage's figure is inherited from the process that started this one; this one is not.
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _main(arguments: list[str]) -> None:
    who, path, dtype, prompt_tokens, decode_tokens, chosen, started = arguments
    overrides = json.loads(chosen)
    from .contenders import Contender, Ours, Theirs

    contender: Contender
    if who == "ours":
        from ..runtime import load

        contender = Ours(load(path, dtype=dtype, **overrides))
    else:
        import torch

        from ..runtime.reading import overrides_of
        from .reference import reference_model

        number, chosen_by = getattr(torch, dtype), overrides_of(**overrides)
        contender = Theirs(reference_model(Path(path), number, "sdpa", overrides=chosen_by))
    contender.prefill([1])
    first_token = time.time() - float(started)
    contender.decode([[1] * int(prompt_tokens)], int(decode_tokens))
    print(first_token, peak_bytes())


if __name__ == "__main__":
    _main(sys.argv[1:])
