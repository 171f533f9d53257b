"""What a request is about: the message, who signs it, at which height; and the parts that find these out."""

from __future__ import annotations

from dataclasses import dataclass

from warpseal.l1.derived import Derived
from warpseal.l1.heights import HeightChoice, HeightChooser
from warpseal.l1.origins import Origins
from warpseal.l1.ports import Chains
from warpseal.l1.request import L1Request
from warpseal.l1.transactions import Located, Transactions
from warpseal.l1.truths import Truths
from warpseal.warp.ids import SubnetID


@dataclass(frozen=True, slots=True)
class Subject:
    """at_least: a node below this P-Chain height proves nothing about the message. subnet_id: it signs."""

    located: Located
    derived: Derived
    at_least: int
    subnet_id: SubnetID
    choice: HeightChoice


@dataclass(frozen=True, slots=True)
class L1Parts:
    """What answers are put together from."""

    transactions: Transactions
    heights: HeightChooser
    truths: Truths
    origins: Origins
    chains: Chains

    async def subject(self, request: L1Request) -> Subject:
        """Return what a request is about.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, UnknownChain, NodeUnavailable.
        """
        located = await self.transactions.find(request.tx_id)
        derived = located.message()
        self.origins.learn(derived)
        subnet_id = await self.chains.subnet_of(derived.manager_chain_id)
        choice = await self.heights.choose(request.height, derived.manager_chain_id)
        return Subject(located, derived, located.height or 0, subnet_id, choice)
