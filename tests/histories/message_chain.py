"""An EVM chain with ICM messages, and the process that indexes it for both daemons."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final, NoReturn

from tests import paths
from tests.chains.evm.icm_logs import PRECOMPILE, Message
from tests.histories.operations import DRIVER, ChainEvent, Operation
from tests.indexer.evm_chains import Log, MadeUpChain, Tx
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.integration.daemon import write_config_file
from warpseal.store.values import EventType
from warpseal.warp.ids import ChainID, id_text
from warpseal_simnet.network import SimulatedNetwork

_BLOCK_PAUSE_S: Final = 0.5
# No other chain has an index: its messages are known from the blocks that receive them.
_OTHER: Final = ChainID(bytes([0xC]) * 32)


class MessageChain:
    """The chain of the first L1, which gets blocks while it is served.

    events: its ICM events in their order, as `ChainEvent` names them.
    """

    def __init__(
        self, network: SimulatedNetwork, record: Callable[[Operation], None], random: Random
    ) -> None:
        subnet_id = network.subnets[1].subnet_id
        self.chain_id = network.state.chains_of(subnet_id)[0]
        self.events: list[str] = []
        self._blocks = MadeUpChain()
        served = dataclasses.replace(self._blocks.chain, blockchain_id=self.chain_id)
        self._node = EvmReplayNode(served)
        self._record = record
        self._random = random
        self._people = [self._blocks.address(number) for number in range(4)]
        self._nonce = 0
        self._failed: list[Message] = []

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Serve the chain by a node."""
        async with serving_evm(self._node):
            yield

    def config(self, index_url: str) -> dict[str, Any]:
        """Return the keys of a daemon or an index process with an index of the chain."""
        entry = {
            "blockchain-id": id_text(self.chain_id),
            "rpc": [self._node.url],
            "index": {"metadata": "off"},
        }
        return {"index-url": index_url, "index-low-priority": False, "evm-chains": [entry]}

    async def build_blocks(self) -> NoReturn:
        """Add blocks with messages, until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 2 * _BLOCK_PAUSE_S))
            self.build_block()

    def build_block(self) -> None:
        """Add a block with up to two transactions, each of which sends or receives a message."""
        begin, events, txs = monotonic(), list[str](), list[Tx]()
        for _ in range(self._random.choice((0, 1, 1, 2))):
            message, logs, types = self._draw_transaction()
            txs.append(Tx(self._people[0], PRECOMPILE, logs))
            events += [f"{kind.value} 0x{message.id.hex()}" for kind in types]
        # The node has the block from now on.
        self._blocks.add(txs)
        for event in events:
            self._record(
                ChainEvent(
                    process=DRIVER,
                    begin=begin,
                    end=monotonic(),
                    place=len(self.events),
                    event=event,
                )
            )
            self.events.append(event)

    def _draw_transaction(self) -> tuple[Message, Sequence[Log], Sequence[EventType]]:
        """Return a message, and the logs and the events of a transaction with it."""
        random, relayer = self._random, self._people[0]
        action = random.choice(("send", "receive", "fail", "retry"))
        if action == "retry" and self._failed:
            message = self._failed.pop()
            return message, message.executed(), [EventType.ICM_EXECUTED]
        self._nonce += 1
        sender, recipient = random.sample(self._people, 2)
        if action in ("send", "retry"):
            message = Message(self.chain_id, _OTHER, self._nonce, sender, recipient)
            return message, message.sent(), [EventType.ICM_SENT]
        message = Message(_OTHER, self.chain_id, self._nonce, sender, recipient)
        is_executed = action == "receive"
        if not is_executed:
            self._failed.append(message)
        last = EventType.ICM_EXECUTED if is_executed else EventType.ICM_FAILED
        logs = message.received(relayer, relayer, is_executed=is_executed)
        return message, logs, [EventType.ICM_RECEIVED, last]


@asynccontextmanager
async def run_indexer(
    network: SimulatedNetwork, folder: Path, keys: Mapping[str, Any], seed: int
) -> AsyncIterator[None]:
    """Run the index process, which both daemons share and nothing disturbs but their server.

    seed: draws how wrong its clock is.
    """
    config = write_config_file(network, folder, keys)
    with (folder / "indexer.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.histories.index_process", str(seed)),
            *("index", "run", "--config", str(config)),
            cwd=paths.ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
        assert process.returncode is None, f"see {folder}/indexer.log"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
