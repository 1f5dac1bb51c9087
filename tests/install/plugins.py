"""The third-party plugins of the matrix."""

from __future__ import annotations

from install.wheelhouse import PluginProject

NEWER = PluginProject(
    "archzoo-newer",
    {"NewerForCausalLM": "newer_models.model:NewerForCausalLM"},
    {
        "newer_models/__init__.py": "",
        "newer_models/model.py": "raise AssertionError('imported by a core that is too old')",
    },
    requires=("archzoo>=7.1,<8",),
)
OPTIONAL = PluginProject(
    "archzoo-optional",
    {
        "PlainForCausalLM": "optional_models.plain:PlainForCausalLM",
        "FastForCausalLM": "optional_models.fast:FastForCausalLM [fast]",
    },
    {
        "optional_models/__init__.py": "",
        "optional_models/plain.py": "class PlainForCausalLM: ...",
        "optional_models/fast.py": "import no_such_kernels",
    },
    extras={"fast": ("no-such-kernels>=2",)},
)
RIVAL = PluginProject(
    "archzoo-rival",
    {
        "LlamaForCausalLM": "rival_models:LlamaForCausalLM",
        "RivalForCausalLM": "rival_models:RivalForCausalLM",
    },
    {"rival_models/__init__.py": "class LlamaForCausalLM: ...\nclass RivalForCausalLM: ..."},
)
# Two that install the same files, with other content. One class has the same name in both.
TWINS = tuple(
    PluginProject(
        f"archzoo-{twin.lower()}",
        {
            f"{twin}ForCausalLM": f"twin_models.model:{twin}ForCausalLM",
            f"{twin}Model": "twin_models.model:Model",
        },
        {
            "twin_models/__init__.py": "",
            "twin_models/model.py": f"class {twin}ForCausalLM: ...\nclass Model: ...",
        },
    )
    for twin in ("Castor", "Pollux")
)
SQUATTER = PluginProject(
    "archzoo-squatter",
    {"SquatterForCausalLM": "archzoo_llama.squatter:SquatterForCausalLM"},
    {
        "archzoo_llama/__init__.py": "",
        "archzoo_llama/squatter.py": "class SquatterForCausalLM: ...",
    },
)
# A module of the standard library, which comes first on sys.path.
STANDARD = PluginProject(
    "archzoo-standard",
    {"StandardForCausalLM": "statistics.model:StandardForCausalLM"},
    {
        "statistics/__init__.py": "",
        "statistics/model.py": "class StandardForCausalLM: ...",
    },
)
# Names of archzoo's own folder and of its parts, which are no top-level modules.
HOMONYM = PluginProject(
    "archzoo-homonym",
    {
        "ModelsForCausalLM": "models:ModelsForCausalLM",
        "CoreForCausalLM": "core:CoreForCausalLM",
    },
    {
        "models/__init__.py": "class ModelsForCausalLM: ...",
        "core/__init__.py": "class CoreForCausalLM: ...",
    },
)

ALL = (NEWER, OPTIONAL, RIVAL, *TWINS, SQUATTER, STANDARD, HOMONYM)
