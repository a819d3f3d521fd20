"""Text that others wrote: no secret of it reaches a log line or an error, and no line break."""

from __future__ import annotations

import time
import traceback
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.thoroughly import one_in
from trio_monque.errors import BrokenDocumentError, InvalidOptionError, MonqueConnectionError, MonqueError
from trio_monque.safe_text import one_line, shown, uri_without_secrets, without_secrets, without_secrets_of
from trio_monque.store.driver.connection import connect

SECRET = "hunter2"

URIS = {
    "usual": (f"mongodb://root:{SECRET}@h1:1,h2/shop?replicaSet=rs0", "mongodb://***@h1:1,h2/shop?replicaSet=rs0"),
    "srv": (f"mongodb+srv://root:{SECRET}@h/shop", "mongodb+srv://***@h/shop"),
    "no scheme": (f"root:{SECRET}@h", "***@h"),
    "no scheme, slashes": (f"root:{SECRET}//x@h", "***@h"),
    "wrong scheme": (f"mongdb://root:{SECRET}@h/", "mongdb://***@h/"),
    "scheme of another": (f"postgres://root:{SECRET}@h/", "postgres://***@h/"),
    "upper case": (f"MONGODB://root:{SECRET}@h/", "MONGODB://***@h/"),
    "one slash": (f"mongodb:/root:{SECRET}@h/", "mongodb:/***@h/"),
    "no colon": (f"mongodb//root:{SECRET}@h", "mongodb//***@h"),
    "unescaped @": (f"mongodb://root:p@{SECRET}@h1,h2/db", "mongodb://***@h1,h2/db"),
    "unescaped /": (f"mongodb://root:p/{SECRET}@h/db", "mongodb://***@h/db"),
    "unescaped @ and /": (f"mongodb://root:p@{SECRET}/{SECRET}@h/db", "mongodb://***@h/db"),
    "unescaped ?": (f"mongodb://root:p?{SECRET}=@h/db", "mongodb://***@h/db"),
    "unescaped space": (f"mongodb://root:p {SECRET}@h/db", "mongodb://***@h/db"),
    "all escaped": (f"mongodb://root%3A{SECRET}%40h/db", "mongodb://***@h/db"),
    "wrong escape": (f"mongodb://root:%zz{SECRET}@h", "mongodb://***@h"),
    "no host": (f"mongodb://root:{SECRET}", "mongodb://root:***"),
    "no host, options": (f"mongodb://root:{SECRET}/db?w=1", "mongodb://root:***/db?w=1"),
    "bad port": (f"mongodb://root:{SECRET}@h:x/db", "mongodb://***@h:***/db"),
    "file password": (
        f"mongodb://h/?tls=true&tlsCertificateKeyFilePassword={SECRET}&w=1",
        "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=***&w=1",
    ),
    "file password with &": (
        f"mongodb://h/?tlsCertificateKeyFilePassword=a&{SECRET}&w=1",
        "mongodb://h/?tlsCertificateKeyFilePassword=***&w=1",
    ),
    "old file password": (f"mongodb://h/?ssl_pem_passphrase={SECRET};w=1", "mongodb://h/?ssl_pem_passphrase=***;w=1"),
    "upper case option": (
        f"mongodb://h/?TLSCERTIFICATEKEYFILEPASSWORD={SECRET}",
        "mongodb://h/?TLSCERTIFICATEKEYFILEPASSWORD=***",
    ),
    "escaped =": (
        f"mongodb://h/?tlsCertificateKeyFilePassword%3D{SECRET}",
        "mongodb://h/?tlsCertificateKeyFilePassword%3D***",
    ),
    "token of AWS": (
        f"mongodb://a:b@h/?authMechanism=MONGODB-AWS&authMechanismProperties=SERVICE_NAME:x,AWS_SESSION_TOKEN:{SECRET}",
        "mongodb://***@h/?authMechanism=MONGODB-AWS&authMechanismProperties=***",
    ),
    "proxy": (f"mongodb://h/?proxyHost=p&proxyPassword={SECRET}", "mongodb://h/?proxyHost=p&proxyPassword=***"),
    "several users": (f"mongodb://a:{SECRET}@h1,mongodb://a:{SECRET}@h2", "mongodb://***@h2"),
    "nothing to hide": ("mongodb://[::1]:27017,h2:2/db?w=1", "mongodb://[::1]:27017,h2:2/db?w=1"),
    "only a host": ("localhost:27017", "localhost:27017"),
}


@pytest.mark.parametrize(("uri", "expected"), URIS.values(), ids=URIS)
def test_connection_string_is_shown_without_its_secrets(uri: str, expected: str) -> None:
    assert uri_without_secrets(uri) == expected


@pytest.mark.full
@pytest.mark.parametrize("uri", one_in(3, [uri for uri, _ in URIS.values() if SECRET in uri]), ids=lambda uri: uri[:25])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_part_of_a_password_is_in_the_error_or_its_traceback(uri: str) -> None:
    """Whatever the driver thinks of it. A server that does not answer is as wrong as a string that it cannot read."""
    with pytest.raises(MonqueConnectionError) as raised, connect(uri, database="test", timeout=0.05):
        raise AssertionError("it was reached")
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert "connection string" in str(raised.value)


def test_what_the_driver_repeats_of_a_password_is_hidden_with_its_cause() -> None:
    uri = "mongodb://root:p@ss/w0rd@h1,h2/db"  # PyMongo takes the rest for a database, and before 4.20.1 repeats it.
    with pytest.raises(MonqueConnectionError, match="Bad database name") as raised, connect(uri, database="test"):
        pass
    assert "w0rd" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"reached mongodb://a:{SECRET}@h1,h2/db today", "reached mongodb://***@h1,h2/db today"),
        (f"amqp://a:{SECRET}@h and redis://:{SECRET}@h2/0", "amqp://***@h and redis://***@h2/0"),
        (f"Client(tlscertificatekeyfilepassword='{SECRET} x', w=1)", "Client(tlscertificatekeyfilepassword=***, w=1)"),
        (f"{{'password': '{SECRET}', 'user': 'a'}}", "{'password': ***, 'user': 'a'}"),
        (f"AWS_SESSION_TOKEN:{SECRET},x", "AWS_SESSION_TOKEN:***,x"),
        ("see https://example.org/@somebody, or write to a@example.org", None),
        ("ValueError: password: must have 8 characters", None),
        ("a password must be set", None),
    ],
)
def test_secrets_in_other_text_are_hidden_and_nothing_else(text: str, expected: str | None) -> None:
    assert without_secrets(text) == (text if expected is None else expected)


def test_repr_of_a_client_is_shown_without_its_secrets() -> None:
    """PyMongo shows this one before 4.20.1, and other libraries may."""

    class Client:
        def __repr__(self) -> str:
            return f"Client(host=['h:27017'], tlscertificatekeyfilepassword='{SECRET}')"

    options: dict[str, Any] = {"tlsCertificateKeyFilePassword": SECRET, "password": SECRET, "username": "a"}
    for client in (Client(), MongoClient[Any]("h", connect=False, **options)):
        assert SECRET not in shown(client)
        assert SECRET not in str(InvalidOptionError("workers", client, "must be a Workers"))


def test_short_password_is_hidden_where_it_stands_alone() -> None:
    assert without_secrets_of("mongodb://u:pw@h", "bad 'pw', in a pwd") == "bad '***', in a pwd"


def test_text_is_one_line_of_bounded_length() -> None:
    assert one_line("a\nb\r\x1b[31m\u2028\u202e\0 é \ud800") == r"a\nb\r\x1b[31m\u2028\u202e\x00 é \ud800"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"
    assert len(one_line("\n" * 100, 10)) == 10
    assert one_line("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize("value", ["x" * 10**7, b"x" * 10**7, ["x" * 10**7] * 10**5, {"a": {"b": "x" * 10**7}}])
def test_large_value_is_shown_in_part(value: object) -> None:
    text = shown(value)  # The repr of the list would take more memory than there is.
    assert len(text) <= 200
    assert text.endswith("…")


def test_value_whose_repr_raises_is_shown_by_its_type() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    misnamed = type("dict", (), {})()  # Its name says how to show it, and that fails.
    assert shown(Odd()) == "<Odd>"
    assert shown(misnamed) == "<dict>"
    assert shown({"b": 1, "a": [True, None]}) == "{'b': 1, 'a': [True, None]}"


@pytest.mark.parametrize(
    "error",
    [
        InvalidOptionError("collection_name", f"mongodb://root:{SECRET}@h/\n" + "x" * 10**7, "must be a name"),
        BrokenDocumentError("x\n" * 10**7, f"its mongodb://root:{SECRET}@h is\n" + "x" * 10**7),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_show_values_on_one_line_bounded_and_without_secrets(error: MonqueError) -> None:
    assert SECRET not in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 1500


@pytest.mark.full
@pytest.mark.parametrize("piece", ["mongodb://", "a.", "monmon", "password", "password=", "x:", "://", "mon://a:"])
def test_text_that_is_made_to_be_searched_for_long_is_searched_at_once(piece: str) -> None:
    """It is done on the event loop. Bounded, it takes this thread less than a second; without bounds, some take 50."""
    text = piece * (160_000 // len(piece)) + " @"
    began = time.thread_time()
    without_secrets(text)
    assert time.thread_time() - began < 8
