"""Faults of reading a config file: nothing crashes, the model is another one."""

from __future__ import annotations

from mutants.mutant import Mutant

MODEL = "tests/config/test_model_config.py"
ROPE = "tests/config/test_rope_reader.py"
WINDOWS = "tests/config/test_windows.py::test_qwen_needs_the_switch_and_layer_types_decide"

MUTANTS = (
    Mutant(
        "null-kv-heads-read-as-absent",
        "an explicit null takes the family's count of KV heads",
        "core/config/model.py",
        {"fields.value(name, integer, null_is_value=True)": "fields.value(name, integer)"},
        (f"{MODEL}::test_absent_kv_heads_follow_a_family_that_states_them_and_null_does_not",),
    ),
    Mutant(
        "missing-kv-heads-are-one",
        "an old config without KV heads read as multi-query",
        "core/config/model.py",
        {
            '"num_attention_heads", heads)\n        return heads': '"num_attention_heads", heads)\n        return 1'
        },
        (f"{MODEL}::test_kv_heads_default_to_all_heads",),
    ),
    Mutant(
        "head-dim-by-division",
        "hidden_size / heads where the file states head_dim",
        "core/config/model.py",
        {
            "    if stated is not None:\n        return int(stated)\n    if hidden % heads:": (
                "    if stated is not None:\n        return hidden // heads\n    if hidden % heads:"
            )
        },
        (f"{MODEL}::test_explicit_head_dim_beats_division",),
    ),
    Mutant(
        "one-end-token",
        "of a list of end tokens only the first counts",
        "core/config/model.py",
        {
            "dict.fromkeys(token for token in tokens if token is not None)": (
                "[token for token in tokens if token is not None][:1]"
            )
        },
        (f"{MODEL}::test_end_tokens[eos1-expected1]",),
    ),
    Mutant(
        "tied-by-default",
        "a Llama config that is silent about ties read as tied",
        "core/config/adapter.py",
        {'"tie_word_embeddings": False': '"tie_word_embeddings": True'},
        (f"{MODEL}::test_tie_stated_or_by_default",),
    ),
    Mutant(
        "o-proj-bias-from-qkv",
        "a bias of q, k and v gives the output projection one too",
        "core/config/adapter.py",
        {
            '"o_proj_bias": ("attention_bias", "bias")': '"o_proj_bias": ("attention_bias", "qkv_bias", "bias")'
        },
        (f"{MODEL}::test_bias_spellings",),
    ),
    Mutant(
        "rope-type-key-unread",
        "rope scaling in its old spelling taken for none",
        "core/config/rope_reader.py",
        {
            "for kind in (new, old) if kind is not None]": "for kind in (new,) if kind is not None]",
            "    block.finish(rope_type)\n    return replace": "    return replace",
        },
        (
            f"{ROPE}::test_old_and_new_spelling_mean_the_same[rope_scaling-block0]",
            f"{ROPE}::test_old_and_new_spelling_mean_the_same[rope_parameters-block0]",
        ),
    ),
    Mutant(
        "rope-keys-left-unread",
        "rope keys that no reader knows pass without a word",
        "core/config/rope_reader.py",
        {"    block.finish(rope_type)\n    return replace": "    return replace"},
        (f"{ROPE}::test_unread_keys_are_named",),
    ),
    Mutant(
        "rope-theta-of-the-top-level",
        "rope_theta beside the block overrules the one inside",
        "core/config/rope_reader.py",
        {
            "    result = block.take(key, check)\n": (
                "    result = block.take(key, check)\n"
                "    result = fields.value(key, check) if fields.is_stated(key) else result\n"
            )
        },
        (f"{ROPE}::test_theta_inside_the_block_comes_first",),
    ),
    Mutant(
        "rope-partial-in-every-family",
        "a factor that the family's reference ignores leaves features unturned",
        "core/config/rope_reader.py",
        {"if factor != 1 and not fields.adapter.partial_rotary:": "if factor > 1:"},
        (
            f"{ROPE}::test_a_family_that_rotates_everything_refuses_a_factor",
            "tests/config/test_gguf.py::test_a_partial_width_is_refused_where_the_family_has_none",
        ),
    ),
    Mutant(
        "window-without-its-switch",
        "sliding_window on although use_sliding_window is not",
        "core/config/windows.py",
        {'fields.value("use_sliding_window", flag) is True': 'fields.is_stated("sliding_window")'},
        (f"{WINDOWS}[over2-expected2]",),
    ),
    Mutant(
        "window-in-the-wrong-layers",
        "the window starts one layer late",
        "core/config/windows.py",
        {"i >= first": "i > first"},
        (f"{WINDOWS}[over6-expected6]", f"{WINDOWS}[over7-expected7]"),
    ),
    Mutant(
        "causal-whatever-is-stated",
        "an embedding model that attends both ways, run as a language model",
        "core/config/fields.py",
        {"if name in TAKEN_FOR_GRANTED:": "if name in ():"},
        (
            "tests/config/test_ledger.py"
            "::test_attention_of_another_kind_is_refused_unless_a_family_reads_it",
        ),
    ),
    Mutant(
        "gguf-tie-inverted",
        "a GGUF file with an output matrix read as tied",
        "core/config/gguf.py",
        {'"output.weight" not in tensor_names': '"output.weight" in tensor_names'},
        ("tests/config/test_gguf.py::test_an_output_tensor_unties_the_head",),
    ),
)
