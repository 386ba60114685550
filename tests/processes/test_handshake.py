import json

import pytest

from millrace.errors import OptionError
from millrace.processes.handshake import Handshake, new_secret, secret_of

SECRET = "one secret of a run"


def test_a_message_of_who_knows_the_secret():
    sender = Handshake(SECRET, "a", "b")
    sealed = json.loads(json.dumps(sender.seal(kind="hello", count=2)))
    assert SECRET not in json.dumps(sealed)
    assert Handshake(SECRET, "a", "b").open(sealed) == {"kind": "hello", "count": 2}


@pytest.mark.parametrize(
    "other",
    [
        Handshake("another secret", "a", "b"),
        Handshake("", "a", "b"),
        Handshake(SECRET, "c", "b"),
        Handshake(SECRET, "a", "c"),
        Handshake(SECRET, "a"),
        Handshake(SECRET, "ab", ""),
        Handshake(SECRET, "", "ab"),
    ],
)
def test_another_secret_or_challenge(other):
    assert other.open(Handshake(SECRET, "a", "b").seal(kind="hello")) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "hello"},
        {"proof": ""},
        {"proof": "\udce9"},
        {"proof": 1},
        {"text": '{"kind": "error"}'},
        {"text": []},
    ],
)
def test_a_message_that_was_changed(change):
    handshake = Handshake(SECRET, "a", "b")
    assert handshake.open(handshake.seal(kind="hello") | change) is None


@pytest.mark.parametrize("message", [None, [], "sealed", 1, {}])
def test_something_other_than_a_message(message):
    assert Handshake(SECRET, "a", "b").open(message) is None


def test_secrets_are_long_and_new():
    assert len(new_secret()) == 64
    assert new_secret() != new_secret()
    assert SECRET not in repr(Handshake(SECRET, "a"))


def test_the_secret_of_the_environment():
    assert secret_of({}) == secret_of({"MILLRACE_SECRET": " "}) == ""
    assert secret_of({"MILLRACE_SECRET": f"{SECRET}\n"}) == SECRET
    with pytest.raises(OptionError, match=r"MILLRACE_SECRET has 5 char.*at least 16.*openssl rand"):
        secret_of({"MILLRACE_SECRET": "train"})
