"""What ``sentence-transformers`` keeps beside a checkpoint: which rows of a prompt make its vector.

``modules.json`` lists what a text passes: the model, ``Pooling`` with a config of its own, and often
``Normalize``, which ``Model.embed`` does unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.files import CONFIG_NAME, read_config, read_json
from ..config.values import Where, refuse, show
from ..layers import PoolingType

MODULES_NAME = "modules.json"
_POOLING = "Pooling"
_SERVED = ("Transformer", _POOLING, "Normalize")
_WORD, _SWITCH = "pooling_mode", "pooling_mode_"
_MODES = {
    "cls": PoolingType.CLS,
    "cls_token": PoolingType.CLS,
    "mean": PoolingType.MEAN,
    "mean_tokens": PoolingType.MEAN,
    "lasttoken": PoolingType.LAST,
}
"""What the file calls them, as a word or as a switch that is on -> rows."""


def stated_pooling(folder: Path) -> PoolingType | None:
    """Rows that make a vector, as the files in a checkpoint's folder say; None where none does.

    Raises:
        ConfigError: a file is broken, or asks for something that is not done here.
    """
    file = folder / MODULES_NAME
    if not file.is_file():
        return None
    modules = _modules(file)
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if _POOLING not in kinds:
        return None  # a cross-encoder's list, which is not about vectors
    for at, kind in enumerate(kinds):
        if kind not in _SERVED:
            refuse(
                Where(f"[{at}]", str(file)),
                f"{show(kind)} is not applied to vectors; only {', '.join(_SERVED)} are",
            )
    if kinds.count(_POOLING) > 1:
        refuse(Where("", str(file)), f"{kinds.count(_POOLING)} times {_POOLING}; one is applied")
    at = kinds.index(_POOLING)
    inside = _inside(modules[at].get("path"), Where(f"[{at}].path", str(file)))
    return _read_pooling(folder / inside / CONFIG_NAME)


def _modules(file: Path) -> list[Mapping[str, Any]]:
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(each, Mapping) for each in modules):
        refuse(Where("", str(file)), f"{show(modules)} is not a list of modules")
    return modules


def _inside(path: object, where: Where) -> str:
    """The name of a folder beside the file."""
    name = path if isinstance(path, str) and path.isprintable() else ""
    if name in ("", "..") or Path(name).name != name:
        refuse(where, f"{show(path)} is not the name of a folder beside the file")
    return name


def _read_pooling(file: Path) -> PoolingType:
    stated = read_config(file)
    modes = [name for name, on in stated.items() if name.startswith(_SWITCH) and on is True]
    modes = [name.removeprefix(_SWITCH) for name in modes]
    if stated.get(_WORD) is not None:  # counts more than the switches
        modes = [str(stated[_WORD])]
    if len(modes) != 1 or modes[0] not in _MODES:
        refuse(
            Where(_WORD, str(file)),
            f"{' and '.join(modes) or 'none'}; one is applied, of {', '.join(_MODES)}",
        )
    return _MODES[modes[0]]
