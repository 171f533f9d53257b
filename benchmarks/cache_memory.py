"""(t) The memory of a full cache of shares and results against `signature-cache-bytes`.

Fresh processes fill the cache of shares and results as rounds of 100 and of 5 validators do, twice
its default size, so that everything was evicted and replaced once. Then a daemon signs as many new
messages of 100 validators as fit into a cache of 64 MiB. Growth of resident memory counts from the
moment before; in the daemon it contains everything else that grew in that time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from benchmarks.daemon import Start, daemon
from benchmarks.network import NetworkPlan, simulated_network
from benchmarks.process import Process, running
from benchmarks.report import Aim, Figure, Report
from warpseal import bls
from warpseal.aggregation.goals import QuorumGoal
from warpseal.aggregation.result_cache import ResultCache, SignedResult
from warpseal.aggregation.settings import AggregationSettings
from warpseal.aggregation.share_cache import SHARE_COST_BYTES, ShareCache, SharedByteLimit
from warpseal.warp.ids import MessageID

SIZES = (100, 5)
QUICK_BYTES = 16 * 2**20
# A quarter of the default: the shares of the network are signed beforehand, and more would take
# many minutes.
DAEMON_BYTES = 64 * 2**20
# As many shares of 100 as a round takes, and bytes of a signed message apart from its bit set.
ASKED_PERCENT = 95
RESULT_BYTES = 320
# The cache is filled, and then filled again, so that the entries of the second time lie where
# others were evicted.
FILLINGS = 2
RSS_AIM = Aim(1.3)
READY = "filled"
CACHE_BYTES = "warpseal_cache_bytes"
WARM_UPS = 50
CLIENTS = 8
CHAINS = 20
SETTLE_S = 2.0


def run(quick: bool) -> Report:
    """Fill the caches of a fresh process for each size of the validator set, then those of a
    daemon.
    """
    limit_bytes = QUICK_BYTES if quick else AggregationSettings().cache_bytes
    figures: list[Figure] = []
    for validators in SIZES:
        with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
            arguments = (str(validators), str(limit_bytes))
            with running(
                arguments, Path(folder) / "log", module="benchmarks.cache_memory"
            ) as process:
                result = json.loads(process.ready_line)
        at = f"{validators} validators: "
        figures += [
            Figure(
                at + "growth of resident memory / signature-cache-bytes",
                result["grown"] / limit_bytes,
                "x",
                RSS_AIM,
            ),
            Figure(at + "the same / bytes counted as used", result["grown"] / result["used"], "x"),
            Figure(at + "messages in the cache", result["messages"], ""),
            Figure(at + "resident bytes per share", result["grown"] / result["shares"], "B"),
        ]
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as folder:
        figures += asyncio.run(_fill_daemon(Path(folder), min(limit_bytes, DAEMON_BYTES)))
    notes = (
        (
            "entries as rounds add them, evicted and replaced once; the memory of idle arenas is"
            " included"
        ),
    )
    return Report("cache_memory", quick, tuple(figures), notes)


async def _fill_daemon(folder: Path, limit_bytes: int) -> list[Figure]:
    """Fill the cache of a daemon with rounds of a hundred validators."""
    validators = max(SIZES)
    count = limit_bytes // (SHARE_COST_BYTES * validators * ASKED_PERCENT // 100)
    each = -(-(count + WARM_UPS) // CHAINS)
    plan = NetworkPlan(
        validators, (), each, ("--l1", f"validators={validators},shared,chains={CHAINS}")
    )
    with simulated_network(plan, folder) as network:
        messages = iter(network.messages(network.subnet_of_size(validators)))
        keys = {"signature-cache-bytes": limit_bytes, "signature-cache-size": 10**6}
        async with daemon(network, Start(folder / "daemon", keys=keys)) as subject:
            await subject.connected()
            for _ in range(WARM_UPS):
                await subject.sign(next(messages))
            before_bytes, used_bytes = subject.process.rss_bytes(), await subject.value(CACHE_BYTES)

            async def sign_all() -> None:
                for message in messages:
                    await subject.sign(message)

            await asyncio.gather(*[sign_all() for _ in range(CLIENTS)])
            await asyncio.sleep(SETTLE_S)
            grown = subject.process.rss_bytes() - before_bytes
            used = await subject.value(CACHE_BYTES)
    at = f"daemon, {validators} validators: "
    return [
        Figure(
            at + "growth of resident memory / growth of the bytes counted as used",
            grown / (used - used_bytes),
            "x",
            RSS_AIM,
        ),
        Figure(at + "bytes counted as used / signature-cache-bytes", used / limit_bytes, "x"),
        Figure(at + "growth of resident memory", grown / 2**20, "MiB"),
    ]


def fill(validators: int, limit_bytes: int) -> dict[str, int]:
    """Fill the caches as rounds do; return the figures of it by name."""
    settings = AggregationSettings(cache_bytes=limit_bytes)
    limit = SharedByteLimit(limit_bytes)
    shares = ShareCache(settings.signature_cache_size, limit)
    results = ResultCache(limit, limit_bytes, settings.below_buffer_ttl_s)
    secrets = [bls.generate_secret(sha256(b"%d" % number).digest()) for number in range(validators)]
    keys = [bls.public_key_bytes(bls.derive_public_key(secret)) for secret in secrets]
    members = [
        (key, bls.sign(secret, b"message")) for key, secret in zip(keys, secrets, strict=True)
    ]
    digest, goal = sha256(b"set").digest(), QuorumGoal(67, 0, 0.0, validators)
    signer_count = -(-validators * ASKED_PERCENT // 100)
    process = Process(os.getpid(), READY, Path())
    gc.collect()
    before = process.rss_bytes()
    for number in range(FILLINGS * limit_bytes // (signer_count * SHARE_COST_BYTES)):
        message_id = MessageID(sha256(b"%d" % number).digest())
        for public_key, raw in members[:signer_count]:
            # The bytes of a share come in a frame of their own.
            shares.get_or_add(message_id, public_key, bytes(bytearray(raw)))
        signed = os.urandom(RESULT_BYTES + validators // 8)
        results.put(
            message_id, digest, SignedResult(signed, goal.target_weight, signer_count), goal, 0.0
        )
    gc.collect()
    return {
        "grown": process.rss_bytes() - before,
        "used": limit.used_bytes,
        "messages": len(shares),
        "shares": signer_count * len(shares),
    }


if __name__ == "__main__":
    print(json.dumps(fill(*map(int, sys.argv[1:]))), flush=True)
    sys.stdin.read()
