from __future__ import annotations

import json
from pathlib import Path

import pytest

from archzoo.config import read_config
from archzoo.config.files import MAX_BYTES, MAX_DEPTH, check_object
from archzoo.errors import ConfigError


def test_reads_a_folder_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "x": null}', encoding="utf-8")
    expected = {"hidden_size": 8, "x": None}
    assert read_config(tmp_path) == expected
    assert read_config(str(tmp_path / "config.json")) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1, 2]", "list instead of a JSON object"),
        (b'"text"', "str instead of a JSON object"),
        (b"null", "NoneType instead of a JSON object"),
        (b'\xff\xfe{"a": 1}', "not valid JSON in UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": ' + b"9" * 6000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 200_000, "nested deeper"),
        (b'{"a": ' + b'{"a": ' * 200_000, "nested deeper"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested deeper"),
        (b'{"rope_theta": 1e4, "rope_theta": 5e5}', "rope_theta: stated twice"),
        (b'{"b": {"c": 1, "c": 2}}', "c: stated twice"),
    ],
)
def test_hostile_files_are_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert str(file) in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.file == str(file)


def test_deepest_allowed_nesting_and_equal_repetition(tmp_path: Path) -> None:
    inner = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    (tmp_path / "config.json").write_text(f'{{"a": {inner}, "b": 1, "b": 1}}', encoding="utf-8")
    assert read_config(tmp_path)["b"] == 1


def test_missing_and_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match="nowhere: no such file"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match="at most"):
        read_config(tmp_path)


def test_keys_must_be_strings_at_every_depth() -> None:
    check_object({"a": [{"b": {}}]}, "")
    with pytest.raises(ConfigError, match="key 3 is not a string"):
        check_object({"a": [{3: 1}]}, "")


def test_errors_survive_json_of_huge_floats(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"x": float("inf")}), encoding="utf-8")
    assert read_config(tmp_path)["x"] == float("inf")
