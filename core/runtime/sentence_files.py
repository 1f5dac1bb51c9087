"""What ``sentence-transformers`` keeps beside a checkpoint: how a text becomes a vector.

``modules.json`` lists what a text passes: the model, ``Pooling``, perhaps ``Dense`` layers and
``Normalize``, each with files of its own. ``sentence_bert_config.json`` says what happens to a text
before, ``config_sentence_transformers.json`` which prompts stand in front of it. Old folders keep the
model in a folder of its own (``0_Transformer``); given that one, the list above it counts. Whatever
would change a vector is obeyed, or refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..config.adapter import Check
from ..config.files import CONFIG_NAME, read_config, read_json
from ..config.values import Where, flag, integer, refuse, show, text
from ..errors import ConfigError, InputError
from ..layers import PoolingType
from ..parallel import whole
from ..weights import open_headers, open_source

MODULES_NAME = "modules.json"
_TEXTS_NAMES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The first that is there counts, whatever the model."""
_PROMPTS_NAME = "config_sentence_transformers.json"
_TOKENIZER_NAME = "tokenizer_config.json"
_LIBRARY = "sentence_transformers."
_TRANSFORMER, _POOLING, _DENSE, _NORMALIZE = "Transformer", "Pooling", "Dense", "Normalize"
_WORD, _SWITCH, _PROMPT = "pooling_mode", "pooling_mode_", "include_prompt"
_MODES = {
    "cls": PoolingType.CLS,
    "cls_token": PoolingType.CLS,
    "mean": PoolingType.MEAN,
    "mean_tokens": PoolingType.MEAN,
    "max": PoolingType.MAX,
    "max_tokens": PoolingType.MAX,
    "mean_sqrt_len_tokens": PoolingType.MEAN_SQRT_LEN,
    "weightedmean": PoolingType.WEIGHTED_MEAN,
    "weightedmean_tokens": PoolingType.WEIGHTED_MEAN,
    "lasttoken": PoolingType.LAST,
}
"""What the file calls them, as a word or as a switch that is on -> rows."""
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}
"""Last part of a name in ``torch.nn`` -> what it is."""
_HARMLESS = frozenset(
    (
        *("word_embedding_dimension", "embedding_dimension", "similarity_fn_name"),
        *("unpad_inputs", "__version__"),
    )
)
"""Settings that change no vector."""
_USUAL: Mapping[str, tuple[object, ...]] = {
    "model_type": ("SentenceTransformer",),
    "transformer_task": ("feature-extraction",),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "use_residual": (False,),
    "mask_prompt": (False,),
    "modality_config": ({"method": "forward", "method_output_name": "last_hidden_state"},),
}
"""Setting -> values (of texts) that say what is done anyway."""
_LONGEST_NAME = 255
"""Bytes of a file's name that every system takes."""
_UNLIMITED = 10**9
"""``transformers`` writes 10**30 for a tokenizer without a limit."""


@dataclass(frozen=True)
class Dense:
    """A linear layer and an activation over vectors.

    Args:
        folder: holds the weights.
        in_features, out_features, bias: its shape.
        activation: follows it, a name of ``torch.nn``.
    """

    folder: Path = field(repr=False)
    in_features: int
    out_features: int
    bias: bool
    activation: str

    def layer(self) -> nn.Sequential:
        """Read from the files, in float32: (P, in_features) to (P, out_features)."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias)
        source = open_source(self.folder)
        try:
            tensors = {
                name.removeprefix("linear."): source.read(name, whole(info.shape))
                for name, info in source.infos().items()
            }
        finally:
            source.close()
        linear.load_state_dict(tensors)
        return nn.Sequential(linear, _ACTIVATIONS[self.activation]()).requires_grad_(False)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""
        bias = {"linear.bias": (self.out_features,)} if self.bias else {}
        return {"linear.weight": (self.out_features, self.in_features), **bias}


@dataclass(frozen=True)
class SentenceFiles:
    """How texts become vectors; without files as the model's class says.

    Args:
        pooling: rows that make a vector; None for the class's own.
        include_prompt: a prompt's rows count in a mean.
        dense: layers that a vector passes.
        normalize: vectors are scaled to length 1 at last.
        prompts: what may stand in front of a text, by name.
        default_prompt_name: of the prompt that does when nobody says.
        do_lower_case: texts are read in lower case.
        max_seq_length: tokens of a text; what is beyond is cut. None for no limit.
        cut_left: the beginning of a long text is cut, not its end.
        no_vectors: why there are no vectors of these files; empty when there are.
    """

    pooling: PoolingType | None = None
    include_prompt: bool = True
    dense: tuple[Dense, ...] = ()
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    do_lower_case: bool = False
    max_seq_length: int | None = None
    cut_left: bool = False
    no_vectors: str = ""

    def require_vectors(self) -> None:
        """Refuse files that describe something else than a vector for each text.

        Raises:
            ConfigError: which module of theirs.
        """
        if self.no_vectors:
            raise ConfigError(self.no_vectors, "", MODULES_NAME)

    def prompt(self, name: str | None, prompt: str | None) -> str:
        """What stands in front of each text.

        Args:
            name: of a prompt of the files.
            prompt: itself; an empty one for none.

        Raises:
            InputError: an unknown name, or both.
        """
        if prompt is not None:
            if name is not None or not isinstance(prompt, str):
                raise InputError(f"prompt={prompt!r}, prompt_name={name!r}; give one, as a text")
            return prompt
        chosen = self.default_prompt_name if name is None else name
        if chosen is None:
            return ""
        if not isinstance(chosen, str) or chosen not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(
                f"prompt_name={chosen!r} is no prompt of {_PROMPTS_NAME}; known: {known}; or give "
                "the text itself as prompt="
            )
        return self.prompts[chosen]


def read_sentence_files(folder: Path, width: int) -> SentenceFiles:
    """What the files in a checkpoint's folder say; nothing where there is no ``modules.json``.

    Args:
        folder: of the checkpoint.
        width: of the model's rows.

    Raises:
        ConfigError: a file is broken, or asks for something that is not done here.
        CheckpointFileError: weights of a Dense layer that cannot be read.
    """
    file = _list_of(folder)
    if file is None:
        return SentenceFiles()
    modules = _modules(file)
    kinds = [_kind(module) for module in modules]
    if _POOLING not in kinds:
        return SentenceFiles(
            no_vectors=f"lists {' and '.join(map(show, kinds)) or 'nothing'} and no {_POOLING}, so "
            f"no vector of a text is described ({file}); embed() serves lists with {_POOLING}"
        )
    _check_order(kinds, file)
    _check_place(folder, modules[0], file)
    paths = [
        folder
        if at == 0
        else file.parent / _inside(each.get("path"), Where(f"[{at}].path", str(file)))
        for at, each in enumerate(modules)
    ]
    dense: list[Dense] = []
    for path, kind in zip(paths, kinds, strict=True):
        if kind == _DENSE:
            dense.append(_dense(path, width))
            width = dense[-1].out_features
    pooling, include_prompt = _read_pooling(paths[1] / CONFIG_NAME)
    texts = {**_prompts(file.parent), **_texts(folder)}
    return SentenceFiles(pooling, include_prompt, tuple(dense), _NORMALIZE in kinds, **texts)


def lists_pooling(folder: Path) -> bool:
    """Whether the files in a checkpoint's folder pool rows to vectors.

    Raises:
        ConfigError: a broken list.
    """
    file = _list_of(folder)
    return file is not None and _POOLING in map(_kind, _modules(file))


def _list_of(folder: Path) -> Path | None:
    """The list a checkpoint's folder belongs to: beside it, or above it if that one names it."""
    here = Path(os.path.abspath(folder))
    if (here / MODULES_NAME).is_file():
        return here / MODULES_NAME
    above = here.parent / MODULES_NAME
    if not above.is_file():
        return None
    modules = read_json(above)  # maybe of something else: only one that names the folder counts
    first = modules[0] if isinstance(modules, list) and modules else None
    return above if isinstance(first, Mapping) and first.get("path") == here.name else None


def _check_place(folder: Path, model: Mapping[str, Any], file: Path) -> None:
    """Refuse a folder with a model of its own beside the one that the list names."""
    where, path = Where("[0].path", str(file)), model.get("path")
    if path in (None, "", ".") or Path(os.path.abspath(folder)) != file.parent:
        return
    named = file.parent / _inside(path, where)
    if (named / CONFIG_NAME).is_file():
        refuse(
            where, f"{show(path)} holds the model that the list means; give that folder ({named})"
        )


def _kind(module: Mapping[str, Any]) -> str:
    """Name of a class of ``sentence_transformers``; others with all that stands before it."""
    name = str(module.get("type"))
    return name.rpartition(".")[2] if name.startswith(_LIBRARY) else name


def _modules(file: Path) -> list[Mapping[str, Any]]:
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(each, Mapping) for each in modules):
        refuse(Where("", str(file)), f"{show(modules)} is not a list of modules")
    return modules


def _check_order(kinds: Sequence[str], file: Path) -> None:
    """Refuse a list that is not Transformer, Pooling, Dense layers, Normalize."""
    for at, kind in enumerate(kinds):
        if kind not in (_TRANSFORMER, _POOLING, _DENSE, _NORMALIZE):
            refuse(
                Where(f"[{at}]", str(file)),
                f"{show(kind)} is not applied to vectors; only {_TRANSFORMER}, {_POOLING}, {_DENSE} "
                f"and {_NORMALIZE} of sentence_transformers are",
            )
    layers = kinds.count(_DENSE)
    normalize = kinds.count(_NORMALIZE)
    served = [_TRANSFORMER, _POOLING, *[_DENSE] * layers, *[_NORMALIZE] * min(normalize, 1)]
    if list(kinds) != served:
        refuse(
            Where("", str(file)),
            f"lists {', '.join(kinds)}; expected {_TRANSFORMER}, one {_POOLING}, then any {_DENSE} "
            f"layers, then {_NORMALIZE} at most once",
        )


def _inside(path: object, where: Where) -> str:
    """The name of a folder beside the file."""
    name = path if isinstance(path, str) and path.isprintable() else ""
    if name in ("", "..") or Path(name).name != name or len(os.fsencode(name)) > _LONGEST_NAME:
        refuse(where, f"{show(path)} is not the name of a folder beside the file")
    return name


def _read_pooling(file: Path) -> tuple[PoolingType, bool]:
    """Rows that make a vector, and whether a prompt's are among them."""
    stated = read_config(file)
    modes = [name for name, on in stated.items() if name.startswith(_SWITCH) and on is True]
    modes = [name.removeprefix(_SWITCH) for name in modes]
    if (word := stated.get(_WORD)) is not None:  # counts more than the switches
        modes = [str(each) for each in (word if isinstance(word, list) else [word])]
    if len(modes) != 1 or modes[0] not in _MODES:
        refuse(
            Where(_WORD, str(file)),
            f"{' and '.join(modes) or 'none'}; one is applied, of {', '.join(_MODES)}",
        )
    _refuse_others(stated, (*(key for key in stated if key.startswith(_WORD)), _PROMPT), file)
    pooling = _MODES[modes[0]]
    where = Where(_PROMPT, str(file))
    include_prompt = flag(stated.get(_PROMPT, True), where)
    if not include_prompt and pooling is PoolingType.CLS:
        refuse(where, "false beside pooling of the first row, which is the prompt's")
    return pooling, include_prompt


def _dense(folder: Path, width: int) -> Dense:
    """A layer whose shape and weights' headers fit."""
    file = folder / CONFIG_NAME
    stated = read_config(file)
    _refuse_others(stated, ("in_features", "out_features", "bias", "activation_function"), file)
    inner, outer = (
        integer(stated.get(key), Where(key, str(file))) for key in ("in_features", "out_features")
    )
    if inner != width:
        refuse(Where("in_features", str(file)), f"{inner}, but vectors have {width} numbers")
    name = stated.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = "Identity" if name is None else str(name).rpartition(".")[2]
    if activation not in _ACTIVATIONS or not str(name or "torch.").startswith("torch."):
        refuse(
            Where("activation_function", str(file)),
            f"{show(name)} is not one of {', '.join(_ACTIVATIONS)} of torch.nn",
        )
    bias = flag(stated.get("bias", True), Where("bias", str(file)))
    dense = Dense(folder, inner, outer, bias, activation)
    source = open_headers(folder)
    try:
        found = {name: info.shape for name, info in source.infos().items()}
    finally:
        source.close()
    if found != dense.shapes():
        refuse(Where("", str(file)), f"its weights are {show(found)}; expected {dense.shapes()}")
    return dense


def _prompts(folder: Path) -> dict[str, Any]:
    """Prompts and which of them stands when nobody says."""
    file = folder / _PROMPTS_NAME
    if not file.is_file():
        return {}
    stated = read_config(file)
    _refuse_others(stated, ("prompts", "default_prompt_name"), file)
    prompts, chosen = stated.get("prompts") or {}, stated.get("default_prompt_name")
    if not isinstance(prompts, Mapping) or not all(isinstance(p, str) for p in prompts.values()):
        refuse(Where("prompts", str(file)), f"{show(prompts)} is not an object of texts")
    if chosen is not None and text(chosen, Where("default_prompt_name", str(file))) not in prompts:
        refuse(
            Where("default_prompt_name", str(file)),
            f"{show(chosen)} is none of the prompts: {', '.join(prompts) or 'none'}",
        )
    return {"prompts": dict(prompts), "default_prompt_name": chosen}


def _texts(folder: Path) -> dict[str, Any]:
    """What happens to a text before it is computed."""
    limit, cut_left = _tokenizer_limit(folder)
    found: dict[str, Any] = {"max_seq_length": limit, "cut_left": cut_left}
    file = next(filter(Path.is_file, (folder / name for name in _TEXTS_NAMES)), None)
    if file is None:
        return found
    stated = read_config(file)
    checks: Mapping[str, Check] = {"max_seq_length": integer, "do_lower_case": flag}
    _refuse_others(stated, tuple(checks), file)
    found |= {
        key: check(stated[key], Where(key, str(file)))
        for key, check in checks.items()
        if stated.get(key) is not None
    }
    return found


def _refuse_others(stated: Mapping[str, Any], read: Sequence[str], file: Path) -> None:
    """Refuse settings that are neither read nor known to change nothing."""
    for key, value in stated.items():
        if value is None or value == {} or key in read or key in _HARMLESS:
            continue
        within = value
        if key == "modality_config" and isinstance(value, dict) and "message" not in value:
            within = value.get("text")  # with messages, texts would pass the chat template
        if within not in _USUAL.get(key, ()):
            refuse(
                Where(key, str(file)),
                f"{show(value)} is not read here, and may change vectors; remove it if it does not",
            )


def _tokenizer_limit(folder: Path) -> tuple[int | None, bool]:
    """Tokens that the tokenizer's file allows, and whether the left side of a text is cut."""
    file = folder / _TOKENIZER_NAME
    stated = read_config(file) if file.is_file() else {}
    limit = stated.get("model_max_length")
    known = isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < _UNLIMITED
    return (int(limit) if known and limit is not None else None), stated.get(
        "truncation_side"
    ) == "left"
