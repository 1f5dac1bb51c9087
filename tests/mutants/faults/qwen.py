"""Faults of what Qwen adds: normalised queries and keys, switched windows, small heads."""

from __future__ import annotations

from mutants.mutant import Mutant

QWEN = "plugins/qwen3/tests/test_qwen.py"
CONFIG = "plugins/qwen3/tests/test_config.py"
HEADS = "plugins/qwen3/tests/test_heads.py"
GGUF = "plugins/qwen3/tests/test_gguf.py"
MODEL = "plugins/qwen3/archzoo_qwen3/model.py"
LOGITS = f"{QWEN}::test_logits_chunks_and_decode_equal_transformers"
REWARD = f"{HEADS}::test_a_reward_is_what_two_layers_make_of_the_last_row"
STEPS = f"{HEADS}::test_a_process_reward_scores_every_step"
RERANK = f"{HEADS}::test_a_reranker_weighs_yes_against_no"

MUTANTS = (
    Mutant(
        "qk-norm-after-rotary",
        "queries and keys normalised once they are rotated",
        "core/models/attention.py",
        {
            "self.rotary_emb(positions, *self.normalize(q, k))": (
                "self.normalize(*self.rotary_emb(positions, q, k))"
            )
        },
        (f"{LOGITS}[qwen3-alone]",),
    ),
    Mutant(
        "qk-norm-over-the-row",
        "one mean square for all heads of a row instead of one for each",
        MODEL,
        {
            "norm(rows.view(len(rows), rows.shape[1] // width, width))": (
                "nn.functional.rms_norm(rows, rows.shape[1:], "
                "norm.weight.repeat(rows.shape[1] // width), norm.eps)"
            ),
            "from torch import Tensor\n": "from torch import Tensor, nn\n",
        },
        (f"{QWEN}::test_queries_and_keys_are_normalised_by_head_before_they_are_rotated",),
    ),
    Mutant(
        "qk-norms-swapped",
        "keys normalised with the queries' weight and the reverse",
        MODEL,
        {
            "_by_head(self.q_norm, q), _by_head(self.k_norm, k)": (
                "_by_head(self.k_norm, q), _by_head(self.q_norm, k)"
            )
        },
        (f"{LOGITS}[qwen3-alone]", f"{LOGITS}[tied-alone]"),
    ),
    Mutant(
        "keys-not-normalised",
        "only queries are",
        MODEL,
        {"_by_head(self.q_norm, q), _by_head(self.k_norm, k)": "_by_head(self.q_norm, q), k"},
        (f"{LOGITS}[qwen3-alone]",),
    ),
    Mutant(
        "qwen3-without-its-layer",
        "Qwen3 served with Qwen2's layer",
        MODEL,
        {
            "    layer = Qwen3DecoderLayer\n    adapter = QWEN3\n    backbone": (
                "    adapter = QWEN3\n    backbone"
            )
        },
        (f"{QWEN}::test_every_class_serves_its_own_layer",),
    ),
    Mutant(
        "window-on-a-full-layer",
        "layer_types read the wrong way round",
        "core/config/windows.py",
        {
            '{"full_attention": False, "sliding_attention": True}': (
                '{"full_attention": True, "sliding_attention": False}'
            )
        },
        (f"{LOGITS}[qwen3-alone]",),
    ),
    Mutant(
        "windows-from-the-first-layer",
        "max_window_layers taken for the number of layers that slide",
        "core/config/windows.py",
        {"first is not None and i >= first": "first is not None and i < first"},
        (f"{CONFIG}::test_windows_lie_where_transformers_puts_them",),
    ),
    Mutant(
        "qwen2-biases-dropped",
        "Qwen2 built without the biases that its config never states",
        "plugins/qwen3/archzoo_qwen3/adapters.py",
        {'"attention_bias": True,': '"attention_bias": False,'},
        (f"{CONFIG}::test_defaults_are_those_of_transformers_and_are_told[qwen2]",),
    ),
    Mutant(
        "base-of-another-family",
        "a config without rope_theta rotated with Llama's base",
        "plugins/qwen3/archzoo_qwen3/adapters.py",
        {"1_000_000.0": "10_000.0"},
        (f"{CONFIG}::test_the_rotary_base_is_that_of_every_released_qwen",),
    ),
    Mutant(
        "reward-without-relu",
        "the two layers of a reward head multiplied as one",
        "core/models/linear_stack.py",
        {"rows = self.activation(layer(rows)[0])": "rows = layer(rows)[0]"},
        (f"{REWARD}[options0]", f"{STEPS}[options0]"),
    ),
    Mutant(
        "reward-normalised",
        "a reward scaled to length 1, as a vector is",
        "core/models/classifier.py",
        {
            "return at_least_float32(self.scores(rows.to(self.dtype)))": (
                "return self.pooler.vectors(self.scores(rows.to(self.dtype)), "
                "PoolingRequest(wanted.requests, None, True))"
            )
        },
        (f"{REWARD}[options0]",),
    ),
    Mutant(
        "steps-scored-one-token-early",
        "a step read before the token that ends it",
        "core/runtime/scoring.py",
        {
            "stops = [at + 1 for at, token in enumerate(ids) if token == end]": (
                "stops = [max(at, 1) for at, token in enumerate(ids) if token == end]"
            )
        },
        (f"{STEPS}[options0]",),
    ),
    Mutant(
        "no-for-yes",
        "the probability of no taken for relevance",
        "core/runtime/judging.py",
        {"return (yes - no).sigmoid()": "return (no - yes).sigmoid()"},
        (f"{RERANK}[options0]",),
    ),
    Mutant(
        "labels-of-the-first-row",
        "answers read from a prompt's first row",
        "core/runtime/scoring.py",
        {"stops[n] - 1 for n in ending": "stops[n] - lens[n] for n in ending"},
        (f"{RERANK}[options0]",),
    ),
    Mutant(
        "normalised-before-the-cut",
        "a vector scaled to length 1 whole, then cut",
        "core/layers/pooler.py",
        {
            "return F.normalize(pooled, dim=-1) if wanted.normalize else pooled": "return pooled",
            "pooled = cut_dimensions(pooled, wanted.dimensions)": (
                "pooled = F.normalize(pooled, dim=-1) if wanted.normalize else pooled\n"
                "        pooled = cut_dimensions(pooled, wanted.dimensions)"
            ),
        },
        (f"{HEADS}::test_a_backbone_saved_under_the_name_of_its_language_model",),
    ),
    Mutant(
        "any-head-may-be-missing",
        "a truncated language model served as an embedding model",
        "core/runtime/resolved.py",
        {"backbone if bare or checkpoint.lists_pooling else model_class": "backbone"},
        (f"{HEADS}::test_only_a_backbone_may_lack_its_head",),
    ),
    Mutant(
        "gguf-norms-swapped",
        "llama.cpp's attn_q_norm read as the keys' norm",
        "core/weights/gguf_names.py",
        {
            'attn_q_norm.*", "model.layers.*.self_attn.q_norm.*"': (
                'attn_q_norm.*", "model.layers.*.self_attn.k_norm.*"'
            ),
            'attn_k_norm.*", "model.layers.*.self_attn.k_norm.*"': (
                'attn_k_norm.*", "model.layers.*.self_attn.q_norm.*"'
            ),
        },
        (f"{GGUF}::test_logits_equal_transformers[qwen3-1]",),
    ),
    Mutant(
        "gguf-rows-reordered",
        "Qwen's q and k rows put back in an order they were never taken out of",
        "core/weights/gguf_names.py",
        {'"qwen3": False': '"qwen3": True'},
        (f"{GGUF}::test_logits_equal_transformers[qwen3-1]",),
    ),
)
