"""The base of the errors that reach a caller, and of those that end the program.

Each package has its own errors.

```
WarpsealError        its class has code, HTTP status, reference text and Retry-After
    InternalError
    InvalidRequest   a field of the request: api/signing, api/data, aggregation, delivery, l1,
                     messages
    ...              api/http (HTTP, limits, keys), api/data, aggregation (quorums), validators
                     (chains, heights), upstream (nodes), delivery, l1, messages, store, index,
                     usage
StartupError         the program cannot start
CallRefused          a JSON-RPC error of the node API
```

A new error is a class in its package's `errors.py`, and a row in docs/errors.md; a test compares
the two.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

RETRY_SOON_S: Final = 2
RETRY_LATER_S: Final = 10
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


class WarpsealError(Exception):
    """Base of every error that reaches a caller. `code` is stable; the text is for people.

    detail: facts for programs beyond the code: fields of `ErrorDetail` in api/http/error_bodies.py.
    http_status: HTTP status of the response.
    v1_status: HTTP status under `/v1` and `/v2`, whose specification has eight statuses only; None
        means `http_status`.
    default_text: the text of an error that is raised without one.
    reference_text: the reference aggregator's text, which its dialect has before the reason.
    retry_after_s: seconds of Retry-After; None sends no such header. An error may set its own.
    max_retry_after_s: bound of the Retry-After that the error sets.
    """

    code: ClassVar[str] = "internal_error"
    http_status: int = 500
    v1_status: ClassVar[int | None] = None
    default_text: ClassVar[str] = ""
    reference_text: ClassVar[str | None] = None
    retry_after_s: float | None = None
    max_retry_after_s: ClassVar[int] = 60

    def __init__(self, text: str = "", **detail: Any) -> None:
        super().__init__(text or self.default_text)
        self.detail = detail


class StartupError(Exception):
    """The program cannot start; the text says what to change. Ends the process with exit code 1."""


class CallRefused(Exception):
    """A refused call of the node API. Its text is the error of the JSON-RPC reply, with status 200.

    data: the data of the error, such as bytes that a contract returned with a revert.
    """

    def __init__(self, text: str = "", data: bytes = b"") -> None:
        super().__init__(text)
        self.data = data


class InternalError(WarpsealError):
    """An internal error of the daemon."""

    code = "internal_error"


class InvalidRequest(WarpsealError):
    """The request cannot be understood.

    field: the part of it, in the specification's spelling.
    """

    code = "invalid_request"
    http_status = 400

    def __init__(self, field: str, reason: str, **detail: Any) -> None:
        super().__init__(f"{field}: {reason}", field=field, reason=reason, **detail)
        self.field = field
        self.reason = reason
