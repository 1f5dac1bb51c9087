"""The transformers model of a checkpoint, to be compared with."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BackendUnavailableError, WeightError
from ..models import name_map
from ..parallel import whole
from ..runtime.checkpoint import Checkpoint
from ..runtime.loading import resolve_model
from ..weights import Skipped


def reference_model(path: Path, dtype: torch.dtype, attention: str = "eager") -> Any:
    """The model that ``transformers`` makes of a checkpoint, ready to run on the CPU.

    A Hugging Face directory is read by ``transformers`` itself. A single file is read by us, so
    for GGUF both models hold the same dequantised values.

    Args:
        path: directory or file.
        dtype: of weights and activations.
        attention: ``eager``, plain matrix products, or ``sdpa``, torch's fused attention.

    Raises:
        BackendUnavailableError: transformers has no class for the architecture.
        WeightError: transformers finds weights missing or of another shape.
    """
    with closing(Checkpoint(path)) as checkpoint:
        model_class = _transformers_class(checkpoint.raw)
        if path.is_dir() and checkpoint.format == "hf":
            source: dict[str, Any] = {
                "pretrained_model_name_or_path": str(path),
                "local_files_only": True,
            }
        else:
            source = {
                "pretrained_model_name_or_path": None,
                "config": _config(checkpoint.raw),
                "state_dict": _tensors(checkpoint),
            }
        return _loaded(model_class, dtype, attention, **source)


def reads_by_itself(path: Path) -> bool:
    """Whether transformers reads the checkpoint by itself, so that its loading means something."""
    return path.is_dir() and (path / "config.json").is_file()


def _transformers_class(raw: dict[str, Any]) -> Any:
    import transformers

    names = raw.get("architectures") or ()
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
    model, info = model_class.from_pretrained(
        dtype=dtype, attn_implementation=attention, output_loading_info=True, **source
    )
    lost = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if lost:
        raise WeightError(
            f"transformers finds no weights of the right shape for {', '.join(lost)} of its "
            f"{model_class.__name__}, so there is nothing to compare with"
        )
    return model.eval()


def _config(raw: dict[str, Any]) -> Any:
    import transformers

    rest = {key: value for key, value in raw.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(raw["model_type"], **rest)


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor of the source under its Hugging Face name."""
    names = name_map(resolve_model(checkpoint.raw), checkpoint.format)
    tensors: dict[str, Tensor] = {}
    for name, info in checkpoint.source.infos().items():
        canonical = names.rename(name)
        if not isinstance(names.place(canonical), Skipped):
            tensors[canonical] = checkpoint.source.read(name, whole(info.shape))
    return tensors
