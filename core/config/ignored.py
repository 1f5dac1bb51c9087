"""Fields that change no output of a forward pass, each with the rule that ignores it.

Whatever is not listed is ``unknown``: it shows in the ledger under that rule, or is refused when
its name says that it changes rotary embeddings or quantization, its value asks for attention of
another kind, or another family is known to have it (``config.foreign``).
"""

from __future__ import annotations

import re

_TRAINING = (
    "initializer_range attention_dropout hidden_dropout hidden_dropout_prob resid_dropout "
    "resid_pdrop embd_pdrop attn_pdrop embedding_dropout classifier_dropout "
    "attention_probs_dropout_prob summary_first_dropout gradient_checkpointing problem_type "
    "router_jitter_noise router_aux_loss_coef finetuning_task"
)
_RUNTIME = (
    "use_cache pretraining_tp output_attentions output_hidden_states return_dict torchscript "
    "use_bfloat16 chunk_size_feed_forward attn_implementation use_flash_attn cache_implementation "
    "pruned_heads tf_legacy_loss output_router_logits"
)
_BOOKKEEPING = (
    "transformers_version name_or_path tokenizer_class max_sequence_length auto_map "
    "unsloth_version unsloth_fixed label2id task_specific_params is_decoder prefix "
    "tie_encoder_decoder cross_attention_hidden_size add_cross_attention"
)
_GENERATION = (
    "do_sample temperature top_k top_p typical_p repetition_penalty length_penalty num_beams "
    "num_beam_groups diversity_penalty early_stopping max_length min_length max_new_tokens "
    "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
    "begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty output_scores "
    "return_dict_in_generate decoder_start_token_id sep_token_id"
)

IGNORED_RULES: dict[str, str] = {
    name: rule
    for rule, names in (
        ("training only", _TRAINING),
        ("run-time choice", _RUNTIME),
        ("bookkeeping", _BOOKKEEPING),
        ("generation default", _GENERATION),
    )
    for name in names.split()
}
"""Field -> rule."""

TAKEN_FOR_GRANTED: dict[str, bool] = {"is_causal": True, "use_bidirectional_attention": False}
"""Field -> the one value that every layer here stands for; another is refused unless a family reads it."""

_GUARDED_PARTS = re.compile(r"rope.*|mrope|norope|longrope|.*rotary.*|quant.*|yarn|ntk")


def must_be_read(name: str) -> bool:
    """Whether a name says rotary or quantization: skipping such a field spoils output silently.

    >>> must_be_read("no_rope_layers"), must_be_read("quant_config"), must_be_read("europe")
    (True, True, False)
    """
    return any(_GUARDED_PARTS.fullmatch(part) for part in re.split(r"[._\-]", name.lower()))
