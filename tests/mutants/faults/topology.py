"""Faults of topologies: sums, groups, and which rows are whose."""

from __future__ import annotations

from mutants.mutant import Mutant

TOPOLOGIES = "tests/runtime/test_topologies.py"
GROUPS = "tests/runtime/test_attention_dp.py"
COLLECTIVES = "tests/runtime/test_collectives.py"
AUX = "tests/runtime/test_aux_hidden_states.py"
STREAM = "tests/boundary/test_stream.py"
SHAPES = "tests/models/test_layer_shapes.py"

SWEEP = f"{TOPOLOGIES}::test_every_topology_says_what_one_rank_says"
RAGGED = f"{GROUPS}::test_any_number_of_prompts"
SUMS = (
    f"{COLLECTIVES}::test_the_naive_plan_sums_twice_a_layer_once_the_embedding_"
    "and_gathers_the_vocabulary"
)
STATES = f"{AUX}::test_every_topology_gives_the_states_of_one_rank"
TRANSFORMERS = f"{AUX}::test_one_rank_gives_what_transformers_gives"

MUTANTS = (
    Mutant(
        "sum-over-another-group",
        "an MLP's sum is taken over the attention group only",
        "core/parallel/moving.py",
        {
            "            return group.all_reduce(x)\n": (
                '            return self.group("attn_tp").all_reduce(x)\n'
            )
        },
        (f"{SWEEP}[several-tp4-pp1-dp2]", f"{SWEEP}[single-tp4-pp2-dp2]"),
    ),
    Mutant(
        "reduction-missing",
        "a stage's partial output enters the residual without its sum",
        "core/parallel/moving.py",
        {"            return group.all_reduce(x)\n": "            return x\n"},
        (f"{SWEEP}[replicated-tp2-pp2-dp1]", SUMS),
    ),
    Mutant(
        "reduction-doubled",
        "what was summed is summed again",
        "core/parallel/moving.py",
        {
            "            return group.all_reduce(x)\n": (
                "            return group.all_reduce(group.all_reduce(x))\n"
            )
        },
        (f"{SWEEP}[replicated-tp2-pp2-dp1]", SUMS),
    ),
    Mutant(
        "scattered-sum-missing",
        "a rank keeps its slice of its own partial output",
        "core/parallel/moving.py",
        {
            "            return group.reduce_scatter(x, 0)\n": (
                "            return x.chunk(group.size)[group.rank]\n"
            )
        },
        (f"{SWEEP}[fused-tp4-pp2-dp1]", f"{STATES}[tp8-sliced-None]"),
    ),
    Mutant(
        "residual-on-every-rank",
        "every rank adds the residual to its part of a sum",
        "core/boundary/stream.py",
        {
            "Held(output, post))": (
                "Held(output + self._values._held[0][1].value * bool(self._mover.tp_rank), post))"
            )
        },
        (f"{SWEEP}[replicated-tp2-pp2-dp1]", f"{SWEEP}[tied-tp3-pp3-dp1]"),
    ),
    Mutant(
        "copies-all-spread",
        "each copy of a term joins a sum, not the first alone",
        "core/parallel/moving.py",
        {"[src.split : src.debt]):": "[src.debt : src.debt]):"},
        (
            "tests/parallel/test_moving.py"
            "::test_a_spread_contributes_once_whatever_the_copies_hold",
            "tests/boundary/test_walks.py::test_random_walks[tp2]",
        ),
    ),
    Mutant(
        "residual-added-twice",
        "the fused norm is given the residual and a sum that holds it already",
        "core/boundary/execute.py",
        {"(update, residual)": "(update + residual, residual)"},
        (
            f"{STREAM}::test_stages_sum_partials_into_the_residual",
            f"{TOPOLOGIES}::test_a_quarter_in_float32_agrees_with_transformers"
            "[several-tp4-pp1-dp1]",
        ),
    ),
    Mutant(
        "residual-not-kept",
        "the stream goes on with what the norm gave",
        "core/boundary/execute.py",
        {'kept = normed if stage.read == "replace" else total': "kept = normed"},
        (TRANSFORMERS, f"{STREAM}::test_stages_sum_partials_into_the_residual"),
    ),
    Mutant(
        "norm-of-unsummed-rows",
        "a stage may read a term that is still partial",
        "core/parallel/placement.py",
        {"return same and not src.post and complete": "return same and not src.post"},
        (f"{SWEEP}[fused-tp4-pp2-dp1]", f"{SWEEP}[tied-tp3-pp1-dp1]"),
    ),
    Mutant(
        "post-norm-of-unsummed-rows",
        "an output's own norm runs before its sum",
        "core/parallel/placement.py",
        {
            "return bool(src.post) and complete and dst == Term(src.split, n)": (
                "return bool(src.post) and dst == Term(src.split, src.debt)"
            )
        },
        (f"{SHAPES}::test_shape_on_every_topology",),
    ),
    Mutant(
        "gathered-rows-in-another-order",
        "ranks' rows joined from the last rank to the first",
        "core/parallel/moving.py",
        {
            "        return group.all_gather(x, 0)\n": (
                "        return torch.cat(group.all_gather(x, 0).chunk(group.size)[::-1])\n"
            )
        },
        (f"{SWEEP}[fused-tp4-pp2-dp1]", f"{SWEEP}[replicated-tp4-pp2-dp4]"),
    ),
    Mutant(
        "rows-of-the-first-group",
        "every attention group takes the first group's rows from the head",
        "core/models/layer_stack.py",
        {"start = selected.span(self.tp_rank, axes.attn_depth).start": "start = 0"},
        (f"{RAGGED}[two groups of two-7]", f"{SWEEP}[tied-tp4-pp1-dp4]"),
    ),
    Mutant(
        "padding-first",
        "real rows lie behind a group's padding",
        "core/parallel/moving.py",
        {"F.pad(kept, (0, 0, 0, padding))": "F.pad(kept, (0, 0, padding, 0))"},
        (f"{RAGGED}[two groups of two-7]", f"{RAGGED}[in slices-7]"),
    ),
    Mutant(
        "requests-of-one-group",
        "all requests queue in the first attention group",
        "core/runtime/engine.py",
        {"min(self.lanes, key=lambda lane: lane.load)": "self.lanes[0]"},
        (f"{GROUPS}::test_requests_go_to_the_group_with_the_least_to_do",),
    ),
    Mutant(
        "aux-index-off-by-one",
        "state i is the output of layer i, not of layer i - 1",
        "core/models/layer_stack.py",
        {
            "{places[index]: index for index in indices}": "{places[index - 1]: index for index in indices}"
        },
        (TRANSFORMERS,),
    ),
    Mutant(
        "aux-in-the-order-of-the-layers",
        "states come in the order of their layers instead of the one asked for",
        "core/models/base.py",
        {"for index in self._aux_layers)": "for index in sorted(self._aux_layers))"},
        (f"{AUX}::test_states_come_in_the_order_asked_for",),
    ),
    Mutant(
        "aux-swapped-at-the-hand-off",
        "a stage sends captured states in another order than the next one takes them",
        "core/models/hand_off.py",
        {
            "aux[index] for index in sorted(aux)": "aux[index] for index in sorted(aux, reverse=True)"
        },
        (f"{STATES}[pp3-cut-None]",),
    ),
    Mutant(
        "aux-of-padded-rows",
        "captured states keep their padding",
        "core/models/base.py",
        {"real = slice(batch.num_real)": "real = slice(None)"},
        (f"{STATES}[tp8-dp2-sliced-None]",),
    ),
)
