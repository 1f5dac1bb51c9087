"""The transformers model of a checkpoint, to be compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.fields import without_fields
from ..errors import BackendUnavailableError, WeightError
from ..parallel import whole
from ..runtime.checkpoint import Checkpoint
from ..runtime.reading import AS_STATED, Overrides, resolve_model
from ..runtime.resolved import fitted_names, resolve_checkpoint
from ..weights import Skipped

_PURPOSE = re.compile(r"For[A-Z]\w*$")
"""What an architecture is for, as the end of its name; the backbone alone has none."""
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def reference_model(
    path: Path,
    dtype: torch.dtype,
    attention: str = "eager",
    *,
    overrides: Overrides = AS_STATED,
    quantization: str | None = None,
) -> Any:
    """The model that ``transformers`` makes of a checkpoint, ready to run on the CPU.

    The class is the one that its users get: an auto class chosen by what the architecture is for,
    asked for the config's ``model_type``. What ``transformers`` does not read by itself (see
    ``reads_by_itself``) is read by us, so for GGUF both models hold the same dequantised values.

    Args:
        path: directory or file.
        dtype: of weights and activations.
        attention: ``eager``, plain matrix products, or ``sdpa``, torch's fused attention.
        overrides: of the checkpoint's config; fields to ignore are not shown to transformers.
        quantization: as for ``load``; of weights that are plain against their config, both models
            hold what we read.

    Raises:
        BackendUnavailableError: transformers has no class for the architecture, refuses its
            configuration, or lacks a package that reads the checkpoint.
        WeightError: transformers finds weights missing or of another shape.
    """
    with closing(Checkpoint(path, quantization=quantization)) as checkpoint:
        names = _served_names(checkpoint, overrides)
        model_type = checkpoint.raw.get("model_type")
        model_class, config_class = reference_class(names, model_type, overrides.architecture)
        by_itself = quantization is None and reads_by_itself(path)
        try:
            config = (
                config_class.from_pretrained(str(path), local_files_only=True)
                if by_itself and overrides == AS_STATED
                else _config(config_class, checkpoint, overrides)
            )
        except Exception as error:  # whatever a config class raises for fields it does not take
            why = " ".join(str(error).split())
            raise _no_reference(names, f"which refuses this configuration: {why}") from error
        return _loaded(
            model_class,
            dtype,
            attention,
            pretrained_model_name_or_path=str(path) if by_itself else None,
            config=config,
            state_dict=None if by_itself else dict(named_tensors(checkpoint, overrides)),
            local_files_only=True,
        )


def reads_by_itself(path: Path) -> bool:
    """Whether transformers reads the checkpoint by itself, so that its loading means something.

    It does in a directory with files of the names that it writes.
    """
    return (path / "config.json").is_file() and any((path / name).is_file() for name in _WEIGHTS)


def _served_names(checkpoint: Checkpoint, overrides: Overrides) -> tuple[str, ...]:
    """The architectures, or the backbone's where we serve the backbone alone."""
    names = overrides.architectures(checkpoint.raw, checkpoint.config_file)
    fitted = resolve_checkpoint(checkpoint, overrides, headers_only=True).model_class
    return names if fitted is resolve_model(names) else (fitted.__name__,)


def reference_class(
    names: tuple[str, ...], model_type: object, asked: str | None = None
) -> tuple[Any, Any]:
    """The model class, and the class of its configuration; what was asked for by its own name."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    stated = model_type if isinstance(model_type, str) else ""
    config_class = CONFIG_MAPPING[stated] if stated in CONFIG_MAPPING else None
    for name in names:
        named = getattr(transformers, name, None)
        if named is not None and name == asked:
            return named, named.config_class
        purpose = _PURPOSE.search(name)
        auto = getattr(transformers, f"AutoModel{purpose[0] if purpose else ''}", None)
        if auto is not None and config_class in auto._model_mapping:
            found = auto._model_mapping[config_class]
            several = found if isinstance(found, tuple) else (found,)
            chosen = next((each for each in several if each.__name__ == name), several[0])
            return chosen, config_class
        if named is not None:
            return named, named.config_class
    raise _no_reference(names, f"which has no class of that name and none for {model_type!r}")


def _no_reference(names: tuple[str, ...], why: str) -> BackendUnavailableError:
    import transformers

    return BackendUnavailableError(
        f"a reference for {' or '.join(names)}",
        f"transformers {transformers.__version__}, {why}",
        "install a version that serves it; there is nothing to compare with until then",
    )


def _loaded(model_class: Any, dtype: torch.dtype, attention: str, **source: Any) -> Any:
    from transformers.utils import logging

    # Its bars and reports would be drawn over ours; what they say is checked below.
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        model, info = model_class.from_pretrained(
            dtype=dtype, attn_implementation=attention, output_loading_info=True, **source
        )
    except ImportError as error:
        feature, where = f"a reference from {model_class.__name__}", "this installation"
        raise BackendUnavailableError(feature, where, str(error)) from error
    lost = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if lost:
        raise WeightError(
            f"transformers finds no weights of the right shape for {', '.join(lost)} of its "
            f"{model_class.__name__}, so there is nothing to compare with"
        )
    return model.eval()


def _config(config_class: Any, checkpoint: Checkpoint, overrides: Overrides) -> Any:
    """The class knows its family; the file may name it otherwise, or not at all."""
    raw = without_fields(checkpoint.raw, overrides.ignore_fields, checkpoint.config_file)
    return config_class(**{key: value for key, value in raw.items() if key != "model_type"})


def named_tensors(
    checkpoint: Checkpoint, overrides: Overrides = AS_STATED
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a model may want, under its Hugging Face name; each read when it comes."""
    infos = checkpoint.source.infos()
    model_class = resolve_model(overrides.architectures(checkpoint.raw, checkpoint.config_file))
    names = fitted_names(model_class, checkpoint.source)
    for name, info in infos.items():
        canonical = names.rename(name)
        if not isinstance(names.place(canonical), Skipped):
            yield canonical, checkpoint.source.read(name, whole(info.shape))
