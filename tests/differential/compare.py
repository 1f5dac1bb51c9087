"""One random configuration through transformers and through archzoo."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel, logging

import archzoo
from archzoo.cli.reference import reference_class, reference_model
from archzoo.errors import ArchzooError, BackendUnavailableError
from tiny import randomise

from .configs import ARCHITECTURES, ORIGINAL, Raw, random_config

ATOL = 5e-4
"""Of float32 logits whose largest are about 10."""
NEW_TOKENS = 4
"""Greedy tokens of each prompt; longrope's table changes among those of the third."""
TOPOLOGIES: tuple[dict[str, int], ...] = (
    *[{}] * 4,
    {"tp": 2},
    {"tp": 3},
    {"tp": 4, "attn_dp": 2},
    {"tp": 8},
    {"pp": 2},
    {"tp": 2, "pp": 3},
)


@dataclass(frozen=True)
class Outcome:
    """What came of one configuration.

    Args:
        difference: what differs; None where nothing does.
        refusal: archzoo's error; None where it loaded.
        unknown: why transformers has no answer; None where it has one.
    """

    difference: str | None = None
    refusal: ArchzooError | None = None
    unknown: str | None = None


def outcome_of(family: str, seed: int, folder: Path) -> Outcome:
    """Write the configuration with seeded weights, and ask both.

    Args:
        family, seed: of ``random_config``.
        folder: an empty directory.
    """
    raw = random_config(family, seed)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _write(raw, seed, folder)
            reference = reference_model(folder, torch.float32)
        except BackendUnavailableError as error:
            return Outcome(unknown=str(error))
        except ArchzooError as error:
            return Outcome(refusal=error)
        except Exception as error:  # whatever transformers raises for a config it does not take
            return Outcome(unknown=f"{type(error).__name__}: {error}")
        return _compared(raw, seed, folder, reference)


def _write(raw: Raw, seed: int, folder: Path) -> None:
    """A checkpoint of these sizes under exactly this config.json."""
    model_class, config_class = reference_class(
        (ARCHITECTURES[raw["model_type"]],), raw["model_type"]
    )
    fields = json.loads(json.dumps({k: v for k, v in raw.items() if k != "model_type"}))
    model = model_class._from_config(config_class(**fields), dtype=torch.float32)
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(raw))


def _compared(raw: Raw, seed: int, folder: Path, reference: PreTrainedModel) -> Outcome:
    dice = Random(seed)
    topology = dice.choice([each for each in TOPOLOGIES if _deals_out(raw, **each)])
    rows = [1, 7, ORIGINAL - 2, ORIGINAL + 13]
    generator = torch.Generator().manual_seed(seed)
    prompts: list[list[int]] = [
        torch.randint(4, raw["vocab_size"], (count,), generator=generator).tolist()
        for count in rows
    ]
    with torch.inference_mode():
        want = [reference(torch.tensor([ids])).logits[0] for ids in prompts]
    refused: ArchzooError | None = None
    try:
        model = archzoo.load(folder, dtype="float32", kv_slots=256, **topology)  # type: ignore[arg-type]
    except ArchzooError as error:
        refused = error
    foreseen = _foreseen(folder, topology)
    if refused is not None:
        if foreseen is None:
            return Outcome(f"{topology}: preflight promises what load refuses: {refused}")
        return Outcome(refusal=refused)
    if foreseen is not None:
        return Outcome(f"{topology}: preflight refuses what load takes: {foreseen}")
    for name, got in (
        ("logits", model.logits(prompts)),
        ("chunked logits", model.logits(prompts, chunk_size=dice.choice([3, 5]))),
    ):
        for ids, one, other in zip(prompts, got, want, strict=True):
            error = float((one - other).abs().max())
            if not error < ATOL:
                return Outcome(f"{topology}: {name} of {len(ids)} tokens off by {error:.2g}")
    return Outcome(_drift(model, reference, prompts))


def _deals_out(raw: Raw, tp: int = 1, pp: int = 1, attn_dp: int = 1) -> bool:
    """Whether the topology has layers and heads for everybody."""
    heads, ranks = raw["num_attention_heads"], tp // attn_dp
    kv_heads = raw["num_key_value_heads"] or heads
    shared = kv_heads % ranks == 0 or ranks % kv_heads == 0
    shared &= raw.get("moe_intermediate_size", 0) % tp == 0
    return heads % ranks == 0 and shared and pp <= raw["num_hidden_layers"]


def _foreseen(folder: Path, topology: dict[str, int]) -> str | None:
    """What preflight has against it."""
    try:
        report = archzoo.preflight(folder, dtype="float32", **topology)  # type: ignore[arg-type]
    except ArchzooError as error:
        return str(error)
    return None if report.ok else str(report)


def _drift(
    model: archzoo.Model, reference: PreTrainedModel, prompts: list[list[int]]
) -> str | None:
    """Where a greedy token is not the likeliest of a forward over all tokens before it."""
    block: dict[str, Any] = getattr(reference.config, "rope_parameters", None) or {}
    if block.get("rope_type") == "dynamic":
        prompts = prompts[:2]  # decision 7: beyond the original length keys stay as they were
    results = model.generate(prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for ids, result in zip(prompts, results, strict=True):
        for at, token in enumerate(result.token_ids):
            with torch.inference_mode():  # alone, for a rotation may depend on the length
                so_far = [*ids, *result.token_ids[:at]]
                row = reference(torch.tensor([so_far])).logits[0, -1]
            short = float(row.max() - row[token])
            if not short < ATOL:
                return f"token {at} behind {len(ids)} is {short:.2g} below the likeliest"
    return None
