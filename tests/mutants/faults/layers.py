"""Faults of norms, activation, rotary, logits and pooling."""

from __future__ import annotations

from mutants.mutant import Mutant

NORM = "tests/layers/test_norm_pooler.py"
ROTARY = "tests/layers/test_rotary.py"
LOGITS = "tests/layers/test_logits.py"
STREAM = "tests/boundary/test_stream.py"

MUTANTS = (
    Mutant(
        "gate-and-up-swapped",
        "SiLU applied to up instead of gate",
        "core/layers/activation.py",
        {"gate, up = x.chunk": "up, gate = x.chunk"},
        ("tests/layers/test_activation.py::test_silu_gates_the_second_half_by_the_first",),
    ),
    Mutant(
        "norm-eps-ignored",
        "a norm keeps its default eps whatever the config says",
        "core/layers/norm.py",
        {"self.prefix, self.eps = prefix, eps": "self.prefix, self.eps = prefix, 1e-6"},
        (f"{NORM}::test_eps_counts_for_small_rows",),
    ),
    Mutant(
        "norm-weight-ignored",
        "a norm without its weight",
        "core/layers/norm.py",
        {
            "F.rms_norm(x, self._shape, self.weight, self.eps)": (
                "F.rms_norm(x, self._shape, None, self.eps)"
            )
        },
        (f"{NORM}::test_rms_norm_and_its_fused_addition",),
    ),
    Mutant(
        "norm-residual-not-updated",
        "add-and-norm returns the old residual",
        "core/layers/norm.py",
        {"self.eps), total": "self.eps), residual"},
        (f"{NORM}::test_rms_norm_and_its_fused_addition",),
    ),
    Mutant(
        "double-sum-allowed",
        "a linear that sums itself passes under a boundary that sums again",
        "core/boundary/stage.py",
        {'getattr(module, "reduce_results", False)': 'getattr(module, "reduces_results", False)'},
        (f"{STREAM}::test_linear_that_sums_itself_is_refused_under_a_boundary",),
    ),
    Mutant(
        "rope-style-swapped",
        "interleaved pairs rotated as halves and the other way round",
        "core/layers/rotary.py",
        {
            "(pairs, 2) if config.interleaved else (2, pairs)": (
                "(2, pairs) if config.interleaved else (pairs, 2)"
            ),
            "3 if config.interleaved else 2": "2 if config.interleaved else 3",
        },
        (
            f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[default-16-False]",
            f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[default-16-True]",
        ),
    ),
    Mutant(
        "rope-turned-backwards",
        "rotation by the negative angle",
        "core/layers/rotary.py",
        {"torch.stack((-sin, sin), axis)": "torch.stack((sin, -sin), axis)"},
        (f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[default-16-False]",),
    ),
    Mutant(
        "rope-theta-ignored",
        "every model rotates with base 10000",
        "core/layers/rope_tables.py",
        {"config.theta ** _exponents(config)\n    if": "10000.0 ** _exponents(config)\n    if"},
        (
            f"{ROTARY}::test_llama_types_equal_transformers[64-default_big_theta]",
            f"{ROTARY}::test_far_positions_equal_transformers[default_big_theta]",
        ),
    ),
    Mutant(
        "rope-scaling-ignored",
        "linear position interpolation read and not applied",
        "core/layers/rope_tables.py",
        {"plain = plain / config.factor\n    elif": "plain = plain * 1.0\n    elif"},
        (f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[linear-16-False]",),
    ),
    Mutant(
        "rope-attention-factor-dropped",
        "YaRN and LongRoPE without their factor on the cosine",
        "core/layers/rope_tables.py",
        {"angles.cos() * self._scale": "angles.cos()"},
        (
            f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[yarn-16-False]",
            f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[longrope-16-False]",
        ),
    ),
    Mutant(
        "rope-positions-from-one",
        "the rotary table starts at position 1",
        "core/layers/rope_tables.py",
        {"torch.arange(size, dtype=torch.float32": "torch.arange(1, size + 1, dtype=torch.float32"},
        (
            f"{ROTARY}::test_position_zero_is_the_identity_and_length_is_kept",
            f"{ROTARY}::test_every_type_and_style_equals_a_plain_twin[default-16-False]",
        ),
    ),
    Mutant(
        "rope-length-of-the-batch",
        "dynamic NTK stretched by the longest sequence of the batch",
        "core/layers/rope_tables.py",
        {"lengths = seq_lens.clamp": "lengths = seq_lens.max().expand_as(seq_lens).clamp"},
        (f"{ROTARY}::test_batch_gives_each_sequence_what_it_gets_alone",),
    ),
    Mutant(
        "sampled-row-off-by-one",
        "logits of the row before the one that was asked for",
        "core/layers/logits.py",
        {
            "index_select(0, wanted.sample_rows)": "index_select(0, (wanted.sample_rows - 1).clamp(0))"
        },
        (f"{LOGITS}::test_the_head_sees_only_requested_rows",),
    ),
    Mutant(
        "padded-rows-reach-the-head",
        "logits computed for padding",
        "core/layers/logits.py",
        {"hidden_states if real is None else hidden_states[:real]": "hidden_states"},
        (f"{LOGITS}::test_without_rows_every_real_row_and_no_padded_one",),
    ),
    Mutant(
        "logit-soft-cap-missing",
        "the soft cap on logits left out",
        "core/layers/logits.py",
        {"logits = torch.tanh(logits / self.soft_cap) * self.soft_cap": "logits = logits * 1.0"},
        (f"{LOGITS}::test_logits_are_float32_and_soft_capped",),
    ),
    Mutant(
        "temperature-after-softmax",
        "log-probabilities divided by the temperature instead of logits",
        "core/layers/logits.py",
        {"return torch.log_softmax(scaled, dim=-1)": "return logits.log_softmax(-1) / temperature"},
        (f"{LOGITS}::test_input_logprobs_scale_before_the_softmax_in_any_chunks",),
    ),
    Mutant(
        "temperature-of-the-first-chunk",
        "every chunk of rows scaled by the temperatures of the first",
        "core/layers/logits.py",
        {"temperature[rows, None]": "temperature[: logits.shape[0], None]"},
        (f"{LOGITS}::test_input_logprobs_scale_before_the_softmax_in_any_chunks",),
    ),
    Mutant(
        "pooler-of-another-request",
        "requests that end are counted, not looked up",
        "core/layers/pooler.py",
        {"starts[i + 1] - 1 for i in ending": "starts[i + 1] - 1 for i, _ in enumerate(ending)"},
        (f"{NORM}::test_pooling_takes_real_rows",),
    ),
    Mutant(
        "pooler-normalises-before-cutting",
        "vectors cut to fewer dimensions are no longer of length 1",
        "core/layers/pooler.py",
        {
            "        pooled = cut_dimensions(pooled, wanted.dimensions)\n": "",
            "return F.normalize(pooled, dim=-1) if wanted.normalize else pooled": (
                "pooled = F.normalize(pooled, dim=-1) if wanted.normalize else pooled\n"
                "        return cut_dimensions(pooled, wanted.dimensions)"
            ),
        },
        (f"{NORM}::test_dimensions_are_cut_before_normalising",),
    ),
)
