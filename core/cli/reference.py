"""The transformers model of a checkpoint, to be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.fields import without_fields
from ..errors import BackendUnavailableError, WeightError
from ..parallel import whole
from ..runtime.checkpoint import Checkpoint
from ..runtime.fitting import fitted_names, with_or_without_head
from ..runtime.reading import AS_STATED, Overrides, resolve_model
from ..weights import Skipped

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def reference_model(
    path: Path,
    dtype: torch.dtype,
    attention: str = "eager",
    *,
    overrides: Overrides = AS_STATED,
) -> Any:
    """The model that ``transformers`` makes of a checkpoint, ready to run on the CPU.

    What ``transformers`` does not read by itself (see ``reads_by_itself``) is read by us, so for
    GGUF both models hold the same dequantised values.

    Args:
        path: directory or file.
        dtype: of weights and activations.
        attention: ``eager``, plain matrix products, or ``sdpa``, torch's fused attention.
        overrides: of the checkpoint's config; fields to ignore are not shown to transformers.

    Raises:
        BackendUnavailableError: transformers has no class for the architecture, or lacks a package
            that reads the checkpoint.
        WeightError: transformers finds weights missing or of another shape.
    """
    with closing(Checkpoint(path)) as checkpoint:
        model_class = _reference_class(checkpoint, overrides)
        raw = without_fields(checkpoint.raw, overrides.ignore_fields, checkpoint.config_file)
        if reads_by_itself(path):
            source: dict[str, Any] = {
                "pretrained_model_name_or_path": str(path),
                "local_files_only": True,
            }
            if overrides != AS_STATED:
                source["config"] = _config(model_class, raw)
        else:
            source = {
                "pretrained_model_name_or_path": None,
                "config": _config(model_class, raw),
                "state_dict": dict(named_tensors(checkpoint, overrides)),
            }
        return _loaded(model_class, dtype, attention, **source)


def reads_by_itself(path: Path) -> bool:
    """Whether transformers reads the checkpoint by itself, so that its loading means something.

    It does in a directory with files of the names that it writes.
    """
    return (path / "config.json").is_file() and any((path / name).is_file() for name in _WEIGHTS)


def _architectures(raw: dict[str, Any]) -> tuple[str, ...]:
    """As a list, also where the file states a lone name."""
    stated = raw.get("architectures") or ()
    return (stated,) if isinstance(stated, str) else tuple(stated)


def _reference_class(checkpoint: Checkpoint, overrides: Overrides) -> Any:
    """The architecture's, or its backbone's where we serve the backbone alone."""
    raw = {**checkpoint.raw, "architectures": _architectures(checkpoint.raw)}
    names = overrides.architectures(raw)
    found, served = _transformers_class(names), resolve_model(names)
    config = overrides.read(raw, served, checkpoint.config_file)
    fitted = with_or_without_head(config, served, checkpoint.source)
    return found if fitted is served else _transformers_class((fitted.__name__,))


def _transformers_class(names: tuple[str, ...]) -> Any:
    import transformers

    for name in names:
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    raise BackendUnavailableError(
        f"a reference for {' or '.join(names)}",
        f"transformers {transformers.__version__}, which has no class of that name",
        "install a version that has one; there is nothing to compare with until then",
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


def _config(model_class: Any, raw: Mapping[str, Any]) -> Any:
    """The class knows its family; the file may name it otherwise, or not at all."""
    return model_class.config_class(**{k: v for k, v in raw.items() if k != "model_type"})


def named_tensors(
    checkpoint: Checkpoint, overrides: Overrides = AS_STATED
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a model may want, under its Hugging Face name; each read when it comes."""
    infos = checkpoint.source.infos()
    raw = {**checkpoint.raw, "architectures": _architectures(checkpoint.raw)}
    model_class = resolve_model(overrides.architectures(raw))
    names = fitted_names(model_class, checkpoint.source)
    for name, info in infos.items():
        canonical = names.rename(name)
        if not isinstance(names.place(canonical), Skipped):
            yield canonical, checkpoint.source.read(name, whole(info.shape))
