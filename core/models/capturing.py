"""Which hidden states draft models read, in the field's counting and in ours."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BoundaryError


def states_for_draft(ids: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Semantic indices, as ``set_aux_layers`` takes them, of the states a draft reads.

    Servers of EAGLE-3 and DFlash drafts count in two ways, which are kept: an explicit id i is the
    output of layer i, the default ids are semantic already. States are in layer order, however the
    ids are ordered, for that is the order drafts were trained on.

    >>> states_for_draft([1, 29, 14], 30), states_for_draft(None, 30)
    ((2, 15, 30), (2, 15, 27))

    Args:
        ids: layers whose outputs are read; None for states 2, n//2 and n - 3 of n layers.
        count: n, layers of the target.

    Raises:
        BoundaryError: an id that is no layer or comes twice, or a model too small for the default.
    """
    if ids is None:
        chosen = (2, count // 2, count - 3)
        if len(set(chosen)) < len(chosen) or not all(0 <= each <= count for each in chosen):
            raise BoundaryError(
                f"a model of {count} layers has no default states for a draft (2, n//2, n-3 are "
                f"{chosen}); give the ids of the layers whose outputs it reads"
            )
        return tuple(sorted(chosen))
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < count:
            raise BoundaryError(
                f"layer id {each!r}: a draft reads outputs of layers 0 to {count - 1}"
            )
    if len(set(ids)) < len(ids):
        raise BoundaryError(f"layer ids {list(ids)} name one twice; give each once")
    return tuple(sorted(each + 1 for each in ids))
