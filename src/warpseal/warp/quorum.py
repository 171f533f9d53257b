"""When a quorum is met: integers only, rounded up.

Source of truth: avalanchego `vms/platformvm/warp/signature.go`.
"""

from __future__ import annotations


def required_weight(total: int, percentage: int) -> int:
    """Return the least weight that is at least `percentage` percent of `total`."""
    return -(-total * percentage // 100)


def meets(signed: int, total: int, percentage: int) -> bool:
    """Tell whether weight `signed` out of `total` reaches `percentage` percent, as verifiers compute it."""
    return percentage * total <= 100 * signed
