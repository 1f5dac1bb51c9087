"""Cost tables travel as text and come back equal."""

from __future__ import annotations

import pytest

from archzoo.parallel.links import CPU, CUDA, GB, LINKS, CostTable, Link


@pytest.mark.parametrize(
    "table",
    [
        CPU,
        CUDA,
        CostTable(LINKS["pcie"], (("attn_dp", Link(7, 3 * GB)), ("pp", LINKS["ethernet"]))),
    ],
)
def test_tables_come_back_equal(table: CostTable) -> None:
    assert CostTable.from_json(table.to_json()) == table
    assert hash(CostTable.from_json(table.to_json())) == hash(table)
