"""Keys of what signs: the reference aggregator's thirteen first, then our own of its API, its peers and its nodes."""

from __future__ import annotations

from typing import Final

from warpseal.config import values as v
from warpseal.config.key import COUNT, HOUR_S, MEBIBYTE, PORT, Key

SIGNING_KEYS: Final = (
    Key(
        "p-chain-api",
        "node.p_chain_api",
        v.one_or_more(v.node_endpoint),
        "node(s) for platform.* calls",
        "JSON",
        True,
        True,
    ),
    Key("info-api", "node.info_api", v.one_or_more(v.node_endpoint), "node(s) for info.* calls", "JSON", True, True),
    Key(
        "log-level",
        "log_level",
        v.one_of(*v.LOG_LEVELS),
        "how much is logged: " + ", ".join(v.LOG_LEVELS),
        "LEVEL",
        True,
    ),
    Key("api-port", "api.api_port", PORT, "port of the HTTP API; 0 takes a free one and prints it", "PORT", True),
    Key("metrics-port", "api.metrics_port", PORT, "port of /metrics; 0 takes a free one and prints it", "PORT", True),
    Key("signature-cache-size", "aggregation.signature_cache_size", COUNT, "messages whose shares are kept", "N", True),
    Key(
        "allow-private-ips", "peers.allow_private_ips", v.boolean, "dial validators at private addresses", "BOOL", True
    ),
    Key(
        "tracked-subnet-ids",
        "validators.tracked_subnet_ids",
        v.list_of(v.subnet_id),
        "subnets to stay connected to",
        "IDS",
        True,
    ),
    Key(
        "manually-tracked-peers",
        "peers.manual_peers",
        v.list_of(v.manual_peer),
        "nodes with a known address",
        "JSON",
        True,
    ),
    Key(
        "tls-cert-path",
        "peers.tls_cert_path",
        v.optional_path,
        "own certificate instead of the one in data-dir",
        "FILE",
        True,
    ),
    Key("tls-key-path", "peers.tls_key_path", v.optional_path, "key of tls-cert-path", "FILE", True),
    Key(
        "max-p-chain-lookback",
        "validators.max_p_chain_lookback",
        v.integer(-(10**18), 10**18),
        "how far back a requested height may lie; negative: any",
        reference=True,
    ),
    Key(
        "validator-refresh-period-seconds",
        "validators.validator_refresh_period_s",
        v.seconds(1, HOUR_S),
        "how often the followed validator sets are refreshed",
        "SECONDS",
        reference=True,
    ),
    Key("api-host", "api.api_host", v.text, "address that the HTTP API listens on", "HOST"),
    Key("metrics-host", "api.metrics_host", v.text, "address that /metrics listens on", "HOST"),
    Key("data-dir", "peers.data_dir", v.path_value, "folder of the identity and the known addresses", "DIR"),
    Key("network-names", "api.network_names", v.list_of(v.text), "names that {network} in a path may take", "NAMES"),
    Key(
        "request-timeout-seconds",
        "aggregation.default_timeout_s",
        v.seconds(0.1, HOUR_S),
        "a request's time",
        "SECONDS",
    ),
    Key(
        "max-request-timeout-seconds",
        "aggregation.max_timeout_s",
        v.seconds(0.1, HOUR_S),
        "the longest time that a request may ask for",
        "SECONDS",
    ),
    Key(
        "buffer-wait-seconds",
        "aggregation.buffer_wait_s",
        v.seconds(0, HOUR_S),
        "how long the buffer is awaited",
        "SECONDS",
    ),
    Key(
        "signature-cache-bytes", "aggregation.cache_bytes", v.integer(MEBIBYTE, 10**12), "memory for shares and answers"
    ),
    Key("max-requests-in-flight", "api.max_requests_in_flight", COUNT, "requests at once; half of them for one client"),
    Key("max-body-bytes", "api.max_body_bytes", v.integer(1024, 10**9), "largest request body"),
    Key("max-message-bytes", "api.max_message_bytes", v.integer(64, 10**9), "largest message or justification"),
    Key(
        "receive-timeout-seconds", "api.receive_timeout_s", v.seconds(0.1, HOUR_S), "time to send a request", "SECONDS"
    ),
    Key(
        "grace-period-seconds", "api.grace_period_s", v.seconds(0, HOUR_S), "time to finish requests on stop", "SECONDS"
    ),
    Key("ignore-unknown-fields", "api.ignore_unknown_fields", v.boolean, "ignore unknown request fields", "BOOL"),
    Key("advertised-version", "peers.advertised_version", v.version, "node version that peers are told", "X.Y.Z"),
    Key("max-connections", "peers.max_connections", COUNT, "peer connections at once"),
    Key("max-outstanding-per-peer", "peers.max_outstanding", v.integer(1, 1000), "unanswered requests to one peer"),
    Key(
        "max-requests-per-second-per-peer", "peers.max_sent_per_s", v.integer(1, 10**5), "requests a second to one peer"
    ),
    Key("node-timeout-seconds", "node.call_timeout_s", v.seconds(0.1, HOUR_S), "time of one call to a node", "SECONDS"),
    Key(
        "upstream-at-once",
        "node.upstream_max_concurrency",
        v.integer(1, 10**4),
        "calls to one node at once that callers cause",
    ),
    Key(
        "upstream-per-second",
        "node.upstream_calls_per_s",
        v.integer(1, 10**5),
        "calls a second to one node that callers cause",
    ),
    Key(
        "eager-l1-messages",
        "l1.eager_l1_messages",
        v.boolean,
        "sign what is accepted about tracked subnets at once, unasked",
        "BOOL",
    ),
)
