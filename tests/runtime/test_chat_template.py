"""Chat templates: rendered as transformers does, and never without end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from archzoo.errors import InputError
from archzoo.runtime.chat_template import LENGTH, plain_messages, render

TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])), bos_token="<s>", eos_token="</s>"
)
HONEST = {
    "chatml": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m.content + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "alternating": """{{ bos_token }}{% if messages[0].role == 'system' %}
        {%- set first = messages[0].content | trim %}{% set loop_messages = messages[1:] %}
    {%- else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}
    {%- for message in loop_messages %}
        {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
            {{- raise_exception('roles must alternate') }}
        {%- endif %}
        {%- if loop.first and first %}<<SYS>>{{ first ~ '\n' }}{% endif %}
        {{- '[INST] ' + message.content.strip() + ' [/INST]' if loop.index is odd else message.content }}
    {%- endfor %}""",
    "thinking": """{%- set ns = namespace(last=-1, text='') %}
    {%- for m in messages[::-1] %}
        {%- if m.role == 'user' and ns.last < 0 %}{% set ns.last = messages|length - loop.index %}{% endif %}
    {%- endfor %}
    {%- for m in messages %}{% set content = m.content if m.content is string else '' %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}
        {%- set ns.text = ns.text ~ loop.index ~ content.replace('<', '&lt;') %}
        {%- if loop.index0 > ns.last %}{% continue %}{% endif %}{{ content | upper }}|
    {%- endfor %}{{ ns.text }}{% generation %}x{% endgeneration %}""",
    "tools": """{%- macro typed(value) -%}
        {%- if value is mapping -%}{ {%- for key, item in value | dictsort %}{{ key }}:{{ typed(item) }}
            {%- if not loop.last %},{% endif %}{% endfor -%} }
        {%- elif value is string %}{{ value | tojson }}
        {%- elif value is iterable %}{{ value | map('string') | join(', ') }}{% else %}{{ value }}{% endif %}
    {%- endmacro %}
    {%- for m in messages | selectattr('role', 'in', ['user', 'assistant']) | list %}
        {{- typed(m) }}{{ '%s: %5.1f' | format(m.role, loop.index / 3) }}{{ '{:>4}'.format(loop.index) }}
        {{- m | tojson(indent=2) }}{{ m.items() | list | length }}{{ m.content[:40] | indent(4) | truncate(20) }}
        {{- (m.content[:40] | list | unique | sort | reverse | list | first) or 'none' }}
    {%- endfor %}{{ range(3) | sum ** 2 // 2 - -1 }}{{ 'ab' * 3 }}{{ [1] + [2, 3.5] }}{{ none }}
    {%- for a in [[1, [2]], [3]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}
    {%- filter upper %}{% call(x) caller_of() %}{{ x }}{% endcall %}{% endfilter %}"""
    .replace("{%- filter", "{%- macro caller_of() %}{{ caller('q') }}{% endmacro %}{%- filter"),
}  # fmt: skip
MESSAGES = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "one\ntwo <b> 😀 'q' \"q\""},
    {"role": "assistant", "content": "<think>hm</think>\nthree", "reasoning": "r"},
    {"role": "user", "content": "", "tool_calls": None},
]


def ours(template: str, messages: list[dict[str, Any]]) -> str:
    variables = {**TOKENIZER.special_tokens_map, "add_generation_prompt": True}
    return render(template, plain_messages(TOKENIZER, messages), variables)


def theirs(template: str, messages: list[dict[str, Any]]) -> str:
    text: str = TOKENIZER.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    return text


@pytest.mark.parametrize("name", HONEST)
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.text("ab <>/think\n%{}é😀'\"", max_size=30), min_size=1, max_size=5))
def test_as_transformers_renders(name: str, texts: list[str]) -> None:
    turns = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]
    for messages in (turns, MESSAGES):
        assert ours(HONEST[name], messages) == theirs(HONEST[name], messages) != ""


@pytest.mark.parametrize("name", HONEST)
def test_a_long_conversation_is_no_hostile_one(name: str) -> None:
    turns = [
        {"role": ("user", "assistant")[at % 2], "content": f"{at} words" * 60} for at in range(400)
    ]
    assert ours(HONEST[name], turns) == theirs(HONEST[name], turns)


def growing(start: str, step: str, end: str) -> str:
    return (
        "{% set ns = namespace(s=" + start + ", t=" + start + ") %}{% for i in range(60) %}"
        "{% set ns.s = " + step + " %}{% set ns.t = " + step + " %}{% endfor %}" + end
    )


HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) if range(99999) | select('odd') | list %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% for i in range(99999) %}{% call f() %}"
    + "{{ '' }}" * 99 + "{% endcall %}{% endfor %}",
    "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    growing("'aaaa'", "ns.s ~ ns.s", ""),
    growing("'aaaa'", "ns.s + ns.s", ""),
    growing("[1]", "ns.s + ns.s", ""),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s == ns.t }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s in [ns.t] }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s | tojson }}"),
    growing("[1]", "{'a': ns.s, 'b': ns.s}", "{{ [ns.s] | map('string') | join }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ ns.s is eq(ns.t) }}"),
    growing("[1]", "[ns.s, ns.s]", "{{ [ns.s] | selectattr('x', 'in', ns.s) | list }}"
            "{{ [ns.s].index(ns.t) }}"),
    "{{ 'a' * 2000000000 }}", "{{ 2000000000 * 'a' }}", "{{ [1] * 2000000000 }}",
    "{{ 2 ** 9999999999 }}", "{% set x = 3 ** 99 ** 99 %}{{ x * x }}",
    "{{ 'f' * 99999 }}{{ (('f' * 9999) | int(0, 16)) * 2 }}",
    "{{ '%2000000000d' % 1 }}", "{{ '%*d' % (2000000000, 1) }}", "{{ '%.2000000000f' | format(1) }}",
    "{{ '{:2000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 2000000000) }}",
    "{{ 'a' | center(2000000000) }}", "{{ 'a'.center(2000000000) }}", "{{ '1'.zfill(2000000000) }}",
    "{{ 'a'.ljust(width=2000000000) if false else 'a'.rjust(2000000000) }}",
    "{{ 'a\nb' | indent(2000000000) }}", "{{ messages | tojson(indent=2000000000) }}",
    "{{ [] | batch(2000000000, 'x') | list }}", "{{ [1] | slice(2000000000) | list }}",
    "{{ 1 | round(2000000000, 'ceil') }}", "{{ (1).to_bytes(2000000000, 'big') }}",
    "{{ 'a\t'.expandtabs(2000000000) }}", "{{ 'abcdefgh'.replace('', 'a' * 4000000) }}",
    "{{ 'abcdefgh' | replace('', 'a' * 4000000) }}", "{{ range(99999) | join('a' * 9999) }}",
    "{{ ('a' * 9999).join(range(9999) | map('string')) }}", "{{ ([[1]] * 9999) | sum(start=[]) }}",
    "{% set x = range(99999) | list %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "{% for i in range(99999) %}{% set y = range(99999) | reverse | list %}{% endfor %}",
    "{{ strftime_now('%2000000000d') }}", "{{ namespace(a=messages) }}",
    "{% autoescape 'a' * 2000000000 %}{% endautoescape %}",
    "{% autoescape 'a' | center(2000000000) %}{% endautoescape %}",
    "{{ '' }}" * (LENGTH // 8 + 1),
]  # fmt: skip


@pytest.mark.parametrize("template", HOSTILE, ids=lambda text: text[-40:])
def test_work_without_end_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="chat template"):
        render(template, MESSAGES, {})


@pytest.mark.parametrize("name", ["lipsum(999999)", "('<!-- -->' * 99999) | striptags"])
def test_what_cannot_be_counted_is_not_there(name: str) -> None:
    with pytest.raises(Exception, match="undefined|No filter named"):
        render("{{ " + name + " }}", MESSAGES, {})


def test_threads_have_their_own_work() -> None:
    half = "{% for i in range(20000) %}{{ '' }}{% endfor %}done"
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda _: render(half, MESSAGES, {}), range(24)))
    assert shown == ["done"] * 24
