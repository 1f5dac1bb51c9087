"""Faults of experts: which a row goes to, how much they count, and which rank holds them."""

from __future__ import annotations

from mutants.mutant import Mutant

ROUTER = "tests/layers/moe/test_router.py"
EXPERTS = "tests/layers/moe/test_experts.py"
DEALING = "tests/parallel/test_experts.py"
NAMES = "tests/weights/test_experts.py"
CONFIG = "tests/config/test_moe.py"
MEMORY = "tests/survey/test_memory.py"
QWEN = "plugins/qwen3/tests/test_moe.py"

LIKELIEST = f"{ROUTER}::test_the_likeliest_experts_with_their_probabilities"
LAYOUTS = f"{EXPERTS}::test_every_layout_gives_what_one_rank_gives"
LOGITS = f"{QWEN}::test_logits_and_tokens_are_those_of_transformers"

MUTANTS = (
    Mutant(
        "router-in-the-models-dtype",
        "experts are chosen by probabilities that bfloat16 has made equal",
        "core/layers/moe/router.py",
        {"wide = torch.promote_types(logits.dtype, torch.float32)": "wide = logits.dtype"},
        (f"{ROUTER}::test_choice_and_weights_are_in_float32",),
    ),
    Mutant(
        "router-not-renormalised",
        "norm_topk_prob is read the wrong way round",
        "core/layers/moe/router.py",
        {"if renormalize:": "if not renormalize:"},
        (LIKELIEST, f"{LOGITS}[mixed]", f"{LOGITS}[every second]"),
    ),
    Mutant(
        "softmax-over-the-chosen",
        "probabilities of the chosen experts alone, where those of all are meant",
        "core/layers/moe/router.py",
        {
            "weights = ordered[:, :top_k]": (
                "weights = logits.gather(1, experts[:, :top_k]).softmax(-1, dtype=wide)"
            )
        },
        (f"{LIKELIEST}[1-False]", f"{LOGITS}[every second]"),
    ),
    Mutant(
        "last-of-equal-experts",
        "experts that tie are taken from the end",
        "core/layers/moe/router.py",
        {
            "ordered, experts = probabilities.sort(": (
                "experts = logits.shape[-1] - 1 - probabilities.flip(-1).sort(\n"
                "        dim=-1, descending=True, stable=True\n    )[1]\n"
                "    ordered, _ = probabilities.sort("
            )
        },
        (f"{ROUTER}::test_of_equal_experts_the_first_ones_win_in_every_batch",),
    ),
    Mutant(
        "expert-offset-missing",
        "a rank takes its experts for the first ones of the layer",
        "core/layers/moe/sorting.py",
        {"experts.flatten() - here.start": "experts.flatten()"},
        (LAYOUTS, f"{LOGITS}[mixed-tp2-ep2]"),
    ),
    Mutant(
        "weights-of-the-first-expert",
        "every expert of a row counts as much as its first",
        "core/layers/moe/sorting.py",
        {"* weights[:, at, None]": "* weights[:, 0, None]"},
        (f"{EXPERTS}::test_blocks_give_what_one_expert_after_the_other_gives", f"{LOGITS}[mixed]"),
    ),
    Mutant(
        "rows-of-the-pairs-mixed-up",
        "pair i is taken for row i",
        "core/layers/moe/sorting.py",
        {"self.pairs // self.shape[1]": "self.pairs % max(1, self.shape[0])"},
        (f"{EXPERTS}::test_blocks_give_what_one_expert_after_the_other_gives", f"{LOGITS}[mixed]"),
    ),
    Mutant(
        "exchange-without-weights",
        "rows that travelled count each expert in full",
        "core/layers/moe/exchange.py",
        {
            "Routes(experts.to(torch.int64), weights)": (
                "Routes(experts.to(torch.int64), torch.ones_like(weights))"
            )
        },
        (LAYOUTS, f"{LOGITS}[mixed-tp2-attn_dp2-ep2]"),
    ),
    Mutant(
        "exchange-with-another-order-of-ranks",
        "experts are looked for as if neighbouring ranks held neighbouring parts",
        "core/layers/moe/exchange.py",
        {"experts[place // sharing]": "experts[place % ep.size]"},
        (f"{LAYOUTS}[(17,)-tp4-dp4-ep2]", f"{LOGITS}[mixed-tp8-attn_dp4-ep2]"),
    ),
    Mutant(
        "exchange-keeps-the-last",
        "of what several ranks give for a row, the last one's is kept",
        "core/layers/moe/exchange.py",
        {"total.index_add_(0, index, given.to(dtype))": "total[index] = given.to(dtype)"},
        (LAYOUTS, f"{LOGITS}[mixed-tp2-attn_dp2-ep2]"),
    ),
    Mutant(
        "exchange-in-reverse",
        "rows arrive from the last rank to the first",
        "core/parallel/meeting.py",
        {"for rows in zip(*parts, strict=True)": "for rows in zip(*parts[::-1], strict=True)"},
        ("tests/parallel/test_distributed.py::test_over_threads[exchanging]",),
    ),
    Mutant(
        "rows-of-one-group-for-split-experts",
        "experts that are split over all ranks get the rows of their own attention group only",
        "core/parallel/axes.py",
        {"moe_depth = depth if topology.ep > 1 else 0": "moe_depth = depth"},
        (f"{LOGITS}[mixed-tp2-attn_dp2]",),
    ),
    Mutant(
        "width-of-the-first-rank",
        "every rank of a part computes the first share of its experts",
        "core/layers/moe/experts.py",
        {"start = split.rank * width": "start = 0 * split.rank"},
        (LAYOUTS, f"{LOGITS}[mixed-tp2]"),
    ),
    Mutant(
        "last-experts-with-nobody",
        "experts left over by the division are dealt to no rank",
        "core/parallel/experts.py",
        {"part * size + min(part, more)": "part * size"},
        (f"{DEALING}::test_every_expert_is_dealt_once_in_order[5-2]",),
    ),
    Mutant(
        "gate-and-up-of-experts-swapped",
        "an expert's gate is loaded as its up projection",
        "core/weights/standard_names.py",
        {
            '"**.experts.#.gate_proj.*", "**.experts.gate_up_proj.*", 0': (
                '"**.experts.#.gate_proj.*", "**.experts.gate_up_proj.*", 1'
            ),
            '"**.experts.#.up_proj.*", "**.experts.gate_up_proj.*", 1': (
                '"**.experts.#.up_proj.*", "**.experts.gate_up_proj.*", 0'
            ),
        },
        (
            f"{NAMES}::test_both_ways_of_storing_give_the_same_parameters",
            f"{LOGITS}[mixed]",
        ),
    ),
    Mutant(
        "sparse-layers-counted-from-0",
        "decoder_sparse_step divides the layer id instead of the layer's number from 1",
        "core/config/moe.py",
        {"(at + 1) % step == 0": "at % step == 0"},
        (f"{CONFIG}::test_which_layers_have_experts",),
    ),
    Mutant(
        "dense-layers-ignored",
        "mlp_only_layers is not obeyed",
        "core/config/moe.py",
        {" and at not in dense": ""},
        (f"{CONFIG}::test_which_layers_have_experts",),
    ),
    Mutant(
        "one-layer-stands-for-all",
        "a rule about one layer decides for every layer",
        "core/weights/outlines.py",
        {"self._usable = not any(": "self._usable = True or any("},
        (f"{NAMES}::test_rules_about_one_layer_are_not_taken_for_all",),
    ),
    Mutant(
        "experts-of-other-ranks-unchecked",
        "a rank looks only at tensors of its own experts",
        "core/parallel/experts.py",
        {"for expert in range(experts.total)\n": "for expert in experts.here\n"},
        (f"{DEALING}::test_all_ranks_together_hold_every_element_once",),
    ),
    Mutant(
        "experts-take-no-memory",
        "preflight plans experts as if a row met one of them",
        "core/survey/memory.py",
        {"pairs = load.rows * min(top_k, len(each.layout.here))": "pairs = load.rows"},
        (f"{MEMORY}::test_an_mlp_takes_no_more_than_planned",),
    ),
)
