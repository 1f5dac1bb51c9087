"""Split GGUF models: which files belong together, and the proof that they do.

llama.cpp's gguf-split writes ``NAME-00001-of-00003.gguf`` and so on. Each part states its number
(``split.no``, from 0), how many there are (``split.count``) and how many tensors all parts hold
together (``split.tensors.count``); only the first has the model's metadata.
"""

from __future__ import annotations

import re

from .gguf_parser import GGUFPart, broken, read_part

_PART = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE
)
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def split_set(name: str) -> tuple[str, ...] | None:
    """File names of all parts of a split model, by that of one of them; None for another name."""
    found = _PART.fullmatch(name)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
        return None
    stem, count, suffix = found["stem"], found["count"], found["suffix"]
    return tuple(f"{stem}-{n:05d}-of-{count}{suffix}" for n in range(1, int(count) + 1))


def read_parts(one: GGUFPart) -> tuple[GGUFPart, ...]:
    """All parts of the model that a file belongs to, the first one first.

    Raises:
        CheckpointFileError: a part is missing, under another name, of another split, or holds a
            tensor that another part holds.
    """
    count = _stated(one, _COUNT) or 1
    if count == 1:
        return (one,)
    names = split_set(one.path.name)
    if names is None or len(names) != count:
        raise broken(
            one.path,
            f"is one of {count} parts and must be called NAME-0000I-of-{count:05d}.gguf for the "
            "others to be found; give the parts their names back, or join them with llama.cpp's "
            "gguf-split --merge",
        )
    parts = tuple(_sibling(one, name, number) for number, name in enumerate(names))
    _check_tensors(parts)
    return parts


def _sibling(one: GGUFPart, name: str, number: int) -> GGUFPart:
    """One part by its name, checked to be the one of that number."""
    path = one.path.with_name(name)
    if not path.is_file():
        raise broken(path, f"is missing: {one.path.name} is a part of a model of which it is too")
    part = one if path == one.path else read_part(path)
    for key, want in ((_NUMBER, number), (_COUNT, _stated(one, _COUNT))):
        found = _stated(part, key)
        if found != want:
            raise broken(
                path,
                f"states {key} = {found}, its name and {one.path.name} say {want}; the parts are "
                "of different saves or renamed: download all of them again",
            )
    return part


def _check_tensors(parts: tuple[GGUFPart, ...]) -> None:
    """Each tensor in one part, and as many of them as every part says there are."""
    holder: dict[str, GGUFPart] = {}
    for part in parts:
        for name in part.tensors:
            if name in holder:
                raise broken(part.path, f"holds {name!r}, and so does {holder[name].path.name}")
            holder[name] = part
    for part in parts:
        stated = _stated(part, _TENSORS)
        if stated is not None and stated != len(holder):
            raise broken(
                part.path,
                f"states {stated} tensors in all parts ({_TENSORS}), they hold {len(holder)}; the "
                "parts are of different saves: download all of them again",
            )


def _stated(part: GGUFPart, key: str) -> int | None:
    """A number of the metadata, None where it is absent."""
    value = part.metadata.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise broken(part.path, f"{key} is a {type(value).__name__}, expected int")
