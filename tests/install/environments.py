"""An interpreter that sees what pip put into a few folders, and nothing of this checkout.

The interpreter is that of a virtual environment whose own site-packages folder starts empty. A
path file there adds overlay folders, where wheels were installed with ``pip --target``, and after
them a mirror of this interpreter's site-packages without anything of archzoo: torch is shared, the
editable installs and their metadata are not seen. The order of ``sys.path`` is the usual one, so
the standard library comes before every plugin.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from install.wheelhouse import PIP, install_wheels, run

_OURS = ("archzoo", "_archzoo", "_editable_impl_archzoo")
_HIDDEN_VARIABLES = ("ARCHZOO_", "SGLANG_", "PYTHON")

_RESOLVE = """
import json, sys
import archzoo
from archzoo.errors import RegistryError

answers = {}
for name in sys.argv[1:]:
    try:
        found = archzoo.resolve(name)
    except RegistryError as error:
        code = str(getattr(error, "code", ""))
        answers[name] = {"error": type(error).__name__, "code": code, "text": str(error)}
    else:
        file = sys.modules[found.__module__].__file__
        answers[name] = {"class": found.__qualname__, "file": file}
print(json.dumps(answers))
"""


def mirror_dependencies(folder: Path) -> Path:
    """Links to everything that is installed here, apart from what is archzoo's."""
    folder.mkdir()
    places = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    for place in filter(sys.path.__contains__, places):
        for item in Path(place).iterdir():
            link = folder / item.name
            if not item.name.startswith(_OURS) and not link.exists():
                link.symlink_to(item, target_is_directory=item.is_dir())
    return folder


class Environment:
    """What one user has installed.

    Args:
        folder: where the environment is made.
        overlays: folders that wheels were installed into, first one first.
        dependencies: what ``mirror_dependencies`` made.
    """

    def __init__(self, folder: Path, overlays: Sequence[Path], dependencies: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(folder)
        self.folder = folder
        self.executable = folder / "bin/python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        lines = [*map(str, overlays), str(dependencies), ""]
        (self.site / "overlays.pth").write_text("\n".join(lines))

    def install(self, *wheels: Path) -> None:
        """Put wheels into the environment's own site-packages."""
        install_wheels(wheels, self.site)

    def uninstall(self, distribution: str) -> None:
        """Have pip remove what the distribution's RECORD lists."""
        run([*PIP, "--python", self.executable, "uninstall", "--yes", distribution])

    def python(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter away from the checkout.

        Args:
            arguments: of the command line.
            variables: of the environment, added to this process's own.
        """
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_HIDDEN_VARIABLES)
        }
        return subprocess.run(
            [self.executable, "-I", *arguments],
            cwd=self.folder,
            env={**kept, "HF_HUB_OFFLINE": "1", **variables},
            capture_output=True,
            text=True,
        )

    def output(self, *arguments: str | Path, **variables: str) -> str:
        """What the interpreter prints, where it is expected to work."""
        done = self.python(*arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def listed(self, **variables: str) -> dict[str, list[dict[str, Any]]]:
        """Architecture -> the claims on it, as ``archzoo list --json`` tells them."""
        content = json.loads(self.output("-m", "archzoo", "list", "--json", **variables))
        claims: dict[str, list[dict[str, Any]]] = {}
        for provider in content["providers"]:
            claims.setdefault(provider["architecture"], []).append(provider)
        return claims

    def resolved(self, *architectures: str, **variables: str) -> dict[str, dict[str, str]]:
        """What ``archzoo.resolve`` answers to each name: a class and its file, or an error."""
        answers = self.output("-c", _RESOLVE, *architectures, **variables)
        found: dict[str, dict[str, str]] = json.loads(answers)
        return found
