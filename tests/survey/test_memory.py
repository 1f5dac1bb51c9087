"""What preflight plans for activations is not less than what a layer's rows take."""

from __future__ import annotations

import pytest
import torch
from live_bytes import most_live_bytes
from survey.stated import CONFIG

import archzoo
from archzoo.context import BuildContext
from archzoo.survey.memory import Load, memory_of

ROWS = 300
DENSE = CONFIG | {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 40}
SPARSE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "moe_intermediate_size": 40,
}


def test_the_watch_counts_what_lives_together() -> None:
    ones = torch.ones(1000)
    assert most_live_bytes(lambda: ones.view(10, 100)) == 0, "a view takes nothing"
    assert most_live_bytes(lambda: (ones + 1).sum()) == 4004
    assert most_live_bytes(lambda: ones + (ones + (ones + 1))) == 8000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("experts", [0, 1, 2, 4])
def test_an_mlp_takes_no_more_than_planned(experts: int, dtype: torch.dtype) -> None:
    """``experts`` of each row; 0 is a dense MLP."""
    config = SPARSE | {"num_experts_per_tok": experts} if experts else DENSE
    module = archzoo.build(config, BuildContext.of(dtype=dtype)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    mlp, rows = module.model.layers[0].mlp, torch.randn(ROWS, 64).to(dtype)
    planned = memory_of(module, Load(1, ROWS, 1)).activations
    taken = most_live_bytes(lambda: mlp(rows)) + 2 * rows.nbytes  # residual and normed rows
    assert taken <= planned <= 2.5 * taken
