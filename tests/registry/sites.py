"""A fake site-packages: plugins in tests are folders with ``*.dist-info`` on a path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from archzoo.registry import Catalog
from archzoo.settings import Settings


class Site:
    """A folder that pip could have installed into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def info(self, name: str, version: str = "1.0") -> Path:
        """The metadata folder of a distribution."""
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        return folder

    def install(
        self,
        name: str,
        entries: Mapping[str, str] | None = None,
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        extras: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        group: str = "archzoo.models",
    ) -> Path:
        """Lay out a distribution: metadata, entry points, modules."""
        info = self.info(name, version)
        headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        headers += [f"Provides-Extra: {extra}" for extra in extras]
        headers += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(headers) + "\n\nName: not a header\n")
        if entries is not None:
            lines = [f"{key} = {target}" for key, target in entries.items()]
            (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        for relative, text in (files or {}).items():
            path = self.folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return info

    @contextmanager
    def importable(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
        """Put the folder on ``sys.path``; what was imported from it is forgotten at the end."""
        monkeypatch.syspath_prepend(str(self.folder))
        before = set(sys.modules)
        yield self
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(self.folder):
                del sys.modules[name]
        importlib.invalidate_caches()

    def catalog(self, *others: Site, **settings: object) -> Catalog:
        """The catalog of this folder, and of others searched after it."""
        path = [str(site.folder) for site in (self, *others)]
        return Catalog(path, settings=Settings(**settings))  # type: ignore[arg-type]  # test helper
