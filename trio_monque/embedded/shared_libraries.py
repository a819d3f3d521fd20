"""What to do if the dynamic loader of Linux cannot load the server. Pure: reads what the loader printed."""

from __future__ import annotations

import re
from typing import Final

from .binary import WHAT_TO_DO

# The loader prints one of these lines and ends the process. glibc does not translate them.
_FAILED: Final = re.compile(r"error while loading shared libraries: (?P<library>[^\s:]+): (?P<reason>.*)")
_TOO_OLD: Final = re.compile(r"(?P<library>[^\s:/]+): version `(?P<version>[^']+)' not found \(required by")

# Library -> package of Debian and Ubuntu, package of Fedora and its relatives. A slim image of Debian with Python lacks
# the first; a minimal system may lack the others too.
_PACKAGES: Final = {
    "libcurl.so.4": ("libcurl4", "libcurl"),
    "liblzma.so.5": ("liblzma5", "xz-libs"),
    "libgcc_s.so.1": ("libgcc-s1", "libgcc"),
    "libssl.so.3": ("libssl3", "openssl-libs"),
    "libcrypto.so.3": ("libssl3", "openssl-libs"),
}
_MISSING_WHERE_TOO_OLD: Final = ("libssl.so.3", "libcrypto.so.3")


def loader_advice(log: str) -> str | None:
    """Return one sentence: which library the server needs, and what installs it.

    Args:
        log: All that the server printed.

    Returns:
        The sentence; None if the loader did not fail.
    """
    if failed := _FAILED.search(log):
        return _advice_about(failed["library"], failed["reason"])
    if too_old := _TOO_OLD.search(log):
        return (
            f"the MongoDB server needs a newer {too_old['library']} than this system has "
            f"({too_old['version']} is not in it): {WHAT_TO_DO}"
        )
    return None


def _advice_about(library: str, reason: str) -> str:
    if "cannot open shared object file: No such file" not in reason:
        return f"the MongoDB server cannot load {library} ({reason}): repair that file, or {WHAT_TO_DO}"
    problem = f"the MongoDB server needs {library}, which is not installed"
    if library not in _PACKAGES:
        return f"{problem}: install the package that has it, or {WHAT_TO_DO}"
    debian, fedora = _PACKAGES[library]
    advice = f"{problem}: run apt-get install {debian} (Fedora, RHEL: dnf install {fedora})"
    if library in _MISSING_WHERE_TOO_OLD:
        return f"{advice}; where the system is too old for OpenSSL 3, {WHAT_TO_DO}"
    return advice
