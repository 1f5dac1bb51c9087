"""ModelConfig: one checkpoint's configuration, normalised, checked and accounted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .adapter import LLAMA_LIKE, ConfigAdapter
from .fields import FieldReader
from .files import check_object
from .ledger import ConfigLedger
from .moe import MoEConfig, read_moe
from .quantization import read_quantization
from .rope import RopeConfig
from .rope_reader import read_rope
from .values import Where, flag, integer, number, refuse, show, text, texts

_DTYPES = {name: name for name in ("float16", "bfloat16", "float32", "float64")}
_DTYPES |= {"half": "float16", "float": "float32", "double": "float64"}
_ACTIVATIONS = {"swish": "silu"}
_LABELS_BY_COUNT, _LABELS_BY_NAME = "num_labels", "id2label"


@dataclass(frozen=True)
class ModelConfig:
    """Normalised view of a config.json; the only place where spellings are known.

    Args:
        architectures: as the file states them, best first.
        model_type: family name of the file, empty when it has none.
        vocab_size: V, rows of the embedding that are tokens.
        hidden_size: D.
        intermediate_size: F, width of the gated MLP.
        num_hidden_layers: layers of the whole model.
        num_attention_heads: query heads, all ranks together.
        num_key_value_heads: KV heads, all ranks together; divides the query heads.
        head_dim: H.
        attention_bias: q, k and v projections have a bias.
        o_proj_bias: the attention output projection has one.
        mlp_bias: gate, up and down have one.
        rms_norm_eps: added to the mean square.
        hidden_act: activation of the MLP, one name for each function (``silu``).
        max_position_embeddings: positions the model is configured for.
        rope: rotary embedding of every layer; None for a family without.
        sliding_windows: for each layer the tokens a query sees including itself; None: all.
        tie_word_embeddings: the output head is the embedding.
        tie_stated: the file says so itself, it is not the family's default.
        dtype: dtype the weights were saved in, as torch names it.
        quantization: the file's block without nulls, method under ``quant_method``.
        bos_token_id: first token of a text.
        eos_token_ids: tokens that end a text.
        pad_token_id: filler token.
        attn_logit_softcap: c in c * tanh(score / c), before masking.
        final_logit_softcap: the same on logits.
        num_labels: outputs of a classification head; None when neither the file nor the family
            states them.
        moe: experts; None for a model without.
        extra: fields that the family's adapter adds.
        ledger: what became of every field of the file.
        raw: copy of the file.
        file: its path.
    """

    architectures: tuple[str, ...]
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    attention_bias: bool
    o_proj_bias: bool
    mlp_bias: bool
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    rope: RopeConfig | None
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    tie_stated: bool
    dtype: str | None
    quantization: Mapping[str, Any] | None = field(hash=False)
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    attn_logit_softcap: float | None
    final_logit_softcap: float | None
    num_labels: int | None
    moe: MoEConfig | None
    extra: Mapping[str, Any] = field(hash=False)
    ledger: ConfigLedger = field(compare=False, repr=False)
    raw: Mapping[str, Any] = field(compare=False, repr=False)
    file: str = field(compare=False)

    @classmethod
    def from_dict(
        cls,
        raw: Mapping[str, Any],
        adapter: ConfigAdapter = LLAMA_LIKE,
        file: str = "",
        *,
        ignore_fields: Sequence[str] = (),
        family_chosen: bool = False,
    ) -> ModelConfig:
        """Read a raw config.

        Args:
            raw: content of a config.json (see ``read_config``).
            adapter: the family's defaults, spellings and window policy.
            file: path, for messages.
            ignore_fields: dotted names (``text_config.clip_qkv``) that are read as if the file did
                not state them.
            family_chosen: whoever loads the file named the family, so a window that it does not
                have is ignored instead of refused.

        Raises:
            ConfigError: a field is missing, of the wrong kind, out of range, contradicted, or
                unread although it changes results.
        """
        raw = _with_text_labels(raw)
        check_object(raw, file)
        fields = FieldReader(raw, adapter, file, ignore_fields, family_chosen)
        heads = _size(fields, "num_attention_heads", 2**16)
        layers = _size(fields, "num_hidden_layers", 10_000)
        hidden = _size(fields, "hidden_size", 2**24)
        head_dim = _head_dim(fields, hidden, heads)
        positions = _size(fields, "max_position_embeddings", 2**30)
        windows = adapter.window(fields, layers)
        kinds = {"full_attention" if w is None else "sliding_attention" for w in windows}
        return cls(
            architectures=fields.value("architectures", texts) or (),
            model_type=fields.value("model_type", text) or "",
            vocab_size=_size(fields, "vocab_size", 2**27),
            hidden_size=hidden,
            intermediate_size=_size(fields, "intermediate_size", 2**26),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=_kv_heads(fields, heads),
            head_dim=head_dim,
            attention_bias=fields.required("attention_bias", flag),
            o_proj_bias=fields.required("o_proj_bias", flag),
            mlp_bias=fields.required("mlp_bias", flag),
            rms_norm_eps=fields.required("rms_norm_eps", _epsilon),
            hidden_act=fields.required("hidden_act", _activation),
            max_position_embeddings=positions,
            rope=read_rope(fields, head_dim, positions, kinds),
            sliding_windows=windows,
            tie_word_embeddings=fields.required("tie_word_embeddings", flag),
            tie_stated=fields.is_stated("tie_word_embeddings"),
            dtype=fields.value("dtype", _dtype),
            quantization=read_quantization(fields),
            bos_token_id=fields.value("bos_token_id", _token, null_is_value=True),
            eos_token_ids=fields.value("eos_token_ids", _tokens, null_is_value=True) or (),
            pad_token_id=fields.value("pad_token_id", _token, null_is_value=True),
            attn_logit_softcap=fields.value("attn_logit_softcap", number),
            final_logit_softcap=fields.value("final_logit_softcap", number),
            num_labels=_num_labels(fields),
            moe=read_moe(fields, layers) if adapter.experts else None,
            extra={name: fields.value(name, check) for name, check in adapter.extra.items()},
            ledger=fields.finish(),
            raw=deepcopy(dict(raw)),
            file=file,
        )

    def rope_for(self, layer_id: int) -> RopeConfig:
        """Rotary embedding of one layer, by its global number.

        Raises:
            ConfigError: the family has none, or there is no such layer.
        """
        self._check_layer(layer_id)
        if self.rope is None:
            problem = f"layer {layer_id} asks for a rotary embedding, its family has none"
            raise ConfigError(problem, "rope_parameters", self.file)
        return self.rope

    def is_sparse(self, layer_id: int) -> bool:
        """Whether the MLP of one layer, by its global number, has experts."""
        self._check_layer(layer_id)
        return self.moe is not None and self.moe.sparse_layers[layer_id]

    def window(self, layer_id: int) -> int | None:
        """Tokens a query of one layer sees including itself, by global number; None: all."""
        self._check_layer(layer_id)
        return self.sliding_windows[layer_id]

    def _check_layer(self, layer_id: int) -> None:
        if not 0 <= layer_id < self.num_hidden_layers:
            problem = f"layer {layer_id} asked for; layers are 0 to {self.num_hidden_layers - 1}"
            raise ConfigError(problem, "num_hidden_layers", self.file)


def _with_text_labels(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config whose label numbers are texts, as JSON has them; ``transformers`` has integers."""
    names = raw.get(_LABELS_BY_NAME) if isinstance(raw, Mapping) else None
    if not isinstance(names, Mapping):
        return raw
    named = {str(key) if type(key) is int else key: name for key, name in names.items()}
    return {**raw, _LABELS_BY_NAME: named}


def _size(fields: FieldReader, name: str, high: int) -> int:
    return int(fields.required(name, lambda value, where: integer(value, where, high=high)))


def _head_dim(fields: FieldReader, hidden: int, heads: int) -> int:
    stated = fields.value(
        "head_dim", lambda value, where: integer(value, where, high=2**14), null_is_value=True
    )
    if stated is not None:
        return int(stated)
    if hidden % heads:
        refuse(
            fields.where("hidden_size"),
            f"{hidden} is not a multiple of num_attention_heads={heads}; "
            "state head_dim if heads are of another width",
        )
    fields.defaulted("head_dim", "hidden_size / num_attention_heads", hidden // heads)
    return hidden // heads


def _kv_heads(fields: FieldReader, heads: int) -> int:
    name = "num_key_value_heads"
    stated = fields.value(name, integer, null_is_value=True)
    if stated is None:
        fields.defaulted(name, "num_attention_heads", heads)
        return heads
    if heads % stated:
        refuse(
            fields.where(name),
            f"{stated} does not divide num_attention_heads={heads}; "
            "each KV head serves the same number of query heads",
        )
    return int(stated)


def _epsilon(value: object, where: Where) -> float:
    result = number(value, where, above=False)
    if result >= 1:
        refuse(where, f"{result:g} is out of range; expected less than 1")
    return result


def _activation(value: object, where: Where) -> str:
    name = text(value, where)
    return _ACTIVATIONS.get(name, name)


def _dtype(value: object, where: Where) -> str | None:
    """Name of a dtype; ``auto`` leaves it to whoever loads."""
    name = text(value, where).removeprefix("torch.")
    if name == "auto":
        return None
    if name not in _DTYPES:
        refuse(where, f"{show(value)} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _token(value: object, where: Where) -> int | None:
    """A token id; -1, of the first Llama checkpoints, means none."""
    token = integer(value, where, low=-1)
    return None if token < 0 else token


def _tokens(value: object, where: Where) -> tuple[int, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    tokens = (_token(item, where) for item in values)
    return tuple(dict.fromkeys(token for token in tokens if token is not None))


def _num_labels(fields: FieldReader) -> int | None:
    named: int | None = fields.value(_LABELS_BY_NAME, _length)
    if named is not None and not fields.is_stated(_LABELS_BY_COUNT):
        return named
    count: int | None = fields.value(_LABELS_BY_COUNT, integer)
    if named not in (None, count):
        refuse(
            fields.where(_LABELS_BY_COUNT),
            f"{count} labels here, {named} in {_LABELS_BY_NAME}; make them agree",
        )
    return count


def _length(value: object, where: Where) -> int | None:
    if not isinstance(value, Mapping):
        refuse(where, f"{show(value)} is not an object")
    return len(value) or None
