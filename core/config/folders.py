"""What a folder is that lacks a checkpoint's files: people download and train many other things."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

ADAPTER_NAME = "adapter_config.json"

_KINDS: tuple[tuple[str, str], ...] = (
    ("model_index.json", "a diffusers pipeline, of which no part is a language model served here"),
    ("*.distcp", "shards of torch.distributed.checkpoint; gather and convert them where they were "
     "written (torch.distributed.checkpoint.format_utils)"),
    ("global_step*", "a DeepSpeed checkpoint; gather its weights with the zero_to_fp32.py beside it "
     "(--safe_serialization)"),
    ("params.json", "a checkpoint in its author's own format; convert it, or download the same model "
     "in Hugging Face format"),
    ("pytorch_model*.index.json", "an index of pickles that are not there; download safetensors"),
    ("*.onnx", "an ONNX export; download the weights it was made from"),
    ("onnx", "an ONNX export; download the weights it was made from"),
    ("openvino_model*", "an OpenVINO export; download the weights it was made from"),
    ("*.msgpack", "weights of Flax; convert them with transformers, or download safetensors"),
    ("*.h5", "weights of TensorFlow; convert them with transformers, or download safetensors"),
    ("*.npz", "weights of MLX or NumPy; download safetensors"),
    ("*.nemo", "a NeMo archive; convert it to Hugging Face format"),
    ("*.incomplete", "a download that did not finish; fetch it again"),
    ("*.crdownload", "a download that did not finish; fetch it again"),
    ("*.part", "a download that did not finish; fetch it again"),
    ("optimizer*", "a trainer's state without the model's weights; save the model beside it "
     "(save_pretrained)"),
)  # fmt: skip
"""Pattern of a file's name -> what a folder with it and without a checkpoint is, and what to do."""
_MOST = 4096
"""Names of a folder that are looked at."""


def likely_kind(folder: Path) -> str:
    """What a folder looks like that lacks what was sought there; empty when nothing shows.

    Args:
        folder: it.
    """
    try:
        names = sorted(os.listdir(folder))[:_MOST]
        inside = [
            str(place.relative_to(folder))
            for place in (*(folder / name for name in names), *(folder / "snapshots").glob("*"))
            if (place / "config.json").is_file()
        ]
    except OSError:
        return ""
    for pattern, kind in _KINDS:
        found = next((name for name in names if fnmatchcase(name.lower(), pattern)), None)
        if found is not None:
            return f"this looks like {kind} (found: {found})"
    if inside:
        return f"there is one in {' and in '.join(inside[:4])}; give that folder"
    return ""


def adapter_problem(folder: Path, base: object) -> str:
    """What is wrong with a folder that holds an adapter, and what to do.

    Args:
        folder: it.
        base: what its file says that it was trained on.
    """
    beside = (folder / "config.json").is_file()
    after = (
        "; if the weights beside it are merged already, remove it, for transformers would add it again"
        if beside
        else ""
    )
    return (
        f"makes this folder a PEFT adapter of {base!r}, not a whole model; adapters are not applied "
        "here: merge it into its base model (PeftModel.from_pretrained(model, folder)"
        f".merge_and_unload().save_pretrained(…)) and load the result{after}"
    )
