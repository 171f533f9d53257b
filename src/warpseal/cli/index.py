"""`warpseal index status|verify|rebuild|export`: indexes of the primary chains and EVM chains."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from warpseal.cli.index_queries import (
    EvmIndexLocation,
    describe_damage,
    find_evm_indexes,
    find_index,
    read_evm_progress,
    read_parameters,
    read_primary_progress,
    readable,
    rebuild_rows,
    resolve_chain,
    verify_index,
)
from warpseal.cli.index_run import CHAIN_NAMES, EVM_KEYS, NODE_KEYS, add_chain_argument
from warpseal.cli.message import NOT_CHECKED_EXIT_CODE
from warpseal.cli.process import Command, open_output, run_on_loop
from warpseal.cli.progress import ProgressDisplay
from warpseal.cli.running_daemon import duration, printable
from warpseal.cli.serve import add_config_arguments, add_setting_arguments, load_config
from warpseal.config.keys import Config
from warpseal.daemon.index_core import LOCK_NAME, locked_primary
from warpseal.errors import StartupError
from warpseal.index.checkpoint import decode_status
from warpseal.index.database import INDEX_NAME, UNDECODABLE, index_url, translate_bad_rows
from warpseal.index.database import MIGRATIONS as PRIMARY_MIGRATIONS
from warpseal.index.errors import IndexDamaged
from warpseal.index.evm.database import MIGRATIONS
from warpseal.index.evm.export import ExportSubject, Row, export_rows
from warpseal.index.read_session import ReadSession
from warpseal.index.rebuild import RebuildFailed
from warpseal.indexer.status import is_damaged
from warpseal.indexer.verify import IndexFinding
from warpseal.peers.data_dir import find_files
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.evm import describe_trace_gap
from warpseal.resources.progress import (
    MAX_REPORT_AGE_S,
    NOT_BEGUN,
    ChainProgress,
    progress_at,
    rounded_eta_s,
    rounded_rate,
)
from warpseal.runtime.go_time import rfc3339
from warpseal.runtime.process import error_words
from warpseal.store.access import open_read_only
from warpseal.store.connection import Connection
from warpseal.store.errors import StoreDown
from warpseal.store.migrate import Migrations, read_version
from warpseal.store.url import StoreUrl
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import ChainID, MalformedID, id_text

_SAMPLED: Final = 20
_ABOUT_VERIFY: Final = """\
Verify that the rows of the index are consistent, and that balances of sampled addresses, the
supply and the balances of L1 validators equal those of a node at the same height; of EVM chains,
that sampled blocks and holdings are those of the nodes. The exit code is 1 if anything differs,
and 3 if less than half of what can be compared with the nodes of a chain was.
"""
_ABOUT_REBUILD: Final = """\
Derive all rows of the primary chains again from the stored blocks, so that the index also has the
validator sets of heights that an earlier version indexed. No block is read from a node; if the
network is neither mainnet nor Fuji, a node reports its parameters.

Stop the indexer first (`index run`, or the daemon with index-chains); if index-url is a server,
those of all machines. Other daemons may run: they show the rows that exist, and until the end they
take validator sets from nodes, or with validator-sets=index sign nothing. If the command is
stopped, the indexer continues where it was.
"""
_ABOUT_EXPORT: Final = """\
Write all rows of one kind from the index of an EVM chain, in the order of the chain: NFT transfers,
NFT holdings, created contracts, blocks, or with `holders` ERC-20 balances after the blocks that
changed them. All rows are of one moment; the indexer may be running. docs/evm-index.md lists the
fields and the SQL by which a column store (ClickHouse) reads them.
"""


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show height, lag, rate, ETA and stop reason of each chain. The indexer may be running."
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--network", type=int, metavar="ID", help="network id, if data-dir has several"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_chain_argument(parser, "chain to show, instead of all: p, x, c or a name of an EVM chain")
    add_setting_arguments(
        parser, (*NODE_KEYS, *EVM_KEYS, "data-dir", "index-chains", "index"), has_network_id=True
    )


def _status(args: argparse.Namespace) -> int:
    config = load_config(args).config
    evm_chains = [
        _describe_evm_index(location, config) for location in find_evm_indexes(config, args.network)
    ]
    primary: dict[str, Any] = {}
    if config.indexer.chains or not evm_chains:
        primary |= _describe_primary_index(find_index(config, args.network), config)
    chains = [*primary.get("chains", ()), *evm_chains]
    chosen = {name: _chain_text(resolve_chain(config, name, args.network)) for name in args.chain}
    content = [chain for chain in chains if not chosen or chain["chain"] in chosen.values()]
    for name, chain in chosen.items():
        if chain not in {entry["chain"] for entry in content}:
            raise StartupError(f"--chain {name}: no such chain is indexed")
    if args.json:
        print(json.dumps({**primary, "chains": content}, indent=2))
    else:
        if "index" in primary:
            print(f"index: {primary['index']}")
        for chain in content:
            print(printable(", ".join(itertools.starmap(_format_field, chain.items()))))
    return 1 if any("stopped" in chain for chain in content) else 0


def _format_field(name: str, value: object) -> str:
    """Return a field of a chain; times are texts."""
    if name.endswith("Seconds") and isinstance(value, int | float):
        return f"{name.removesuffix('Seconds')} {duration(value)}"
    return f"{name} {value}"


def _describe_primary_index(url: StoreUrl, config: Config) -> dict[str, Any]:
    with readable(url):
        progress = run_on_loop(read_primary_progress(url, config))
    chains = [
        chain for chain in PrimaryChain if chain in progress or chain in config.indexer.chains
    ]
    content = [describe_chain(progress.get(chain, _not_begun(chain))) for chain in chains]
    return {"index": url.redacted, "chains": content}


def _not_begun(chain: PrimaryChain) -> ChainProgress:
    return ChainProgress(chain=chain.value, waiting=NOT_BEGUN)


def _describe_evm_index(location: EvmIndexLocation, config: Config) -> dict[str, Any]:
    progress = run_on_loop(read_evm_progress(location, config))
    content = describe_chain(replace(progress, chain=id_text(location.chain_id)))
    if progress.evm_chain_id is not None:
        internal = progress.traced_height
        content["internalHeight"] = "none" if internal is None else internal
        if progress.trace_gap is not None:
            content["internalGap"] = describe_trace_gap(progress.trace_gap)
        content = {
            "chain": content.pop("chain"),
            "evmChainId": progress.evm_chain_id,
            **content,
        }
    path = location.url.path
    if is_damaged(progress) or (path is not None and path.is_dir()):
        content.pop("waiting", None)
        return {**content, "stopped": IndexDamaged.code, "detail": progress.waiting}
    return content


def _chain_text(chain: PrimaryChain | ChainID) -> str:
    return chain.value if isinstance(chain, PrimaryChain) else id_text(chain)


def describe_chain(progress: ChainProgress) -> dict[str, Any]:
    """Return the line of a chain: how far it is indexed, its pace, and what it waits for or why it
    stopped.
    """
    progress = progress_at(progress, time.time())
    content = {"chain": progress.chain, **_describe_blocks(progress)}
    if progress.stop is not None:
        stop = progress.stop
        place = {} if stop.height is None else {"stoppedAt": stop.height}
        return {**content, "stopped": stop.reason, **place, "detail": stop.detail}
    if progress.waiting:
        content["waiting"] = progress.waiting
    if progress.waiting_since is not None:
        content["waitingSince"] = rfc3339(progress.waiting_since)
    if progress.blocks_per_s is not None:
        content["blocksPerSecond"] = rounded_rate(progress)
    if progress.eta_s is not None:
        content["etaSeconds"] = rounded_eta_s(progress)
    return content


def _describe_blocks(progress: ChainProgress) -> dict[str, Any]:
    if progress.height is None:
        return {}
    content: dict[str, Any] = {
        "height": progress.height,
        "nodeHeight": progress.node_height,
        "lagSeconds": progress.lag_s(time.time()),
    }
    if progress.first_height:
        content["firstHeight"] = progress.first_height
    if progress.is_node_behind:
        content["nodeIsBehind"] = True
    return content


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _ABOUT_VERIFY
    add_config_arguments(parser)
    add_chain_argument(
        parser,
        "chain to verify, instead of all: p for the primary chains, or a name of an EVM chain",
    )
    parser.add_argument(
        "--sample",
        type=int,
        default=_SAMPLED,
        metavar="N",
        help="addresses and validators to sample",
    )
    parser.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address to verify in addition; may be repeated",
    )
    limits = ("node-requests-per-second", "node-requests-in-flight")
    add_setting_arguments(
        parser,
        (*NODE_KEYS, *EVM_KEYS, "data-dir", "index", "index-chains", "genesis-file", *limits),
    )


def _verify(args: argparse.Namespace) -> int:
    config = load_config(args).config
    try:
        with ProgressDisplay() as display:
            work = verify_index(
                config, args.sample, tuple(args.address), args.chain, display.update
            )
            findings = run_on_loop(work)
    except (StoreDown, NodeUnavailable, MalformedID) as error:
        raise StartupError(str(error)) from None
    for line in _format_findings(findings):
        print(printable(line))
    wrong = sum(bool(finding.difference) for finding in findings)
    compared = sum(finding.is_compared for finding in findings)
    if any(finding.difference and not finding.chain for finding in findings):
        print("wrong rows of primary chains: stop the indexer, and run `warpseal index rebuild`")
    if any(finding.difference and finding.chain for finding in findings):
        print("wrong rows of an EVM chain: stop the indexer, and delete the index of that chain")
    print(f"{compared} of {len(findings)} compared, {wrong} wrong")
    if wrong or not compared:
        return 1
    too_few = list(_find_uncompared(findings))
    for line in too_few:
        print(printable(f"not enough compared: {line}"))
    return NOT_CHECKED_EXIT_CODE if too_few else 0


def _format_findings(findings: Sequence[IndexFinding]) -> Iterator[str]:
    """Yield lines about differences, checks that were not made, and contracts with remarks."""
    remarks: dict[tuple[str, str], list[IndexFinding]] = {}
    for finding in findings:
        if finding.difference:
            yield f"WRONG  {finding.subject}: {finding.difference}"
        elif not finding.is_compared:
            yield f"       {finding.subject}: not compared: {finding.reason}"
        elif finding.remark:
            place = finding.chain, finding.contract or finding.subject
            remarks.setdefault(place, []).append(finding)
    for (chain, contract), (first, *others) in remarks.items():
        if others:
            example = f"such as {first.subject}: {first.remark}"
            yield f"NOTE   {chain}: contract {contract}: {1 + len(others)} holdings, {example}"
        else:
            yield f"NOTE   {first.subject}: {first.remark}"


def _find_uncompared(findings: Sequence[IndexFinding]) -> Iterator[str]:
    """Yield the chains of which less than half of the possible comparisons were made."""
    for chain in dict.fromkeys(finding.chain for finding in findings):
        possible = [
            finding for finding in findings if finding.chain == chain and finding.is_comparable
        ]
        compared = sum(finding.is_compared for finding in possible)
        if 2 * compared < len(possible):
            yield f"{compared} of {len(possible)} of {chain or 'the primary chains'}"


def _add_rebuild_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _ABOUT_REBUILD
    add_config_arguments(parser)
    parser.add_argument(
        "--network", type=int, metavar="ID", help="network id, if data-dir has several"
    )
    limits = ("node-requests-per-second", "node-requests-in-flight")
    add_setting_arguments(
        parser, (*NODE_KEYS, "data-dir", "index", "genesis-file", *limits), has_network_id=True
    )


def _rebuild(args: argparse.Namespace) -> int:
    config = load_config(args).config
    data_dir = config.peers.data_dir
    names = {path.parent.name for path in find_files(data_dir, INDEX_NAME, LOCK_NAME)}
    names = names if args.network is None else {str(args.network)}
    if len(names) != 1:
        reason = f"no index process has used {data_dir}: name its network"
        if names:
            reason = f"several networks in {data_dir}: choose one"
        raise StartupError(f"{reason} with --network")
    folder = data_dir / names.pop()
    url = index_url(config.index, folder)
    _require_no_writer(url)
    with readable(url), locked_primary(folder), ProgressDisplay() as display:
        try:
            params = run_on_loop(read_parameters(config, int(folder.name)))
            began_at = time.monotonic()
            rebuild_rows(url, params, config.index, display.update)
        except NodeUnavailable as error:
            raise StartupError(str(error)) from None
        except RebuildFailed as error:
            raise StartupError(f"this version derives no rows of {error}") from None
    print(f"rebuilt the rows of {url.redacted} in {duration(time.monotonic() - began_at)}")
    return 0


def _require_no_writer(url: StoreUrl) -> None:
    """Check that no indexer of another machine reports to a server: no lock shows it.

    Raises StartupError.
    """
    with open_read_only(url, "index") as connection:
        _require_version(connection, url, PRIMARY_MIGRATIONS)
        rows = () if url.path is not None else connection.records("SELECT body FROM chain_status")
    reported_at = max((decode_status(row.body).written_at for row in rows), default=0)
    age_s = int(time.time()) - reported_at
    if age_s <= MAX_REPORT_AGE_S:
        advice = f"stop it, and try again {MAX_REPORT_AGE_S} s later"
        raise StartupError(f"{url.redacted}: an indexer reported {age_s} s ago: {advice}")


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _ABOUT_EXPORT
    parser.add_argument(
        "subject", type=ExportSubject, choices=tuple(ExportSubject), metavar="ROWS", help=_SUBJECTS
    )
    add_config_arguments(parser)
    parser.add_argument("--chain", metavar="CHAIN", help=f"{CHAIN_NAMES}, if several are indexed")
    parser.add_argument(
        "--network", type=int, metavar="ID", help="network id, if data-dir has several"
    )
    parser.add_argument(
        "--format", choices=tuple(_FORMATS), default="jsonl", help="JSON Lines (the default) or CSV"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write; the default is standard output"
    )
    add_setting_arguments(parser, (*NODE_KEYS, *EVM_KEYS, "data-dir", "index"), has_network_id=True)
    parser.usage = "%(prog)s ROWS [--chain CHAIN] [--config FILE] [--KEY VALUE ...]"


def _export(args: argparse.Namespace) -> int:
    config = load_config(args).config
    location = _find_evm_index(config, args.network, args.chain)
    count = 0
    with (
        _readable_rows(location),
        open_read_only(location.url, "index") as connection,
        connection.snapshot(),
    ):
        _require_version(connection, location.url, MIGRATIONS)
        with (
            open_output(args.output) as output,
            ProgressDisplay(writes_stdout=args.output is None) as display,
        ):
            for line in _FORMATS[args.format](export_rows(ReadSession(connection), args.subject)):
                output.write(line)
                count += 1
                display.update(f"exporting {args.subject}", count)
            output.flush()
    print(f"exported {count} {args.subject} of {id_text(location.chain_id)}", file=sys.stderr)
    return 0


def _require_version(connection: Connection, url: StoreUrl, migrations: Migrations) -> None:
    version = read_version(connection)
    if version != migrations.head:
        reason = f"has schema version {version}, and this program reads {migrations.head}"
        raise StartupError(f"{url.redacted}: the index {reason}")


@contextmanager
def _readable_rows(location: EvmIndexLocation) -> Iterator[None]:
    """Raise StartupError for rows that contradict each other, or cannot be decoded."""
    try:
        with translate_bad_rows():
            yield
    except (IndexDamaged, *UNDECODABLE) as error:
        damage = error if isinstance(error, IndexDamaged) else IndexDamaged(error_words(error))
        raise StartupError(describe_damage(damage, location.url)) from None


def _find_evm_index(config: Config, network: int | None, chain: str | None) -> EvmIndexLocation:
    """Return the index of the EVM chain that an operator names.

    Raises StartupError if none or several match.
    """
    locations = {
        id_text(location.chain_id): location for location in find_evm_indexes(config, network)
    }
    if chain is not None:
        chosen = _chain_text(resolve_chain(config, chain, network))
        locations = {name: location for name, location in locations.items() if name == chosen}
    if len(locations) != 1:
        if locations:
            names = ", ".join(locations)
            reason = f"several EVM chains are indexed: choose one with --chain: {names}"
        elif chain is None:
            reason = "no EVM chain is indexed"
        else:
            reason = f"--chain {chain}: no such EVM chain is indexed"
        raise StartupError(reason)
    return next(iter(locations.values()))


def _json_lines(rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"


def _csv_lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """Yield a line for each row; the names of the columns come before the first row."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(row)
        writer.writerow(row.values())
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


_FORMATS: Final = {"jsonl": _json_lines, "csv": _csv_lines}
_SUBJECTS: Final = f"what to write: {', '.join(ExportSubject)}"

STATUS: Final = Command(_add_status_arguments, _status)
VERIFY: Final = Command(_add_verify_arguments, _verify)
REBUILD: Final = Command(_add_rebuild_arguments, _rebuild)
EXPORT: Final = Command(_add_export_arguments, _export)
