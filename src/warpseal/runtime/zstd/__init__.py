"""zstd frames (RFC 8878) of a bounded size; the only importer of a zstd library.

The package zstandard compresses and decompresses. From Python 3.15 on, for which it has no wheels,
the standard library's `compression.zstd` takes its place. It could do so from 3.14 on, and
`backports.zstd` before, but a decompressor of theirs ends with its frame, and a new one takes 8 us;
a decompressor of zstandard takes the next frame, 0.3 us for a small one. Each of the 1,000
validators that a new message asks sends such a frame: 8 ms of 61 (docs/benchmarks.md).
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
