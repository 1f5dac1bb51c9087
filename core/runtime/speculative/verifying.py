"""Which tokens stand when a proposal was computed."""

from __future__ import annotations

from collections.abc import Sequence

UNUSABLE = -1
"""In the place of a token: the row's logits hold NaN or have no finite maximum."""


def verified(proposal: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """The sampled tokens that follow what stands: those proposed, and the first that was not.

    Row i of a verification is computed as if the first i proposed tokens were true, so its sample
    counts if they are. It is drawn from the target's distribution there, by the number that the
    request's seed and the token's place give: what stands is what plain decoding draws.

    A row behind guesses that gives no usable token is left out, to be computed again alone: whether
    it is of the request's output is only known when the tokens before it have not ended that.

    >>> verified([5, 6, 7], [5, 6, 9, 4])
    [5, 6, 9]
    >>> verified([5, 6, 7], [5, -1, 9, 4])
    [5]

    Args:
        proposal: k tokens.
        sampled: k + 1 tokens, of the row before the proposal and of each of its rows; none while a
            prompt is not through.
    """
    pairs = enumerate(zip(proposal, sampled, strict=False))
    same = next((at for at, (guess, token) in pairs if guess != token), len(proposal))
    stand = list(sampled[: same + 1])
    return stand[:-1] if len(stand) > 1 and stand[-1] == UNUSABLE else stand
