"""The verbs of serving: a key is printed once, and what cannot be served is one line."""

from __future__ import annotations

import pytest

from trivium.errors import InputError
from trivium.serve.keys import Keyring
from trivium.serve.server import url


def test_a_key_is_printed_and_its_digest_kept(trivium, tmp_path):
    path = tmp_path / "keys.json"
    code, printed, _ = trivium("keys", "ann", "--file", path, "--consent", "--per-minute", "60")
    key = Keyring.load(str(path)).find(printed.strip())
    assert code == 0 and key is not None and (key.name, key.consent, key.per_minute) == ("ann", True, 60)
    assert printed.strip() not in path.read_text() and path.stat().st_mode & 0o077 == 0
    code, _, error = trivium("keys", "ann", "--file", path)
    assert code == 2 and "two keys are called ann" in error


def test_what_cannot_be_served_is_one_line(trivium, tmp_path):
    for words, told in (
        ((tmp_path / "none",), "is no run"),
        ((tmp_path / "none", "--host", "0.0.0.0"), "give --keys too"),
        ((tmp_path / "none", "--seconds", "0"), "--seconds must be above 0"),
        ((tmp_path / "none", "--drain", "inf"), "--drain must be above 0 and no infinity"),
        ((tmp_path / "none", "--retention", "inf"), "--retention at least 0"),
    ):
        code, _, error = trivium("serve", *words)
        assert code == 2 and told in error and error.count("\n") == 1, error


def test_a_file_without_a_key_lets_nobody_in(tmp_path):
    (tmp_path / "keys.json").write_text("[]")
    with pytest.raises(InputError, match="holds no key, so nobody could come in"):
        Keyring.load(str(tmp_path / "keys.json"))


def test_a_key_that_cannot_be_written_names_the_file_that_was_asked_for(trivium, tmp_path):
    code, printed, error = trivium("keys", "ann", "--file", tmp_path / "none" / "keys.json")
    assert code == 2 and not printed and error.count("\n") == 1 and error.rstrip().endswith("/none/keys.json'")


def test_the_url_is_one_that_a_client_can_take():
    assert (url("127.0.0.1", 80), url("::1", 80)) == ("http://127.0.0.1:80/v1", "http://[::1]:80/v1")
