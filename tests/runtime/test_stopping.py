"""Stop ids, stop strings over token borders, and the text that may be shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archzoo.errors import ConfigError, InputError
from archzoo.runtime.request import Request, SamplingParams
from archzoo.runtime.stopping import OutputText, StopStrings, generation_eos_ids, stop_ids_of

EOS = 0


class Letters:
    """Token n is the n-th letter from 'a'; 0 is hidden and says <0>; 100 + n is two letters."""

    replacement = ()

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.one(each) for each in ids if each != EOS)

    def hidden_text(self, token_id: int) -> str | None:
        return "<0>" if token_id == EOS else None

    def byte_of(self, token_id: int) -> int | None:
        return None

    @staticmethod
    def one(token: int) -> str:
        letter = chr(ord("a") + token % 100 - 1)
        return letter * 2 if token >= 100 else letter


def ids_of(text: str) -> list[int]:
    return [ord(char) - ord("a") + 1 for char in text]


def request(new: int = 50, stop: tuple[str, ...] = (), **more: Any) -> Request:
    return Request([1], SamplingParams(new, stop=stop, **more), eos_ids=[EOS], decoder=Letters())


def run(asked: Request, ids: Sequence[int]) -> tuple[str, str | None, list[str]]:
    """Feed ids until it ends; the text, the reason, and the text shown after each token."""
    shown = []
    for each in ids:
        reason = asked.accept(each)
        if reason:
            asked.finish(reason)
        shown.append(asked.output.take())
        if reason:
            return asked.output.text, reason, shown
    return asked.output.text, None, shown


def first_end(text: str, stop: Sequence[str]) -> str | None:
    """The text before the stop string that ends first, the longest of those; None without one."""
    for end in range(1, len(text) + 1):
        found = [each for each in stop if text[:end].endswith(each)]
        if found:
            return text[: end - max(map(len, found))]
    return None


def test_text_without_stops_flows() -> None:
    assert run(request(), ids_of("abc")) == ("abc", None, ["a", "b", "c"])


def test_the_end_id_is_no_text_and_kept_as_id() -> None:
    asked = request()
    assert run(asked, [1, 2, EOS, 3]) == ("ab", "stop", ["a", "b", ""])
    assert asked.output_ids == [1, 2, EOS]


def test_a_visible_stop_id_is_no_text_either() -> None:
    assert run(request(stop_token_ids=(3,)), [1, 2, 3]) == ("ab", "stop", ["a", "b", ""])


def test_ignored_end_ids_go_on() -> None:
    assert run(request(3, ignore_eos=True), [1, EOS, 2]) == ("ab", "length", ["a", "", "b"])


def test_a_stop_string_over_tokens_is_held_back_and_cut_off() -> None:
    asked = request(stop=("bcd",))
    assert run(asked, ids_of("abcde")) == ("a", "stop", ["a", "", "", ""])
    assert asked.output_ids == ids_of("abcd")


def test_held_text_is_shown_when_the_stop_string_does_not_come() -> None:
    assert run(request(stop=("bcd",)), ids_of("abcx"))[2] == ["a", "", "", "bcx"]


def test_held_text_is_shown_at_the_end() -> None:
    assert run(request(stop=("bcd",)), [1, 2, 3, EOS]) == ("abc", "stop", ["a", "", "", "bc"])
    assert run(request(3, stop=("bcd",)), [1, 2, 3]) == ("abc", "length", ["a", "", "bc"])
    aborted = request(stop=("bcd",))
    run(aborted, [1, 2])
    aborted.finish("abort")
    assert aborted.output.text == "ab"


def test_a_stop_string_on_the_last_allowed_token() -> None:
    assert run(request(2, stop=("b",)), ids_of("ab"))[:2] == ("a", "stop")


def test_a_stop_string_inside_one_token_and_at_the_start() -> None:
    assert run(request(stop=("b",)), [1, 102]) == ("a", "stop", ["a", ""])
    assert run(request(stop=("aa",)), [101])[:2] == ("", "stop")


def test_the_stop_string_that_ends_first_wins() -> None:
    assert run(request(stop=("abcd", "c")), ids_of("abcd"))[0] == "ab"
    assert run(request(stop=("c", "bc")), ids_of("abc"))[0] == "a"


def test_text_is_the_same_asked_late_or_at_once() -> None:
    late = request(5)
    for each in ids_of("abcde"):
        late.accept(each)
    late.finish("length")
    assert late.output.text == "abcde"
    assert late.output.take() == "abcde"
    assert late.output.take() == ""
    assert late.output.text == "abcde"


def test_without_a_tokenizer_there_is_no_text() -> None:
    asked = Request([1], SamplingParams(3), eos_ids=[EOS])
    assert run(asked, [1, 2, 3]) == ("", "length", ["", "", ""])


def test_stop_strings_without_a_tokenizer() -> None:
    with pytest.raises(InputError, match="tokenizer"):
        OutputText((), ("x",))


def test_a_special_token_is_matched_and_not_shown() -> None:
    going = {"ignore_eos": True}
    assert run(request(stop=("<0>",), **going), [1, EOS, 2]) == ("a", "stop", ["a", ""])
    assert run(request(stop=("a<0>b",), **going), [3, 1, EOS, 2]) == (
        "c",
        "stop",
        ["c", "", "", ""],
    )
    assert run(request(stop=("<0>x",), **going), [1, EOS, 2]) == ("ab", None, ["a", "", "b"])
    assert run(request(4, stop=("b<0>x",), **going), [1, 2, EOS, 3])[:2] == ("abc", "length")


def test_an_end_id_may_be_the_end_of_a_stop_string() -> None:
    assert run(request(stop=("b<0>",)), [1, 2, EOS])[:2] == ("a", "stop")
    asked = request(stop=("bc",), stop_token_ids=(3,))
    assert run(asked, [1, 2, 3])[:2] == ("ab", "stop"), "a visible stop id is no text to match"


def test_a_stop_string_that_the_last_allowed_token_leaves_open() -> None:
    class HalfLetters(Letters):
        @staticmethod
        def one(token: int) -> str:
            return "\ufffd"

    params = SamplingParams(1, stop=("\ufffd",))
    asked = Request([EOS], params, eos_ids=[EOS], decoder=HalfLetters())
    assert run(asked, [2])[:2] == ("", "stop")


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=6), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_cut_into_pieces_does_not_matter(text: str, stop: list[str], cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    finder, shown, found = StopStrings(stop), "", False
    for low, high in zip(borders, borders[1:], strict=False):
        visible, found = finder.push(text[low:high])
        shown += visible
        assert text.startswith(shown)
        if found:
            break
        end = text[:high]
        held = max((n for s in stop for n in range(len(s)) if end.endswith(s[:n])), default=0)
        assert shown == end[: high - held], "no more held back than needed"
    expected = first_end(text, stop)
    assert found == (expected is not None)
    assert (shown if found else shown + finder.flush()) == (text if expected is None else expected)


def test_a_hostile_stop_string_costs_little() -> None:
    finder = StopStrings(["a" * 20_000 + "b"] * 3)
    shown = "".join(finder.push("a")[0] for _ in range(20_500))
    assert len(shown) == 500
    assert finder.push("c") == ("a" * 20_000 + "c", False)


def test_stop_ids_from_everywhere() -> None:
    assert stop_ids_of(None, 3, [4, 5], (), frozenset({3})) == {3, 4, 5}
    assert stop_ids_of() == frozenset()


@pytest.mark.parametrize(
    ("content", "ids"),
    [({"eos_token_id": 7}, {7}), ({"eos_token_id": [7, 8]}, {7, 8}), ({}, set())],
)
def test_end_ids_of_generation_config(tmp_path: Path, content: object, ids: set[int]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert generation_eos_ids(tmp_path) == ids


def test_no_generation_config(tmp_path: Path) -> None:
    assert generation_eos_ids(tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no JSON object"),
        ('{"eos_token_id": "2"}', "eos_token_id: '2' must be"),
        ('{"eos_token_id": [2, null]}', "list of token ids"),
        ('{"eos_token_id": true}', "True must be"),
        ('{"eos_token_id": -1}', "-1 must be"),
        ("\ufeff{}", "not valid JSON"),
    ],
)
def test_a_broken_generation_config(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        generation_eos_ids(tmp_path)
    assert "generation_config.json" in str(caught.value)


def test_a_generation_config_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid JSON"):
        generation_eos_ids(tmp_path)
