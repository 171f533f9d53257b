"""The result of one check of `warpseal doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Grade(StrEnum):
    """Severity of a finding. BAD: the daemon cannot sign."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check in a sentence, and the advice to the operator. detail: for programs, JSON-ready."""

    grade: Grade
    text: str
    advice: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the finding with its detail."""
        content: dict[str, Any] = {"grade": self.grade.value, "finding": self.text}
        return {**content, **({"advice": self.advice} if self.advice else {}), **self.detail}
