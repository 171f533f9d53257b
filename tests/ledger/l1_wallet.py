"""Made-up transactions about L1s and their validators."""

from __future__ import annotations

from typing import Any

from tests.ledger.funded_wallet import FundedWallet
from tests.ledger.made_up_network import AVAX, C_CHAIN, bls_key, l1_owner, warp
from warpseal.chains.components import Input
from warpseal.chains.p_txs import (
    ConvertSubnetToL1Tx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    InitialValidator,
    PSignedTx,
    RegisterL1ValidatorTx,
    SetL1ValidatorWeightTx,
)
from warpseal.warp.ids import ChainID
from warpseal.warp.l1_messages import L1ValidatorWeight, PChainOwner, RegisterL1Validator


class L1Wallet(FundedWallet):
    """Makes transactions about L1s; each is None where there is nothing that it could be about."""

    def l1_makers(self) -> list[Any]:
        """Return what makes them."""
        return [
            self._convert,
            self._register,
            self._register,
            self._weigh,
            self._fund,
            self._disable,
        ]

    def _balance(self) -> int:
        # The lowest price of a second is 512, so that some balances end exactly with one.
        return self.random.choice((0, 600, 512 * self.random.randrange(1, 2000), 5_000_000, 10**9))

    def _convert(self) -> PSignedTx | None:
        subnet = self._one_of(self._permissioned())
        if subnet is None or len(self.model.managers) > 3:
            return None
        self._used.add(("changes", subnet))
        random = self.random
        validators = tuple(
            InitialValidator(
                random.randbytes(20),
                100,
                self._balance(),
                bls_key(random),
                l1_owner(random),
                l1_owner(random),
            )
            for _ in range(random.randrange(1, 5))
        )
        put_in = sum(validator.balance for validator in validators)
        address = random.randbytes(20)
        return self._simple(
            lambda base: ConvertSubnetToL1Tx(
                base, subnet, C_CHAIN, address, validators, Input((0,))
            ),
            {AVAX: put_in},
        )

    def _register(self) -> PSignedTx | None:
        subnet = self._one_of(self.model.managers)
        if subnet is None or len(self.model.l1) > 12:
            return None
        random, balance = self.random, self._balance()
        owners = self._l1_owners()
        registration = RegisterL1Validator(
            subnet,
            random.randbytes(20),
            random.randbytes(48),
            self._now + 60,
            *owners,
            random.randrange(1, 50),
        )
        message = warp(*self._manager(subnet), registration.encode())
        return self._simple(
            lambda base: RegisterL1ValidatorTx(base, balance, random.randbytes(96), message),
            {AVAX: balance},
        )

    def _l1_owners(self) -> tuple[PChainOwner, PChainOwner]:
        return l1_owner(self.random), l1_owner(self.random)

    def _manager(self, subnet: bytes) -> tuple[ChainID, bytes]:
        chain_id, address = self.model.managers[subnet]
        return ChainID(chain_id), address

    def _validation(self) -> Any:
        """Return one that no transaction of this block touched yet."""
        return self._one_of(key for key in self.model.l1 if ("l1", key) not in self._used)

    def _weigh(self) -> PSignedTx | None:
        key = self._validation()
        if key is None:
            return None
        validator = self.model.l1[key]
        others = [
            item
            for other, item in self.model.l1.items()
            if item.subnet == validator.subnet and other != key
        ]
        weight = self.random.choice((0, 5, 77)) if len(others) > 1 else 9
        self._used.add(("l1", key))
        nonce = validator.nonce + self.random.choice((0, 0, 3))
        change = L1ValidatorWeight(key, nonce, weight)
        message = warp(*self._manager(validator.subnet), change.encode())
        return self._simple(lambda base: SetL1ValidatorWeightTx(base, message))

    def _fund(self) -> PSignedTx | None:
        key, amount = self._validation(), self._balance() + 1
        if key is None:
            return None
        return self._simple(
            lambda base: IncreaseL1ValidatorBalanceTx(base, key, amount), {AVAX: amount}
        )

    def _disable(self) -> PSignedTx | None:
        key = self._validation()
        if key is None:
            return None
        self._used.add(("l1", key))
        return self._simple(lambda base: DisableL1ValidatorTx(base, key, Input((0,))))
