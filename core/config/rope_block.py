"""RopeBlock: the rotary parameters of a config file, of which every key must be read.

Two names hold them: ``rope_scaling`` (before transformers 5) and ``rope_parameters`` (since; flat,
or one object for each layer type). A truthy block does not mean that scaling is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .adapter import Check
from .fields import FieldReader, Stated
from .ledger import NULL
from .values import Where, refuse, show

BLOCK_NAMES = ("rope_parameters", "rope_scaling")


class RopeBlock:
    """Keys of one block; each is taken by a reader or refused at the end.

    Args:
        fields: reader of the file, which keeps account.
        path: dotted name of the block.
        stated: key -> value and dotted name; null values are kept apart, as absent.
    """

    def __init__(self, fields: FieldReader, path: str, stated: Mapping[str, Stated]) -> None:
        """Set nulls apart."""
        self.fields, self.path = fields, path
        self._stated = {key: s for key, s in stated.items() if s.value is not None}
        self._nulls = {key: s for key, s in stated.items() if s.value is None}
        for null in self._nulls.values():
            fields.ignore_path(null.path, NULL, None)
        self._left = dict(self._stated)

    def take(self, key: str, check: Check) -> Any:
        """Checked value of a key, or None when the block does not state it."""
        stated = self._stated.get(key)
        if stated is None:
            return None
        self._left.pop(key, None)
        self.fields.consumed(stated.path, f"rope.{key}", stated.value)
        return check(stated.value, Where(stated.path, self.fields.file))

    def require(self, key: str, check: Check, rope_type: str) -> Any:
        """As ``take``; a block without the key is refused."""
        result = self.take(key, check)
        if result is None:
            refuse(self.where(key), f"missing; rope type {rope_type!r} needs it")
        return result

    def skip(self, key: str, rule: str) -> None:
        """Ignore a key by a named rule."""
        stated = self._left.pop(key, None)
        if stated is not None:
            self.fields.ignore_path(stated.path, rule, stated.value)

    def where(self, key: str) -> Where:
        """Place of a key, for messages."""
        stated = self._stated.get(key)
        return Where(stated.path if stated else f"{self.path}.{key}", self.fields.file)

    def states(self, key: str) -> bool:
        """Whether the block states a key (null does not count)."""
        return key in self._stated

    def is_null(self, key: str) -> bool:
        """Whether the block says null for a key."""
        return key in self._nulls

    def nested(self) -> dict[str, RopeBlock]:
        """Blocks by layer type, empty when this block is flat."""
        inner = {key: s for key, s in self._stated.items() if isinstance(s.value, Mapping)}
        return {key: self._child(key, stated) for key, stated in inner.items()}

    def _child(self, key: str, stated: Stated) -> RopeBlock:
        self._left.pop(key, None)
        self.fields.consumed(stated.path, "rope", stated.value)
        items = stated.value.items()
        return RopeBlock(
            self.fields, stated.path, {k: Stated(f"{stated.path}.{k}", v) for k, v in items}
        )

    def finish(self, rope_type: str) -> None:
        """Refuse keys that nobody took: a key unread is a table computed wrongly."""
        for key, stated in self._left.items():
            refuse(
                self.where(key),
                f"{show(stated.value)} has no meaning for rope type {rope_type!r}; check the "
                "spelling and the type, or remove it",
            )


def joined_block(fields: FieldReader) -> RopeBlock:
    """The rotary block of a file: one of the two names, or both where they agree.

    Raises:
        ConfigError: a block is not an object, or the two state a key differently.
    """
    keys: dict[str, Stated] = {}
    path = BLOCK_NAMES[0]
    for name in reversed(BLOCK_NAMES):
        block = fields.find(name)
        if block is None:
            continue
        path = block.path
        if not isinstance(block.value, Mapping):
            refuse(Where(path, fields.file), f"{show(block.value)} is not an object")
        for key, value in block.value.items():
            _add(fields, keys, key, Stated(f"{path}.{key}", value))
    return RopeBlock(fields, path, keys)


def _add(fields: FieldReader, keys: dict[str, Stated], key: str, stated: Stated) -> None:
    known = keys.get(key)
    if known is None or known.value is None:
        keys[key] = stated
        return
    if stated.value is not None and stated.value != known.value:
        refuse(
            Where(stated.path, fields.file),
            f"{show(stated.value)} here and {show(known.value)} in {known.path}; remove one",
        )
    fields.ignore_path(
        stated.path, NULL if stated.value is None else f"{known.path} decides", stated.value
    )
