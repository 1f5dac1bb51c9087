"""Faults of head arithmetic, parallel linears and the vocabulary."""

from __future__ import annotations

from mutants.mutant import Mutant

HEADS = "tests/parallel/test_heads.py"
LINEAR = "tests/layers/test_linear.py"
VOCAB = "tests/layers/test_vocab.py"

MUTANTS = (
    Mutant(
        "kv-heads-by-modulo",
        "copies of KV heads dealt out in turn instead of to neighbours",
        "core/parallel/heads.py",
        {
            "self.kv_group.rank // self.num_kv_head_replicas * self.num_kv_heads": (
                "self.kv_group.rank % self.total_num_kv_heads * self.num_kv_heads"
            ),
            "if needed != held:": "if len(needed) != len(held):",
        },
        (
            f"{HEADS}::test_replicas_are_neighbours",
            f"{HEADS}::test_query_heads_find_their_own_kv_head_on_their_rank",
        ),
    ),
    Mutant(
        "kv-heads-of-other-queries",
        "a rank may hold as many KV heads as it needs, but others",
        "core/parallel/heads.py",
        {"if needed != held:": "if len(needed) != len(held):"},
        (
            f"{HEADS}::test_kv_heads_of_other_query_heads_are_refused",
            f"{LINEAR}::test_kv_heads_of_other_ranks_queries_are_refused",
        ),
    ),
    Mutant(
        "first-head-by-kv-heads",
        "the first query head counted in KV heads",
        "core/parallel/heads.py",
        {"self.group.rank * self.num_heads": "self.group.rank * self.num_kv_heads"},
        (f"{HEADS}::test_query_heads_partition_the_heads",),
    ),
    Mutant(
        "values-cut-by-key-width",
        "V rows start where K rows would, though V heads have another width",
        "core/layers/qkv.py",
        {"heads.first_kv_head * v_head_size": "heads.first_kv_head * head_size"},
        (f"{LINEAR}::test_qkv_splits_by_head_and_copies_kv_heads[6-2-2]",),
    ),
    Mutant(
        "row-bias-on-every-rank",
        "the bias of a row-parallel linear added once for each rank",
        "core/layers/linear.py",
        {"add_bias=self.group.rank == 0": "add_bias=True"},
        (f"{LINEAR}::test_row_sums_to_one_matrix_with_one_bias",),
    ),
    Mutant(
        "row-bias-on-world-rank-0",
        "the bias added on rank 0 of the world instead of the group's",
        "core/layers/linear.py",
        {"add_bias=self.group.rank == 0": "add_bias=self.group.ranks[self.group.rank] == 0"},
        (
            f"{LINEAR}::test_row_bias_enters_on_rank_0_of_its_own_group",
            "tests/runtime/test_topologies.py::test_every_topology_says_what_one_rank_says"
            "[several-tp4-pp1-dp2]",
        ),
    ),
    Mutant(
        "row-sum-over-another-group",
        "cut over the layer's group, summed over tp",
        "core/layers/linear.py",
        {"self.group: Group = group": 'self.group: Group = ctx.group("tp")'},
        (f"{LINEAR}::test_row_bias_enters_on_rank_0_of_its_own_group",),
    ),
    Mutant(
        "row-weight-first-slice",
        "every rank loads the first rank's columns",
        "core/layers/linear.py",
        {"Span(None, input_size, group.rank * local, local)": "Span(None, input_size, 0, local)"},
        (f"{LINEAR}::test_row_sums_to_one_matrix_with_one_bias",),
    ),
    Mutant(
        "row-input-first-slice",
        "a whole input is cut at the first rank's features on every rank",
        "core/layers/linear.py",
        {"x.narrow(-1, self.partition.inputs.start, ": "x.narrow(-1, 0, "},
        (f"{LINEAR}::test_row_sums_to_one_matrix_with_one_bias",),
    ),
    Mutant(
        "skipped-bias-added-too",
        "skip_bias_add returns the bias and adds it as well",
        "core/layers/linear.py",
        {"if add_bias and not self.skip_bias_add else None": "if add_bias else None"},
        (
            f"{LINEAR}::test_skipped_row_bias_is_whole_on_every_rank_and_not_added",
            f"{LINEAR}::test_merged_columns_keep_their_parts_apart",
        ),
    ),
    Mutant(
        "gathered-parts-mixed",
        "gathered columns of merged parts left in rank order",
        "core/layers/linear.py",
        {"torch.cat([part.flatten(-2) for part in parts], dim=-1)": "gathered"},
        (f"{LINEAR}::test_merged_columns_keep_their_parts_apart",),
    ),
    Mutant(
        "merged-parts-read-from-the-top",
        "a stored gate_up_proj read as if every part were its first rows",
        "core/parallel/shards.py",
        {"moved = (start + offset, stop + offset)": "moved = (start, stop)"},
        ("tests/weights/test_loader.py::test_prefused_tensors_fill_stacked_parameters",),
    ),
    Mutant(
        "embedding-of-foreign-ids",
        "ids of other ranks look up row 0 instead of adding nothing",
        "core/layers/vocab.py",
        {"out.masked_fill(elsewhere.unsqueeze(-1), 0)": "out"},
        (f"{VOCAB}::test_lookup_equals_one_table",),
    ),
    Mutant(
        "embedding-not-summed",
        "the embedding's all-reduce is missing",
        "core/layers/vocab.py",
        {
            "self.group.all_reduce(out.masked_fill(elsewhere.unsqueeze(-1), 0))": (
                "out.masked_fill(elsewhere.unsqueeze(-1), 0)"
            )
        },
        (f"{VOCAB}::test_lookup_equals_one_table",),
    ),
    Mutant(
        "vocabulary-padding-kept",
        "padding columns stay in the logits, real ones are cut",
        "core/layers/vocab.py",
        {"[:, : self.num_embeddings]": "[:, -self.num_embeddings :]"},
        (f"{VOCAB}::test_head_gathers_the_vocabulary_and_cuts_padding",),
    ),
    Mutant(
        "tied-head-doubled",
        "a tied head holds a matrix of its own",
        "core/layers/vocab.py",
        {"self.weight = tied_to.weight": "self.weight.data.copy_(tied_to.weight)"},
        (f"{VOCAB}::test_a_tied_head_shares_the_embeddings_storage_and_leaves_it_readable",),
    ),
)
