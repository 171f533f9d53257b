"""`warpseal simnet`: run a simulated Avalanche network on the loopback address."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from warpseal.errors import StartupError
from warpseal_simnet.behaviours import behaviour_words
from warpseal_simnet.fees import fee_config
from warpseal_simnet.l1_scenario import HELP, SCENARIO_L1, L1Scenario
from warpseal_simnet.listener import LOOPBACK
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.node_behaviours import InvalidNodeBehaviour, NodeRule, parse_node_rule
from warpseal_simnet.plan import (
    DEFAULT_NETWORK_ID,
    DEFAULT_STAKE,
    InvalidPlan,
    L1Plan,
    Plan,
    parse_l1,
    parse_rule,
)
from warpseal_simnet.report import aggregator_config, free_ports, network_report, write_atomically
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import NEWEST_VERSION, VERSIONS

_DESCRIPTION: Final = """\
Start simulated Avalanche validators and a simulated node on 127.0.0.1: real TLS, real frames, real
BLS. Every validator has its own certificate, BLS key and socket, and treats peers exactly as a
node does. GET {nodeUri}/simnet/violations returns all protocol violations of peers, GET
{nodeUri}/simnet/stats the counters, GET {nodeUri}/simnet/shares when the shares of the last 32
messages were written.
"""

_INDENT: Final = "    "
_WORDS: Final = textwrap.fill(
    " ".join(behaviour_words()), 100, initial_indent=_INDENT, subsequent_indent=_INDENT
)
_EPILOG: Final = f"""\
L1s (--l1, repeatable; default: one L1 that all validators also validate; --l1 none: no L1):
  validators=5,weights=5/3/1     five separate nodes; weights: equal:W zipf:W uniform:LOW-HIGH or
                                 5/3/1
  validators=5,shared            the first five validators of the primary network
  validators=1,permissioned      a subnet that is not converted
  validators=5,chains=2          two blockchains
  validators=5,manager=C         validator manager on the C-Chain (manager=l1-0: on another L1)
  validators=5,spare=2           two more nodes that track it without validating it
  validators=5,quorum=80         verifies messages with 80 percent (33 to 100; default 67)
  validators=5,primary-signers   messages of the C-Chain must be signed by the Primary Network
  validators=5,no-warp           takes no messages
  validators=5,idle              its chain builds no blocks, so that its epoch never ends
  validators=5,simplex           its chain has no proposervm, and verifies at the proposed height
  validators=5,unconverted       a subnet without validators, for a conversion while the network
                                 runs

Behaviours (--behave, repeatable; the last rule about a validator counts):
  [SCOPE/]SELECTION:WORD[+WORD...]   SCOPE: primary or l1-K; SELECTION: all, 10%, or indices such
                                     as 0,3-5
  10%:slow=50ms-2s               responds after a random delay in this range
  l1-0/0:silent                  never responds
  l1-0/1:after=3s                refuses for 3 s, then signs
  3:refuse=6/not yet             an application error
  4:wrong  stolen  garbage  notapoint  short  long  empty
  5:truncated                    half a frame, then disconnects  6:oversized  bomb  drop
  7:duplicate=3                  sends the response three times
  8:twice=wrong                  a second, different response
  9:lost-pongs=0.3  flood=1000   drops pongs; sends unparsable messages per second
  10:closed  mute  private       does not listen; accepts and stays silent; claims a private
             address
  11:keyless  inactive  balance=2000  weight=1  leaves=30  joins=40 (at a P-Chain height)
  12:lag=2  behind=3s            its P-Chain is 2 blocks, or 3 seconds, behind the tip
  balance=N is the balance in nAVAX at the start; each block charges the fee of the seconds since
  the last one
  All words:
{_WORDS}

Lies of RPC nodes about the P-Chain (--node-behave, repeatable; the last rule about a node counts;
equal lies agree):
  NODES:WORD[+WORD...]           NODES: places from 0, such as 1 or 0,2
  1:old-sets=5                   validator sets of 5 blocks before
  1:foreign-sets                 sets and current validations of nodes that do not exist
  1:forged-height=1000           heights of 1,000 blocks more
  1:forged-proposal=1000         the same of the proposed height alone
  1:forged-epoch=1000            the same of the next blocks and epochs of chains
  1:foreign-conversion           subnets with another conversion and manager, chains of another
                                 subnet
  1:forged-balance=1000000000    balances of L1 validators of 1 AVAX more
  1:foreign-version=99.0.0       another release of the node
  1:foreign-upgrade=1960-01-01T00:00:00Z   another date of Helicon

{HELP}
Example: warpseal simnet --validators 100 --behave '10%:slow=2s' --block-interval 1 \\
    --write-config simnet.json
A daemon on it: warpseal serve --config simnet.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `warpseal simnet`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "--validators",
        type=int,
        default=20,
        metavar="N",
        help="number of primary network validators (default 20)",
    )
    add(
        "--weights",
        default=f"equal:{DEFAULT_STAKE}",
        help="their stake in nAVAX (default %(default)s)",
    )
    add("--l1", action="append", default=[], metavar="SPEC", help="an L1; see below")
    add(
        "--write", type=Path, metavar="FILE", help="file for the description of the network as JSON"
    )
    add(
        "--write-config",
        type=Path,
        metavar="FILE",
        help=(
            "config file for a daemon on this network; its data-dir is beside it: simnet-data for"
            " simnet.json"
        ),
    )
    add(
        "--write-genesis",
        type=Path,
        metavar="FILE",
        help="file for the P-Chain's genesis, for genesis-file",
    )
    add(
        "--messages",
        type=int,
        default=1000,
        metavar="N",
        help="number of messages per chain (default 1000)",
    )
    add(
        "--presign",
        type=int,
        default=0,
        metavar="K",
        help="number of messages per chain that are signed at start (default 0)",
    )
    add(
        "--behave",
        action="append",
        default=[],
        metavar="RULE",
        help="misbehaviour of validators; see below",
    )
    add(
        "--node-behave",
        action="append",
        default=[],
        metavar="RULE",
        help="lies of RPC nodes; see below",
    )
    add("--behaviours", type=Path, metavar="FILE", help="file with a JSON list of such rules")
    add("--seed", type=int, default=0, help="seed; equal seeds give equal networks (default 0)")
    add(
        "--network-id",
        type=int,
        default=DEFAULT_NETWORK_ID,
        help="network ID (default %(default)s)",
    )
    add(
        "--rsa",
        type=int,
        default=0,
        metavar="N",
        help="number of validators with RSA instead of ECDSA keys (default 0)",
    )
    add("--height", type=int, default=20, help="P-Chain height at start (default 20)")
    add(
        "--proposed-lag",
        type=int,
        default=0,
        metavar="N",
        help="blocks between the proposed height and the tip (default 0)",
    )
    add(
        "--epoch-blocks",
        type=int,
        default=5,
        metavar="N",
        help=(
            "P-Chain blocks between two blocks of another chain, thus the shortest epoch in blocks"
            " (default 5)"
        ),
    )
    add(
        "--epoch-seconds",
        type=int,
        default=0,
        metavar="S",
        help="shortest duration of an epoch (default 0)",
    )
    add(
        "--block-interval",
        type=float,
        metavar="S",
        help="time between P-Chain blocks, seconds (default: no blocks)",
    )
    add(
        "--churn",
        type=int,
        metavar="N",
        help="blocks between weight changes of each subnet (default: no changes)",
    )
    add(
        "--etna-height",
        type=int,
        default=0,
        metavar="N",
        help="height of the first block at or after Etna (default 0)",
    )
    add("--l1-story", action="store_true", help="run the L1 scenario; see below")
    add(
        "--story-pace",
        type=float,
        default=5.0,
        metavar="S",
        help="time between the steps of the L1 scenario, seconds (default 5)",
    )
    add(
        "--fee-target",
        type=int,
        metavar="N",
        help="number of active L1 validators beyond which their fee rises",
    )
    add(
        "--info-peers",
        type=int,
        metavar="N",
        help="number of validators that info.peers lists (default: all)",
    )
    add("--nodes", type=int, default=1, metavar="N", help="number of RPC nodes (default 1)")
    add(
        "--node-version",
        choices=VERSIONS,
        default=".".join(map(str, NEWEST_VERSION)),
        help=(
            "version of avalanchego that all nodes run; next: a release without any deprecated"
            " method (default %(default)s)"
        ),
    )
    add(
        "--node-port",
        type=int,
        default=0,
        metavar="PORT",
        help="port of the first RPC node (default: any free port)",
    )
    add(
        "--api-port",
        type=int,
        default=0,
        help="API port in the written config (default: any free port)",
    )
    add(
        "--metrics-port",
        type=int,
        default=0,
        help="metrics port in the written config (default: any free port)",
    )
    add(
        "--ping-interval",
        type=float,
        default=22.5,
        metavar="S",
        help="time between pings, seconds (default 22.5)",
    )
    add(
        "--max-outstanding",
        type=int,
        default=1024,
        metavar="N",
        help="limit of outstanding requests per peer (default 1024)",
    )


async def run(args: argparse.Namespace) -> int:
    """Run the network until SIGINT or SIGTERM; return the exit code."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        network = SimulatedNetwork(build_plan(args))
    except InvalidPlan as error:
        raise StartupError(str(error)) from None
    try:
        await network.start(args.node_port)
        if args.presign:
            await asyncio.to_thread(network.presign, args.presign, _show_progress)
        api_port = _announce(network, args)
        async with asyncio.TaskGroup() as tasks:
            scenario = L1Scenario(network, f"http://{LOOPBACK}:{api_port}", args.story_pace, _say)
            running = tasks.create_task(scenario.run()) if args.l1_story else None
            await stopped.wait()
            if running is not None:
                running.cancel()
    except OSError as error:
        raise StartupError(f"the simulated network cannot start: {error}") from None
    finally:
        await network.stop()
    return 0


def build_plan(args: argparse.Namespace) -> Plan:
    """Return the plan that the flags describe. Raises InvalidPlan."""
    l1s = tuple(parse_l1(text) for text in args.l1 or () if text != "none")
    if not args.l1:
        l1s = (L1Plan(shared=True),)
    if args.l1_story:
        l1s += (SCENARIO_L1,)
    texts = list(args.behave)
    if args.behaviours:
        texts += _load_rules(args.behaviours)
    fees = None
    if args.fee_target is not None:
        fees = replace(fee_config(args.network_id), target=args.fee_target)
    return Plan(
        validators=args.validators,
        weights=args.weights,
        l1s=l1s,
        network_id=args.network_id,
        seed=args.seed,
        messages=args.messages,
        rsa=args.rsa,
        height=args.height,
        proposed_lag=args.proposed_lag,
        epoch_blocks=args.epoch_blocks,
        epoch_s=args.epoch_seconds,
        block_interval_s=args.block_interval,
        churn_every=args.churn,
        fees=fees,
        etna_height=args.etna_height,
        info_peers=args.info_peers,
        nodes=args.nodes,
        rules=tuple(parse_rule(text) for text in texts),
        node_rules=_node_rules(args.node_behave),
        settings=NodeSettings(
            version=VERSIONS[args.node_version],
            ping_interval_s=args.ping_interval,
            # As on nodes.
            read_timeout_s=args.ping_interval * 4 / 3,
            max_outstanding=args.max_outstanding,
        ),
    )


def _node_rules(texts: list[str]) -> tuple[NodeRule, ...]:
    try:
        return tuple(map(parse_node_rule, texts))
    except InvalidNodeBehaviour as error:
        raise InvalidPlan(str(error)) from None


def _load_rules(file: Path) -> list[str]:
    try:
        rules: Any = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidPlan(f"{file}: {error}") from None
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise InvalidPlan(f'{file}: expected a list of rules such as ["10%:slow=2s"]')
    return rules


def _announce(network: SimulatedNetwork, args: argparse.Namespace) -> int:
    """Write the files, then print that the network is ready.

    Returns the API port of the written config.
    """
    free_api_port, free_metrics_port = free_ports(2)
    ports = [args.api_port or free_api_port, args.metrics_port or free_metrics_port]
    if args.write_genesis:
        args.write_genesis.write_bytes(network.state.ledger.genesis)
    if args.write_config:
        config = aggregator_config(network, *ports)
        data_dir = args.write_config.absolute().with_name(f"{args.write_config.stem}-data")
        write_atomically(args.write_config, {**config, "data-dir": str(data_dir)})
    if args.write:
        write_atomically(args.write, network_report(network, *ports))
    words = [
        f"simnet ready node={network.node_uri}",
        f"network={network.network_id}",
        f"validators={len(network.validators)}",
        f"messages={len(network.messages)}",
    ]
    if args.write:
        words.append(f"file={args.write}")
    if args.write_config:
        words.append(f"config={args.write_config}")
    _say(" ".join(words))
    return ports[0]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _show_progress(done: int, total: int) -> None:
    if done % max(1, total // 20) == 0 or done == total:
        sys.stderr.write(f"pre-signed {done} of {total} messages\n")
        sys.stderr.flush()
