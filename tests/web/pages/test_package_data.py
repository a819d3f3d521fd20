"""What a wheel of the package brings to a dashboard, and how large it is."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.programs import ROOT
from trio_monque.web.pages.assets import assets

LARGEST_SCRIPT = 15 * 1024
LARGEST_IN_ALL = 60 * 1024


def test_assets_are_small() -> None:
    assert len(assets()["monque.js"].content) <= LARGEST_SCRIPT
    assert sum(len(one.content) for one in assets().values()) <= LARGEST_IN_ALL


@pytest.mark.full
def test_a_wheel_has_templates_and_assets(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as inside:
        names = set(inside.namelist())
    for folder in ("templates", "static"):
        here = {
            f"trio_monque/web/pages/{folder}/{one.name}"
            for one in files("trio_monque.web.pages").joinpath(folder).iterdir()
        }
        assert here
        assert here <= names
