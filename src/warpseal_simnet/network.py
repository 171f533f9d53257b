"""The simulated network: an async context that can be changed while it runs."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from hashlib import sha256
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID
from warpseal_simnet.addresses import sign_address
from warpseal_simnet.behaviours import (
    FIXED_FIELDS,
    Behaviour,
    InvalidBehaviour,
    ListenMode,
    parse_behaviour,
)
from warpseal_simnet.build import build_state, build_x_payments, seeded_id
from warpseal_simnet.destination import (
    Delivery,
    ReceivedMessage,
    RefusalCode,
    refuse,
    verify_in_block,
)
from warpseal_simnet.gossip import Gossip
from warpseal_simnet.identity import make_identity, replace_bls_key
from warpseal_simnet.info import NodeIdentity, choose_listed_peers
from warpseal_simnet.listener import LOOPBACK, Listener, reserve_port
from warpseal_simnet.manager import ValidatorManager
from warpseal_simnet.node import NodeContext, SimNode
from warpseal_simnet.p_chain import PChain
from warpseal_simnet.peer import SessionContext
from warpseal_simnet.plan import Plan
from warpseal_simnet.proposervm import ChainBlock
from warpseal_simnet.responder import Responder
from warpseal_simnet.sent_shares import SentShares
from warpseal_simnet.signing import LiveSigner, ShareSigner, presign
from warpseal_simnet.state import SimState
from warpseal_simnet.values import SimChain, SimMessage, SimSubnet, SimValidator
from warpseal_simnet.versions import Release
from warpseal_simnet.violations import Violations

_PRIVATE_HOST: Final = "10.255.255.254"
_PRIVATE_PORT: Final = 9651
_OTHER_FILES: Final = 128
# Addresses that are signed before other callbacks of the loop run.
_SIGNED_PER_TURN: Final = 20


class SimulatedNetwork:
    """Simulated validators, each with its own socket, and simulated nodes on the loopback address.

    Use as `async with SimulatedNetwork(Plan(...)) as network`. `validators` are in the order of
    their indices.
    """

    def __init__(
        self, plan: Plan, *, state: SimState | None = None, signer: ShareSigner | None = None
    ) -> None:
        """Build the network without starting it.

        state, signer: the state and the signer of a recording; None for those of the plan.
        """
        self.plan = plan
        self.state = build_state(plan) if state is None else state
        self.violations = Violations()
        self._signer = signer or LiveSigner(self.state)
        self._gossip = Gossip(self.state, Random(plan.seed + 2))
        responder = Responder(self.state, self._signer, Random(plan.seed + 3))
        self.context = SessionContext(
            self.state,
            plan.settings,
            self.violations,
            self._gossip,
            responder,
            SentShares(),
            Random(plan.seed + 4),
        )
        self._listeners = [Listener(validator, self.context) for validator in self.state.validators]
        listed_nodes = choose_listed_peers(
            self.state.validators, plan.info_peers, Random(plan.seed + 5)
        )
        self._listed_nodes = listed_nodes
        self.p_chain = PChain(self.state)
        self.x_transactions = build_x_payments(self.state, plan.seed)
        view = NodeContext(
            self.state,
            plan.settings,
            self.violations,
            listed_nodes,
            self.x_transactions,
            self.stats,
            self.context.sent_shares,
        )
        self.nodes = [SimNode(self._node_self(place), view) for place in range(plan.nodes)]
        for rule in plan.node_rules:
            for place in rule.places:
                self.nodes[place].behaviour = rule.behaviour
        self._stack = AsyncExitStack()

    @property
    def node_uri(self) -> str:
        """The base URL of the first node."""
        return self.nodes[0].uri

    @property
    def network_id(self) -> int:
        """The network ID."""
        return self.state.network_id

    @property
    def validators(self) -> list[SimValidator]:
        """All validators, by index."""
        return self.state.validators

    @property
    def subnets(self) -> tuple[SimSubnet, ...]:
        """The Primary Network, then the L1s in the order of the plan."""
        return tuple(self.state.subnets.values())

    @property
    def messages(self) -> tuple[SimMessage, ...]:
        """Every message that validators sign, chain by chain."""
        return tuple(self.state.messages)

    @property
    def calls(self) -> Counter[str]:
        """The number of calls per RPC method, over all nodes."""
        return sum((node.rpc.calls for node in self.nodes), Counter())

    def messages_of(self, subnet_id: SubnetID) -> list[SimMessage]:
        """Return the messages of a subnet's own chains, without P-Chain messages."""
        chains = [chain_id for chain_id in self.state.chains_of(subnet_id) if any(chain_id)]
        return [message for message in self.messages if message.unsigned.source_chain_id in chains]

    async def start(self, node_port: int = 0) -> None:
        """Start all listeners and nodes and sign the addresses.

        node_port: the port of the first node, 0 for any.
        """
        raise_file_limit(3 * len(self._listeners) + _OTHER_FILES)
        for place, listener in enumerate(self._listeners):
            await self._place(listener, int(self.plan.settings.clock()))
            if place % _SIGNED_PER_TURN == 0:
                await asyncio.sleep(0)
        for node in self.nodes:
            await node.start(node_port)
            self._stack.push_async_callback(node.stop)
            node_port = 0
        if self.plan.block_interval_s is not None:
            ticker = asyncio.create_task(self._make_blocks(self.plan.block_interval_s))
            self._stack.push_async_callback(_cancelled, ticker)

    async def stop(self) -> None:
        """Stop all listeners and nodes."""
        for listener in self._listeners:
            listener.close()
        await self._stack.aclose()
        # Connections close in the next iterations of the loop.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def presign(self, count: int, report: Callable[[int, int], None]) -> None:
        """Sign the first `count` messages of each chain with its validators; blocks.

        report: a function of the numbers of signed messages and of all messages.
        """
        firsts: Counter[bytes] = Counter()
        work = []
        for message in self.messages:
            chain_id = message.unsigned.source_chain_id
            firsts[chain_id] += 1
            if firsts[chain_id] <= count:
                signers = [
                    validator for validator in self.validators if chain_id in validator.chains
                ]
                work.append((message.unsigned, signers))
        with ThreadPoolExecutor() as executor:
            presign(work, executor, lambda done: report(done, len(work)))

    def set_behaviour(self, indices: int | Iterable[int], behaviour: Behaviour | str) -> None:
        """Change the behaviour of validators; `""` or `Behaviour()` makes them honest.

        Fields that are fixed when the network is built (reach, weight, balance …) stay. Raises
        InvalidBehaviour.
        """
        target = parse_behaviour(behaviour) if isinstance(behaviour, str) else behaviour
        if target.has_fixed_fields:
            raise InvalidBehaviour(
                f"{', '.join(FIXED_FIELDS)} cannot change while the network runs"
            )
        for index in (indices,) if isinstance(indices, int) else indices:
            before = self.validators[index].behaviour
            fixed_fields = {name: getattr(before, name) for name in FIXED_FIELDS}
            self.validators[index].behaviour = replace(target, **fixed_fields)

    def advance(self, blocks: int = 1) -> int:
        """Accept this many P-Chain blocks; return the height."""
        return self.state.advance(blocks)

    def build_block(self, chain_id: ChainID, messages: Sequence[bytes] = ()) -> list[Delivery]:
        """Build the next block of a chain with these signed messages; return their deliveries.

        The next block of the P-Chain is the next block of the network, and contains the
        transactions of accepted messages.
        """
        if chain_id == P_CHAIN:
            return self.p_chain.deliver(messages)
        chain, heights = self.state.chains[chain_id], self.state.heights
        block = self.state.proposervm[chain_id].build(self.state.clock(), heights.current)
        return [self._take(chain, block, raw) for raw in messages]

    def _take(self, chain: SimChain, block: ChainBlock, raw: bytes) -> Delivery:
        delivery = verify_in_block(self.state, chain, block, raw)
        if delivery.accepted and not self.state.messengers[chain.chain_id].receive(
            ReceivedMessage.parse(raw).unsigned
        ):
            return refuse(
                RefusalCode.ALREADY_DELIVERED, "TeleporterMessenger: message already received"
            )
        return delivery

    def verify_next(self, chain_id: ChainID, raw: bytes) -> Delivery:
        """Return whether a chain's next block accepts a message's signature if it is built now."""
        block = self.state.proposervm[chain_id].next_block(self.state.clock())
        return verify_in_block(self.state, self.state.chains[chain_id], block, raw)

    def set_idle(self, chain_id: ChainID, is_idle: bool = True) -> None:
        """Let a chain build blocks with each block of the P-Chain, or only by `build_block`."""
        self.state.proposervm[chain_id].is_idle = is_idle

    def change_weight(self, subnet_id: SubnetID, index: int, weight: int) -> int:
        """Change the weight of a validator with the next block; return that block's height.

        weight: the new weight; 0 removes the validator.
        On an L1 the change is a transaction of its manager.
        """
        validation = self.state.validation_of(subnet_id, self.validators[index].node_id)
        if validation.is_l1 and validation.present:
            self.p_chain.set_weight(validation.id, weight)
            return self.p_chain.height
        validation.present = weight > 0
        validation.weight = weight or validation.weight
        validation.min_nonce += validation.is_l1
        return self.advance()

    def set_balance(self, subnet_id: SubnetID, index: int, balance_navax: int) -> int:
        """Set an L1 validator's balance with the next block; return that block's height.

        balance_navax: the new balance; 0 makes the validator inactive.
        """
        validation = self.state.validation_of(subnet_id, self.validators[index].node_id)
        steps = [self.p_chain.disable(validation.id, later=True)] if validation.active else []
        if balance_navax:
            steps.append(self.p_chain.increase_balance(validation.id, balance_navax, later=True))
        return self.p_chain.accept(*steps) if steps else self.advance()

    def manager(self, subnet_id: SubnetID) -> ValidatorManager:
        """Return the validator manager contract of an L1."""
        return ValidatorManager(self.state, subnet_id)

    async def add_validator(self, subnet_id: SubnetID) -> int:
        """Start a node that tracks an L1 but does not validate it yet; return its index."""
        index = len(self.validators)
        identity = make_identity(seeded_id(self.plan, f"validator {index}"))
        validator = SimValidator(
            index, identity, identity.bls_public_key, False, frozenset((subnet_id,))
        )
        validator.chains.update((P_CHAIN, *self.state.chains_of(subnet_id)))
        self.state.add_validator(validator)
        listener = Listener(validator, self.context)
        self._listeners.append(listener)
        await self._place(listener, int(self.plan.settings.clock()))
        self._listed_nodes.add(validator.node_id)
        return index

    def change_bls_key(self, index: int) -> None:
        """Restart a node with another BLS key, with which it can register again.

        It no longer signs with the old key.
        Raises ValueError for a validator of the Primary Network, whose stake fixes its key.
        """
        validator = self.validators[index]
        if validator.validates_primary:
            raise ValueError("a stake fixes the key of a Primary Network validator")
        validator.identity = identity = replace_bls_key(validator.identity)
        validator.bls_key = identity.bls_public_key
        validator.shares.clear()
        validator.presigned.clear()
        if validator.address is not None:
            address = validator.address
            validator.address = sign_address(
                identity, address.host, address.port, address.signed_at + 1
            )
            self._gossip.addresses_changed()
        self.disconnect(index)

    def disconnect(self, index: int) -> None:
        """Close all connections of a validator, which continues to listen."""
        self._listeners[index].disconnect()

    def stop_validator(self, index: int) -> None:
        """Stop a validator, which keeps its port until it starts again."""
        self._listeners[index].suspend()

    async def start_validator(self, index: int, *, moved: bool = False) -> None:
        """Start a stopped validator at its address.

        moved: the validator gets another address, with a newer signature.
        """
        listener = self._listeners[index]
        address = listener.validator.address
        if address is not None and not moved:
            await listener.listen(address.port)
            return
        signed_at = int(self.plan.settings.clock())
        if address is not None:
            signed_at = max(signed_at, address.signed_at + 1)
        await self._place(listener, signed_at)

    async def upgrade_validator(self, index: int, release: Release) -> None:
        """Restart a validator with another release, at its address."""
        self.stop_validator(index)
        self.validators[index].release = release
        await self.start_validator(index)

    async def upgrade_node(self, place: int, release: Release) -> None:
        """Restart an RPC node with another release, on its port."""
        node = self.nodes[place]
        await node.down()
        node.release = release
        await node.up()

    def stats(self) -> dict[str, Any]:
        """Return the counters: RPC calls, and connections, requests and responses per validator."""
        validators = [
            {
                "index": validator.index,
                "nodeId": validator.name,
                "connections": validator.counts.connections,
                "open": validator.counts.open_connections,
                "handshakes": validator.counts.finished_handshakes,
                "appRequests": validator.counts.app_requests,
                "shares": validator.counts.shares,
                "refusals": validator.counts.refusals,
            }
            for validator in self.validators
        ]
        return {
            "height": self.state.heights.current,
            "calls": dict(self.calls),
            "validators": validators,
        }

    async def _place(self, listener: Listener, signed_at: int) -> None:
        """Let a validator listen as its behaviour says, and sign its address."""
        validator = listener.validator
        host, port = LOOPBACK, 0
        match validator.behaviour.reach:
            case ListenMode.PRIVATE:
                host, port = _PRIVATE_HOST, _PRIVATE_PORT
            case ListenMode.CLOSED:
                port = self._reserved_port()
            case _:
                port = await listener.listen()
        validator.address = sign_address(validator.identity, host, port, signed_at)
        self._gossip.addresses_changed()

    def _reserved_port(self) -> int:
        """Return a port that is bound but on which no process listens."""
        reservation = reserve_port(0)
        self._stack.callback(reservation.close)
        return int(reservation.getsockname()[1])

    def _node_self(self, place: int) -> NodeIdentity:
        if self.plan.node_is_validator:
            validator = self.validators[place]
            return NodeIdentity(validator.identity, validator)
        return NodeIdentity(
            make_identity(sha256(f"node {self.plan.seed} {place}".encode()).digest())
        )

    async def _make_blocks(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.advance()


def raise_file_limit(needed: int) -> None:
    """Raise the limit of open files to the hard limit. Raises OSError if that is below `needed`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OSError(
            f"{needed} open files are needed, and the limit is {hard}; raise it with ulimit -n"
        )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
