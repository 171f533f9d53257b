"""The validators of chains that no node lists, of a running daemon on a simulated network.

Who validates is the P-Chain's; who is connected, and for how long, is what the daemon saw of real
sockets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.eventually import until
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from tests.node.recorded_node import serve_app
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, ValidationID, id_text, node_id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

TRACKED, PERMISSIONED, UNTRACKED = 1, 2, 3
PLAN = Plan(
    validators=4,
    l1s=(
        L1Plan(validators=3, weights="5/3/1", chains=2, spare=1),
        L1Plan(validators=2, permissioned=True),
        L1Plan(validators=2),
    ),
    messages=0,
)
METHOD = "validators.getCurrentValidators"
UNKNOWN_NODE = "NodeID-111111111111111111116DBWJs"
NO_PAGE = (404, "404 page not found\n")
# Everything is looked at more often than in earnest.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "validators": {"current_refresh_s": 0.2, "height_poll_s": 0.05},
    "peers": {"ping_interval_s": 0.4},
}


@dataclass(frozen=True)
class WatchedNetwork:
    """A daemon on a network, of which it tracks an L1 and a permissioned subnet."""

    network: SimulatedNetwork
    daemon: Daemon

    def chains(self, subnet: int) -> list[ChainID]:
        """Return the blockchains of the n-th subnet of the network, 0: the primary one."""
        chains = self.network.state.chains_of(self.network.subnets[subnet].subnet_id)
        return [chain_id for chain_id in chains if chain_id != P_CHAIN]

    def nodes(self, subnet: int) -> list[int]:
        """Return the indices of its validators."""
        return [
            validator.index
            for validator in self.network.validators
            for seat in self.network.state.validations[self.subnet(subnet)]
            if seat.node_id == validator.node_id
        ]

    def subnet(self, subnet: int) -> SubnetID:
        """Return the id of the n-th subnet."""
        return self.network.subnets[subnet].subnet_id

    def name(self, index: int) -> str:
        """Return the node id of a validator."""
        return node_id_text(self.network.validators[index].node_id)

    async def send(self, chain: str, params: object) -> tuple[int, str]:
        """Return the status and the text of a response."""
        call = {"jsonrpc": "2.0", "id": 1, "method": METHOD, "params": params}
        async with self.daemon.session.post(
            f"{self.daemon.api_url}/ext/bc/{chain}/validators", json=call
        ) as reply:
            return reply.status, await reply.text()

    async def listed(self, chain: ChainID | str, *node_ids: str) -> dict[str, dict[str, Any]]:
        """Return the validators by node id; none while the path is not there."""
        name = chain if isinstance(chain, str) else id_text(chain)
        status, text = await self.send(name, {"nodeIDs": list(node_ids)})
        if status == 404:
            return {}
        return {
            validator["nodeID"]: validator for validator in json.loads(text)["result"]["validators"]
        }

    async def until_connected(self, chain: ChainID, *indices: int) -> dict[str, dict[str, Any]]:
        """Wait until exactly these are listed as connected; return the validators."""
        names = {self.name(index) for index in indices}

        async def are_connected() -> bool:
            entries = (await self.listed(chain)).values()
            return (
                bool(entries)
                and {match["nodeID"] for match in entries if match["isConnected"]} == names
            )

        await until(are_connected)
        return await self.listed(chain)

    async def until_up_for(self, seconds: int, chain: ChainID, index: int) -> dict[str, Any]:
        """Wait until a validator is listed with so much uptime; return its entry."""

        async def is_up() -> bool:
            entry = (await self.listed(chain)).get(self.name(index))
            return entry is not None and entry["uptimeSeconds"] >= seconds

        await until(is_up)
        return (await self.listed(chain))[self.name(index)]


@asynccontextmanager
async def watched_network(
    folder: Path, keys: Mapping[str, Any] | None = None, *, network: SimulatedNetwork | None = None
) -> AsyncIterator[WatchedNetwork]:
    """Run a daemon on a network of its own, or on this one."""
    if network is None:
        async with run_network(PLAN) as own, watched_network(folder, keys, network=own) as setup:
            yield setup
        return
    tracked = [id_text(network.subnets[item].subnet_id) for item in (TRACKED, PERMISSIONED)]
    config = build_config(network, folder, {"tracked-subnet-ids": tracked, **(keys or {})}, **QUICK)
    async with run_daemon(config) as daemon:
        yield WatchedNetwork(network, daemon)


async def test_every_chain_of_a_tracked_l1_returns_validators_with_observed_connections(
    tmp_path: Path,
) -> None:
    async with watched_network(tmp_path) as watch:
        first, second = watch.chains(TRACKED)
        entries = await watch.until_connected(first, *watch.nodes(TRACKED))
        assert await watch.until_connected(second, *watch.nodes(TRACKED))
        for seat in watch.network.state.validations[watch.subnet(TRACKED)]:
            entry = entries[node_id_text(seat.node_id)]
            assert list(entry) == [
                "validationID",
                "nodeID",
                "weight",
                "startTimestamp",
                "isActive",
                "isL1Validator",
                "isConnected",
                "uptimePercentage",
                "uptimeSeconds",
            ]
            assert (entry["validationID"], entry["weight"]) == (id_text(seat.id), seat.weight)
            assert (entry["startTimestamp"], entry["isActive"], entry["isL1Validator"]) == (
                seat.start_time,
                True,
                True,
            )


async def test_a_stopped_validator_is_not_connected_and_its_uptime_stands_still(
    tmp_path: Path,
) -> None:
    async with watched_network(tmp_path) as watch:
        (chain, _), (gone, *others) = watch.chains(TRACKED), watch.nodes(TRACKED)
        await watch.until_up_for(1, chain, gone)
        watch.network.stop_validator(gone)
        entries = await watch.until_connected(chain, *others)
        stopped_at = entries[watch.name(gone)]["uptimeSeconds"]
        await watch.until_up_for(stopped_at + 2, chain, others[0])
        entries = await watch.listed(chain)
        assert stopped_at <= entries[watch.name(gone)]["uptimeSeconds"] <= stopped_at + 1
        assert (
            entries[watch.name(gone)]["uptimePercentage"]
            < entries[watch.name(others[0])]["uptimePercentage"]
            <= 100
        )


async def test_transactions_that_added_validators_show_that_a_subnet_is_permissioned(
    tmp_path: Path,
) -> None:
    async with watched_network(tmp_path) as watch:
        (chain,) = watch.chains(PERMISSIONED)
        entries = await watch.until_connected(chain, *watch.nodes(PERMISSIONED))
        seats = watch.network.state.validations[watch.subnet(PERMISSIONED)]
        assert {match["validationID"] for match in entries.values()} == {
            id_text(seat.id) for seat in seats
        }
        assert {(match["isL1Validator"], match["isActive"]) for match in entries.values()} == {
            (False, True)
        }


async def test_node_ids_filter_unknown_ones_are_left_out_and_malformed_ones_refused(
    tmp_path: Path,
) -> None:
    async with watched_network(tmp_path) as watch:
        (chain, _), (first, second, third) = (
            watch.chains(TRACKED),
            map(watch.name, watch.nodes(TRACKED)),
        )
        await watch.until_connected(chain, *watch.nodes(TRACKED))
        assert set(await watch.listed(chain, second)) == {second}
        assert set(await watch.listed(chain, third, UNKNOWN_NODE, first)) == {first, third}
        assert await watch.send(id_text(chain), {"nodeIDs": [UNKNOWN_NODE]}) == (
            200,
            '{"jsonrpc":"2.0","result":{"validators":[]},"id":1}\n',
        )
        status, text = await watch.send(id_text(chain), {"nodeIDs": ["NodeID-1"]})
        assert (status, json.loads(text)["error"]["code"]) == (200, -32000)
        assert json.loads(text)["error"]["message"].startswith("couldn't unmarshal an argument")


async def test_aliases_of_the_file_and_of_administration_reach_them(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        chain = next(iter(network.state.chains_of(network.subnets[TRACKED].subnet_id)))
        file = tmp_path / "aliases.json"
        file.write_text(json.dumps({id_text(chain): ["of-file"]}))
        keys = {"api-admin-enabled": True, "chain-aliases-file": str(file)}
        async with watched_network(tmp_path, keys, network=network) as watch:
            await watch.until_connected(chain, *watch.nodes(TRACKED))
            call = {"jsonrpc": "2.0", "id": 1, "method": "admin.aliasChain"}
            alias_call = {**call, "params": {"chain": "of-file", "alias": "given"}}
            assert (await watch.daemon.post("/ext/admin", alias_call)).body["result"] == {}
            everyone = {watch.name(index) for index in watch.nodes(TRACKED)}
            assert (
                set(await watch.listed("of-file")) == set(await watch.listed("given")) == everyone
            )


async def test_other_chains_are_not_there(tmp_path: Path) -> None:
    async with watched_network(tmp_path) as watch:
        await watch.until_connected(watch.chains(TRACKED)[0], *watch.nodes(TRACKED))
        others = [
            *map(id_text, (*watch.chains(UNTRACKED), *watch.chains(0), P_CHAIN)),
            "P",
            "X",
            "C",
            "nope",
        ]
        for name in others:
            assert await watch.send(name, {}) == NO_PAGE, name


async def test_validators_of_a_configured_chain_are_returned_and_its_subnet_is_followed(
    tmp_path: Path,
) -> None:
    """Neither the P-Chain's node nor a tracked subnet is behind it: what is at its URL answers
    nothing.
    """
    async with run_network(PLAN) as network:
        (chain,) = network.state.chains_of(network.subnets[UNTRACKED].subnet_id)
        keys = {
            "evm-chains": [{"blockchain-id": id_text(chain), "rpc": ["http://127.0.0.1:9/rpc"]}]
        }
        async with watched_network(tmp_path, keys, network=network) as watch:
            await watch.until_connected(chain, *watch.nodes(UNTRACKED))
            await watch.until_up_for(1, chain, watch.nodes(UNTRACKED)[0])
            assert {
                subnet["subnetId"] for subnet in (await watch.daemon.ready()).body["subnets"]
            } == {id_text(watch.subnet(item)) for item in (0, TRACKED, PERMISSIONED)}


@dataclass
class Listing:
    """A node behind a chain that lists one validator.

    status: HTTP status of each reply; only 200 has a list.
    """

    status: int = 200
    seconds: int = 12_345

    async def respond(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.Response(status=self.status)
        entry = {
            "validationID": id_text(bytes([7]) * 32),
            "nodeID": UNKNOWN_NODE,
            "weight": 1,
            "startTimestamp": 2,
            "isActive": True,
            "isL1Validator": True,
            "isConnected": True,
            "uptimePercentage": 99.5,
            "uptimeSeconds": self.seconds,
        }
        call = await request.json()
        return web.json_response(
            {"jsonrpc": "2.0", "id": call["id"], "result": {"validators": [entry]}}
        )


@asynccontextmanager
async def listing_node(node: Listing) -> AsyncIterator[str]:
    """Serve a node; yields its RPC URL."""
    app = web.Application()
    app.router.add_post("/ext/bc/it/validators", node.respond)
    async with serve_app(app) as url:
        yield f"{url}/ext/bc/it/rpc"


async def test_a_node_that_lists_them_is_preferred_and_one_that_does_not_is_passed_over(
    tmp_path: Path,
) -> None:
    listing, silent = Listing(), Listing(404)
    async with (
        run_network(PLAN) as network,
        listing_node(listing) as url,
        listing_node(silent) as other,
    ):
        first, second = network.state.chains_of(network.subnets[TRACKED].subnet_id)
        chains = [
            {"blockchain-id": id_text(item), "rpc": [rpc]}
            for item, rpc in ((first, url), (second, other))
        ]
        async with watched_network(tmp_path, {"evm-chains": chains}, network=network) as watch:
            await watch.until_connected(second, *watch.nodes(TRACKED))
            assert (await watch.listed(first))[UNKNOWN_NODE]["uptimeSeconds"] == listing.seconds
            listing.status = 500
            status, text = await watch.send(id_text(first), {})
            assert (status, json.loads(text)["error"]["code"]) == (200, -32000)
            assert url.partition("/ext")[0] not in text


async def test_uptime_is_kept_over_a_restart_and_downtime_of_the_daemon_counts_for_no_validator(
    tmp_path: Path,
) -> None:
    now, ran_s = asyncio.get_running_loop().time, 0.0
    async with run_network(PLAN) as network:
        began = now()
        async with watched_network(tmp_path, network=network) as watch:
            (chain, _), (index, *_) = watch.chains(TRACKED), watch.nodes(TRACKED)
            before = await watch.until_up_for(2, chain, index)
        ran_s += now() - began
        await asyncio.sleep(2.0)
        began = now()
        async with watched_network(tmp_path, network=network) as watch:
            after = await watch.until_up_for(before["uptimeSeconds"] + 1, chain, index)
            ran_s += now() - began
            assert after["validationID"] == before["validationID"]
            assert after["uptimeSeconds"] <= ran_s
            assert after["uptimeSeconds"] * 100 / after["uptimePercentage"] <= ran_s + 1, (
                "nor was it observed"
            )


async def test_changes_of_validators_are_notified(tmp_path: Path) -> None:
    async with watched_network(tmp_path) as watch:
        (chain, _), seats = (
            watch.chains(TRACKED),
            watch.network.state.validations[watch.subnet(TRACKED)],
        )
        await watch.until_connected(chain, *watch.nodes(TRACKED))
        p_chain = watch.network.p_chain
        p_chain.disable(ValidationID(seats[0].id))
        registered = p_chain.register(watch.subnet(TRACKED), weight=7)
        p_chain.remove(ValidationID(seats[1].id))
        assert registered.validation_id is not None

        async def is_told() -> bool:
            by_validation = {
                entry["validationID"]: entry for entry in (await watch.listed(chain)).values()
            }
            inactive = by_validation.get(id_text(seats[0].id), {})
            return (
                (inactive.get("isActive"), inactive.get("isConnected")) == (False, False)
                and by_validation.get(id_text(registered.validation_id or b""), {}).get("weight")
                == 7
                and id_text(seats[1].id) not in by_validation
            )

        await until(is_told)


async def test_unknown_data_is_served_as_soon_as_a_node_is_up(tmp_path: Path) -> None:
    async with run_network(PLAN) as network:
        (node,) = network.nodes
        chain = next(iter(network.state.chains_of(network.subnets[TRACKED].subnet_id)))
        await node.down()
        async with watched_network(tmp_path, network=network) as watch:
            assert await watch.send(id_text(chain), {}) == NO_PAGE
            await node.up()
            await watch.until_connected(chain, *watch.nodes(TRACKED))
