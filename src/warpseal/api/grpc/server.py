"""A gRPC server on one port, until it is stopped.

Its calls have ids, log lines, counts and errors as HTTP requests do.

Source of truth: gRPC over HTTP/2; google/rpc/code.proto for the codes and their HTTP statuses;
google/rpc/error_details.proto. A method whose request is one message is served as one whose request
is a stream: so a call without its request is counted by the network of its client, and its request
has to come in time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode, aio
from starlette.types import Scope

from warpseal.aggregation.errors import QuorumImpossible
from warpseal.api.grpc.calls import (
    HEALTH,
    REFLECTION_V1,
    REFLECTION_V1ALPHA,
    SERVICE,
    Call,
    GrpcCalls,
)
from warpseal.api.http.clients import TrustedProxies
from warpseal.api.http.error_response import (
    Dialect,
    error_detail,
    error_text,
    retry_after_s,
    status_of,
)
from warpseal.api.http.errors import ShuttingDown
from warpseal.api.http.listener import Listener
from warpseal.api.http.middleware import (
    CLIENT_GONE,
    REQUEST_ID,
    as_warpseal_error,
    begin_trace,
    end_trace,
    find_request_id,
    is_from_this_machine,
    log_fields,
    log_request,
)
from warpseal.api.http.responses import response_headers
from warpseal.api.http.settings import ApiSettings
from warpseal.errors import StartupError, WarpsealError
from warpseal.metrics.registry import Metrics
from warpseal.runtime.process import os_error_text
from warpseal.runtime.request_id import new_request_id, request_id
from warpseal.store.errors import CursorExpired

# Of one connection: more than its client may have at once, since a client waits in place of being
# refused.
_MAX_STREAMS: Final = 1_000
_KEEPALIVE_MS: Final = 30_000
_MIN_PING_INTERVAL_MS: Final = 5_000
_DRAIN_S: Final = 1.0
_OK: Final = 200
Handle = Callable[[Call], Awaitable[bytes | None]]
DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "warpseal"
_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
}
# Errors whose request would be right at another time.
_CODES_OF_CLASSES: Final[Mapping[type[WarpsealError], StatusCode]] = {
    QuorumImpossible: StatusCode.FAILED_PRECONDITION,
    CursorExpired: StatusCode.OUT_OF_RANGE,
}
# Clients take 8 KiB of metadata by default, in Base64.
_MAX_DETAIL_BYTES: Final = 4_096
_MAX_TEXT_CHARACTERS: Final = 400


class GrpcServer:
    """Serves calls on the port of a listener, which it closes and takes over.

    `run` serves until `stop`, then ends the streams and finishes the other calls in flight.
    """

    def __init__(
        self, calls: GrpcCalls, listener: Listener, settings: ApiSettings, metrics: Metrics
    ) -> None:
        self._calls = calls
        self._listener = listener
        self._settings = settings
        self._metrics = metrics
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._grace_s = settings.grace_period_s
        self._stopping = asyncio.Event()
        # The tasks of calls, and whether each one is a stream.
        self._tasks: dict[asyncio.Task[Any], bool] = {}

    def stop(self, *, grace_s: float | None = None) -> None:
        """Let `run` return, as `HttpServer.stop` does."""
        if grace_s is not None:
            self._grace_s = grace_s
        self._stopping.set()

    async def run(self) -> None:
        """Serve until `stop`, or until cancelled: then everything ends at once.

        Raises StartupError.
        """
        server = self._build()
        await server.start()
        try:
            await self._stopping.wait()
            closing = asyncio.create_task(server.stop(self._grace_s + _DRAIN_S))
            self._end_calls(only_streams=True)
            await asyncio.wait((closing,), timeout=self._grace_s)
            self._end_calls(only_streams=False)
            await closing
        finally:
            await server.stop(None)

    def _build(self) -> aio.Server:
        settings, calls = self._settings, self._calls
        options = (
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_concurrent_streams", _MAX_STREAMS),
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_connection_idle_ms", int(settings.keep_alive_s * 1000)),
            ("grpc.server_handshake_timeout_ms", int(settings.receive_timeout_s * 1000)),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        )
        server = aio.server(options=options)
        methods: tuple[tuple[str, str, Handle, bool], ...] = (
            (SERVICE, "AggregateSignatures", calls.aggregate_signatures, False),
            (SERVICE, "GetSignedMessage", calls.get_signed_message, False),
            (SERVICE, "ListenEvents", calls.listen_events, True),
            (HEALTH, "Check", calls.check_health, False),
            (HEALTH, "Watch", calls.watch_health, True),
            (REFLECTION_V1, "ServerReflectionInfo", calls.reflect, True),
            (REFLECTION_V1ALPHA, "ServerReflectionInfo", calls.reflect, True),
        )
        for service, name, handle, is_stream in methods:
            build = grpc.stream_unary_rpc_method_handler
            if is_stream:
                build = grpc.stream_stream_rpc_method_handler
            handlers = {name: build(self._handler(f"/{service}/{name}", handle, is_stream))}
            generic = grpc.method_handlers_generic_handler(service, handlers)
            server.add_generic_rpc_handlers((generic,))
        host, port = self._listener.socket.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        add_port = server.add_insecure_port
        if settings.grpc_tls_file is not None:
            credentials = _read_credentials(settings.grpc_tls_file)
            add_port = partial(server.add_secure_port, server_credentials=credentials)
        # gRPC binds the port itself, so the listener gives it up first.
        self._listener.close()
        try:
            add_port(address)
        except RuntimeError:
            text = f"grpc-port {port} on {host} is in use: set another grpc-port"
            raise StartupError(text) from None
        return server

    def _handler(
        self, path: str, handle: Handle, is_stream: bool
    ) -> Callable[[Any, Any], Awaitable[bytes | None]]:
        async def respond(requests: Any, context: Any) -> bytes | None:
            scope = self._scope(path, context)
            current = find_request_id(scope) or new_request_id()
            token, trace, task = request_id.set(current), begin_trace(scope), asyncio.current_task()
            assert task is not None
            self._tasks[task] = is_stream
            # Clients end streams; of other calls they leave before the end.
            started, response, status = perf_counter(), None, _OK if is_stream else CLIENT_GONE
            error: WarpsealError | None = None
            try:
                response = await handle(Call(scope, context))
                status = _OK
            except asyncio.CancelledError:
                if context.done() or not self._stopping.is_set():
                    raise
                error = ShuttingDown()
            except aio.InternalError:
                # The client left during a read or a write, which ends before gRPC cancels the call.
                raise asyncio.CancelledError from None
            # The edge: the caller gets an error, the failure a log line.
            except Exception as failure:  # noqa: BLE001
                error = as_warpseal_error(failure)
            finally:
                del self._tasks[task]
                if error is not None:
                    log_fields(scope)["code"], status = error.code, status_of(error, Dialect.V1)
                self._metrics.observe_http(path, status)
                log_request(scope, status, perf_counter() - started)
                if trace is not None:
                    end_trace(trace, scope, path.lstrip("/"), status)
                request_id.reset(token)
            trailers = [(REQUEST_ID, current), *response_headers(scope).items()]
            if error is None:
                context.set_trailing_metadata(trailers)
                return response
            code, text, details = error_status(error, shows_addresses=is_from_this_machine(scope))
            try:
                await context.abort(code, text, (*trailers, (DETAILS_KEY, details)))
            except aio.InternalError:
                raise asyncio.CancelledError from None
            return None

        return respond

    def _scope(self, path: str, context: Any) -> Scope:
        """Return a call as ASGI has requests."""
        metadata = [
            (name.encode(), value.encode() if isinstance(value, str) else value)
            for name, value in context.invocation_metadata() or ()
        ]
        # Such as ipv4:127.0.0.1:50000 or ipv6:%5B::1%5D:50000.
        host, _, port = unquote(context.peer().partition(":")[2]).rpartition(":")
        client = (host.strip("[]"), port)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": metadata,
            "client": client,
        }
        self._proxies.set_client(scope)
        return scope

    def _end_calls(self, *, only_streams: bool) -> None:
        for task, is_stream in self._tasks.items():
            if is_stream or not only_streams:
                task.cancel()


def _read_credentials(file: Path) -> grpc.ServerCredentials:
    """Return the credentials in a PEM file with a certificate chain and a private key.

    Raises StartupError.
    """
    try:
        # This checks more than gRPC does, and says what is wrong.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file)
        content = file.read_bytes()
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else os_error_text(error)
        text = f"grpc-tls-file {file}: expected PEM of a certificate chain and its key: {reason}"
        raise StartupError(text) from None
    return grpc.ssl_server_credentials([(content, content)])


def error_status(error: WarpsealError, *, shows_addresses: bool) -> tuple[StatusCode, str, bytes]:
    """Return the code, the text and the serialized google.rpc.Status of an error."""
    code = _CODES_OF_CLASSES.get(type(error)) or _CODES[status_of(error, Dialect.V1)]
    text = _text(error_text(error)[:_MAX_TEXT_CHARACTERS])
    detail = msgspec.to_builtins(error_detail(error, shows_addresses=shows_addresses))
    status, seconds = Status(code=code.value[0], message=text), retry_after_s(error)
    status.details.add().Pack(ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_texts(detail)))
    if seconds is not None:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    return code, text, status.SerializeToString()


def _texts(detail: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a detail as texts, the longest of which are shortened or left out."""
    texts, left_bytes = {}, _MAX_DETAIL_BYTES
    for name, value in sorted(detail.items(), key=lambda item: len(str(item[1]))):
        text = _text(value)
        while len(text) > left_bytes and isinstance(value, list | tuple) and value:
            value = value[: len(value) // 2]
            text = _text(value)
        if len(text) <= left_bytes:
            texts[name] = text
            left_bytes -= len(text)
    return texts


def _text(value: Any) -> str:
    # A request may have half of a surrogate pair.
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text.encode("utf-8", "replace").decode()
