"""FieldReader: reads the fields of one raw config and keeps account of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..errors import ConfigError
from .adapter import Check, ConfigAdapter
from .foreign import FOREIGN_FIELDS, says_nothing
from .ignored import IGNORED_RULES, TAKEN_FOR_GRANTED, must_be_read
from .ledger import ASKED, NULL, ConfigLedger, Fate, LedgerEntry
from .values import Where, refuse, show

WRAPPED = "text_config"
"""Where a multimodal file keeps the language model's fields."""

_SHARED = frozenset(
    "architectures dtype torch_dtype tie_word_embeddings quantization_config compression_config "
    "bos_token_id eos_token_id pad_token_id".split()
)
_NOTHING = object()
_NO_CONTRADICTION = frozenset({"tie_word_embeddings", "quantization_config", "compression_config"})


class Stated(NamedTuple):
    """A value of the file and its dotted name there."""

    path: str
    value: Any


class FieldReader:
    """Reads fields by their ModelConfig names, through an adapter's spellings and defaults.

    Args:
        raw: the config file.
        adapter: the family.
        file: its path, for messages.
        ignore_fields: dotted names that are read as if the file did not state them.
        family_chosen: by whoever loads the file, not by the file.

    Raises:
        ConfigError: ``text_config`` is not an object, the file around it contradicts it, or a field
            to ignore is not stated.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        adapter: ConfigAdapter,
        file: str,
        ignore_fields: Sequence[str] = (),
        family_chosen: bool = False,
    ) -> None:
        """Lay the wrapper's and the wrapped fields side by side."""
        self.adapter, self.file, self.family_chosen = adapter, file, family_chosen
        self._entries: dict[tuple[str, bool], LedgerEntry] = {}
        for name in ignore_fields:
            self.ignore_path(name, ASKED, _at(raw, name))
        self._stated = self._unwrap(without_fields(raw, ignore_fields, file))

    # ----------------------------------------------------------------------------- reading

    def value(self, field: str, check: Check, *, null_is_value: bool = False) -> Any:
        """Value of a field: as stated, else the family's default, else None.

        Args:
            field: ModelConfig's name of it.
            check: turns the raw value into the field's.
            null_is_value: an explicit null says "none" instead of "not stated".
        """
        stated = self.find(field, null_is_value=null_is_value)
        if stated is not None:
            where = Where(stated.path, self.file)
            return None if stated.value is None else check(stated.value, where)
        default = self.adapter.defaults.get(field)
        if default is None:
            return None
        self.defaulted(field, f"{self.adapter.name} default", default)
        return check(default, Where(f"{self.adapter.name} adapter, default of {field}", self.file))

    def required(self, field: str, check: Check) -> Any:
        """As ``value``; a field that neither the file nor the family states is refused."""
        result = self.value(field, check)
        if result is None:
            names = " or ".join(self.adapter.names_of(field)) or field
            refuse(self.where(field), f"missing; the config must state {names}")
        return result

    def find(self, field: str, *, null_is_value: bool = False) -> Stated | None:
        """The statement of a field that counts, marked consumed; others are marked overridden."""
        found: Stated | None = None
        for name in self.adapter.names_of(field):
            stated = self._stated.get(name)
            if stated is None or (stated.value is None and not null_is_value):
                continue
            if found is None:
                found = stated
                self.consumed(stated.path, field, stated.value)
            else:
                self.ignore(name, f"{found.path} decides")
        return found

    def where(self, field: str) -> Where:
        """Place of a field, as the file spells it, for messages."""
        names = self.adapter.names_of(field)
        stated = [self._stated[name].path for name in names if name in self._stated]
        return Where((*stated, *names, field)[0], self.file)

    def peek(self, field: str) -> Any:
        """What the file states for a field, unchecked and without a mark; None where nothing."""
        stated = (self._stated.get(name) for name in self.adapter.names_of(field))
        return next((s.value for s in stated if s is not None and s.value is not None), None)

    def is_stated(self, field: str) -> bool:
        """Whether the file states a field (null does not count)."""
        return self.peek(field) is not None

    # -------------------------------------------------------------------------- accounting

    def consumed(self, path: str, field: str, value: object) -> None:
        """A value of ``field`` rests on ``path``."""
        self._note(path, "consumed", field, value, overrule=True)

    def defaulted(self, field: str, source: str, value: object) -> None:
        """``field`` has a value the file does not state."""
        self._note(field, "defaulted", source, value)

    def ignore(self, name: str, rule: str) -> None:
        """A top-level field is ignored by a rule, unless something consumed it or it is absent."""
        stated = self._stated.get(name)
        if stated is not None:
            self._note(stated.path, "ignored", NULL if stated.value is None else rule, stated.value)

    def ignore_path(self, path: str, rule: str, value: object) -> None:
        """As ``ignore``, for a field inside a block."""
        self._note(path, "ignored", rule, value)

    def finish(self) -> ConfigLedger:
        """Give a fate to what nobody read.

        Raises:
            ConfigError: an unread field whose name says rotary or quantization, that asks for other
                attention than is done or for what another family does, or that nobody knows in a
                family that is ``strict``.
        """
        for name, stated in self._stated.items():
            if (stated.path, False) not in self._entries:
                rule = self._rule(name, stated)
                if rule is None:
                    self._note(stated.path, "unknown", "no reader, no rule", stated.value)
                else:
                    self.ignore(name, rule)
        paths = [stated.path for stated in self._stated.values()]
        unread = tuple(path for path in paths if (path, False) not in self._entries)
        return ConfigLedger(tuple(self._entries.values()), unread)

    def _rule(self, name: str, stated: Stated) -> str | None:
        """The rule that ignores a field nobody read; None where nobody knows it."""
        rule = self.adapter.ignored.get(name) or IGNORED_RULES.get(name)
        if rule is not None or stated.value is None:
            return rule or NULL
        family = self.adapter.name
        if name in FOREIGN_FIELDS:
            if says_nothing(name, stated.value):
                return "what is done anyway"
            self.overrulable(
                stated.path,
                f"{show(stated.value)} changes results in families that have this field, and "
                f"{family} is none of them: it would be ignored",
            )
        if name.startswith("_"):
            return "private"
        if name in TAKEN_FOR_GRANTED:
            return self._as_granted(name, stated)
        if must_be_read(name):
            self.overrulable(
                stated.path,
                f"{show(stated.value)} is not read by the {family} family, and its name says that "
                "it changes results; check the spelling",
            )
        if self.adapter.strict and stated.value:
            self.overrulable(
                stated.path,
                f"{show(stated.value)} is not known to {family}, which has no reference that "
                "ignores fields",
            )
        return None

    def overrulable(self, path: str, problem: str) -> NoReturn:
        """Refuse a field, and say how a user or a family overrules that."""
        refuse(
            Where(path, self.file),
            f"{problem}; remove it, overrule with ignore_fields=[{path!r}] (--ignore-field {path}), "
            "or let the family's ConfigAdapter read or ignore it by name",
        )

    def _as_granted(self, name: str, stated: Stated) -> str:
        """The rule for a field that says what is done anyway; one that does not is refused."""
        usual = TAKEN_FOR_GRANTED[name]
        if stated.value is not usual:
            refuse(
                Where(stated.path, self.file),
                f"{show(stated.value)}, but the {self.adapter.name} family attends to what came "
                f"before and nothing else; only {usual} is served",
            )
        return "what is done anyway"

    def _note(
        self, path: str, fate: Fate, detail: str, value: object, overrule: bool = False
    ) -> None:
        key = (path, fate == "defaulted")  # a default may bear the name of an unrelated field
        known = self._entries.get(key)
        if known is not None and known.fate == fate == "consumed" and known.detail != detail:
            detail = f"{known.detail}, {detail}"
        if known is None or overrule:
            self._entries[key] = LedgerEntry(path, fate, detail, show(value))

    def _unwrap(self, raw: Mapping[str, Any]) -> dict[str, Stated]:
        """Top-level fields; in a wrapper the wrapped ones, plus those the wrapper shares."""
        outer = {name: Stated(name, value) for name, value in raw.items()}
        inner = raw.get(WRAPPED)
        if inner is None:
            return outer
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{show(inner)} is not an object", WRAPPED, self.file)
        del outer[WRAPPED]
        fields = {name: Stated(f"{WRAPPED}.{name}", value) for name, value in inner.items()}
        for name, stated in outer.items():
            if name not in _SHARED and not must_be_read(name):
                rule = NULL if stated.value is None else f"outside {WRAPPED}"
                self._note(stated.path, "ignored", rule, stated.value)
            else:
                self._share(fields, name, stated)
        return fields

    def _share(self, fields: dict[str, Stated], name: str, stated: Stated) -> None:
        """Let a field of the wrapper count for the wrapped model."""
        within = fields.get(name)
        if name == "architectures" or within is None or within.value is None:
            fields[name], loser = stated, within
            rule = f"{stated.path} decides"
        else:
            if within.value != stated.value and stated.value is not None:
                if name in _NO_CONTRADICTION or must_be_read(name):
                    refuse(
                        Where(stated.path, self.file),
                        f"{show(stated.value)} here and {show(within.value)} in {within.path}; "
                        "make them equal",
                    )
            loser, rule = stated, f"{within.path} decides"
        if loser is not None:
            self._note(loser.path, "ignored", NULL if loser.value is None else rule, loser.value)


def without_fields(raw: Mapping[str, Any], names: Sequence[str], file: str) -> Mapping[str, Any]:
    """A config without some fields, by dotted names.

    Raises:
        ConfigError: the file does not state one.
    """
    for name in names:
        if _at(raw, name) is _NOTHING:
            refuse(Where(name, file), "asked to be ignored, but the file does not state it")
        raw = _without(raw, name)
    return raw


def _at(raw: object, path: str) -> object:
    for key in path.split("."):
        raw = raw.get(key, _NOTHING) if isinstance(raw, Mapping) else _NOTHING
    return raw


def _without(raw: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    key, _, rest = path.partition(".")
    left = {each: value for each, value in raw.items() if each != key}
    return {**left, key: _without(raw[key], rest)} if rest else left
