"""SamplingParams and Request: what is refused, and how a request ends."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from archzoo.errors import InputError
from archzoo.runtime.request import Request, RequestState, SamplingParams, check_prompt

BAD: list[tuple[str, Any]] = [
    ("max_new_tokens", 0),
    ("max_new_tokens", -1),
    ("max_new_tokens", 1.5),
    ("max_new_tokens", True),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("temperature", "1"),
    ("temperature", None),
    ("top_k", -1),
    ("top_k", 2.0),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", float("nan")),
    ("seed", -1),
    ("seed", 0.5),
    ("seed", 2**63),
    ("stop", ("",)),
    ("stop", ("a", 3)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", ("</s>",)),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_value_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        SamplingParams(**{"max_new_tokens": 3, name: value})


@pytest.mark.parametrize("stop", [10, 2**63])
def test_an_id_to_stop_at_is_in_the_vocabulary(stop: int) -> None:
    params = SamplingParams(1, stop_token_ids=(9, stop))
    with pytest.raises(InputError, match=f"stop_token_ids={stop} must be an integer in 0…9"):
        Request([1], params, vocab_size=10)
    Request([1], SamplingParams(1, stop_token_ids=(9,)), eos_ids=[stop], vocab_size=10)  # its own


def test_single_values_become_tuples() -> None:
    params = SamplingParams(np.int64(3), stop="end", stop_token_ids=7)  # type: ignore[arg-type]  # what callers pass
    assert (params.max_new_tokens, params.stop, params.stop_token_ids) == (3, ("end",), (7,))
    assert SamplingParams(3, stop=["a"], stop_token_ids=[1]) == SamplingParams(  # type: ignore[arg-type]  # lists
        3, stop=("a",), stop_token_ids=(1,)
    )


def test_a_missing_seed_is_drawn_once() -> None:
    first, second = SamplingParams(1).seeded(), SamplingParams(1).seeded()
    assert first.seed != second.seed
    assert first.seeded() is first
    assert SamplingParams(1, seed=0).seeded().seed == 0
    request = Request([1], SamplingParams(1))
    assert request.seed == request.params.seed


def test_params_pickle() -> None:
    params = SamplingParams(5, 0.7, 3, 0.9, 1, ("x",), (2,), True)
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    "ids", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), iter([1, 2])]
)
def test_prompts_of_any_kind(ids: Any) -> None:
    tokens = check_prompt(ids)
    assert tokens == [1, 2]
    assert all(type(token) is int for token in tokens)


@pytest.mark.parametrize("ids", [[], (), torch.tensor([], dtype=torch.int64)])
def test_an_empty_prompt(ids: Any) -> None:
    with pytest.raises(InputError, match="empty prompt: 0 tokens"):
        Request(ids, SamplingParams(1))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("text", "encode the text"),
        (b"text", "encode the text"),
        (5, "not 5"),
        (torch.tensor(5), "not 5"),
        ([1, -1], r"prompt id 1=-1"),
        ([1.0], r"prompt id 0=1.0"),
        ([True], "prompt id 0=True"),
        ([None], "prompt id 0=None"),
        (torch.tensor([[1, 2]]), r"prompt id 0=\[1, 2\]"),
    ],
)
def test_what_is_no_prompt(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_prompt(ids)


def test_an_id_outside_the_vocabulary_is_named() -> None:
    assert check_prompt([0, 9], vocab_size=10) == [0, 9]
    with pytest.raises(InputError, match="prompt id 2 is 10, outside the vocabulary of 10"):
        Request([0, 9, 10, 11], SamplingParams(1), vocab_size=10)


def test_length_ends_a_request() -> None:
    request = Request([5, 6], SamplingParams(2))
    assert request.accept(7) is None
    assert request.accept(8) == "length"
    assert (request.prompt_ids, request.output_ids, request.num_output) == ([5, 6], [7, 8], 2)


def test_end_ids_end_a_request_unless_ignored() -> None:
    params = SamplingParams(9, stop_token_ids=(3,))
    assert Request([1], params, eos_ids=[4, 5]).accept(5) == "stop"
    assert Request([1], params, eos_ids=[4, 5]).accept(3) == "stop"
    ignoring = SamplingParams(9, stop_token_ids=(3,), ignore_eos=True)
    assert Request([1], ignoring, eos_ids=[4, 5]).accept(5) is None
    assert Request([1], ignoring, eos_ids=[4, 5]).accept(3) == "stop"


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    request = Request([1], SamplingParams(1), eos_ids=[4])
    assert request.accept(4) == "stop"
    assert request.output_ids == [4]


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(InputError, match="needs a tokenizer"):
        Request([1], SamplingParams(1, stop=("x",)))


def test_finish_and_repr() -> None:
    request = Request([1, 2, 3], SamplingParams(1))
    assert repr(request) == "<Request -1 waiting: 3 prompt + 0 new tokens, 0 computed>"
    assert not request.finished
    request.finish("abort")
    assert request.finished and request.state is RequestState.FINISHED
