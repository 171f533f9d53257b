"""Settings of signing for a destination."""

from __future__ import annotations

from warpseal.runtime.settings import Group, Settings, list_of, setting
from warpseal.validators.settings import subnet_id
from warpseal.warp.ids import SubnetID


class DeliverySettings(Settings, frozen=True):
    """Durations in seconds.

    window_s: time from the response to the block with the message, in which an epoch of the
        destination may end.
    sets_timeout_s: longest wait for the validator sets of heights other than the message's.
    advice_timeout_s: longest wait for the height that a message needs.
    next_timeout_s: longest wait for a second message.
    """

    eager_icm_subnet_ids: tuple[SubnetID, ...] = setting(
        (),
        "eager-icm",
        list_of(subnet_id),
        "subnets whose indexed chains' ICM messages are signed before a relayer asks",
        "IDS",
        group=Group.NETWORK,
    )
    window_s: float = 30.0
    sets_timeout_s: float = 1.0
    advice_timeout_s: float = 0.5
    next_timeout_s: float = 5.0
