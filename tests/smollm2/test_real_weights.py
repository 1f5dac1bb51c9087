"""SmolLM2-135M, float32, against transformers on the same dequantised weights.

200 prompt tokens and 64 greedy ones, on one rank, on three simulated ranks and on three processes
over gloo (9 query heads, 3 KV heads: three ranks are the natural split).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agents import HANGING
from demo.run import EXPECTED, demo_weights

import archzoo
from archzoo.cli.reference import reference_model
from archzoo.errors import ShapeError

GGUF = demo_weights()
TEXT = (
    "The model layer of an inference engine turns a checkpoint into modules that are right in "
    "shape, right in parallelism and right in name. "
)


@pytest.fixture(scope="module")
def reference() -> Any:
    return reference_model(GGUF, torch.float32, "sdpa")


@pytest.fixture(scope="module")
def one() -> archzoo.Model:
    return archzoo.load(GGUF, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompt(one: archzoo.Model) -> list[int]:
    ids = one.tokenizer.encode(TEXT * 10)[:200]
    assert len(ids) == 200
    return ids


@pytest.fixture(scope="module")
def want_logits(reference: Any, prompt: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return reference(torch.tensor([prompt])).logits[0]


@pytest.fixture(scope="module")
def want_tokens(reference: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
    )
    return out[0, 200:].tolist()


@pytest.fixture(scope="module", params=[1, 3])
def model(request: pytest.FixtureRequest, one: archzoo.Model) -> archzoo.Model:
    return one if request.param == 1 else archzoo.load(GGUF, dtype=torch.float32, tp=3)


def test_logits_equal_transformers(
    model: archzoo.Model, prompt: list[int], want_logits: torch.Tensor
) -> None:
    torch.testing.assert_close(model.logits(prompt), want_logits, rtol=0, atol=2e-4)


def test_greedy_tokens_equal_transformers(
    model: archzoo.Model, prompt: list[int], want_tokens: list[int]
) -> None:
    result = model.generate(prompt, max_new_tokens=64, ignore_eos=True)
    assert result.token_ids == want_tokens


def test_three_processes_over_gloo(
    prompt: list[int], want_logits: torch.Tensor, want_tokens: list[int], tmp_path: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import json, os, sys, archzoo, torch\n"
        "from archzoo.parallel.launch import shutdown\n"
        "from archzoo.runtime import memory\n"
        "path, prompt, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]\n"
        # Every process sees another amount of free memory; they must plan with one.
        "memory.available_bytes = lambda device: 10**9 + 10**8 * int(os.environ['RANK'])\n"
        "model = archzoo.load(path, dtype=torch.float32, tp=3)\n"
        "tokens = model.generate(prompt, max_new_tokens=64, ignore_eos=True).token_ids\n"
        "rank = model.engine.executor.ranks[0]\n"
        "slots = model.engine.limits.pool.slots\n"
        "torch.save((model.logits(prompt), tokens, slots), f'{out}/{rank}.pt')\n"
        "shutdown()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    done = subprocess.run(
        [*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)]
        + [str(GGUF), json.dumps(prompt), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANGING,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    agreed = set()
    for rank in range(3):
        logits, tokens, slots = torch.load(tmp_path / f"{rank}.pt")
        agreed.add(slots)
        torch.testing.assert_close(logits, want_logits, rtol=0, atol=2e-4)
        assert tokens == want_tokens
    assert len(agreed) == 1, f"ranks plan with different pools: {agreed}"


def test_two_ranks_are_refused_with_heads_and_ranks() -> None:
    with pytest.raises(ShapeError, match=r"9 query heads.*tp=2"):
        archzoo.load(GGUF, tp=2)


def test_the_demo_prints_the_committed_tokens(one: archzoo.Model) -> None:
    expected = json.loads(EXPECTED.read_text())
    message = {"role": "user", "content": expected["prompt"]}
    result = one.generate([message], max_new_tokens=expected["max_new_tokens"])
    assert result.token_ids == expected["token_ids"]
    assert result.text == expected["text"] and result.finish_reason == "stop"


def test_text_streams_whole_and_stops_at_a_string(one: archzoo.Model) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
    whole = one.generate("Once upon a time", **options)
    parts = list(one.generate("Once upon a time", stream=True, **options))
    assert "".join(part.text for part in parts) == whole.text
    word = whole.text.split()[4]
    cut = one.generate("Once upon a time", stop=word, **options)
    assert cut.text == whole.text[: whole.text.index(word)] and cut.finish_reason == "stop"
    streamed = one.generate("Once upon a time", stop=word, stream=True, **options)
    assert "".join(part.text for part in streamed) == cut.text


def test_bfloat16_agrees_with_transformers_as_far_as_it_goes(prompt: list[int]) -> None:
    """Both round; their distance to float32 is alike and most likeliest tokens agree."""
    ours = archzoo.load(GGUF, dtype=torch.bfloat16).logits(prompt)
    theirs_model = reference_model(GGUF, torch.bfloat16, "sdpa")
    with torch.no_grad():
        theirs = theirs_model(torch.tensor([prompt])).logits[0].float()
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
    assert (ours - theirs).pow(2).mean().sqrt() < 0.35


def test_sizes_of_the_real_checkpoint(one: archzoo.Model) -> None:
    config = one.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.tie_word_embeddings and config.rope_for(0).theta == 100000.0
    assert len(one.report.loaded) == 272 and one.report.ok
    assert Path(config.file).suffix == ".gguf"
