"""What has the version of a release, and the tools that build it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.paths import ROOT
from warpseal import version
from warpseal.version import __version__, describe_version


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((ROOT / "configs" / "helm" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_changelog_has_a_section_of_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in headings
    assert headings == list(dict.fromkeys(headings))


def test_the_readme_names_the_files_of_the_version() -> None:
    names = re.findall(r"warpseal-(\d+\.\d+\.\d+)", (ROOT / "README.md").read_text())
    assert set(names) == {__version__}


def test_the_build_backend_has_the_version_of_the_release_tools() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (backend,) = project["build-system"]["requires"]
    name, _, lowest = backend.partition(">=")
    pinned = dict(
        line.split("==")
        for line in (ROOT / ".ci" / "release.txt").read_text().splitlines()
        if "==" in line
    )
    assert [int(part) for part in pinned[name].split(".")] >= [
        int(part) for part in lowest.split(".")
    ]


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dependencies = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    assert [text for text in dependencies if ">=" not in text] == []


def test_the_version_of_a_release_has_the_revision_that_was_written_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_REVISION_FILE", tmp_path / "revision.txt")
    (tmp_path / "revision.txt").write_text("0123456789abcdef0123\n")
    assert describe_version() == f"warpseal {__version__} (revision 0123456789ab)"


def test_a_package_without_a_repository_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "_REVISION_FILE", tmp_path / "revision.txt")
    monkeypatch.setattr(version, "_FOLDER", tmp_path / "lib" / "warpseal")
    assert describe_version() == f"warpseal {__version__}"
