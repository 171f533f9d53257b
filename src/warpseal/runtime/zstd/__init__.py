"""zstd frames (RFC 8878) of a bounded size; the only importer of a zstd library.

zstandard compresses and decompresses, and from Python 3.15 on, for which it has no packages, the
standard library's `compression.zstd`. zstandard is the choice before, since only its decompressor
is used again for the next frame: a small frame takes 0.3 us instead of 8, which a request to 1,000
validators would notice.
"""

from __future__ import annotations

import sys
from typing import Final

if sys.version_info >= (3, 15):
    from warpseal.runtime.zstd import standard_library as _backend
else:
    from warpseal.runtime.zstd import zstandard_package as _backend

Compressor: Final = _backend.Compressor
Decompressor: Final = _backend.Decompressor
ZstdError: Final = _backend.ZstdError
