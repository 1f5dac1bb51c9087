"""Chat templates as ``transformers`` renders them, with bounded work and output.

A chat template is a program of whoever made the checkpoint. The sandbox of jinja2 keeps it from
files and attributes; it does not keep it from two nested loops of 99,999 or ``'a' * 2000000000``.
So its work is counted: loop bodies, calls, and every character that an operation reads or makes,
before it is made where it could be large. The count, not a clock, ends a template, so that the same
conversation is rendered or refused on every machine. What honest templates do stays far below.

The environment (filters, globals, extensions, trimming) and what becomes of messages are those of
``transformers``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from ..errors import InputError

WORK = 1 << 23
"""Units of work that a template has at the least; a unit is a character that is read or made."""
WORK_PER_UNIT = 256
"""More of them for each unit that the conversation weighs."""
LENGTH = 1 << 17
"""Characters of a template; the longest that are published have a quarter of it."""
_STEP = 64
"""Units of a call, a filter, an item."""
_DEPTH = 64
"""Levels of lists in lists that can be printed or compared."""
_BITS = 4096
"""Bits of a whole number."""
_UNBOUNDED = ("lipsum", "pprint", "striptags", "urlize", "wordwrap", "xmlattr")
"""Of jinja2's own, what costs more than its text is long and no chat template needs."""
_LOOKS = frozenset(
    "abs attr batch count d default first items last length list map random reject rejectattr "
    "reverse round select selectattr slice".split()
)
"""Filters that do not read into the values they are given."""
_ORDERS = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
"""Filters that compare values more than once."""
_LAYS_OUT = frozenset({"indent", "tojson"})
"""Filters that put their arguments around each part of a value."""
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        frozenset(
            "capitalize casefold center count endswith find format index isalnum isalpha isascii "
            "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
            "partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
            "rstrip split splitlines startswith strip swapcase title upper zfill".split()
        ),
    ),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (bytes, frozenset()),
    (int, frozenset()),
    (float, frozenset({"is_integer"})),
)
"""Methods of plain values that cost what their text and arguments are long."""


class _Work:
    """Units that are left."""

    def __init__(self, left: int) -> None:
        self.left = left


_work: ContextVar[_Work] = ContextVar("work of the template that is rendered")


def render(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str:
    """The text of a conversation.

    Args:
        template: jinja2 source.
        messages: plain data, as ``transformers`` hands it to templates.
        variables: what else the template may name.

    Raises:
        InputError: the template is too long, or asks for more work than it may do.
        Exception: whatever the template raises.
    """
    if len(template) > LENGTH:
        raise InputError(
            f"the chat template has {len(template)} characters, more than {LENGTH}; "
            "replace chat_template of the tokenizer"
        )
    work = _Work(1 << 62)
    token = _work.set(work)
    try:
        _charge(messages)
        work.left = WORK + WORK_PER_UNIT * ((1 << 62) - work.left)
        return _compiled(template).render(messages=messages, **variables)
    finally:
        _work.reset(token)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    """The environment of transformers, counted."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    theirs = _compile_jinja_template("").environment
    found = _Environment(
        trim_blocks=theirs.trim_blocks,
        lstrip_blocks=theirs.lstrip_blocks,
        extensions=[type(each) for each in theirs.extensions.values()],
        optimized=False,
        finalize=_shown,
    )
    found.filters = {name: _filter(name, call) for name, call in theirs.filters.items()}
    found.tests = {name: _test(call) for name, call in theirs.tests.items()}
    found.globals = dict(theirs.globals)
    for name in _UNBOUNDED:
        found.filters.pop(name, None)
        found.globals.pop(name, None)
    found.filters.update(_COUNTERS)
    return found


class _Counted(NodeTransformer):
    """Puts counters where generated code would work without asking the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._begin(node)
        if node.test is not None:
            node.test = nodes.And(_count(_STEP), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._begin(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._begin(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through(node.expr, "counted compare")
        for operand in node.ops:
            operand.expr = _through(operand.expr, "counted compare")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_through(each, "counted print") for each in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through(node.node, "counted slice")
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)

    def _begin(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        """A body that may run again costs what it is long, each time."""
        size = sum(1 for _ in node.find_all(nodes.Node))
        self.generic_visit(node)
        step = nodes.ExprStmt(_count(_STEP + 8 * size), lineno=node.lineno)
        node.body = [step, *node.body]
        return node


def _through(value: nodes.Expr, counter: str) -> nodes.Filter:
    return nodes.Filter(value, counter, [], [], None, None, lineno=value.lineno)


def _count(units: int) -> nodes.Filter:
    return _through(nodes.Const(units, lineno=1), "counted step")


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        super().visit_Template(_Counted().visit(node), frame)


class _Environment(ImmutableSandboxedEnvironment):
    """Operators and calls are counted, and refused where they would grow too large."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _look(left)
        _look(right)
        numbers = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and numbers and abs(right) * left.bit_length() > _BITS:
            raise _too_much()
        if operator == "*" and not numbers:
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int):
                    _spend(_length(many) * max(times, 0))
        elif operator == "+":
            _spend(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str | bytes):
            _charge(right)
            _spend(_widths(left) + _whole(right if isinstance(right, tuple) else (right,)))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(_STEP)
        if not isinstance(__obj, Macro):
            method = getattr(__obj, "__wrapped__", __obj)
            args = tuple(_listed(each) for each in args)
            _ask(getattr(method, "__self__", None), getattr(method, "__name__", ""), args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        _look(result)
        return _items(result)


def _ask(owner: object, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Pay for a call before it is made."""
    given = [*args, *kwargs.values()]
    for each in given:
        _charge(each)
    _spend(_whole(given))
    for kind, names in _METHODS:
        if isinstance(owner, kind):
            if name not in names:
                raise InputError(f"the chat template calls {kind.__name__}.{name}, not known here")
            _look(owner)
            break
    if isinstance(owner, str):
        if name == "format":
            _spend(_widths(owner))
        elif name == "replace" and len(given) >= 2:
            _spend(owner.count(str(given[0])) * len(str(given[1])))
        elif name == "join" and given:
            _spend(len(owner) * _length(given[0]))
    elif name == "strftime_now":
        _spend(sum(map(_widths, given)))


def _filter(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it is about to do."""
    passed = 1 if hasattr(call, "jinja_pass_arg") else 0

    @wraps(call)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _spend(_STEP)
        value, *more = args[passed:] or (None,)
        if name in _LOOKS:
            if name in ("list", "reverse"):
                _spend(4 * _length(value))
            _spend(16 * _whole([*more, *kwargs.values()]))
        else:
            value = _listed(value)
            _pay(name, value, more, kwargs)
        result = call(*args[:passed], *([value] if args[passed:] else []), *more, **kwargs)
        _look(result)
        return _items(result)

    return counted


def _pay(name: str, value: Any, more: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """What a filter reads and makes."""
    given = [*more, *kwargs.values()]
    weight = _charge(value)
    around = sum(map(_charge, given)) + _whole(given)
    _spend(16 * _whole(given))
    if name in _ORDERS:
        _spend(8 * weight)
    elif name in _LAYS_OUT and given:
        _spend(weight * around)
    elif name == "join" and given:
        _spend(_length(value) * len(str(given[0])))
    elif name == "replace" and len(given) >= 2:
        _spend(str(value).count(str(given[0])) * len(str(given[1])))
    elif name == "format":
        _spend(_widths(value))
    elif name == "sum" and given and not isinstance(given[-1], int | float):
        _spend(_length(value) ** 2)


def _test(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _spend(_STEP)
        for each in args:
            _compared(each)
        return call(*args, **kwargs)

    return counted


def _spend(units: int) -> None:
    work = _work.get()
    work.left -= units
    if work.left < 0:
        raise _too_much()


def _too_much() -> InputError:
    return InputError(
        "the chat template asks for more work or text than a prompt can need (loops, repetition, "
        "padding or numbers without end); replace chat_template of the tokenizer"
    )


def _charge(value: Any, depth: int = 0) -> int:
    """Pay for reading the whole of a value; what it weighs."""
    units = _STEP
    if isinstance(value, str | bytes):
        units += len(value)
    _spend(units)
    if isinstance(value, dict):
        members: Iterable[Any] = (*value.keys(), *value.values())
    elif isinstance(value, _LISTS):
        members = value
    elif isinstance(value, Namespace):
        raise _too_much()
    else:
        _look(value)
        return units
    if depth > _DEPTH:
        raise _too_much()
    for member in members:
        units += _charge(member, depth + 1)
    return units


_LISTS: tuple[Any, ...] = (
    list,
    tuple,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def _look(value: Any) -> None:
    """Pay for a text that is made or copied; numbers stay small."""
    if isinstance(value, str | bytes):
        _spend(len(value))
    elif isinstance(value, int) and value.bit_length() > _BITS:
        raise _too_much()


def _compared(value: Any) -> None:
    """Pay for a comparison, which reads texts fast and lists to their depth."""
    if isinstance(value, str | bytes):
        _spend(1 + len(value) // 64)
    elif isinstance(value, (dict, *_LISTS)):
        _charge(value)


def _whole(values: Iterable[Any]) -> int:
    """The sum of all whole numbers among arguments: widths, counts, levels."""
    return sum(abs(each) for each in values if isinstance(each, int))


def _widths(text: Any) -> int:
    """The sum of widths and precisions that a format asks for."""
    text = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    if re.search(r"%[^a-zA-Z%]*\*|\{[^{}]*\{", text.replace("{{", "")):
        raise InputError(
            "the chat template takes a width of its format from a value; not done here"
        )
    return sum(int(each[:18]) for each in re.findall("[0-9]+", text))


def _length(value: Any) -> int:
    """Members or characters of what has some."""
    return len(value) if hasattr(value, "__len__") else 0


def _listed(value: Any) -> Any:
    """An iterator as a list, so that it can be weighed and read."""
    return list(value) if isinstance(value, Iterator) else value


def _items(value: Any) -> Any:
    """An iterator whose items cost something."""
    return _paid(value) if isinstance(value, Iterator) else value


def _paid(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        _spend(_STEP)
        yield item


@pass_context
def _shown(context: Any, value: Any) -> Any:
    """What becomes part of the text."""
    return _printed(context, value, 4)


@pass_context
def _printed(context: Any, value: Any, times: int = 1) -> Any:
    _spend((times - 1) * _charge(value))
    return value


@pass_context
def _step(context: Any, units: int) -> bool:
    _spend(units)
    return True


@pass_context
def _compare(context: Any, value: Any) -> Any:
    _compared(value)
    return value


@pass_context
def _slice(context: Any, value: Any) -> Any:
    _spend(_length(value))
    return value


_COUNTERS: dict[str, Callable[..., Any]] = {
    "counted print": _printed,
    "counted step": _step,
    "counted compare": _compare,
    "counted slice": _slice,
}
"""Names that no template can spell."""


def plain_messages(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Messages as ``transformers`` hands them to templates: plain data, None left out."""
    text = tokenizer.apply_chat_template(
        messages, chat_template="{{ messages | tojson }}", tokenize=False
    )
    found: list[Any] = json.loads(text)
    return found
