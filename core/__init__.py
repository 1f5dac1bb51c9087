"""archzoo: the model layer of an LLM inference engine, extended by plugins.

::

    import archzoo

    model = archzoo.load("path/to/checkpoint")
    model.generate("The capital of France is", max_new_tokens=8).text

Names below are imported on first use, so that ``import archzoo`` and the registry stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if __name__ != "archzoo":
    raise ImportError(
        f"core/ is the source of package 'archzoo' but was imported as {__name__!r}; "
        "run `pip install -e .` once, then `import archzoo`"
    )

__all__ = [
    "BuildContext",
    "Model",
    "ModelConfig",
    "Topology",
    "__version__",
    "build",
    "load",
    "load_weights",
    "preflight",
    "resolve",
]

_HOMES = {
    "BuildContext": ".context",
    "Model": ".runtime",
    "ModelConfig": ".config",
    "Topology": ".parallel",
    "build": ".runtime",
    "load": ".runtime",
    "load_weights": ".runtime",
    "preflight": ".survey",
    "resolve": ".registry",
}

if TYPE_CHECKING:
    from .config import ModelConfig
    from .context import BuildContext
    from .parallel import Topology
    from .registry import resolve
    from .runtime import Model, build, load, load_weights
    from .survey import preflight


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'archzoo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    """Public names."""
    return sorted(__all__)
