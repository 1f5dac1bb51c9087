"""Faults of attention, of its masks and of the KV cache."""

from __future__ import annotations

from mutants.mutant import Mutant

BACKEND = "tests/attention/test_torch_backend.py"
EQUAL = f"{BACKEND}::test_equals_reference"
LLAMA = "plugins/llama/tests/test_llama.py"
CAUSAL_LM = "tests/models/test_causal_lm.py"

MUTANTS = (
    Mutant(
        "attention-scale-unread",
        "the backend takes 1/sqrt(head_dim) instead of the layer's factor",
        "core/attention/kernels.py",
        {"attn_mask=bias, scale=spec.scaling": "attn_mask=bias"},
        (f"{EQUAL}[prefill-plain-True-False]", f"{EQUAL}[decode-plain-True-False]"),
    ),
    Mutant(
        "attention-scale-of-the-width",
        "scores divided by head_dim instead of its root",
        "core/layers/radix_attention.py",
        {"head_dim**-0.5": "head_dim**-1.0"},
        (f"{LLAMA}::test_logits_equal_transformers[grouped-1]",),
    ),
    Mutant(
        "window-off-by-one",
        "a window of W tokens that does not count the query itself",
        "core/attention/reach.py",
        {"spec.sliding_window - 1": "spec.sliding_window"},
        (f"{EQUAL}[prefill-window-True-False]", f"{EQUAL}[decode-window-True-False]"),
    ),
    Mutant(
        "causal-mask-off-by-one",
        "each query sees the token after it",
        "core/attention/reach.py",
        {"Reach(side, 0 if": "Reach(side, 1 if"},
        (f"{EQUAL}[prefill-plain-True-False]", f"{EQUAL}[cached prefix-plain-True-False]"),
    ),
    Mutant(
        "cached-prefix-ignored",
        "queries attend to the tokens of this forward only",
        "core/attention/reach.py",
        {"return 0 if self.behind is None": "return position if self.behind is None"},
        (f"{EQUAL}[cached prefix-plain-True-False]", f"{EQUAL}[decode-plain-True-False]"),
    ),
    Mutant(
        "soft-cap-dropped-in-decode",
        "scores capped only where there is a mask",
        "core/attention/kernels.py",
        {"if spec.logit_cap is not None:": "if spec.logit_cap is not None and bias is not None:"},
        (f"{EQUAL}[decode, equal lengths-soft cap-True-False]",),
    ),
    Mutant(
        "query-groups-interleaved",
        "query head h reads KV head h mod K instead of h div (N / K)",
        "core/attention/kernels.py",
        {
            "q.view(sequences, rows, kv_heads, group, dim).transpose(1, 2)": (
                "q.view(sequences, rows, group, kv_heads, dim).permute(0, 3, 1, 2, 4)"
            )
        },
        (f"{EQUAL}[prefill-plain-True-False]",),
    ),
    Mutant(
        "decode-padding-unmasked",
        "shorter requests of a decode group see their last key again and again",
        "core/attention/plan.py",
        {"None if min(widths) == max(widths) else": "None if members else"},
        (f"{EQUAL}[decode-plain-True-False]",),
    ),
    Mutant(
        "mask-of-the-first-block",
        "later blocks of a long prompt masked as if they began it",
        "core/attention/plan.py",
        {"first = left - block.shift": "first = 0"},
        (f"{EQUAL}[blocks-plain-True-False]",),
    ),
    Mutant(
        "padded-rows-not-zeroed",
        "what a backend leaves in padded rows goes on into the model",
        "core/layers/radix_attention.py",
        {"real < out.shape[0]": "real > out.shape[0]"},
        ("tests/layers/test_radix_attention.py::test_padded_rows_come_out_as_zeros",),
    ),
    Mutant(
        "keys-in-wrong-slots",
        "keys written to the slots in another order than values",
        "core/attention/torch_backend.py",
        {"kv.k.index_copy_(0, step.slots, k)": "kv.k.index_copy_(0, step.slots.flip(0), k)"},
        (f"{EQUAL}[prefill-plain-True-False]", f"{EQUAL}[decode-plain-True-False]"),
    ),
    Mutant(
        "writes-although-told-not-to",
        "save_kv_cache=False writes the cache",
        "core/attention/torch_backend.py",
        {"kv is not None and (k is None or save_kv_cache)": "kv is not None"},
        (f"{EQUAL}[prefill-plain-False-True]",),
    ),
    Mutant(
        "one-plan-for-all-layers",
        "layers with a window share the plan of those without",
        "core/attention/torch_backend.py",
        {"spec, self._kinds.index(kind)": "spec, 0"},
        (f"{BACKEND}::test_layers_of_one_pool_differ_in_window_and_keep_their_own_cache",),
    ),
    Mutant(
        "cache-of-layer-0",
        "all layers read and write the cache of layer 0",
        "core/models/base.py",
        {"handles.get(layer.spec.layer_id)": "handles.get(0)"},
        (f"{LLAMA}::test_chunks_and_batches_equal_the_whole[grouped]",),
    ),
    Mutant(
        "local-layer-ids",
        "layers numbered within a stage instead of globally",
        "core/models/decoder.py",
        {"layer(config, layer_id, ctx=ctx": "layer(config, layer_id % 40, ctx=ctx"},
        (
            f"{CAUSAL_LM}::test_a_70b_llama_builds_on_meta_for_any_rank_without_a_process_group[8-7]",
        ),
    ),
    Mutant(
        "recomputed-rows-know-the-output",
        "a preempted request is rotated for a length its first forward did not know",
        "core/runtime/scheduler.py",
        {"[max(known, at + 1) for at": "[len(tokens) for at"},
        (
            "tests/runtime/test_model.py::test_preemption_changes_no_token_where_rotation_depends_on_length",
        ),
    ),
    Mutant(
        "slot-bytes-of-keys-twice",
        "memory of a token counted with the key's width for values too",
        "core/forward/kv_cache.py",
        {"s.head_dim + s.v_head_dim": "2 * s.head_dim"},
        ("tests/forward/test_kv_cache.py::test_bytes_of_a_slot",),
    ),
)
