"""Which tokens stand when a proposal was computed."""

from __future__ import annotations

from collections.abc import Sequence


def verified(proposal: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """The sampled tokens that follow what stands: those proposed, and the first that was not.

    Row i of a verification is computed as if the first i proposed tokens were true, so its sample
    counts if they are. It is drawn from the target's distribution there, by the number that the
    request's seed and the token's place give: what stands is what plain decoding draws.

    >>> verified([5, 6, 7], [5, 6, 9, 4])
    [5, 6, 9]

    Args:
        proposal: k tokens.
        sampled: k + 1 tokens, of the row before the proposal and of each of its rows; none while a
            prompt is not through.
    """
    pairs = enumerate(zip(proposal, sampled, strict=False))
    same = next((at for at, (guess, token) in pairs if guess != token), len(proposal))
    return list(sampled[: same + 1])
