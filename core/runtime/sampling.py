"""Logits to tokens.

Letters: R requests, V vocabulary, C those of the R rows that are drawn at random.

A drawn token is the inversion of the row's cumulative distribution at one uniform number, which is
a hash of the request's seed and of how many tokens it has. There is no generator to keep: equal
logits give equal tokens, whatever else is in the batch, on every rank, and when a step is repeated.

Which tokens may be drawn is said by a count n for each row: the n likeliest, and among equally
likely ones those with the lower id. ``top_k`` and ``top_p`` are both such a count, so the vocabulary
is never sorted: only as many of the highest probabilities as the count needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from ..errors import InputError, LogitsError, ShapeError
from .request import SamplingParams

_SHORTLIST = 1024
"""Highest probabilities looked at first for top_p; all of them only where these do not suffice."""


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    steps: Sequence[int],
    names: Sequence[object] = (),
) -> list[int]:
    """Choose one token for each row.

    Args:
        logits: (R, V) float32 or float64; -inf rules a token out.
        params: of each row's request, seeded where it is drawn at random.
        steps: how many new tokens each request has, before this one.
        names: what to call each row in an error; its number unless given.

    Raises:
        ShapeError: rows, params and steps differ in number.
        LogitsError: a row holds NaN, or its maximum is infinite.
        InputError: a random row without a seed.
    """
    if logits.dim() != 2 or not len(params) == len(steps) == logits.shape[0]:
        raise ShapeError(
            f"logits of shape {list(logits.shape)} for {len(params)} params and {len(steps)} steps; "
            "give (R, V), and one of each for every row"
        )
    if not params:
        return []
    best, ids = logits.max(dim=-1)
    rows = [at for at, each in enumerate(params) if each.temperature > 0 and each.top_k != 1]
    if rows:
        chosen = torch.tensor(rows, device=logits.device)
        uniforms = [_uniform(params[at], steps[at]) for at in rows]
        drawn = _draw(logits[chosen], best[chosen], [params[at] for at in rows], uniforms)
        ids = ids.index_copy(0, chosen, drawn)
    # One transfer brings both the tokens and the check: NaN passes through max.
    tokens: list[int] = torch.where(best.isfinite(), ids, -1).tolist()
    if min(tokens) < 0:
        bad = tuple(at for at, token in enumerate(tokens) if token < 0)
        raise LogitsError(bad, tuple(str(names[at]) if names else f"row {at}" for at in bad))
    return tokens


def _uniform(params: SamplingParams, step: int) -> float:
    """The number in [0, 1) that decides this request's next token; 53 random bits."""
    if params.seed is None:
        raise InputError(
            f"temperature={params.temperature:g} without a seed; use SamplingParams.seeded()"
        )
    digest = blake2b(f"{params.seed}:{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _draw(
    logits: Tensor, best: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> Tensor:
    """One token for each of C rows, by inverting the cumulative distribution.

    Shapes:
        logits: (C, V); best: (C,), the row maxima.
        returns: (C,) int64.
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    # The maximum is taken off before dividing: a tiny temperature then gives -inf, never NaN.
    centred = logits.double() - best.double()[:, None]
    probs = (centred / column([each.temperature for each in params])).softmax(dim=-1)
    narrow = [at for at, each in enumerate(params) if each.top_k or each.top_p < 1]
    if narrow:
        at = torch.tensor(narrow, device=logits.device)
        kept = _keep_likeliest(probs[at], [params[each] for each in narrow])
        probs = probs.index_copy(0, at, kept)
    cumulative = probs.cumsum(dim=-1)
    # Below 1 by at least 2^-53, so the product stays below the total: some token is always past it.
    # One without mass is never the first past it.
    target = cumulative[:, -1:] * column(uniforms)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _keep_likeliest(probs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Zero all but the tokens that top_k and then top_p leave; (C, V) to (C, V).

    top_p is a share of the mass that top_k left.
    """
    vocab = probs.shape[-1]
    counts = [min(each.top_k or vocab, vocab) for each in params]
    most = torch.tensor(counts, device=probs.device)[:, None]
    mass = torch.tensor([each.top_p for each in params], dtype=probs.dtype, device=probs.device)
    limited = [count for count in counts if count < vocab]
    width = max(limited, default=1)
    if len(limited) < len(counts):
        width = min(max(width, _SHORTLIST), vocab)
    while True:
        ranked = probs.topk(width).values
        running = ranked.cumsum(dim=-1)
        inside = running.gather(-1, most.clamp(max=width) - 1)
        whole = torch.where(most < vocab, inside, probs.sum(dim=-1, keepdim=True))
        target = whole * mass[:, None]
        if width == vocab or not bool(((most > width) & (running[:, -1:] < target)).any()):
            break
        width = vocab
    # top_p = 1 keeps all that top_k left: rounding must not cut the tail.
    needed = torch.where(mass[:, None] < 1, (running < target).sum(-1, keepdim=True) + 1, most)
    keep = torch.minimum(needed, most)
    edge = ranked.gather(-1, keep - 1)
    above, level = probs > edge, probs == edge
    spare = keep - above.sum(dim=-1, keepdim=True)
    return probs * (above | (level & (level.cumsum(dim=-1) <= spare)))
