"""Text from outside, made safe for log lines, error messages and BSON: no secrets, one line, bounded. Pure.

Names, fail reasons and broken documents come from the database; messages of the driver may repeat a connection
string. A line break in one of them would look like a second log line, and a broken document may have 16 MB.

`str(error)` runs code of the author of an exception class. It may raise anything, return a value that is not a string,
return a subclass of `str` whose own methods raise, or return 100 MB. The loops that write the ends of jobs need that
text, and must survive it.
"""

from __future__ import annotations

import re
import reprlib
import traceback
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote_plus

LONGEST_VALUE: Final = 200
"""Characters of a value in an error message."""

LONGEST_TEXT: Final = 1000
"""Characters of a text in a log line."""

HIDDEN: Final = "***"

# Any option with such a name: new versions of drivers and servers, and proxies, add more of them.
_SECRET_NAME: Final = r"\w*(?:passw(?:or)?d|passphrase|secret|session_?token|credential|authmechanismproperties)\w*"
# As in a query string (`name=value&`) and as in a repr (`name='value'`, `'name': 'value'`). Later pieces without a `=`
# belong to a value with an unescaped `&` or `;`.
_SECRET_OPTION: Final = re.compile(
    rf"""(?ix) ( (?<!\w){_SECRET_NAME} ['"]? ) (?: ( \s*[:=]\s* ) ('[^']*'|"[^"]*") | ( = | %3D )
    [^\s&;'"]* (?: [&;] [^\s&;='"]* (?=[&;\s'"]|$) )* )"""
)
_SESSION_TOKEN: Final = re.compile(r"""(?i)(AWS_SESSION_TOKEN\s*['"]?\s*[:=]\s*)['"]?[^\s,&;'"}]+""")
# A password may have an unescaped `@`, `/` or `?`, which is a common mistake: so the last `@` counts. The parts have
# maximum lengths, otherwise a malicious text could make the search take seconds.
_MONGODB_USER: Final = re.compile(r"(?i)\b(mon\w*(?:\+\w+)?:?/{1,3})[^\s'\"]{0,500}(?:@|%40)")
# In other URIs, only up to the end of the user's part: many have an `@` in their path.
_OTHER_USER: Final = re.compile(r"\b([A-Za-z][\w+.-]{0,30}://)[^\s/?#'\"@]{0,500}:[^\s/?#'\"]{0,500}@")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:?/{2,3}|[A-Za-z][A-Za-z0-9+.-]*:/")
_HOST: Final = re.compile(r"\[[^\]]*\](?::\d+)?|[^:]*(?::\d{1,5})?")


def without_secrets(text: str) -> str:
    """The text with possible passwords of connection strings hidden: user parts and secret options."""
    if "@" in text or "%40" in text:
        text = _OTHER_USER.sub(rf"\1{HIDDEN}@", _MONGODB_USER.sub(rf"\1{HIDDEN}@", text))
    if "=" in text or ":" in text or "%3" in text:
        text = _SESSION_TOKEN.sub(rf"\1{HIDDEN}", _SECRET_OPTION.sub(_hidden_option, text))
    return text


def _hidden_option(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2] or found[4]}{HIDDEN}"


def uri_without_secrets(uri: object) -> str:
    """A connection string for an error message, also if its scheme is missing or wrong.

    It shows the hosts, the database and harmless options; less, if the end of the password is not certain.
    """
    if not isinstance(uri, str):
        return shown(uri)
    scheme, _, at, behind = _user_of(uri)
    address, separator, options = behind.partition("?")
    hosts, slash, database = address.partition("/")
    # A password without a host has the place of a port.
    hosts = ",".join(
        host if _HOST.fullmatch(host) else f"{host.partition(':')[0]}:{HIDDEN}" for host in hosts.split(",")
    )
    hidden = f"{HIDDEN}@" if at else ""
    return one_line(f"{scheme}{hidden}{hosts}{slash}{database}{separator}{without_secrets(options)}", LONGEST_VALUE)


def _user_of(uri: str) -> tuple[str, str, str, str]:
    """The scheme, the user part with the password, the separator after it, and the rest."""
    begin = _SCHEME.match(uri)
    scheme, rest = (uri[: begin.end()], uri[begin.end() :]) if begin else ("", uri)
    # With "%40", the whole string was escaped, the separator included.
    return (scheme, *rest.rpartition("%40" if "%40" in rest and "@" not in rest else "@"))


def without_secrets_of(uri: object, text: str) -> str:
    """A text about a connection string, such as an error of the driver, without any part of the password."""
    if isinstance(uri, str):
        hidden = [_user_of(uri)[1], *(found[0].partition("=")[2] for found in _SECRET_OPTION.finditer(uri))]
        pieces = re.split(r"[:@/?#&=,;]|%3A|%40", ":".join(hidden))
        for piece in sorted({*pieces, *map(unquote_plus, pieces)}, key=len, reverse=True):
            if piece:
                text = re.sub(rf"(?<!\w){re.escape(piece)}(?!\w)" if len(piece) < 4 else re.escape(piece), HIDDEN, text)
    return without_secrets(text)


def one_line(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text with line breaks and other unprintable characters escaped, at most `longest` characters."""
    is_cut = len(text) > longest
    if is_cut:
        text = text[: longest - 1]
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
        is_cut = is_cut or len(text) > longest
        text = text[: longest - 1] if is_cut else text
    return f"{text}…" if is_cut else text


def shown(value: object, longest: int = LONGEST_VALUE) -> str:
    """The repr of a value for an error message: at most `longest` characters, without secrets."""
    try:
        text = _REPR.repr(value)
    except BaseException:  # noqa: BLE001  # For example, a user's class with the name `list`.
        text = f"<{type(value).__name__}>"
    return one_line(without_secrets(text), longest)


class _Repr(reprlib.Repr):
    """Formats only the beginning of a large value, and keeps the order of its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 20
        self.maxstring = self.maxother = self.maxlong = LONGEST_TEXT

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        first = islice(x.items(), self.maxdict)
        shown = [f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}" for key, value in first]
        return "{" + ", ".join([*shown, "..."] if len(x) > self.maxdict else shown) + "}"

    def repr_instance(self, x: object, level: int) -> str:
        try:
            if isinstance(x, str | bytes):
                x = x[: self.maxstring]
            return repr(x)[: self.maxother]
        except BaseException:  # noqa: BLE001  # A `__repr__` may raise anything.
            return f"<{type(x).__name__}>"


_REPR: Final = _Repr()


# --- The text of an exception ---

_LOOKED_AT: Final = 4
"""A text of this many times the length that is kept is searched for secrets."""

NO_MESSAGE: Final = "(its message cannot be shown)"


def name_of(error: object) -> str:
    """The name of the class of an error, or of another value."""
    try:
        return plain(type(error).__name__, 200)
    except BaseException:  # noqa: BLE001  # A metaclass may raise anything.
        return "an exception"


def message_of(error: BaseException, longest: int) -> str:
    """The error's message, at most `longest` characters, in a form that BSON can store."""
    try:
        return plain(without_secrets(plain(str(error), _LOOKED_AT * longest)), longest)
    except BaseException:  # noqa: BLE001  # Not our Ctrl-C: every caller of this holds it back.
        return NO_MESSAGE


def text_of(error: BaseException, longest: int = 2000) -> str:
    """The name of the error's class, and its message."""
    message = message_of(error, longest)
    return f"{name_of(error)}: {message}" if message else name_of(error)


def traceback_of(error: BaseException, longest: int) -> str:
    """The error's traceback with its causes, in a form that BSON can store.

    Each line is cut before they are joined, so that a long message cannot push out the frames. If the whole is still
    too long, its end is kept, because that shows where the error happened.
    """
    try:
        lines = traceback.TracebackException.from_exception(error).format()
        # Hide secrets first: the password in a connection string that was cut could not be recognised.
        text = "".join(_cut(without_secrets(_cut(line, _LOOKED_AT * longest)), longest // 2) for line in lines)
    except BaseException:  # noqa: BLE001  # Formatting runs the same foreign code.
        return ""
    return plain(text[-longest:], longest)


def _cut(line: str, longest: int) -> str:
    exact = str.__getitem__(line, slice(0, longest + 1))
    return exact if len(exact) <= longest else exact[: longest - 2] + "…\n"


def plain(text: str, longest: int) -> str:
    """The text in a form that BSON can store: an exact `str`, at most `longest` characters, without lone surrogates.

    It is cut first, because encoding 100 MB would block the event loop. A single surrogate would fail the whole batch.
    """
    exact = str.__getitem__(text, slice(0, longest + 1))  # Not a method of a subclass: it may raise.
    exact = exact.encode("utf-8", "backslashreplace").decode()
    return exact if len(exact) <= longest else exact[: longest - 1] + "…"
