"""What is imported when, and what is said without the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.programs import ROOT
from trio_monque import Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app


def printed_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_library_imports_no_web_framework() -> None:
    program = "import sys, trio_monque; print({'starlette', 'trio_monque.web'} & {*sys.modules})"
    assert printed_by(program) == "set()"


@pytest.mark.parametrize("library", ["starlette", "jinja2"])
def test_without_the_extra_the_error_names_what_to_install(library: str) -> None:
    program = (
        f"import sys; sys.modules['{library}'] = None\n"
        "try:\n    import trio_monque.web\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    assert printed_by(program) == f"trio_monque.web needs {library}: python -m pip install starlette jinja2"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("allowed_hosts", "jobs.test"),
        ("trusted_origins", "https://jobs.test"),
        ("openapi_path", "openapi.json"),
        ("openapi_path", 5),
        ("title", b"Jobs"),
        ("environment", 5),
        ("filters", "meta.tenant"),
        ("dashboard", "no"),
        ("read_only", "no"),
        ("allow_enqueue", 1),
        ("authorize", True),
        ("context", "dana"),
        ("serialize_payload", {}),
        ("show_errors", "no"),
    ],
)
def test_invalid_option_is_named(db: Database, option: str, value: object) -> None:
    with pytest.raises(InvalidOptionError, match=option):
        create_app(Monque(db), **{option: value})  # type: ignore[arg-type]


def test_client_must_be_one(db: Database) -> None:
    with pytest.raises(InvalidOptionError, match="must be a Monque client or a scheduler"):
        create_app(db)  # type: ignore[arg-type]
