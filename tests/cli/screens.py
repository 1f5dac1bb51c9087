"""Screens of ``list``, ``why`` and ``doctor`` over a fixed fake site.

Run as a script (``make screens``) to write the golden files and the pictures of them.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
PICTURES = HERE.parents[1] / "docs" / "screens"
WIDTHS = (80, 120)

SURROUNDINGS = [
    ("archzoo", "0.1.0"),
    ("python", "3.11.9 on Linux x86_64"),
    ("interpreter", "/opt/venv/bin/python"),
    ("libraries", "torch 2.13.0, transformers 5.24.0, safetensors 0.8.0, tokenizers 0.23.3"),
    ("threads", "8 of 16 processors usable, OMP_NUM_THREADS=8"),
    ("devices", "cpu, 2 NVIDIA GPUs"),
    ("fingerprint", "8762903d4556851d"),
]


def draw(width: int) -> dict[str, str]:
    """Every screen at a width; the current folder must be empty and is written to."""
    from registry.sites import Site

    from archzoo.cli import doctor, listing, why
    from archzoo.cli.probing import Finding
    from archzoo.registry import Catalog
    from archzoo.settings import Settings

    site = Site(Path("site"))
    _install(site)
    environment = {"COLUMNS": str(width), "ARCHZOO_DISABLED_MODEL_ARCHS": "OldForCausalLM"}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(doctor, "_surroundings", lambda catalog: SURROUNDINGS),
    ):
        catalog = Catalog(["site"], settings=Settings.from_environ(environment))
        screens = {"list": listing.as_text(catalog)}
        for name in ("Good", "Lacking", "Twin", "Old", "Godo", "Llama"):
            asked = why.question(f"{name}ForCausalLM")
            screens[f"why-{name.lower()}"] = why.as_text(asked, catalog)
        found = doctor.examine(catalog)
        screens["doctor"] = doctor.as_text(found)
        problem = "ValueError: boom 17"
        fix = "report it to the distribution's author, or uninstall it"
        findings = {
            each: Finding("", "", "", 0.2, ("prints 2 lines when it is imported",))
            if each.name.startswith("Good")
            else Finding("import-failed", problem, fix, 0.1)
            for each in catalog.providers()
            if not each.reasons
        }
        screens["doctor-probe"] = doctor.as_text(doctor.Checkup(catalog, findings))
    return screens


def _install(site: object) -> None:
    install = site.install  # type: ignore[attr-defined]  # imported late, see draw
    install("zoo-good", {"GoodForCausalLM": "zoo_good.model:Good"}, version="1.2")
    install(
        "zoo-lacking",
        {"LackingForCausalLM": "zoo_lacking.model:Lacking [fla]"},
        requires=["flash-linear-attention>=0.4; extra == 'fla'"],
        extras=["fla"],
    )
    install("zoo-newer", {"NewerForCausalLM": "zoo_newer:Newer"}, requires=["archzoo>=7"])
    install("zoo-broken", {"BrokenForCausalLM": "zoo broken"})
    install("zoo-old", {"OldForCausalLM": "zoo_old:Old"})
    for name in ("one", "two"):
        install(f"zoo-{name}", {"TwinForCausalLM": f"zoo_{name}.model:Twin"})
    info = install("zoo-strange", {"StrangeForCausalLM": "zoo_strange:Strange"})
    with (info / "entry_points.txt").open("a") as file:
        file.write("[archzoo.modles]\nTypo = zoo:Typo\n")


def main() -> None:
    """Write golden files and pictures anew."""
    from rich.console import Console
    from rich.text import Text

    GOLDEN.mkdir(exist_ok=True)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            screens = draw(width)
            os.chdir(HERE)
        for name, text in screens.items():
            (GOLDEN / f"{name}-{width}.txt").write_text(text + "\n")
            if width == WIDTHS[0] and name in ("list", "why-lacking", "doctor-probe"):
                console = Console(record=True, width=width, file=io.StringIO())
                console.print(Text(text), soft_wrap=True)
                title = f"archzoo {name.replace('-probe', ' --probe').replace('-', ' ')}"
                picture = console.export_svg(title=title, unique_id=f"archzoo-{name}")
                (PICTURES / f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    main()
