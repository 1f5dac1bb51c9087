"""config_from_gguf: a GGUF file's metadata as a Hugging Face style config dict.

GGUF states sizes under ``<architecture>.*`` and token ids under ``tokenizer.ggml.*``; biases and a
tied head show only in the tensor names, llama3's frequency bands only in a tensor's values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .values import Where, integer, number, refuse, show

ROPE_DIVISORS = "rope_freqs.weight"
"""Tensor with the divisors of the rotary frequencies (llama3 scaling), one for each."""

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral3": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
}
"""GGUF's word -> architecture and ``model_type``, as config.json has them. Mistral 7B and its
relatives are ``llama`` there, and their window is lost; ``mistral3`` came with Mistral Small 3.1."""

_TOKENS = "tokenizer.ggml."
_REFUSED = (
    *("rope.", "attention.", "expert", "logit_scale", "residual_scale", "embedding_scale"),
    *("pooling_type", "leading_dense", "interleave_moe"),
)
_NO_EFFECT = frozenset({"tensor_data_layout", "rope.scaling.finetuned"})
_AS_SERVED = {
    "attention.causal": True,
    "pooling_type": 3,  # of the last token
    "expert_gating_func": 1,  # softmax
    "expert_weights_scale": 1.0,
}
"""Keys that can change results -> the value that asks for what is done anyway; 0 does everywhere."""


def config_from_gguf(
    metadata: Mapping[str, object],
    tensor_names: Collection[str],
    *,
    rope_divisors: Sequence[float] | None = None,
    file: str = "",
) -> dict[str, Any]:
    """A raw config that ``ModelConfig.from_dict`` reads.

    Args:
        metadata: the file's key-value section as plain Python values.
        tensor_names: GGUF names of its tensors.
        rope_divisors: values of the tensor ``rope_freqs.weight``, needed when there is one.
        file: path, for messages.

    Raises:
        ConfigError: the architecture is unknown, a key is missing or malformed, or a key that
            changes results is unknown.
    """
    keys = _Keys(metadata, file)
    head_dim = keys.head_dim()
    name, model_type = ARCHITECTURES[keys.architecture]
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": keys.size("embedding_length"),
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": keys.size("attention.head_count"),
        "num_key_value_heads": keys.kv_heads(),
        "head_dim": head_dim,
        "vocab_size": keys.vocab_size(),
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": shortest_float32(keys.real("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in tensor_names,
        **_biases(tensor_names),
        **keys.rope(head_dim),
        **keys.token_ids(),
    }
    if keys.architecture == "mistral3":
        config["sliding_window"] = None  # not the family's default: files of it state none
    if keys.architecture == "qwen3moe":
        config.update(keys.experts())
    if rope_divisors is not None or ROPE_DIVISORS in tensor_names:
        config["rope_scaling"] = _divided(config, rope_divisors, file)
    config.update(keys.rest())
    return config


def unread_architecture(name: object) -> str:
    """That models of this ``general.architecture`` are not read, and which are."""
    return (
        f"{show(name)} is not read from GGUF (read are {', '.join(ARCHITECTURES)}); use the model's "
        "safetensors files, of which more architectures are read"
    )


def one_for_all_layers(metadata: Mapping[str, object], key: str, file: str = "") -> Any:
    """The value of a key that GGUF may state for each layer; None where it is missing.

    Raises:
        ConfigError: the layers' values differ, or there are not as many as layers.
    """
    value = metadata.get(key)
    if not isinstance(value, list | tuple):
        return value
    layers = metadata.get(f"{key.partition('.')[0]}.block_count")
    if not value or any(each != value[0] for each in value):
        refuse(Where(key, file), f"{show(value)}: sizes that differ by layer are not served")
    if len(value) != layers:
        refuse(Where(key, file), f"has {len(value)} values for {show(layers)} layers")
    return value[0]


class _Keys:
    """Typed access to the metadata; remembers what was read."""

    def __init__(self, metadata: Mapping[str, object], file: str) -> None:
        self.metadata, self.file = metadata, file
        name = metadata.get("general.architecture")
        if not isinstance(name, str) or name not in ARCHITECTURES:
            refuse(Where("general.architecture", file), unread_architecture(name))
        self.architecture = name
        self._read: set[str] = set()

    def optional(self, key: str) -> Any:
        """Value of ``<architecture>.<key>``, or None; of a list for each layer, the one value."""
        self._read.add(key)
        return one_for_all_layers(self.metadata, f"{self.architecture}.{key}", self.file)

    def where(self, key: str) -> Where:
        return Where(f"{self.architecture}.{key}", self.file)

    def required(self, key: str) -> Any:
        value = self.optional(key)
        if value is None:
            refuse(self.where(key), "missing in the GGUF metadata")
        return value

    def size(self, key: str) -> int:
        return integer(self.required(key), self.where(key))

    def real(self, key: str) -> float:
        return number(self.required(key), self.where(key))

    def kv_heads(self) -> int:
        key = "attention.head_count_kv"
        return self.size("attention.head_count" if self.optional(key) is None else key)

    def experts(self) -> dict[str, Any]:
        """All layers have experts; llama.cpp lets a row's weights add up to 1 in any case."""
        normalised = self.optional("expert_weights_norm")
        return {
            "num_experts": self.size("expert_count"),
            "num_experts_per_tok": self.size("expert_used_count"),
            "moe_intermediate_size": self.size("expert_feed_forward_length"),
            "norm_topk_prob": True if normalised is None else normalised,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }

    def head_dim(self) -> int:
        """Width of a head: as stated, else hidden size / heads."""
        key, value = (self.optional(f"attention.{part}_length") for part in ("key", "value"))
        if key is None:
            hidden, heads = self.size("embedding_length"), self.size("attention.head_count")
            if hidden % heads:
                refuse(
                    self.where("embedding_length"),
                    f"{hidden} is not a multiple of attention.head_count={heads}, and "
                    "attention.key_length does not say how wide a head is",
                )
            key = hidden // heads
        if value not in (None, key):
            refuse(
                self.where("attention.value_length"),
                f"{show(value)} differs from the key length {key}; one head width is served",
            )
        return integer(key, self.where("attention.key_length"))

    def vocab_size(self) -> int:
        stated = self.optional("vocab_size")
        if stated is not None:
            return integer(stated, self.where("vocab_size"))
        tokens = self.metadata.get(f"{_TOKENS}tokens")
        if not isinstance(tokens, list | tuple) or not tokens:
            refuse(self.where("vocab_size"), f"missing, and there is no list {_TOKENS}tokens")
        return len(tokens)

    def token_ids(self) -> dict[str, int | None]:
        """Token ids; None where the file states none, so that no family default steps in."""
        names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
        result: dict[str, int | None] = {}
        for field, kind in names.items():
            key = f"{_TOKENS}{kind}_token_id"
            value = self.metadata.get(key)
            result[field] = None if value is None else integer(value, Where(key, self.file), low=0)
        return result

    def rope(self, head_dim: int) -> dict[str, Any]:
        """Base, partial width and scaling of the rotary embedding."""
        base, width = self.optional("rope.freq_base"), self.optional("rope.dimension_count")
        result: dict[str, Any] = {"rope_theta": 10000.0 if base is None else base}
        if width not in (None, head_dim):
            at = self.where("rope.dimension_count")
            result["partial_rotary_factor"] = _fraction(integer(width, at, high=head_dim), head_dim)
        scaling = self._scaling()
        return {**result, "rope_scaling": scaling} if scaling else result

    def _scaling(self) -> dict[str, Any] | None:
        """A rope_scaling block; keys that llama.cpp adds to a type pass on to be judged there."""
        kind = self.optional("rope.scaling.type")
        factor = self.optional("rope.scaling.factor")
        legacy = self.optional("rope.scale_linear")
        factor = legacy if factor is None else factor
        original = self.optional("rope.scaling.original_context_length")
        if (kind is None and factor in (None, 1.0)) or kind == "none":
            return None
        block = {"rope_type": kind or "linear", "factor": factor}
        if kind in (None, "linear"):  # whose tables do not depend on the original length
            return block
        return {
            **block,
            "original_max_position_embeddings": original,
            "attention_factor": self._attention_factor(factor),
            "beta_fast": self.optional("rope.scaling.yarn_beta_fast"),
            "beta_slow": self.optional("rope.scaling.yarn_beta_slow"),
        }

    def _attention_factor(self, factor: object) -> float | None:
        """GGUF states what multiplies yarn's own attention factor, Hugging Face the product."""
        key = "rope.scaling.attn_factor"
        stated = self.optional(key)
        if stated is None:
            return None
        extension = number(factor, self.where("rope.scaling.factor"), low=1.0, above=False)
        return number(stated, self.where(key)) * (0.1 * math.log(extension) + 1.0)

    def rest(self) -> dict[str, Any]:
        """Keys of the architecture that nothing read: without effect, refused, or passed on."""
        prefix, rest = f"{self.architecture}.", {}
        for name, value in self.metadata.items():
            key = name.removeprefix(prefix)
            if not name.startswith(prefix) or key in self._read or key in _NO_EFFECT:
                continue
            if key.startswith(_REFUSED) and not _without_effect(key, value):
                refuse(self.where(key), f"{show(value)} is not read and would change results")
            rest[name] = value
        return rest


def _without_effect(key: str, value: object) -> bool:
    """Whether a key that can change results has the value that changes none."""
    if isinstance(value, list):  # of every layer
        return all(_without_effect(key, each) for each in value)
    if key in _AS_SERVED and type(value) is type(_AS_SERVED[key]) and value == _AS_SERVED[key]:
        return True
    return value is None or (value == 0 and key != "attention.causal")


def _biases(tensor_names: Collection[str]) -> dict[str, bool]:
    """Bias switches as the first layer's tensors show them."""
    inputs, output, mlp = (
        f"blk.0.{part}.bias" in tensor_names for part in ("attn_q", "attn_output", "ffn_gate")
    )
    attention = {"attention_bias": inputs} if inputs == output else {"qkv_bias": inputs}
    return {**attention, "mlp_bias": mlp} | ({} if inputs == output else {"bias": output})


def _divided(
    config: Mapping[str, Any], divisors: Sequence[float] | None, file: str
) -> dict[str, Any]:
    """Frequencies divided one by one: what longrope does with one list for all lengths."""
    if divisors is None:
        raise ConfigError(
            "scales the rotary frequencies, and its values were not given; pass rope_divisors",
            ROPE_DIVISORS,
            file,
        )
    if "rope_scaling" in config:
        raise ConfigError(
            f"stands beside {show(config['rope_scaling'])}; one scaling is served",
            ROPE_DIVISORS,
            file,
        )
    values = [float(value) for value in divisors]
    return {
        "rope_type": "longrope",
        "short_factor": values,
        "long_factor": values,
        "original_max_position_embeddings": config["max_position_embeddings"],
        "attention_factor": 1.0,
    }


def _fraction(width: int, head_dim: int) -> float:
    """The factor f with int(head_dim * f) == width, whatever division rounds to."""
    factor = width / head_dim
    return factor if int(head_dim * factor) == width else math.nextafter(factor, 2.0)


def shortest_float32(value: float) -> float:
    """The decimal that was meant by a float32: 9.999999747378752e-06 is 1e-05.

    >>> shortest_float32(9.999999747378752e-06), shortest_float32(0.1)
    (1e-05, 0.1)
    """
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        return value
    if struct.unpack("<f", packed)[0] != value:
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next(c for c in candidates if struct.pack("<f", c) == packed)
