"""Imports between modules: one direction for each pair, also for types; where they are late."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path

import grimp
import pytest

from warpseal.cli.main import COMMANDS
from warpseal.daemon.subsystems import GIVEN, SUBSYSTEMS, Stage, Subsystem, load

SOURCE = Path(__file__).parents[2] / "src"
LIBRARY_LIST = "warpseal/runtime/lazy.py"
SUBSYSTEM_TABLE = "warpseal/daemon/subsystems.py"
# The tables, which resolve texts, and `warpseal.verify`: it loads a BLS library, and each module of
# the package imports `warpseal`.
LATE_IMPORTS = {
    SUBSYSTEM_TABLE,
    "warpseal/__init__.py",
    "warpseal/api/data/endpoints.py",
    "warpseal/cli/main.py",
}
_LATE_IMPORT = re.compile(r"\b(?:import_module|__import__)\(")
_LAZY_MODULE = re.compile(r'\bLazyModule\("([\w.]+)"\)')


def _lazy_modules(path: str) -> list[str]:
    return _LAZY_MODULE.findall((SOURCE / path).read_text())


LAZY_MODULES = [*_lazy_modules(LIBRARY_LIST), *_lazy_modules(SUBSYSTEM_TABLE)]
UNUSED_LIBRARIES = {
    "Crypto",
    "btclib_libsecp256k1",
    "cffi",
    "click",
    "cryptography.x509",
    "eth_abi",
    "eth_hash",
    "google.rpc",
    "grpc",
    "jinja2",
    "markupsafe",
    "numpy",
    "opentelemetry",
    "psycopg",
    "py_ecc",
    "requests",
    "rlp",
    "trie",
}
UNUSED_MODULES = (
    "warpseal.api.data.bodies",
    "warpseal.api.data.chain_endpoints",
    "warpseal.api.data.evm_endpoints",
    "warpseal.api.data.pages",
    "warpseal.api.data.parameters",
    "warpseal.api.data.request_context",
    "warpseal.api.grpc",
    "warpseal.api.openapi.document",
    "warpseal.api.rpc.evm",
    "warpseal.api.rpc.gateway",
    "warpseal.daemon.evm_api",
    "warpseal.daemon.evm_index",
    "warpseal.daemon.gateway_api",
    "warpseal.daemon.icm",
    "warpseal.daemon.metering",
    "warpseal.daemon.primary_index",
    "warpseal.daemon.usage",
    "warpseal.doctor",
    "warpseal.events.index_events",
    "warpseal.events.webhooks",
    "warpseal.forwarding.evm.forwarder",
    "warpseal.forwarding.primary.gateway",
    "warpseal.icm",
    "warpseal.index.database",
    "warpseal.index.evm",
    "warpseal.index.index",
    "warpseal.ops.backup",
    "warpseal.ops.traces",
    "warpseal.pb.warpseal_pb2",
    "warpseal.upstream.checked_resolver",
    "warpseal.validators.forecast",
)


@cache
def import_graph() -> grimp.ImportGraph:
    """Return all modules and imports, read when a test needs them: each process that collects the
    tests would else.
    """
    return grimp.build_graph("warpseal", "warpseal_simnet", cache_dir=None)


@pytest.mark.parametrize("name", LAZY_MODULES)
def test_modules_that_are_imported_at_first_use_exist(name: str) -> None:
    import_module(name)


def test_modules_are_imported_late_by_the_tables_alone() -> None:
    texts = {str(file.relative_to(SOURCE)): file.read_text() for file in SOURCE.rglob("*.py")}
    lazy = {path for path, text in texts.items() if "LazyModule" in text}
    assert lazy == {LIBRARY_LIST, SUBSYSTEM_TABLE}
    assert [name for name in _lazy_modules(LIBRARY_LIST) if name.startswith("warpseal")] == []
    late = {path for path, text in texts.items() if _LATE_IMPORT.search(text)}
    assert late - {LIBRARY_LIST} == LATE_IMPORTS


def test_every_module_can_be_imported() -> None:
    missing = {}
    for name in sorted(import_graph().modules - {"warpseal.__main__"}):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            # Not every BLS backend has packages for every interpreter.
            if not name.startswith("warpseal.bls."):
                missing[name] = str(error)
    assert missing == {}


@pytest.mark.parametrize("location", sorted({location for location, _ in COMMANDS.values()}))
def test_every_command_has_its_arguments_and_its_function(location: str) -> None:
    module, _, attribute = location.partition(".")
    command = import_module(f"warpseal.cli.{module}")
    if attribute:
        command = getattr(command, attribute)
    assert callable(command.add_arguments)
    assert callable(command.run)


def test_a_function_imports_only_a_library_that_may_be_missing() -> None:
    assert [place for file in SOURCE.rglob("*.py") for place in _imports_of_functions(file)] == []


def _imports_of_functions(file: Path) -> Iterator[str]:
    """Yield the imports in functions, other than those in a `try`, where another library takes the
    place.
    """
    text = file.read_text()
    # Most files have imports at the start of a line only, and need no parse.
    if not re.search(r"^(?!import |from ).*\bimport\b", text, re.MULTILINE):
        return
    nodes = [
        node
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    ]
    guarded = {id(inner) for node in nodes if isinstance(node, ast.Try) for inner in ast.walk(node)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in guarded:
            yield f"{file.name}:{node.lineno}"


def test_a_daemon_on_sqlite_does_not_load_what_only_others_use(tmp_path: Path) -> None:
    loaded = _run(_plain_daemon(tmp_path) + "print(*sys.modules)").split()
    assert "warpseal.store.engine" in loaded
    assert UNUSED_LIBRARIES & set(loaded) == set()
    assert [name for name in loaded if name.startswith(UNUSED_MODULES)] == []


def test_a_start_reads_no_certificate_authorities(tmp_path: Path) -> None:
    code = """
import gc, ssl
contexts = [thing for thing in gc.get_objects() if isinstance(thing, ssl.SSLContext)]
print({context.cert_store_stats()["x509"] for context in contexts})
"""
    assert _run(_plain_daemon(tmp_path) + code) == "{0}\n"


def _plain_daemon(folder: Path) -> str:
    """Return a program that imports what a daemon without optional subsystems does, up to the gate
    of signing.
    """
    file = folder / "config.json"
    file.write_text(
        '{"info-api": {"base-url": "http://127.0.0.1:1"}, "p-chain-api": {"base-url":'
        ' "http://127.0.0.1:1"}}'
    )
    return f"""
import sys
from pathlib import Path
from warpseal.config.load import load as load_config
from warpseal.daemon.subsystems import PORTS, START, Stage, find_rows, load
config = load_config(Path({str(file)!r}), {{}}, {{}}).config
rows = [row for stage in Stage for row in find_rows(config, stage) if row.name != "forecast"]
for module in (PORTS, START, *(row.module for row in rows)):
    load(module)
"""


@pytest.mark.parametrize("row", SUBSYSTEMS, ids=lambda row: row.name)
def test_a_subsystem_takes_what_its_row_in_the_table_needs(row: Subsystem) -> None:
    open_subsystem = getattr(load(row.module), f"open_{row.name}")
    parameters = list(signature(open_subsystem).parameters)
    first = {Stage.PORTS: ["registries"], Stage.NODES: ["registries", "upstreams"]}.get(
        row.stage, ["core", "tasks"]
    )
    assert parameters[: len(first)] == first
    assert sorted(parameters[len(first) :]) == sorted(row.needs)
    names = [*GIVEN, *(above.name for above in SUBSYSTEMS[: SUBSYSTEMS.index(row)])]
    assert [name for name in row.needs if name not in names] == []


def test_the_stages_of_the_table_follow_one_another() -> None:
    stages = [row.stage for row in SUBSYSTEMS]
    assert stages == sorted(stages, key=list(Stage).index)
    names = [row.name for row in SUBSYSTEMS]
    assert len({*names, *GIVEN}) == len(names) + len(GIVEN)


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_no_two_modules_import_each_other() -> None:
    graph = import_graph()
    arrows = {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    assert len(arrows) > 1_000
    assert (
        sorted(
            (importer, imported) for importer, imported in arrows if (imported, importer) in arrows
        )
        == []
    )
