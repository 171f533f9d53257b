"""The table of subsystems is opened stage by stage; subsystems register what others read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.eventually import until
from warpseal.api.openapi.document import document
from warpseal.api.status.document import ChainSummary, StatusSection
from warpseal.api.status.probe_bodies import StoreState
from warpseal.api.status.probes import ProbeEndpoints
from warpseal.config.keys import Config
from warpseal.config.load import load
from warpseal.daemon import subsystems
from warpseal.daemon.metering import open_metering
from warpseal.daemon.registries import Registries, StatusRequest
from warpseal.daemon.status import DaemonStatus
from warpseal.daemon.subsystems import Stage, Subsystem, find_rows, open_stage
from warpseal.daemon.validators import find_readers
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.resources.aliases import ChainAliases
from warpseal.resources.base import UNSET

NODES = {
    "info-api": {"base-url": "http://127.0.0.1:1"},
    "p-chain-api": {"base-url": "http://127.0.0.1:1"},
}


def config_of(tmp_path: Path, **keys: Any) -> Config:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**NODES, "data-dir": str(tmp_path), **keys}))
    return load(file, {}, {}).config


def names_of(config: Config) -> list[str]:
    return [row.name for stage in Stage for row in find_rows(config, stage)]


def test_only_parts_that_run_are_named_as_readers_of_blocks(tmp_path: Path) -> None:
    (follower,) = find_readers(config_of(tmp_path))
    assert follower.startswith("the follower of the P-Chain")
    assert find_readers(config_of(tmp_path, **{"store-url": "off"})) == ()
    index = {"index-chains": ["p", "x"], "store-url": "off"}
    assert find_readers(config_of(tmp_path, **index)) == (
        "the index of the P-Chain",
        "the index of the X-Chain",
    )


def test_a_daemon_has_only_the_subsystems_that_it_is_configured_for(tmp_path: Path) -> None:
    plain = names_of(config_of(tmp_path))
    assert {
        "node_api",
        "validators",
        "signing",
        "l1",
        "signing_api",
        "forecast",
        "data_api",
    } <= set(plain)
    absent = {
        "metering",
        "evm_api",
        "gateway_api",
        "usage",
        "primary_index",
        "evm_index",
        "icm",
        "eager_icm",
    }
    assert absent.isdisjoint(plain)
    indexing = names_of(config_of(tmp_path, **{"index-chains": ["p"]}))
    assert sorted(set(indexing) - set(plain)) == ["primary_index", "primary_indexer"]
    gateway = names_of(config_of(tmp_path, **{"gateway-nodes": ["http://127.0.0.1:1"]}))
    added = {
        "metering",
        "evm_api",
        "evm_facts",
        "forwarding",
        "gateway_api",
        "gateway",
        "early_usage",
        "usage",
    }
    assert set(gateway) - set(plain) == added


async def test_subsystems_take_those_above_them_and_are_closed_in_the_other_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def open_upper(registries: str) -> AsyncIterator[str]:
        events.append(f"upper opens with {registries}")
        yield "the upper one"
        events.append("upper closes")

    @asynccontextmanager
    async def open_lower(registries: str, upper: str, absent: str | None) -> AsyncIterator[None]:
        events.append(f"lower takes {upper} and {absent}")
        yield
        events.append("lower closes")

    rows = (
        Subsystem("upper", "any", Stage.PORTS),
        Subsystem("absent", "any", Stage.PORTS, (), lambda config: False),
        Subsystem("lower", "any", Stage.PORTS, ("upper", "absent")),
        Subsystem("later", "any", Stage.REST),
    )
    monkeypatch.setattr(subsystems, "SUBSYSTEMS", rows)
    module = SimpleNamespace(open_upper=open_upper, open_lower=open_lower)
    monkeypatch.setattr(subsystems, "load", lambda name: module)
    opened: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        await open_stage(Stage.PORTS, config_of(tmp_path), stack, opened, "registries")
        assert opened == {"upper": "the upper one", "lower": None}
    assert events == [
        "upper opens with registries",
        "lower takes the upper one and None",
        "lower closes",
        "upper closes",
    ]


async def test_sections_of_the_status_are_merged_and_their_chains_are_listed_together(
    tmp_path: Path,
) -> None:
    registries = Registries(config_of(tmp_path), DaemonLoggers())

    async def peers(request: StatusRequest) -> Mapping[str, Any]:
        connected_at = request.moment(asyncio.get_running_loop().time())
        return {
            "proposed_height": "7",
            "node_id": connected_at,
            "chains": [ChainSummary("evm", "c")],
        }

    async def follower(request: StatusRequest) -> Mapping[str, Any]:
        return {
            "network_id": 5 if request.with_addresses else 1,
            "chains": [ChainSummary("follower", "p-chain")],
        }

    assert await registries.status.read(with_addresses=True) == {"chains": []}
    registries.status.register(peers)
    registries.status.register(follower)
    fields = await registries.status.read(with_addresses=True)
    assert [chain.name for chain in fields.pop("chains")] == ["c", "p-chain"]
    assert fields.pop("node_id").endswith("Z")
    assert fields == {"proposed_height": "7", "network_id": 5}


class LagSection(StatusSection, frozen=True):
    """Fields that a part of the daemon declares."""

    loop_lag_ms: int | None = None


async def test_a_section_adds_the_fields_that_it_declares_to_the_document_and_its_description(
    tmp_path: Path,
) -> None:
    registries = Registries(config_of(tmp_path), DaemonLoggers())
    probes = ProbeEndpoints(registries.health, registries.ready)
    status = DaemonStatus(registries, probes, ChainAliases())
    before = msgspec.json.decode(msgspec.json.encode(await status.collect(with_addresses=True)))

    async def read(request: StatusRequest) -> Mapping[str, Any]:
        return {"loop_lag_ms": 7}

    registries.status.register(read, LagSection)
    after = msgspec.json.decode(msgspec.json.encode(await status.collect(with_addresses=True)))
    assert list(after) == [*before, "loopLagMs"]
    assert after["loopLagMs"] == 7
    plain = document()["components"]["schemas"]["StatusDocument"]
    described = document(None, status.document_class)["components"]["schemas"]["StatusDocument"]
    assert list(described["properties"]) == [*plain["properties"], "loopLagMs"]
    assert described["description"] == plain["description"]


async def test_ready_has_the_fields_that_are_registered(tmp_path: Path) -> None:
    registries = Registries(config_of(tmp_path), DaemonLoggers())
    for name in ("follower", "index", "usage"):
        registries.ready.register(name, lambda: UNSET)
    registries.ready.register("store", lambda: StoreState(url="sqlite", up=True))
    state = registries.ready.read()
    assert state.store == StoreState(url="sqlite", up=True)
    assert (state.index, state.usage) == (UNSET, UNSET)


async def test_metered_calls_are_in_the_metrics_and_in_the_status(tmp_path: Path) -> None:
    registries = Registries(config_of(tmp_path), DaemonLoggers())
    async with open_metering(registries):
        assert await registries.status.read(with_addresses=False) == {"usage": [], "chains": []}
        assert b"warpseal_usage_calls_total" in (await registries.metrics.snapshot())()


async def test_a_registered_part_runs_in_the_background_and_its_error_ends_nothing_else(
    tmp_path: Path,
) -> None:
    registries, runs = Registries(config_of(tmp_path), DaemonLoggers()), 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        raise ValueError("an error of this part")

    registries.run_in_background("part", run)
    async with asyncio.TaskGroup() as tasks:
        started = registries.start(tasks)
        await until(lambda: bool(list(registries.background.failing())))
        for task in started:
            task.cancel()
    assert runs == 1
    assert next(iter(registries.background.failing())).startswith("part failed once")
