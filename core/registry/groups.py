"""Entry-point groups that archzoo reads."""

from __future__ import annotations

from enum import StrEnum


class Group(StrEnum):
    """A group of entry points; the value is its name in ``entry_points.txt``."""

    MODELS = "archzoo.models"  # architecture = module:Class
    ATTENTION_BACKENDS = "archzoo.attention_backends"  # name = module:Class
    QUANTIZATION = "archzoo.quantization"  # quant_method = module:Class
    PLUGINS = "archzoo.plugins"  # any name = module, or module:object, with pluggy hooks
    TOMBSTONES = "archzoo.tombstones"  # architecture = the distribution that serves it

    @property
    def noun(self) -> str:
        """What the name of an entry is."""
        return _NOUNS[self]

    @property
    def names_classes(self) -> bool:
        """Whether a name stands for one class: a target names it, and only one claim can serve."""
        return self not in (Group.PLUGINS, Group.TOMBSTONES)


_NOUNS = {
    Group.MODELS: "architecture",
    Group.ATTENTION_BACKENDS: "attention backend",
    Group.QUANTIZATION: "quantization method",
    Group.PLUGINS: "hook plugin",
    Group.TOMBSTONES: "tombstone",
}
PREFIX = "archzoo."
"""What the names of all groups begin with."""
GROUPS = tuple(Group)
"""All groups; walking the enum itself for every distribution would show."""
