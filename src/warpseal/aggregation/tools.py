"""What every fan-out works with."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from warpseal.aggregation.answers import AnswerCache
from warpseal.aggregation.ports import Activity, Archive, Followed, Metrics, Peers, Sets
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.shares import ShareCache
from warpseal.aggregation.suspects import Suspects
from warpseal.aggregation.workbench import Workbench


@dataclass(frozen=True, slots=True)
class Tools:
    """Other rooms, and what fan-outs have in common."""

    peers: Peers
    sets: Sets
    activity: Activity
    followed: Followed
    archive: Archive
    metrics: Metrics
    shares: ShareCache
    answers: AnswerCache
    suspects: Suspects
    workbench: Workbench
    settings: AggregationSettings
    random: Random
