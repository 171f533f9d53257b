"""Configuration: layers, the file of the reference, and a report of every error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpseal.api.data.settings import Compat
from warpseal.api.http.settings import origin
from warpseal.config.keys import KEYS
from warpseal.config.load import REMOVED_KEYS, ConfigError, find_service_addresses, load
from warpseal.forwarding.evm.served_l1s import served_chain
from warpseal.index.database import index_url
from warpseal.index.evm.database import evm_index_url
from warpseal.runtime.settings import InvalidSetting, choice, list_of
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, id_text

NODE = {"base-url": "http://127.0.0.1:9650"}
LEAST = {"p-chain-api": NODE, "info-api": NODE}
PEER = {"id": "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg", "ip": "203.0.113.7:9651"}
REFERENCE_FILE = {
    "log-level": "debug",
    "p-chain-api": {
        **NODE,
        "query-parameters": {"token": "canary"},
        "http-headers": {"x-key": "canary"},
    },
    "info-api": NODE,
    "api-port": 8090,
    "metrics-port": 8091,
    "signature-cache-size": 1024,
    "allow-private-ips": True,
    "tracked-subnet-ids": [id_text(PRIMARY_NETWORK)],
    "manually-tracked-peers": [PEER],
    "tls-cert-path": "/keys/staker.crt",
    "tls-key-path": "/keys/staker.key",
    "max-p-chain-lookback": -1,
    "validator-refresh-period-seconds": 30,
}


def write(folder: Path, content: Any) -> Path:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def errors_of(folder: Path, content: Any, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(write(folder, content), {}, environ)
    return [str(setting_error) for setting_error in error.value.errors]


def test_all_thirteen_keys_of_the_reference_have_its_meaning(tmp_path: Path) -> None:
    config = load(write(tmp_path, REFERENCE_FILE), {}, {}).config
    assert len([key for key in KEYS if key.setting.is_reference]) == len(REFERENCE_FILE) == 13
    assert config.logs.level == "debug"
    assert config.node.p_chain_api[0].query_parameters == {"token": "canary"}
    assert (config.api.api_port, config.api.metrics_port) == (8090, 8091)
    assert config.aggregation.signature_cache_size == 1024
    assert config.peers.allow_private_ips is True
    assert config.validators.tracked_subnet_ids == (PRIMARY_NETWORK,)
    assert [(peer.host, peer.port) for peer in config.peers.manual_peers] == [("203.0.113.7", 9651)]
    assert config.peers.tls_key_path == Path("/keys/staker.key")
    assert config.validators.max_p_chain_lookback == -1
    assert config.validators.validator_refresh_period_s == 30


def test_a_minimal_file_names_two_nodes_and_gets_the_reference_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path, LEAST), {}, {}).config
    assert (config.api.api_port, config.api.metrics_port) == (8080, 8081)
    assert config.aggregation.signature_cache_size == 1048576
    assert config.validators.max_p_chain_lookback == 1000
    assert config.validators.validator_refresh_period_s == 60
    assert config.peers.allow_private_ips is False


def test_a_flag_wins_over_the_prefixed_environment_over_the_bare_one_over_the_file(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, {**LEAST, "api-port": 1})
    bare = {"API_PORT": "2"}
    prefixed = {**bare, "WARPSEAL_API_PORT": "3"}
    ports = [
        load(file, flags, environ).config.api.api_port
        for flags, environ in [({}, {}), ({}, bare), ({}, prefixed), ({"api-port": "4"}, prefixed)]
    ]
    assert ports == [1, 2, 3, 4]


def test_our_own_keys_have_no_bare_environment_name(tmp_path: Path) -> None:
    file = write(tmp_path, LEAST)
    assert load(file, {}, {"API_HOST": "192.0.2.1"}).config.api.api_host == "0.0.0.0"
    assert load(file, {}, {"WARPSEAL_API_HOST": "127.0.0.1"}).config.api.api_host == "127.0.0.1"


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_a_removed_key_is_refused_with_what_replaced_it(tmp_path: Path, name: str) -> None:
    assert name not in {key.name for key in KEYS}
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, name: 1}), {}, {})
    assert f"{name}: removed: {REMOVED_KEYS[name]}" in str(error.value)
    variable = "WARPSEAL_" + name.upper().replace("-", "_")
    with pytest.raises(ConfigError, match=f"{variable}: removed: "):
        load(write(tmp_path, LEAST), {}, {variable: "1"}, strict=True)


def test_sets_come_from_an_index_only_if_there_is_one(tmp_path: Path) -> None:
    advice = "name p in index-chains, or set validator-sets to node"
    for source in ("both", "index"):
        (setting_error,) = errors_of(tmp_path, {**LEAST, "validator-sets": source})
        assert setting_error.startswith(
            f"validator-sets: {source} needs the index of the P-Chain: {advice}"
        )
    p_chain = {"index-chains": ["p"]}
    sources = [
        load(write(tmp_path, {**LEAST, **keys}), {}, {}).config.set_source
        for keys in ({}, {"index-chains": ["x"]}, p_chain, {**p_chain, "validator-sets": "node"})
    ]
    assert sources == ["node", "node", "both", "node"]


def test_there_are_at_most_80_keys() -> None:
    assert len(KEYS) <= 80


def test_node_keys_are_read_from_their_avalanchego_environment_names(tmp_path: Path) -> None:
    environ = {
        "AVAGO_API_ADMIN_ENABLED": "true",
        "AVAGO_API_HEALTH_ENABLED": "false",
        "AVAGO_HEALTH_CHECK_FREQUENCY": "1m30s",
        "AVAGO_PLUGIN_DIR": "/n/plugins",
        "AVAGO_LOG_DIR": "/n/logs",
        "AVAGO_HTTP_ALLOWED_HOSTS": "a.example b.example",
        "AVAGO_HTTP_ALLOWED_ORIGINS": "https://a.example https://b.example",
        "AVAGO_CHAIN_ALIASES_FILE": "/n/chains.json",
    }
    assert len([key for key in KEYS if key.setting.is_node]) == len(environ)
    config = load(write(tmp_path, LEAST), {}, environ).config
    assert (config.node_api.admin_enabled, config.node_api.health_enabled) == (True, False)
    assert config.health.check_frequency_s == 90
    assert (config.plugins.plugin_dir, config.logs.folder) == (Path("/n/plugins"), Path("/n/logs"))
    assert config.node_api.allowed_hosts == ("a.example", "b.example")
    assert config.api.http_allowed_origins == ("https://a.example", "https://b.example")
    assert config.node_api.chain_aliases_file == Path("/n/chains.json")


def test_the_warpseal_environment_name_wins_over_the_avalanchego_name_and_both_over_the_file(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, {**LEAST, "log-dir": "/file"})
    theirs = {"AVAGO_LOG_DIR": "/node", "AVAGO_LOG_LEVEL": "debug", "LOG_DIR": "/bare"}
    loaded = load(file, {}, theirs)
    assert (loaded.config.logs.folder, loaded.sources["log-dir"]) == (
        Path("/node"),
        "environment AVAGO_LOG_DIR",
    )
    assert loaded.config.logs.level == "info"
    assert load(file, {}, {**theirs, "WARPSEAL_LOG_DIR": "/ours"}).config.logs.folder == Path(
        "/ours"
    )


def test_the_environment_alone_can_configure_the_daemon() -> None:
    environ = {
        "P_CHAIN_API": json.dumps(NODE),
        "INFO_API": json.dumps([NODE, NODE]),
        "ALLOW_PRIVATE_IPS": "true",
    }
    config = load(None, {}, environ).config
    assert len(config.node.info_api) == 2
    assert config.peers.allow_private_ips is True


def test_every_error_is_reported_with_its_path(tmp_path: Path) -> None:
    wrong = {
        "p-chain-api": [NODE, {"base-url": "ftp://x", "query-params": {}}],
        "api-port": 70000,
        "metrics_port": 1,
        "tracked-subnet-ids": [id_text(PRIMARY_NETWORK), "nope"],
        "manually-tracked-peers": [{"id": "NodeID-x", "ip": "203.0.113.7"}],
        "allow-private-ips": "perhaps",
    }
    messages = errors_of(tmp_path, wrong)
    paths = [setting_error.split(":")[0] for setting_error in messages]
    assert paths == [
        "p-chain-api[1].query-params",
        "p-chain-api[1].base-url",
        "api-port",
        "metrics_port",
        "tracked-subnet-ids[1]",
        "manually-tracked-peers[0].id",
        "manually-tracked-peers[0].ip",
        "allow-private-ips",
        "info-api",
    ]
    assert "did you mean query-parameters?" in messages[0]
    assert "did you mean metrics-port?" in messages[3]
    assert all(
        setting_error.endswith(f" (file {tmp_path / 'config.json'})")
        for setting_error in messages[:-1]
    )


def test_contradictory_keys_are_reported_with_all_other_errors(tmp_path: Path) -> None:
    wrong = {
        **LEAST,
        "metrics-port": 8080,
        "request-timeout-seconds": 99,
        "max-body-bytes": "x",
        "tls-key-path": 1,
    }
    assert [setting_error.split(":")[0] for setting_error in errors_of(tmp_path, wrong)] == [
        "max-body-bytes",
        "tls-key-path",
        "request-timeout-seconds",
        "metrics-port",
    ]


@pytest.mark.parametrize(
    ("url", "right"),
    [
        (
            "https://node.example/ext/bc/P",
            "/ext/bc/P, which the daemon appends itself; use https://node.example",
        ),
        (
            "https://node.example:9650/ext/info/",
            "/ext/info, which the daemon appends itself; use https://node.example:9650",
        ),
        (
            "http://127.0.0.1:9650/ext/bc/C/rpc",
            "/ext/bc/C/rpc, which the daemon appends itself; use http://127.0.0.1:9650",
        ),
        (
            "https://u:canary@node.example/canary/ext/P?k=canary",
            "/ext/P, which the daemon appends itself; use https://…@node.example/…?…",
        ),
        (
            "https://node.example/ext/bc/canary-1/x",
            "/ext/…, which the daemon appends itself; use https://node.example",
        ),
    ],
)
def test_a_base_url_that_ends_in_an_api_path_is_refused_with_the_right_one(
    tmp_path: Path, url: str, right: str
) -> None:
    for content in ({"base-url": url}, url):
        path = "info-api" if content == url else "info-api.base-url"
        (setting_error,) = errors_of(tmp_path, {**LEAST, "info-api": content})
        assert (
            setting_error
            == f"{path}: ends in the path of an API, {right} (file {tmp_path / 'config.json'})"
        )


def test_a_node_may_be_given_by_its_base_url_as_text(tmp_path: Path) -> None:
    url = NODE["base-url"]
    file = write(tmp_path, {"p-chain-api": url, "info-api": [url, NODE]})
    for loaded in (load(file, {}, {}), load(None, {"info-api": url}, {"P_CHAIN_API": url})):
        assert (
            loaded.config.node.p_chain_api
            == load(write(tmp_path, LEAST), {}, {}).config.node.p_chain_api
        )
        assert {node.base_url for node in loaded.config.node.info_api} == {url}


def test_every_error_of_an_entry_is_reported(tmp_path: Path) -> None:
    chain = "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"
    wrong = {
        "evm-chains": [
            {"blockchain-id": chain, "rpc": "http://127.0.0.1:1/rpc"},
            {
                "blockchain-id": chain,
                "rpc": [{"http-headers": 1}],
                "ws": "http://x",
                "deny-methods": ["a b"],
                "wss": 1,
            },
            {"blockchain-id": "x"},
            {"blockchain-id": "43114", "rpc": ["http://x"], "index": {"form": 1, "traces": "on"}},
            {
                "blockchain-id": "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5",
                "rpc": ["http://x"],
                "index": 1,
            },
            "text",
        ],
        "index-from": {"q": 1, "c": -1},
    }
    messages = errors_of(tmp_path, {**LEAST, **wrong})
    assert [setting_error.split(":")[0] for setting_error in messages] == [
        "evm-chains[1].wss",
        "evm-chains[1].blockchain-id",
        "evm-chains[1].rpc[0].base-url",
        "evm-chains[1].rpc[0].http-headers",
        "evm-chains[1].ws[0]",
        "evm-chains[1].deny-methods[0]",
        "evm-chains[2].rpc",
        "evm-chains[2].blockchain-id",
        "evm-chains[3].blockchain-id",
        "evm-chains[3].index.form",
        "evm-chains[3].index.traces",
        "evm-chains[4].index",
        "evm-chains[5]",
        "index-from.q",
        "index-from.c",
    ]
    assert "expected an object, found text" in messages[12]
    assert "is an EVM chain id" in messages[8]


def test_an_error_names_the_variable_or_the_flag_that_it_came_from(tmp_path: Path) -> None:
    environ = {
        "WARPSEAL_API_PORT": "x",
        "SIGNATURE_CACHE_SIZE": "0",
        "AVAGO_API_ADMIN_ENABLED": "loud",
    }
    with pytest.raises(ConfigError) as error:
        load(
            write(tmp_path, {**LEAST, "api-port": 1}),
            {"metrics-port": "70000", "api-host": "h"},
            environ,
        )
    assert {
        str(setting_error).partition(":")[0]: setting_error.source
        for setting_error in error.value.errors
    } == {
        "api-port": "environment WARPSEAL_API_PORT",
        "metrics-port": "flag --metrics-port",
        "signature-cache-size": "environment SIGNATURE_CACHE_SIZE",
        "api-admin-enabled": "environment AVAGO_API_ADMIN_ENABLED",
    }


def test_an_unknown_level_is_answered_with_the_one_that_is_like_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "log-level": "warning"}), {}, {})
    assert error.value.errors[0].reason.endswith("found 'warning'; did you mean warn?")


def test_an_address_with_brackets_is_one_that_can_listen(tmp_path: Path) -> None:
    for text, host in (
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::]", "::"),
    ):
        assert (
            load(write(tmp_path, {**LEAST, "api-host": text}), {}, {}).config.api.api_host == host
        )
    for text in ("[::1]:8080", "localhost:8080", "[localhost]", "http://localhost"):
        with pytest.raises(
            ConfigError, match="api-host: expected an address or a name without a port"
        ):
            load(write(tmp_path, {**LEAST, "api-host": text}), {}, {})


def test_an_unknown_variable_is_an_error_of_a_strict_check_only(tmp_path: Path) -> None:
    file = write(tmp_path, LEAST)
    environ = {
        "WARPSEAL_API_PROT": "1",
        "WARPSEAL_BLS": "blspy",
        "WARPSEAL_CONFIG_FILE": "x",
        "WARPSEAL_EMPTY": "",
    }
    (unknown,) = load(file, {}, environ).unknown_names
    assert str(unknown).startswith("WARPSEAL_API_PROT: unknown")
    assert str(unknown).endswith("did you mean WARPSEAL_API_PORT?")
    with pytest.raises(ConfigError) as error:
        load(file, {}, environ, strict=True)
    assert error.value.errors == (unknown,)


def test_variables_that_kubernetes_sets_for_services_are_ignored_with_a_notice(
    tmp_path: Path,
) -> None:
    """For services named "api", "warpseal-metrics" and "warpseal"."""
    environ = {
        "API_PORT": "tcp://10.0.0.1:80",
        "API_SERVICE_HOST": "10.0.0.1",
        "WARPSEAL_METRICS_PORT": "udp://10.0.0.2:81",
        "WARPSEAL_METRICS_SERVICE_PORT_HTTP": "81",
        "WARPSEAL_PORT": "tcp://10.0.0.3:8080",
        "WARPSEAL_PORT_8080_TCP_ADDR": "10.0.0.3",
        "WARPSEAL_PORT_8080_TCP_PORT": "8080",
        "WARPSEAL_SERVICE_HOST": "10.0.0.3",
        "WARPSEAL_SERVICE_PORT": "8080",
    }
    loaded = load(write(tmp_path, {**LEAST, "api-port": 1}), {}, environ, strict=True)
    assert (loaded.config.api.api_port, loaded.config.api.metrics_port) == (1, 8081)
    notices = list(find_service_addresses(environ))
    assert [notice.path for notice in notices] == ["API_PORT", "WARPSEAL_METRICS_PORT"]
    assert "tcp://10.0.0.1:80" in notices[0].reason


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "nul", '{"api-port": 1, "api-port": 2}', "[" * 100_000]
)
def test_a_file_without_a_json_object_is_refused(tmp_path: Path, content: str) -> None:
    assert errors_of(tmp_path, content)


def test_a_missing_file_is_reported_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot be read"):
        load(Path("nowhere.json"), {}, {})
    with pytest.raises(ConfigError, match=r"nowhere\.json: .* \(environment CONFIG_FILE\)"):
        load(Path("nowhere.json"), {}, {"CONFIG_FILE": "nowhere.json"})


def test_keys_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    wrong = {
        **LEAST,
        "tls-key-path": "k",
        "api-port": 9000,
        "metrics-port": 9000,
        "request-timeout-seconds": 56,
    }
    assert [setting_error.split(":")[0] for setting_error in errors_of(tmp_path, wrong)] == [
        "tls-cert-path",
        "request-timeout-seconds",
        "metrics-port",
    ]


def test_a_node_whose_l1s_are_indexed_needs_tracked_subnets(tmp_path: Path) -> None:
    node = {**LEAST, "index-l1s-at": "http://10.0.0.5:9650"}
    for wrong in (node, {**node, "tracked-subnet-ids": []}):
        (setting_error,) = errors_of(tmp_path, wrong)
        assert (
            setting_error
            == "index-l1s-at: finds no chain without tracked-subnet-ids: name the subnets of the"
            " L1s in tracked-subnet-ids, or the chains in evm-chains with index (file"
            f" {tmp_path / 'config.json'})"
        )
    (setting_error,) = errors_of(tmp_path, {**node, "tracked-subnet-ids": ["x"]})
    assert setting_error.startswith("tracked-subnet-ids[0]: ")
    load(write(tmp_path, {**node, "tracked-subnet-ids": [id_text(bytes([9]) * 32)]}), {}, {})


def test_messages_are_signed_ahead_only_with_an_index(tmp_path: Path) -> None:
    keys = {**LEAST, "eager-icm": [id_text(bytes([9]) * 32)]}
    chain = {"blockchain-id": id_text(bytes([8]) * 32), "rpc": "http://10.0.0.5:9650/rpc"}
    for wrong in (keys, {**keys, "evm-chains": [chain]}):
        (setting_error,) = errors_of(tmp_path, wrong)
        assert setting_error.startswith(
            "eager-icm: has no effect without an index: set index in evm-chains, or "
        )
    loaded = load(write(tmp_path, {**keys, "evm-chains": [{**chain, "index": True}]}), {}, {})
    assert loaded.config.delivery.eager_icm_subnet_ids == (bytes([9]) * 32,)


def test_methods_of_the_gateway_need_its_nodes(tmp_path: Path) -> None:
    keys = {**LEAST, "gateway-methods": ["platform.*", "!platform.getTx"]}
    (setting_error,) = errors_of(tmp_path, keys)
    assert setting_error.startswith("gateway-methods: has no effect without gateway-nodes: ")
    load(write(tmp_path, {**keys, "gateway-nodes": NODE}), {}, {})


def test_a_description_of_a_setting_never_shows_a_secret(tmp_path: Path) -> None:
    secret = {
        "base-url": "https://user:canary@node.example/canary?key=canary",
        "http-headers": {"k": "canary"},
    }
    config = load(
        write(tmp_path, {"p-chain-api": secret, "info-api": [secret, NODE]}), {}, {}
    ).config
    values = [key.json_value(config) for key in KEYS]
    assert values[:2] == [
        ["https://node.example:443"],
        ["https://node.example:443", "http://127.0.0.1:9650"],
    ]
    assert "canary" not in json.dumps(values)


def test_evm_chains_are_read_and_show_no_secret(tmp_path: Path) -> None:
    chain = "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj"
    icm = {"icm": False, "icm-messengers": ["0x68d42653c8455969edae4f89281f4b9ed3e9080d"]}
    entry = {
        "blockchain-id": chain,
        "rpc": [
            "https://user:secret@gateway.example/key-1234/rpc",
            {"base-url": "http://127.0.0.1:9650/ext/bc/C/rpc"},
        ],
        "ws": ["wss://gateway.example/key-1234/ws"],
        "upgrade-file": "/etc/upgrade.json",
        "deny-methods": ["debug_*", "eth_sendRawTransaction"],
        "index": {"from": 7, "metadata": "all", "holders": True, **icm},
    }
    config = load(write(tmp_path, {**LEAST, "evm-chains": [entry]}), {}, {}).config
    (read,) = config.node.evm_chains
    assert read.rpc[0].url("").path == "/key-1234/rpc"
    assert read.deny_methods == ("debug_*", "eth_sendRawTransaction")
    assert read.upgrade_file == Path("/etc/upgrade.json")
    chains = next(key for key in KEYS if key.name == "evm-chains").json_value(config)
    indexing = {"from": 7, "traces": "auto", "metadata": "all", "holders": True, **icm}
    rpc = ["https://gateway.example:443", "http://127.0.0.1:9650"]
    assert chains == [{**entry, "rpc": rpc, "ws": ["wss://gateway.example:443"], "index": indexing}]
    assert "secret" not in repr(config.node.evm_chains)
    assert "key-1234" not in repr(config.node.evm_chains)


def test_errors_in_evm_chains_are_reported_without_their_urls(tmp_path: Path) -> None:
    good = {
        "blockchain-id": "vs2wd1aY1xQNEe22GQGQQBssHsZwjYJSUCC9bq65eCX4KAHBj",
        "rpc": ["http://127.0.0.1:1/rpc"],
    }
    bad = {
        "blockchain-id": "x",
        "rpc": [],
        "ws": ["http://key.example/secret"],
        "deny-methods": ["a b"],
    }
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "evm-chains": [bad]}), {}, {})
    assert str(error.value.errors[0].path).startswith("evm-chains[0].")
    with pytest.raises(ConfigError) as error:
        load(
            write(
                tmp_path, {**LEAST, "evm-chains": [{**good, "ws": ["http://key.example/secret"]}]}
            ),
            {},
            {},
        )
    assert "secret" not in str(error.value)
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "evm-chains": [good, good]}), {}, {})
    assert [setting_error.path for setting_error in error.value.errors] == [
        "evm-chains[1].blockchain-id"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", ("*",)),
        ("https://a.example, http://b:8080/", ("https://a.example", "http://b:8080")),
        ("[]", ()),
    ],
)
def test_an_origin_is_a_site_or_a_star(text: str, expected: tuple[str, ...]) -> None:
    assert list_of(origin)(text, "http-allowed-origins") == expected


@pytest.mark.parametrize(
    "text", ["console.example", "https://a/b", "https://u@a", "ftp://a", "https://a?b"]
)
def test_a_malformed_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="origins"):
        list_of(origin)([text], "http-allowed-origins")


def test_compat_is_one_of_three_words() -> None:
    assert choice(Compat)("SDK", "compat") is Compat.SDK
    with pytest.raises(InvalidSetting, match="expected one of spec, sdk, auto"):
        choice(Compat)("both", "compat")


def test_the_price_source_is_checked_and_shown_without_its_key(tmp_path: Path) -> None:
    document = {"price-url": "https://prices.example/canary/{date}?key=canary#a.{currency}.0"}
    config = load(write(tmp_path, {**LEAST, **document}), {}, {}).config
    assert config.prices.url == document["price-url"]
    assert "canary" not in json.dumps([key.json_value(config) for key in KEYS])
    with pytest.raises(ConfigError, match=r"price-url: \{day_of_year\} means nothing"):
        load(write(tmp_path, {**LEAST, "price-url": "https://a/{day_of_year}"}), {}, {})
    with pytest.raises(ConfigError, match=r"price-url: \{date\} means nothing"):
        load(write(tmp_path, {**LEAST, "price-url": "https://a/#{date}"}), {}, {})


def test_no_more_nodes_must_agree_than_are_named(tmp_path: Path) -> None:
    other = {"base-url": "https://other.example"}
    for nodes, counted in (
        (NODE, "1 node"),
        ([NODE, NODE], "1 node"),
        ([NODE, other], "2 different nodes"),
    ):
        (setting_error,) = errors_of(tmp_path, {**LEAST, "p-chain-api": nodes, "p-chain-quorum": 3})
        assert (
            setting_error
            == f"p-chain-quorum: 3 nodes must agree, and p-chain-api names {counted}: add nodes"
            f" (file {tmp_path / 'config.json'})"
        )
    (setting_error,) = errors_of(tmp_path, {**LEAST, "p-chain-quorum": 0})
    assert setting_error.startswith("p-chain-quorum: ")
    config = load(
        write(tmp_path, {**LEAST, "p-chain-api": [NODE, other], "p-chain-quorum": 2}), {}, {}
    ).config
    assert config.node.p_chain_quorum == 2


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("127.0.0.1:9650", "write http://127.0.0.1:9650"),
        ("localhost:9650", "write http://localhost:9650"),
        ("10.1.2.3:9650", "write http://10.1.2.3:9650"),
        ("avalanchego:9650", "write http://avalanchego:9650"),
        ("api.avax.network", "write https://api.avax.network"),
        ("8.8.8.8:9650/path", "write https://8.8.8.8:9650/path"),
    ],
)
def test_a_url_without_a_scheme_is_named_with_the_likely_one(
    tmp_path: Path, url: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "info-api": url}), {}, {})
    (setting_error,) = error.value.errors
    assert (setting_error.path, setting_error.reason) == (
        "info-api",
        f"expected http:// or https:// and a host, found '{url}': {advice}",
    )


def test_a_url_with_a_possible_secret_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "info-api": "user:s3cr3t@node:9650"}), {}, {})
    assert "s3cr3t" not in str(error.value)


def test_a_malformed_node_id_is_named_with_its_error_and_where_a_right_one_is_found(
    tmp_path: Path,
) -> None:
    peer = {"id": "NodeID-x", "ip": "127.0.0.1:9651"}
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, {**LEAST, "manually-tracked-peers": [peer]}), {}, {})
    (setting_error,) = error.value.errors
    assert setting_error.path == "manually-tracked-peers[0].id"
    assert "expected NodeID- and its base58-check text, found 'NodeID-x' (" in setting_error.reason
    assert setting_error.reason.endswith("; a node shows its own by info.getNodeID")


def test_the_node_whose_l1s_are_indexed_may_be_an_object_with_holders(tmp_path: Path) -> None:
    tracked = {"tracked-subnet-ids": [id_text(b"\x01" * 32)]}
    chains = []
    for node in ("http://10.0.0.5:9650", {"base-url": "http://10.0.0.5:9650", "holders": True}):
        for setting in (node, json.dumps(node) if isinstance(node, dict) else node):
            config = load(
                write(tmp_path, {**LEAST, **tracked, "index-l1s-at": setting}), {}, {}
            ).config
            assert config.node.index_l1s_at is not None
            chain = served_chain(config.node.index_l1s_at, ChainID(b"\x02" * 32))
            assert chain.index is not None
            chains.append((chain.rpc[0].display, chain.index.has_holders))
    assert chains == [("http://10.0.0.5:9650", False)] * 2 + [("http://10.0.0.5:9650", True)] * 2
    wrong = {"base-url": "http://10.0.0.5:9650", "holders": "yes?"}
    assert (
        "index-l1s-at.holders"
        in errors_of(tmp_path, {**LEAST, **tracked, "index-l1s-at": wrong})[0]
    )


def test_each_chain_and_the_primary_chains_may_have_a_database_with_replicas(
    tmp_path: Path,
) -> None:
    own, shared = ("postgresql://me:canary@busy/index", "postgresql://me:canary@replica/index")
    chain = {"blockchain-id": id_text(bytes([7]) * 32), "rpc": NODE["base-url"], "index": True}
    apart = {
        **chain,
        "blockchain-id": id_text(bytes([8]) * 32),
        "index-url": own,
        "index-read-urls": [shared],
    }
    keys = {
        "index-url": {"primary": own, "evm": "sqlite:////indexes/index.db"},
        "evm-chains": [chain, apart],
    }
    file = write(tmp_path, {**LEAST, **keys, "index-read-urls": {"primary": [shared]}})
    config = load(file, {}, {}).config
    primary = index_url(config.index, tmp_path)
    assert (primary.redacted, [url.redacted for url in primary.replicas]) == (
        "postgresql://me:***@busy/index",
        ["postgresql://me:***@replica/index"],
    )
    assert {url.schema for url in (primary, *primary.replicas)} == {"warpseal_index"}
    usual, moved = (
        evm_index_url(config.index, tmp_path, ChainID(bytes([number]) * 32)) for number in (7, 8)
    )
    assert (usual.path, usual.replicas) == (
        Path("/indexes/evm", f"{chain['blockchain-id']}.db"),
        (),
    )
    assert (moved.redacted, len(moved.replicas)) == ("postgresql://me:***@busy/index", 1)
    texts = json.dumps([key.json_value(config) for key in KEYS]) + repr(config)
    assert ("canary" in texts, texts.count("postgresql://me:***@replica/index")) == (False, 2)
    # One line moves a chain to a file of its own; from the environment, the value is JSON text.
    environ = {"WARPSEAL_INDEX_URL": json.dumps({"evm": "sqlite:////b/index.db"})}
    entry = {**chain, "index-url": "sqlite:////own/busy.db"}
    config = load(write(tmp_path, {**LEAST, "evm-chains": [entry]}), {}, environ).config
    assert evm_index_url(config.index, None, ChainID(bytes([7]) * 32)).path == Path("/own/busy.db")
    assert index_url(config.index, tmp_path).path == tmp_path / "index.db"


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"index-url": {"x": "postgresql://h/i"}}, "index-url.x: unknown key"),
        (
            {"index-url": {"evm": "http://h/i"}},
            'index-url.evm: expected "sqlite:///PATH" or "postgresql://..."',
        ),
        ({"index-url": 7}, "index-url: expected text"),
        (
            {"index-read-urls": ["postgresql://h/i"]},
            "index-read-urls: are replicas of a PostgreSQL server",
        ),
        (
            {"index-url": "postgresql://h/i", "index-read-urls": ["sqlite:////i.db"]},
            "index-read-urls[0]: expected",
        ),
        (
            {"index-url": "postgresql://h/i", "index-read-urls": ["postgresql://h"]},
            "index-read-urls[0]: expected the",
        ),
        (
            {"index-url": "postgresql://h/i", "index-read-urls": ["postgresql://a,b/i"]},
            "index-read-urls[0]: expected one",
        ),
        (
            {"store-url": "sqlite:////i.db", "index-url": "sqlite:////i.db"},
            "index-url: is the file of store-url too",
        ),
        (
            {"evm-chains": [{"index-url": "sqlite:////i.db"}, {"index-url": "sqlite:////i.db"}]},
            "evm-chains[1].index-url: is the file of evm-chains[0].index-url too",
        ),
        ({"evm-chains": [{"index-url": "off"}]}, "evm-chains[0].index-url: expected"),
        (
            {"evm-chains": [{"index": False, "index-url": "postgresql://h/i"}]},
            "evm-chains[0].index-url: has no effect",
        ),
        (
            {"evm-chains": [{"index-read-urls": ["postgresql://h/i"]}]},
            "evm-chains[0].index-read-urls: these are",
        ),
    ],
)
def test_databases_that_no_index_can_use_are_refused(
    tmp_path: Path, keys: dict[str, Any], error: str
) -> None:
    for number, chain in enumerate(keys.get("evm-chains", ())):
        own = {
            "blockchain-id": id_text(bytes([number]) * 32),
            "rpc": NODE["base-url"],
            "index": True,
        }
        keys["evm-chains"][number] = own | chain
    errors = errors_of(tmp_path, {**LEAST, **keys})
    assert [text.startswith(error) for text in errors] == [True], errors
