"""Which files of a directory are the checkpoint. Names and the index only; no tensor is read.

Order of preference: ``model.safetensors``, ``model.safetensors.index.json`` (as transformers),
another single index, another single safetensors file, a complete set of ``NAME-00001-of-0000N``
shards, a single GGUF model (one file or a split set). Suffixes may be in upper case. Pickles are
never read, and no link is followed out of the directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..config.folders import likely_kind
from ..errors import CheckpointFileError
from .file_checks import read_json, unreadable
from .gguf_split import split_set

INDEX_SUFFIX = ".safetensors.index.json"
TENSORS_SUFFIX = ".safetensors"
GGUF_SUFFIX = ".gguf"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
TRAINER_FILES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args", "random_states")
"""How names of pickles begin that hold a trainer's state and no weights."""
_MOST_INDEX_BYTES = 64 << 20
"""A model of 200000 tensors has an index of about 24 MB."""
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True)
class CheckpointFiles:
    """The files that make a checkpoint.

    Args:
        files: in reading order, each once.
        index: file of each tensor, where an index says so; None without an index.
        notes: what was left aside and why.
    """

    files: tuple[Path, ...]
    index: Mapping[str, Path] | None = None
    notes: tuple[str, ...] = ()


def files_at(path: Path) -> CheckpointFiles:
    """The checkpoint that a path means: a directory's, an index's, or one file.

    Raises:
        CheckpointFileError: nothing there, a pickle, another kind of file, or as
            ``checkpoint_files`` and ``read_index``.
    """
    if os.path.isdir(path):
        return checkpoint_files(path)
    if not os.path.exists(path):
        raise CheckpointFileError(str(path), "does not exist; give a file or a directory")
    if has_suffix(path.name, INDEX_SUFFIX):
        return read_index(path)
    if has_suffix(path.name, TENSORS_SUFFIX, GGUF_SUFFIX):
        return CheckpointFiles((path,))
    if has_suffix(path.name, *PICKLE_SUFFIXES):
        raise refuse_pickle(path)
    raise CheckpointFileError(
        str(path), "is neither a .safetensors nor a .gguf file; give one of those or a directory"
    )


def checkpoint_files(directory: Path) -> CheckpointFiles:
    """The checkpoint in a directory.

    Raises:
        CheckpointFileError: none there, only pickles, an ambiguous set, a missing shard, an index
            that is broken or points outside, or a link that leads outside.
    """
    names = names_in(directory)
    main = _main_file(directory, names)
    if main is None:
        chosen = _shards_without_index(directory, names)
    elif has_suffix(main, INDEX_SUFFIX):
        _keep_inside(directory, [main])
        chosen = read_index(directory / main)
    else:
        parts = split_set(main) or (main,)
        chosen = CheckpointFiles(tuple(directory / name for name in parts))
    if chosen.index is None:
        _keep_inside(directory, [path.name for path in chosen.files])
    return CheckpointFiles(
        chosen.files, chosen.index, chosen.notes + _left_aside(names, chosen, main)
    )


def names_in(directory: Path) -> list[str]:
    """What lies in a directory, sorted.

    Raises:
        CheckpointFileError: it cannot be read.
    """
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        raise CheckpointFileError(str(directory), unreadable(error)) from error


def has_suffix(name: str, *suffixes: str) -> bool:
    """Whether a file name ends in one of the suffixes, in upper or lower case."""
    return name.lower().endswith(suffixes)


def refuse_pickle(path: Path) -> CheckpointFileError:
    """The error for a checkpoint that exists as a pickle only."""
    folder = str(path.parent)
    script = (
        "from transformers import AutoModelForCausalLM as M; "
        f"M.from_pretrained({folder!r}).save_pretrained({folder + '-safetensors'!r})"
    )
    return CheckpointFileError(
        str(path),
        "is a pickle, which can run code when read, so it is not; convert it where you trust its "
        f"author: python -c {shlex.quote(script)}",
    )


def _main_file(directory: Path, names: list[str]) -> str | None:
    """The index or the single file to read; None when shards must do without an index."""
    for name in ("model" + TENSORS_SUFFIX, "model" + INDEX_SUFFIX):
        if name in names:
            return name
    indexes = [name for name in names if has_suffix(name, INDEX_SUFFIX)]
    tensors = [name for name in names if has_suffix(name, TENSORS_SUFFIX)]
    plain = [name for name in tensors if not name.startswith("consolidated")]
    ggufs = [name for name in names if has_suffix(name, GGUF_SUFFIX)]
    for group in (indexes, plain or tensors, [] if tensors else gguf_choices(ggufs)):
        if len(group) == 1:
            return group[0]
    if tensors and len(indexes) < 2:
        return None
    raise _nothing_to_read(directory, names, indexes or ggufs)


def gguf_choices(names: list[str]) -> list[str]:
    """The GGUF models among file names: a split model counts once, by one of its parts."""
    models = {split_set(name) or (name,): name for name in sorted(names, reverse=True)}
    return sorted(models.values())


def several_checkpoints(directory: Path, names: list[str]) -> CheckpointFileError:
    """The error for a directory that leaves the choice open."""
    return CheckpointFileError(
        str(directory),
        f"holds several checkpoints ({', '.join(names)}); give the path of one of them",
    )


def _nothing_to_read(
    directory: Path, names: list[str], candidates: list[str]
) -> CheckpointFileError:
    if candidates:
        return several_checkpoints(directory, candidates)
    pickles = [name for name in names if has_suffix(name, *PICKLE_SUFFIXES)]
    pickles = [name for name in pickles if not name.startswith(TRAINER_FILES)]
    if pickles:
        return refuse_pickle(directory / pickles[0])
    hint = likely_kind(directory) or "give the directory of a downloaded checkpoint"
    return CheckpointFileError(
        str(directory),
        f"holds no safetensors or GGUF file (found: {', '.join(names[:8]) or 'nothing'}); {hint}",
    )


def _shards_without_index(directory: Path, names: list[str]) -> CheckpointFiles:
    """All shards of one complete numbered set."""
    tensors = [name for name in names if has_suffix(name, TENSORS_SUFFIX)]
    plain = [name for name in tensors if not name.startswith("consolidated")] or tensors
    shards = [_SHARD.fullmatch(name) for name in plain]
    families = {
        (m["stem"], m["count"]) if m and m["number"] <= m["count"] else None for m in shards
    }
    if len(families) != 1 or None in families:
        raise CheckpointFileError(
            str(directory),
            f"holds {len(plain)} safetensors files ({', '.join(plain[:6])}) and no index that says "
            "which belong together; add the index, or give the path of one file",
        )
    stem, count = next(family for family in families if family)
    wanted = [f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1)]
    _require(directory, wanted, f"{len(plain)} of {int(count)} shards are there")
    files = tuple(directory / name for name in wanted)
    return CheckpointFiles(files, None, (f"no index: all {len(files)} shards of {stem} are read",))


def read_index(path: Path, *, present: bool = True) -> CheckpointFiles:
    """The files an index names.

    Args:
        path: of the index.
        present: whether the files must be there.

    Raises:
        CheckpointFileError: a broken index, a file outside its directory, or a missing file.
    """
    weight_map = _weight_map(path)
    files = {entry: _inside(path, entry) for entry in dict.fromkeys(weight_map.values())}
    if present:
        _require(path.parent, list(files), f"{path.name} names it")
    index = {name: files[entry] for name, entry in weight_map.items()}
    return CheckpointFiles(tuple(files[entry] for entry in sorted(files)), index)


def _weight_map(path: Path) -> dict[str, str]:
    data = read_json(path, _MOST_INDEX_BYTES, "JSON index")
    found = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not found:
        raise CheckpointFileError(
            str(path), 'has no "weight_map" of tensor names to files; fetch the index again'
        )
    for name, entry in found.items():
        if not isinstance(entry, str):
            raise CheckpointFileError(
                str(path), f"maps {name[:80]!r} to {str(entry)[:80]!r}, not to a file name"
            )
    return found


def _inside(index: Path, entry: str) -> Path:
    """The file an index entry names, if it lies in the checkpoint's own directory."""
    home = Path(os.path.realpath(index.parent))
    if not is_relative_name(entry):
        raise CheckpointFileError(
            str(index),
            f"names {entry!r}, which is no safetensors file inside {home}; refused: an index may "
            "only name files of its own checkpoint",
        )
    path = home / entry
    _refuse_links_out(home, path, f"the checkpoint whose {index.name} names it")
    return path


def _keep_inside(directory: Path, names: list[str]) -> None:
    """Refuse links of the directory itself that lead out of it."""
    home = Path(os.path.realpath(directory))
    for name in names:
        _refuse_links_out(home, home / name, "the checkpoint directory it lies in")


def _refuse_links_out(home: Path, path: Path, checkpoint: str) -> None:
    """Refuse a path below ``home`` on which a link leads out of the checkpoint.

    A link may lead into the ``blobs`` of the same Hugging Face cache entry, nowhere else.
    """
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home

    def leads_out(at: Path) -> bool:
        real = Path(os.path.realpath(at))
        return not (real.is_relative_to(home) or real.is_relative_to(blobs))

    if not leads_out(path):
        return
    below = [at for at in (*reversed(path.parents), path) if at.is_relative_to(home)]
    link = next(at for at in below if leads_out(at))
    raise CheckpointFileError(
        str(link),
        f"is a link to {os.path.realpath(link)}, outside {checkpoint}; "
        "refused: put a copy of the file in place of the link, or give the directory that really "
        f"holds the checkpoint, such as {os.path.dirname(os.path.realpath(path))}",
    )


def is_relative_name(entry: str) -> bool:
    """A printable safetensors name, relative on every system, that never goes up."""
    windows = PureWindowsPath(entry)
    rooted = PurePosixPath(entry).is_absolute() or windows.drive or windows.root
    plain = entry.isprintable() and has_suffix(entry, TENSORS_SUFFIX)
    return plain and not rooted and ".." not in windows.parts


def _require(directory: Path, names: list[str], why: str) -> None:
    missing = [name for name in names if not os.path.isfile(directory / name)]
    if missing:
        more = f" (missing too: {', '.join(missing[1:6])})" if missing[1:] else ""
        raise CheckpointFileError(
            str(directory / missing[0]), f"is missing: {why}{more}; download the checkpoint again"
        )


def _left_aside(names: list[str], chosen: CheckpointFiles, main: str | None) -> tuple[str, ...]:
    """A line for each kind of weight file that is not read."""
    used = {path.name for path in chosen.files}
    rest = [name for name in names if name not in used and name != main]
    what = main or f"{len(chosen.files)} numbered shards"
    tensors = [n for n in rest if has_suffix(n, TENSORS_SUFFIX, GGUF_SUFFIX, INDEX_SUFFIX)]
    pickles = [n for n in rest if has_suffix(n, *PICKLE_SUFFIXES)]
    notes: list[str] = []
    if tensors:
        notes.append(f"not read beside {what}: {', '.join(tensors)}")
    if pickles:
        notes.append(f"not read, pickles: {', '.join(pickles)}")
    return tuple(notes)
