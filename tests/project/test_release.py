"""What has the version of a release, and the tools that build it."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.paths import ROOT
from warpseal.version import __version__


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((ROOT / "configs" / "helm" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_changelog_has_a_section_of_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in headings
    assert headings == list(dict.fromkeys(headings))


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
