"""Facts that cannot be planned are refused where they are stated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archzoo.errors import BoundaryError
from archzoo.planning.facts import (
    HANDOFF,
    Branch,
    StageFacts,
    check_stack,
    declare_attn,
    declare_ffn,
    declare_head,
    declare_own,
    declare_parallel,
)

BRANCH = Branch("mlp", ("all",), "tp")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"read": "sideways"}, "read is 'sideways'; expected one of norm, plain"),
        ({"kind": "tail"}, "kind is 'tail'"),
        ({"branches": ()}, "a layer stage with branches"),
        ({"branches": (BRANCH, BRANCH)}, "a name of its own"),
        ({"branches": (replace(BRANCH, name="aux"),)}, "not 'aux'"),
        ({"branches": (replace(BRANCH, group="pp"),)}, "group of mlp is 'pp'"),
        ({"branches": (replace(BRANCH, rows=("some",)),)}, "rows of mlp is 'some'"),
        ({"branches": (replace(BRANCH, rows=()),)}, "rows of mlp is ''; expected one of all, attn"),
        ({"kind": "handoff"}, "a handoff none"),
        ({"selects": True}, "only a head selects rows"),
        ({"kind": "head", "branches": (BRANCH, replace(BRANCH, name="b"))}, "a head one"),
    ],
)
def test_contradictions(facts: dict[str, object], message: str) -> None:
    with pytest.raises(BoundaryError, match=message):
        StageFacts(**{"name": "stage", "branches": (BRANCH,), **facts})  # type: ignore[arg-type]  # that is the test


def test_parallel_stages_must_read_alike() -> None:
    for stages in ((), (declare_attn(), declare_ffn(read="plain"))):
        with pytest.raises(BoundaryError, match="read in one way"):
            declare_parallel(*stages)
    both = declare_parallel(declare_attn(capture=True), declare_ffn(sparse=True), shared_norm=False)
    assert both.readers == ("attn", "mlp", "aux") and both.sparse and not both.shares_rows
    assert declare_own("x").shares_rows and not declare_own("x").normalises


def test_stacks_end_at_the_head_and_layers_agree() -> None:
    dense, sparse = declare_ffn(next_layer_sparse=True), declare_ffn(sparse=True)
    check_stack([])
    check_stack([declare_attn(), dense, HANDOFF, declare_attn(), sparse, declare_head()])
    with pytest.raises(
        BoundaryError, match=r"stage 3 \(mlp\) has sparse=False.*next_layer_sparse=True"
    ):
        check_stack([declare_attn(), dense, declare_attn(), dense])
    with pytest.raises(BoundaryError, match=r"stage 1 \(attn\) follows the head"):
        check_stack([declare_head(), declare_attn()])
