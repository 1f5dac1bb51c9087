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
_TYPE_KEYS = ("rope_type", "type")


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
    """The rotary block of a file: ``rope_scaling`` where it holds anything, else ``rope_parameters``.

    So ``transformers`` chooses. Beside a ``rope_scaling`` it drops ``rope_parameters`` whole; what
    would be lost there is refused.

    Raises:
        ConfigError: a block is not an object, or both hold something that is not the same.
    """
    new, old = (_block(fields, name) for name in BLOCK_NAMES)
    block = new if old is None or not old.value else old
    if block is None:
        return RopeBlock(fields, BLOCK_NAMES[0], {})
    if new is not None and old is not None and block is old:
        _drop(fields, new, old)
    stated = {key: Stated(f"{block.path}.{key}", value) for key, value in block.value.items()}
    return RopeBlock(fields, block.path, stated)


def _block(fields: FieldReader, name: str) -> Stated | None:
    block = fields.find(name)
    if block is not None and not isinstance(block.value, Mapping):
        refuse(Where(block.path, fields.file), f"{show(block.value)} is not an object")
    return block


def _drop(fields: FieldReader, dropped: Stated, kept: Stated) -> None:
    """Account for the block that does not count, which says the same as the rest of the file."""
    for key, value in dropped.value.items():
        path = f"{dropped.path}.{key}"
        known = kept.value.get(key)
        if known is None and key in _TYPE_KEYS:
            known = next((kept.value[k] for k in _TYPE_KEYS if k in kept.value), "default")
        elif known is None:
            outside = fields.find(key)
            known = _defaults(fields).get(key) if outside is None else outside.value
        if value is not None and value != known:
            there = "nothing" if known is None else show(known)
            fields.overrulable(
                path,
                f"{show(value)} here, but a {kept.path} is stated too, which decides alone and "
                f"says {there}; keep one of the two blocks",
            )
        fields.ignore_path(path, NULL if value is None else f"{kept.path} decides", value)


def _defaults(fields: FieldReader) -> Mapping[str, Any]:
    """What holds where the whole file states nothing."""
    return {"partial_rotary_factor": 1.0, **fields.adapter.defaults}
