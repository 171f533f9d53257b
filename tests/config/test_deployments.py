"""The chart, the compose file and the units fit the settings, paths and ports of the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.paths import ROOT
from warpseal.api.openapi.document import document
from warpseal.cli.main import main
from warpseal.config.load import Loaded, load
from warpseal.indexer.subprocess import HEARTBEAT_NAME
from warpseal.version import __version__

CONFIGS: Final = ROOT / "configs"
CHART: Final = CONFIGS / "helm"
COMPOSE: Final = CONFIGS / "compose"
UNITS: Final = CONFIGS / "systemd"
HELM: Final = ROOT / ".venv" / "helm" / "helm" / "helm"
STORE_URL: Final = "postgresql://warpseal:s3cr3t@10.0.0.9/warpseal"
C_CHAIN: Final = "yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp"
SHARED: Final[Mapping[str, Any]] = {
    "replicas": 3,
    "sharedStore": True,
    "secret": "keys",
    "identitySecret": "identities",
    "indexChains": [{"name": "p", "chain": "p"}, {"name": "c-evm", "chain": C_CHAIN}],
    "networkPolicy": {
        "clients": [{"podSelector": {}}],
        "scrapers": [{"namespaceSelector": {}}],
        "ports": [],
    },
    "monitoring": {
        "serviceMonitor": True,
        "alerts": True,
        "dashboards": True,
        "labels": {"release": "prometheus"},
    },
    "config": {
        "p-chain-api": [{"base-url": "http://10.0.0.5:9650"}, {"base-url": "http://10.0.0.6:9650"}],
        "info-api": "http://10.0.0.5:9650",
        "p-chain-quorum": 2,
        "api-port": 9080,
        "grpc-port": 9090,
        "metrics-api-port": 9091,
        "grace-period-seconds": 40,
        "index-chains": ["p"],
        "index-from": {"c": 30_000_000},
        "evm-chains": [
            {
                "blockchain-id": C_CHAIN,
                "rpc": [f"http://10.0.0.5:9650/ext/bc/{C_CHAIN}/rpc"],
                "index": True,
            }
        ],
    },
}
"""Values of a release with everything that the chart has."""

Manifest = dict[str, Any]


def _helm_reason() -> str:
    """Return why helm does not run here; empty if it does."""
    if not HELM.exists():
        return "helm is not installed: `make test` installs it by npm"
    try:
        subprocess.run([HELM, "version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "the package of helm is for Linux on x86-64"
    return ""


needs_helm = pytest.mark.skipif(bool(_helm_reason()), reason=_helm_reason())


def helm(
    folder: Path, values: Mapping[str, Any], *command: str
) -> subprocess.CompletedProcess[str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    return subprocess.run(
        [HELM, *command, CHART, "--values", file], capture_output=True, text=True, check=False
    )


def render(folder: Path, values: Mapping[str, Any]) -> list[Manifest]:
    rendered = helm(folder, values, "template", "release-1")
    assert rendered.returncode == 0, rendered.stderr
    return [manifest for manifest in yaml.safe_load_all(rendered.stdout) if manifest]


def select(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def pods(manifests: list[Manifest]) -> list[Manifest]:
    return [
        item["spec"]["template"] for item in select(manifests, "StatefulSet", "Deployment", "Job")
    ]


def load_rendered(folder: Path, manifests: list[Manifest], container: Mapping[str, Any]) -> Loaded:
    """Load the configuration as the process of a container does. The Secret has a store."""
    file = folder / "config.json"
    content = [
        item["data"] for item in select(manifests, "ConfigMap") if "config.json" in item["data"]
    ]
    file.write_text(content[0]["config.json"])
    environ = {item["name"]: item.get("value", STORE_URL) for item in container.get("env", ())}
    return load(file, {}, environ | {"WARPSEAL_DATA_DIR": "/data"}, strict=True)


def probes(container: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (
        container[name]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
        if name in container
    )


def test_the_chart_has_the_dashboards_the_alerts_and_the_version_of_the_repository() -> None:
    assert (CHART / "alerts.yml").resolve() == CONFIGS / "prometheus" / "alerts.yml"
    assert (CHART / "dashboards").resolve() == CONFIGS / "grafana"
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_the_values_of_the_chart_are_those_of_its_schema_and_hold_a_valid_config(
    tmp_path: Path,
) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, part in schema["properties"].items():
        if "properties" in part and name != "config":
            assert part["properties"].keys() == values[name].keys()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values["config"]))
    assert load(file, {}, {}).config.node.p_chain_api


@needs_helm
@pytest.mark.parametrize("values", [{}, SHARED], ids=["one daemon", "everything"])
def test_the_chart_is_linted_and_its_pods_have_few_rights_and_limits_and_probes(
    tmp_path: Path, values: Mapping[str, Any]
) -> None:
    linted = helm(tmp_path, values, "lint", "--strict")
    assert linted.returncode == 0, linted.stdout
    manifests = render(tmp_path, values)
    daemons, *_ = select(manifests, "StatefulSet")
    rendered = pods(manifests)
    assert len(rendered) == (4 if values else 1)
    for pod in rendered:
        spec, labels = pod["spec"], pod["metadata"]["labels"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volume_names = {volume["name"] for volume in spec["volumes"]}
        if labels["app.kubernetes.io/component"] == "daemon":
            volume_names |= {
                claim["metadata"]["name"] for claim in daemons["spec"]["volumeClaimTemplates"]
            }
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volume_names
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"].keys() == {"cpu", "memory"}
        # A job has no probes: it ends.
        assert "restartPolicy" in spec or {"livenessProbe", "readinessProbe"} <= container.keys()
    for item in select(manifests, "StatefulSet", "Deployment"):
        assert (
            item["spec"]["selector"]["matchLabels"].items()
            <= item["spec"]["template"]["metadata"]["labels"].items()
        )


@needs_helm
@pytest.mark.parametrize("values", [{}, SHARED], ids=["one daemon", "everything"])
def test_ports_probes_and_config_of_the_chart_are_those_of_the_program(
    tmp_path: Path, values: Mapping[str, Any]
) -> None:
    manifests = render(tmp_path, values)
    (daemon,) = select(manifests, "StatefulSet")
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    config = load_rendered(tmp_path, manifests, container).config
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    settings = {
        "http": config.api.api_port,
        "metrics": config.api.metrics_port,
        "grpc": config.api.grpc_port,
        "usage": config.api.metrics_api_port,
    }
    assert ports == {name: port for name, port in settings.items() if port}
    assert (
        daemon["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        > config.api.grace_period_s
    )
    served = {
        item["targetPort"]: item["port"]
        for s in select(manifests, "Service")
        for item in s["spec"]["ports"]
    }
    assert served == ports
    (policy,) = select(manifests, "NetworkPolicy")
    assert {
        port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]
    } == ports.keys()
    paths = document()["paths"]
    for probe in probes(container):
        assert probe["httpGet"]["path"] in paths
        assert probe["httpGet"]["port"] == "http"
    for deployment in select(manifests, "Deployment"):
        (indexer,) = deployment["spec"]["template"]["spec"]["containers"]
        assert all(
            f"/data/{HEARTBEAT_NAME}" in probe["exec"]["command"][-1] for probe in probes(indexer)
        )
        assert load_rendered(tmp_path, manifests, indexer).config.indexer.chains


@needs_helm
def test_a_release_with_everything_has_keys_of_secrets_and_dashboards_and_alerts_of_files(
    tmp_path: Path,
) -> None:
    manifests = render(tmp_path, SHARED)
    (daemon,) = select(manifests, "StatefulSet")
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "--no-indexer"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    config = load_rendered(tmp_path, manifests, container).config
    assert config.store.url == STORE_URL
    assert str(config.peers.tls_key_path) == "/identity/$(POD_NAME).key"
    commands = [
        item["spec"]["template"]["spec"]["containers"][0]["args"]
        for item in select(manifests, "Deployment")
    ]
    assert [command[command.index("--chain") + 1] for command in commands] == ["p", C_CHAIN]
    (job,) = select(manifests, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "store",
        "upgrade",
        "--if-needed",
    ]
    (rule,) = select(manifests, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CONFIGS / "prometheus" / "alerts.yml").read_text())
    dashboards = next(
        item["data"] for item in select(manifests, "ConfigMap") if "config.json" not in item["data"]
    )
    files = {f"warpseal-{file.name}": file for file in (CONFIGS / "grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in dashboards.items()} == {
        name: json.loads(file.read_text()) for name, file in files.items()
    }
    (monitor,) = select(manifests, "ServiceMonitor")
    label, scraped = monitor["spec"]["jobLabel"], monitor["spec"]["selector"]["matchLabels"]
    services = [item["metadata"]["labels"] for item in select(manifests, "Service")]
    # The alerts name the job.
    assert [labels[label] for labels in services if scraped.items() <= labels.items()] == [
        "warpseal"
    ]


@needs_helm
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 2}, "set sharedStore"),
        ({"sharedStore": True}, "WARPSEAL_STORE_URL"),
        ({"config": {"store-url": STORE_URL}}, "a ConfigMap would show"),
        (
            {"config": {"p-chain-api": {"base-url": "http://n", "http-headers": {"key": "x"}}}},
            "a ConfigMap would show",
        ),
        ({"config": {"p-chain-api": {"base-url": "https://s3cr3t@n"}}}, "a ConfigMap would show"),
        (
            {"config": {"p-chain-api": {"base-url": "https://n/?chain=p&ApiKey=s3cr3t"}}},
            "a ConfigMap would show",
        ),
        (
            {"config": {"info-api": {"base-url": "https://n/v3/s3cr3ts3cr3ts3cr3ts3cr3t"}}},
            "a ConfigMap would show",
        ),
        (
            {"config": {"price-url": "https://n/price?x_demo_api_key=s3cr3t"}},
            "a ConfigMap would show",
        ),
        ({"config": {"admin-token": "x"}}, "/config/admin-token"),
        ({"replica": 2}, "'replica' not allowed"),
    ],
    ids=[
        "no shared store",
        "no secret",
        "password",
        "header",
        "user of a URL",
        "parameter of a URL",
        "path of a URL",
        "price URL",
        "token",
        "misspelt",
    ],
)
def test_the_chart_refuses_values_that_cannot_be_right(
    tmp_path: Path, values: Mapping[str, Any], words: str
) -> None:
    refused = helm(tmp_path, values, "template", "release-1")
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "s3cr3t" not in refused.stdout + refused.stderr


def test_the_compose_file_mounts_files_that_exist_and_configures_the_daemon_and_its_database(
    tmp_path: Path,
) -> None:
    composition = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    services = composition["services"]
    assert services.keys() == {"warpseal", "postgres", "prometheus", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (
                (COMPOSE / source).exists()
                if source.startswith(".")
                else source in composition["volumes"]
            )
    daemon, database = services["warpseal"], services["postgres"]["environment"]
    config = load(COMPOSE / "config.json", {}, daemon["environment"], strict=True).config
    assert (
        config.store.url
        == config.index.url
        == f"postgresql://{database['POSTGRES_USER']}@postgres/warpseal"
    )
    assert daemon["environment"]["PGPASSWORD"] == database["POSTGRES_PASSWORD"]
    assert int(daemon["stop_grace_period"].removesuffix("s")) > config.api.grace_period_s
    assert all(
        port.startswith("127.0.0.1:")
        for service in services.values()
        for port in service.get("ports", ())
    )
    scraping = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    assert scraping[0]["static_configs"] == [{"targets": [f"warpseal:{config.api.metrics_port}"]}]


def test_the_units_start_commands_that_exist_and_have_the_same_sandbox(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = [(UNITS / name).read_text() for name in ("warpseal.service", "warpseal-index@.service")]
    sandboxes = [text.partition("DynamicUser=")[2].partition("[Install]")[0] for text in texts]
    assert sandboxes[0] == sandboxes[1]
    for text in texts:
        (command,) = re.findall(r"^ExecStart=/opt/warpseal/bin/warpseal (.+)$", text, re.M)
        words = command.split()
        with pytest.raises(SystemExit):
            main([word for word in words if not word.startswith(("--", "/", "%"))] + ["--help"])
        help_text = capsys.readouterr().out
        assert all(word in help_text for word in words if word.startswith("--"))


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for name, copy in (
        ("warpseal.service",) * 2,
        ("warpseal-index@.service", "warpseal-index@c.service"),
    ):
        # The program need not be installed in /opt.
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", (UNITS / name).read_text(), flags=re.M
        )
        (tmp_path / copy).write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", *tmp_path.glob("*.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, verified.stderr) == (0, "")
