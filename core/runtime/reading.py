"""From a raw configuration to the class that serves it and the ModelConfig it is built from.

``architectures`` and ``model_type`` both name a family. ``transformers`` goes by the second, engines
by the first; where the two would read the same file differently, whoever loads it has to say which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..config import ConfigAdapter, ModelConfig, architectures_of
from ..config.fields import WRAPPED
from ..config.values import Where, refuse, show
from ..errors import ConfigError, InputError, RegistryError
from ..models import DecoderBase
from ..registry import catalog_for, decide, resolve

_NOT_COMPARED = frozenset(
    "architectures model_type num_labels extra tie_stated bos_token_id eos_token_ids pad_token_id".split()
)
"""What families may read differently without another forward pass."""


@dataclass(frozen=True)
class Overrides:
    """What whoever loads a checkpoint decides against its config.

    Args:
        architecture: serves it, whatever the config states; None for the config's own.
        ignore_fields: dotted names of fields that are read as if they were not stated.
    """

    architecture: str | None = None
    ignore_fields: tuple[str, ...] = ()

    def architectures(self, raw: Mapping[str, Any], file: str = "") -> tuple[str, ...]:
        """Architectures of a config, best first: as asked, as stated, else by its ``model_type``.

        Raises:
            ConfigError: ``architectures`` is no list of names.
        """
        if self.architecture is not None:
            return (self.architecture,)
        return architectures_of(raw, file) or language_model_of(_model_type(raw))

    def resolve(
        self,
        raw: Mapping[str, Any],
        file: str = "",
        find: Callable[[Sequence[str]], type[DecoderBase]] | None = None,
    ) -> tuple[type[DecoderBase], ModelConfig]:
        """The class that serves a config, and the config as its family reads it.

        Args:
            raw, file: of the config.
            find: the class of some architectures; ``resolve_model`` when None.

        Raises:
            RegistryError, ConfigError: as ``resolve_model``, ``architectures`` and ``read``.
        """
        model_class = (find or resolve_model)(self.architectures(raw, file))
        return model_class, self.read(raw, model_class, file)

    def read(
        self, raw: Mapping[str, Any], model_class: type[DecoderBase], file: str = ""
    ) -> ModelConfig:
        """The config as a class's family reads it.

        Raises:
            ConfigError: as ``ModelConfig.from_dict``; or ``model_type`` names another family, which
                would read it differently, and no architecture was asked for.
        """
        names, adapter = self.architectures(raw, file), model_class.adapter
        chosen = self.architecture is not None
        if not chosen and not adapter.strict:
            self._check_model_type(raw, names, adapter, file)
        config = ModelConfig.from_dict(
            raw, adapter, file, ignore_fields=self.ignore_fields, family_chosen=chosen
        )
        return replace(config, architectures=names)

    def notes(self, config: ModelConfig) -> tuple[str, ...]:
        """What a report should say was overruled."""
        asked = config.ledger.overruled
        told = () if self.architecture is None else (f"served as asked: {self.architecture}",)
        return told + ((f"config fields ignored as asked: {', '.join(asked)}",) if asked else ())

    def _attempt(
        self, raw: Mapping[str, Any], adapter: ConfigAdapter, file: str
    ) -> ModelConfig | ConfigError:
        """The config as a family would read it if it were chosen, or why it would not."""
        try:
            return ModelConfig.from_dict(
                raw, adapter, file, ignore_fields=self.ignore_fields, family_chosen=True
            )
        except ConfigError as error:
            return error

    def _check_model_type(
        self, raw: Mapping[str, Any], names: tuple[str, ...], own: ConfigAdapter, file: str
    ) -> None:
        """Refuse a ``model_type`` of another family that reads the config differently."""
        kind = _model_type(raw)
        others = language_model_of(kind)
        if not kind or set(others) & set(names):
            return
        if not others:
            _refuse_unserved(kind, names, file)
            return
        other = resolve_model(others).adapter
        if other.name == own.name:
            return
        readings = _differing(*(self._attempt(raw, each, file) for each in (own, other)))
        if readings is None:
            return
        refuse(
            Where("model_type", file),
            f"{kind!r} beside architectures={list(names)}: two families, which read this config "
            f"differently. As {own.name}: {readings[0]}. As {other.name}: {readings[1]}. Make "
            f"the two agree, or say which one holds: architecture={names[0]!r} or "
            f"architecture={others[0]!r} (--architecture)",
        )


AS_STATED = Overrides()
"""Nothing is overruled."""


def overrides_of(architecture: str | None = None, ignore_fields: Sequence[str] = ()) -> Overrides:
    """Overrides out of a caller's arguments.

    Raises:
        InputError: one of them is of another kind.
    """
    if architecture is not None and (not isinstance(architecture, str) or not architecture):
        raise InputError(f"architecture={architecture!r}: expected the name of one, or None")
    alone = isinstance(ignore_fields, str)
    if alone or not all(isinstance(name, str) and name for name in ignore_fields):
        raise InputError(f"ignore_fields={ignore_fields!r}: expected a list of names of fields")
    return Overrides(architecture, tuple(dict.fromkeys(ignore_fields)))


def resolve_model(architectures: Sequence[str]) -> type[DecoderBase]:
    """The model class for a configuration's architectures.

    Raises:
        RegistryError: none serves them, or one that is no model of archzoo's.
    """
    return as_model(resolve(architectures))


def as_model(found: type) -> type[DecoderBase]:
    """A class that a plugin gave, which must be a model.

    Raises:
        RegistryError: it is none.
    """
    if not issubclass(found, DecoderBase):
        raise RegistryError(
            f"{found.__module__}.{found.__qualname__} is no archzoo model; it must extend "
            "archzoo.models.CausalLM, EmbeddingModel or SequenceClassifier"
        )
    return found


def language_model_of(model_type: str) -> tuple[str, ...]:
    """The served language model of a ``model_type``, as AutoModelForCausalLM pairs them; or none.

    Their names follow one rule: ``qwen3_moe`` is ``Qwen3MoeForCausalLM``.
    """
    wanted = "".join(letter for letter in model_type if letter.isalnum()).lower() + "forcausallm"
    source = catalog_for(())
    names = tuple(name for name in source.architectures() if name.lower() == wanted)
    return names if model_type and decide(source, names).provider is not None else ()


def _model_type(raw: Mapping[str, Any]) -> str:
    """Of the language model; empty where none is stated, or no text."""
    inner = raw.get(WRAPPED)
    stated = (inner if isinstance(inner, Mapping) else raw).get("model_type")
    return stated if isinstance(stated, str) else ""


def _refuse_unserved(kind: str, names: tuple[str, ...], file: str) -> None:
    """Refuse the name of one family of ``transformers`` beside an architecture of another one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    theirs = KNOWN.get(kind)
    if theirs is None or theirs in names or not set(names) & set(KNOWN.values()):
        return
    refuse(
        Where("model_type", file),
        f"{kind!r} is {theirs} to transformers, which no installed plugin serves, but "
        f"architectures={list(names)}; make the two agree, install a plugin for {theirs}, or say "
        f"that the architecture holds: architecture={names[0]!r} (--architecture)",
    )


def _differing(
    ours: ModelConfig | ConfigError, theirs: ModelConfig | ConfigError
) -> tuple[str, str] | None:
    """What differs between two readings, told for each; None where nothing does."""
    if isinstance(ours, ConfigError):
        told = f"refused ({ours})"
        return None if isinstance(theirs, ConfigError) else (told, "read, and obeyed")
    if isinstance(theirs, ConfigError):
        return "read, and obeyed", f"refused ({theirs})"
    pairs = {
        each.name: (getattr(ours, each.name), getattr(theirs, each.name))
        for each in fields(ModelConfig)
        if each.compare and each.name not in _NOT_COMPARED
    }
    apart = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not apart:
        return None
    one, other = (
        ", ".join(f"{name}={show(pair[side])}" for name, pair in apart.items()) for side in (0, 1)
    )
    return one, other
