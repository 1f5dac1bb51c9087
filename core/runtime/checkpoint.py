"""Checkpoint: config, weights, names' format and tokenizer of one path, each read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import config_from_gguf, read_config
from ..config.files import CONFIG_NAME
from ..config.folders import ADAPTER_NAME, adapter_problem
from ..config.quantization import without_quantization
from ..errors import CheckpointFileError
from ..weights import WeightSource, open_headers, open_source
from ..weights.directory import (
    GGUF_SUFFIX,
    files_at,
    gguf_choices,
    has_suffix,
    names_in,
    several_checkpoints,
)
from .sentence_files import SentenceFiles, lists_pooling, read_sentence_files
from .stopping import generation_eos_ids
from .tokenizer import (
    Tokenizer,
    has_tokenizer_files,
    load_tokenizer,
    require_tokenizer_files,
)

_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja", "tokenizer*", "vocab*", "merges.txt")
"""What a hub download may bring; never pickles."""
_NOT_FROM_HUB = ("consolidated*", "original/*")
"""Copies of the weights in another layout, as large as the weights themselves."""


def local_path(
    path: str | os.PathLike[str], offline: bool = False, *, weights: bool = True
) -> Path:
    """A path on this disk: the path itself, or a downloaded hub repository.

    Only something that does not exist here and looks like ``owner/name`` is looked up on the hub.

    Args:
        path: file, directory, or hub id.
        offline: only what an earlier download left here.
        weights: False downloads the configuration alone.

    Raises:
        CheckpointFileError: nothing there.
    """
    found = Path(path)
    if os.path.exists(found):  # a name that no system takes is nowhere, not an OSError
        return found
    text = os.fspath(path)
    parts = text.split("/")
    if len(parts) != 2 or not all(parts) or any(part in (".", "..", "~") for part in parts):
        raise CheckpointFileError(
            text, "does not exist; give a checkpoint directory, a file, or a hub id (owner/name)"
        )
    return _from_hub(text, offline, _HUB_FILES if weights else (CONFIG_NAME,))


def _from_hub(repo: str, offline: bool, files: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                repo,
                allow_patterns=list(files),
                ignore_patterns=list(_NOT_FROM_HUB),
                local_files_only=offline,
            )
        )
    except Exception as error:
        # The hub client raises many kinds: no network, no such repository, no access.
        where = "among earlier downloads (offline)" if offline else "on this disk or on the hub"
        cause = (str(error).splitlines() or ["no message"])[0]
        raise CheckpointFileError(
            repo,
            f"was not found {where}: {type(error).__name__}: {cause}; "
            "check the spelling, or download it and give its directory",
        ) from error


class Checkpoint:
    """A checkpoint that is open for reading.

    Args:
        path: directory with config.json, a .safetensors file in one, or a .gguf file.
        headers_only: safetensors files need hold no more than their headers; nothing is read.
        quantization: ``none`` takes the weights as plain ones, whatever the configuration says.

    Attributes:
        path: as given.
        raw: the configuration as a Hugging Face style dictionary.
        source: the weights; headers are read, tensors are not.

    Raises:
        CheckpointFileError, ConfigError: something is missing or broken.
    """

    raw: dict[str, Any]

    source: WeightSource

    def __init__(
        self, path: Path, *, headers_only: bool = False, quantization: str | None = None
    ) -> None:
        path = path.parent if path.name == CONFIG_NAME else path
        self.path = path
        self._folder: Path | None = None
        gguf = _gguf_file(path)
        if gguf is None:
            self._open_hf(path, headers_only)
        else:
            self._open_gguf(gguf)
        if quantization == "none":
            self.raw = without_quantization(self.raw)

    @property
    def format(self) -> str:
        """How tensor names are spelled, ``hf`` or ``gguf``."""
        return self.source.format

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside (or in) the checkpoint; loaded when first asked for.

        Threads that ask at once load it each, and all get the first: a lock would be held for ever
        in a child that is forked meanwhile.

        Raises:
            InputError: there is none.
        """
        kept: dict[str, Tokenizer] = self.__dict__
        return kept.get("tokenizer") or kept.setdefault("tokenizer", self._tokenizer())

    def sentence_files(self, width: int) -> SentenceFiles:
        """What files of ``sentence-transformers`` beside the weights say of vectors.

        Args:
            width: of the model's rows.

        Raises:
            ConfigError, CheckpointFileError: as ``read_sentence_files``.
        """
        if self._folder is None:
            return SentenceFiles()
        return read_sentence_files(self._folder, width)

    @property
    def lists_pooling(self) -> bool:
        """Whether such files say that rows are pooled, so that no head is wanted."""
        return self._folder is not None and lists_pooling(self._folder)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the checkpoint brings a tokenizer, sound or not."""
        return self._has_tokenizer

    def close(self) -> None:
        """Let the weight files go."""
        self.source.close()

    def _open_hf(self, path: Path, headers_only: bool) -> None:
        folder = self._folder = path if path.is_dir() else path.parent
        if path.is_file() and not headers_only:
            files_at(path)  # refuses what is no weight file, before a config is missed beside it
        _refuse_adapter(folder)
        self.raw = read_config(folder)
        self.config_file = str(folder / CONFIG_NAME)
        self.stop_ids = generation_eos_ids(folder)
        self.source = open_headers(path) if headers_only else open_source(path)
        self._tokenizer: Callable[[], Tokenizer] = lambda: load_tokenizer(folder)
        self._has_tokenizer = has_tokenizer_files(folder)

    def _open_gguf(self, path: Path) -> None:
        from ..weights.gguf import GGUFFile, GGUFSource
        from .gguf_tokenizer import GGUF_MODELS, GGUFTokenizer, gguf_eos_token_ids

        file = GGUFFile(path)
        self.config_file = str(path)
        source = GGUFSource(file, accept_rope_divisors=True)
        self.source = source
        self.raw = config_from_gguf(
            file.metadata, file.tensors, rope_divisors=source.rope_divisors, file=str(path)
        )
        self._tokenizer = lambda: GGUFTokenizer(file)
        self._has_tokenizer = "tokenizer.ggml.tokens" in file.metadata and (
            file.metadata.get("tokenizer.ggml.model") in GGUF_MODELS
        )
        self.stop_ids = frozenset(gguf_eos_token_ids(file) if self._has_tokenizer else ())


def _refuse_adapter(folder: Path) -> None:
    """Refuse a folder that ``transformers`` would take for an adapter, a whole model beside it or not.

    Raises:
        CheckpointFileError: it is one.
    """
    file = folder / ADAPTER_NAME
    if file.is_file():
        base = read_config(file).get("base_model_name_or_path")
        raise CheckpointFileError(str(file), adapter_problem(folder, base))


def require_tokenizer(path: Path) -> None:
    """Refuse texts for a checkpoint without a tokenizer, before anything of it is read.

    Raises:
        InputError: there is none. That a GGUF file has none shows when it is open.
    """
    if _gguf_file(path) is None:
        require_tokenizer_files(path if path.is_dir() else path.parent)


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file a path means, or None: itself, or the only model in a directory.

    Raises:
        CheckpointFileError: a directory without a config that holds several.
    """
    if has_suffix(path.name, GGUF_SUFFIX):
        return path
    if not path.is_dir() or (path / CONFIG_NAME).exists():
        return None
    names = gguf_choices([name for name in names_in(path) if has_suffix(name, GGUF_SUFFIX)])
    if len(names) > 1:
        raise several_checkpoints(path, names)
    return path / names[0] if names else None
