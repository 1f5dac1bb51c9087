"""Faults of pipeline stages: what they hold, hand over and give back."""

from __future__ import annotations

from mutants.mutant import Mutant

STAGES = "tests/parallel/test_stages.py"
MODELS = "tests/models/test_pipeline.py"
LOADING = "tests/models/test_pipeline_weights.py"
RUNTIME = "tests/runtime/test_pipeline.py"
SCHEDULE = "tests/runtime/test_pipeline_schedule.py"
MICRO = "tests/runtime/test_micro_batches.py"
PROCESSES = "tests/runtime/test_processes.py"
TOPOLOGIES = "tests/runtime/test_topologies.py"

SWEEP = f"{TOPOLOGIES}::test_every_topology_says_what_one_rank_says[tied-tp3-pp3-dp1]"
IN_A_ROW = f"{MODELS}::test_stages_in_a_row_equal_the_whole[9-3-False]"
OVERLAP = f"{SCHEDULE}::test_two_stages_are_busy_at_once_with_four_micro_batches[prefill]"

MUTANTS = (
    Mutant(
        "stage-local-layer-id",
        "layers of a later stage numbered from 0",
        "core/models/decoder.py",
        {
            "layer(config, layer_id, ctx=ctx, ": "layer(config, layer_id - self.stage.layers.start, ctx=ctx, "
        },
        (
            f"{MODELS}::test_layers_keep_their_global_numbers_on_every_stage",
            f"{MODELS}::test_every_layer_attends_by_its_own_global_number",
        ),
    ),
    Mutant(
        "head-of-the-pipeline-too-long",
        "layers left over go to the last stages, which have the head as well",
        "core/parallel/stages.py",
        {"[*range(1, stages - 1), 0]": "[*range(stages - 1, 0, -1), 0]"},
        (
            f"{STAGES}::test_every_layer_is_on_one_stage_and_stages_differ_by_one",
            f"{STAGES}::test_what_is_left_over_goes_inside_first[3-2-expected1]",
        ),
    ),
    Mutant(
        "layers-by-string-prefix",
        "layer 10 counts as part of layer 1, which is on another stage",
        "core/weights/parameters.py",
        {
            "any(name[:end] in self._elsewhere for end in ends)": (
                "any(name[:end].startswith(each) for end in ends for each in self._elsewhere)"
            )
        },
        (
            f"{LOADING}::test_a_tensor_no_stage_wants_is_unexpected_on_some_stage"
            "[model.layers.10.self_attn.nonsense.weight-stages1]",
        ),
    ),
    Mutant(
        "tie-of-the-wrong-stage",
        "a tied head fills the embedding rows numbered by its stage, not by its rank in it",
        "core/layers/vocab.py",
        {
            "embedding_dim, group, padding_size, prefix)": (
                'embedding_dim, Group("tp", group.ranks, ctx.group("pp").rank % group.size), '
                "padding_size, prefix)"
            )
        },
        (
            f"{LOADING}::test_the_last_stage_fills_its_own_rows_of_a_tied_head[3]",
            SWEEP,
        ),
    ),
    Mutant(
        "stale-residual-across-micro-batches",
        "a stage goes on with the rows of an earlier micro-batch of equal size",
        "core/runtime/pipeline.py",
        {"        return taken\n": "        return vars(self).setdefault(str(rows), taken)\n"},
        (SWEEP, OVERLAP),
    ),
    Mutant(
        "stale-stream-of-another-forward",
        "a stage keeps the residual stream of the forward before",
        "core/models/decoder.py",
        {
            "        stream = self.stack.begin(hidden_states, rows, picked)\n": (
                "        if not self.stage.is_first:\n"
                "            hidden_states = vars(self).setdefault(str(rows), hidden_states)\n"
                "        stream = self.stack.begin(hidden_states, rows, picked)\n"
            )
        },
        (f"{MODELS}::test_two_forwards_interleaved_keep_their_streams", SWEEP),
    ),
    Mutant(
        "residual-dropped-at-the-hand-off",
        "only the last layer's output crosses to the next stage",
        "core/boundary/execute.py",
        {
            "            value = value + self.values.take(step.src).value\n": (
                "            other = self.values.take(step.src).value\n"
                '            value = other if self.stage.kind == "handoff" else value + other\n'
            )
        },
        (IN_A_ROW, SWEEP),
    ),
    Mutant(
        "norm-on-the-wrong-stage",
        "rows are normed before they are handed on",
        "core/models/hand_off.py",
        {
            "{RESIDUAL: residual, **states}": (
                "{RESIDUAL: torch.nn.functional.rms_norm(residual, residual.shape[-1:]), **states}"
            )
        },
        (IN_A_ROW, f"{MODELS}::test_pooled_rows_of_every_kind", SWEEP),
    ),
    Mutant(
        "no-norm-before-the-head",
        "the last stage multiplies rows with the head that no norm has read",
        "core/boundary/execute.py",
        {
            "        if normed is None:\n": '        if normed is None or stage.kind == "head":\n',
            "(total) if stage.normalises else total": (
                '(total) if stage.normalises and stage.kind != "head" else total'
            ),
        },
        (f"{TOPOLOGIES}::test_a_quarter_in_float32_agrees_with_transformers[several-tp4-pp1-dp1]",),
    ),
    Mutant(
        "one-micro-batch",
        "a step is never cut, so the stages take turns",
        "core/runtime/micro_batches.py",
        {"    return max(1, most)\n": "    return max(1, most // 100)\n"},
        (OVERLAP, f"{SCHEDULE}::test_three_stages_fill_and_drain"),
    ),
    Mutant(
        "cut-request-begins-anew",
        "the second part of a cut request takes the positions of its first",
        "core/runtime/micro_batches.py",
        {"step.prefix_lens[at] + low - begin": "step.prefix_lens[at]"},
        (f"{MICRO}::test_a_cut_request_is_a_prompt_in_chunks", SWEEP),
    ),
    Mutant(
        "pool-of-the-first-stage",
        "KV memory counted as if every stage had the layers of the first",
        "core/runtime/memory.py",
        {
            "sum(layout.bytes_per_slot for layout in layouts)": (
                "layouts[0].bytes_per_slot * len(layouts)"
            )
        },
        (f"{RUNTIME}::test_pools_of_uneven_stages_share_the_memory",),
    ),
    Mutant(
        "tokens-of-the-first-stage",
        "processes agree on what rank 0 says, which has no logits",
        "core/runtime/executor.py",
        {"self._world.broadcast(mine, root)": "self._world.broadcast(mine, 0)"},
        (f"{PROCESSES}::test_every_process_is_told_what_the_simulation_says",),
    ),
)
