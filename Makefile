# What people and the build service run; `make` alone lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.setup-stamp
READY_TO_TEST := $(VENV)/.setup-test-stamp

# The interpreter to make the environment from; the first that is new enough and can make one.
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
PYTHON_FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt
# What a failed install ends with: pip's own lines say which package and why.
NOT_INSTALLED := { echo "Set-up stopped: the packages of constraints.txt could not be installed." \
	"They come from a package index: check the network or your pip configuration" \
	"(python -m pip config list), then repeat the command; it continues where it stopped." >&2; exit 1; }
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends

# Debian packages of real peers that some tests talk to, and the programs in them.
TEST_PACKAGES := gearman-tools gearman-job-server libgearman-client-perl libanyevent-rabbitmq-perl php-cli php-gearman \
	postgresql pgbouncer rabbitmq-server openssl chromium nginx-light gcc libc6-dev python3-dev
TEST_PROGRAMS := psql pgbouncer gearman gearadmin gearmand php epmd openssl chromium nginx cc

# Packages from npm that some tests talk to or check pages with, and where they are put.
TEST_CLIENTS := gearmanode@0.9.2 amqplib@2.3.1 @cloudamqp/amqp-client@4.1.1 axe-core@4.14.0 pyright@1.1.414
TEST_CLIENTS_FOLDER := .test-clients

# Scripts that write pages below docs/ from the source.
GENERATORS := $(wildcard tools/lifecycle.py tools/vocabulary.py tools/reference.py)

TESTS_IN_CHECK := tests/unit tests/tidy
TESTS_BEYOND := $(filter-out $(TESTS_IN_CHECK) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))

.PHONY: help
help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: setup
setup: $(READY) ## make .venv with the manyhands command in it

.PHONY: setup-test
setup-test: $(READY_TO_TEST) ## add the tools of check and test to .venv

.PHONY: serve
serve: setup ## start the server; ARGS='--http 127.0.0.1:8080' passes options
	@exec $(BIN)/manyhands serve $(ARGS)

.PHONY: demo
demo: setup ## start a server with simulated traffic, to look at; ARGS=--free-ports beside another
	@exec $(BIN)/python examples/demo.py $(ARGS)

.PHONY: serve-cluster
serve-cluster: setup ## start three servers on a private PostgreSQL; kill one and watch
	@exec $(BIN)/python examples/cluster.py

.PHONY: check
check: setup-test ## lint, types, import directions, unit and tidy tests; under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q -n auto $(TESTS_IN_CHECK)

# The other tests mostly wait for servers, so twice as many processes as processors are kept busy.
.PHONY: test
test: setup-test test-packages test-clients check docs-check ## check, then every other test
ifneq ($(TESTS_BEYOND),)
	$(BIN)/python -m pytest -q -rs -n $$((2 * $$(nproc))) $(TESTS_BEYOND)
endif

.PHONY: simulate
simulate: setup-test ## simulate the server with random faults; SEED=123 replays one run
	$(BIN)/python tests/simulation/simulate.py $(SEED)

.PHONY: e2e
e2e: setup-test test-packages test-clients ## test the real program over real sockets
	$(BIN)/python -m pytest tests/e2e

.PHONY: bench
bench: setup-test ## measure against other job servers; prints a table
	$(BIN)/python bench/run.py

.PHONY: docs
docs: setup ## write the generated pages of docs/ again
	@for generator in $(GENERATORS); do $(BIN)/python "$$generator"; done

.PHONY: docs-check
docs-check: setup ## fail if a generated page of docs/ is out of date
	@before=$$(mktemp -d); trap 'rm -rf "$$before"' EXIT; \
	mkdir -p docs; cp -R docs/. "$$before"; \
	$(MAKE) docs; \
	diff -r "$$before" docs || { echo "docs/ was out of date; it has been written again."; exit 1; }

.PHONY: format
format: setup-test ## format the source and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: clean
clean: ## remove .venv and caches; the server's data stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		$(TEST_CLIENTS_FOLDER) screenshots
	find bench docs src tests tools -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# pip is asked for, and not only python, because an interrupted attempt leaves one without the other.
# The build backend and what it needs come first, so that they are pinned like everything else.
$(READY): pyproject.toml constraints.txt
	@find_python() { \
		for python in $(PYTHON) $(PYTHONS); do \
			if "$$python" -c '$(PYTHON_FITS)' 2>/dev/null; then echo "$$python"; return; fi; \
		done; \
		return 1; \
	}; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		if ! find_python >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq; \
			$(APT_INSTALL) python3 python3-venv; \
		fi; \
		if ! python=$$(find_python); then \
			echo "Manyhands needs Python 3.11 or newer with its venv module;" \
				"on Debian, install python3 and python3-venv." >&2; \
			exit 1; \
		fi; \
		"$$python" -m venv --clear $(VENV); \
	fi
	@$(PIP_INSTALL) hatchling editables || $(NOT_INSTALLED)
	@$(PIP_INSTALL) --no-build-isolation --editable . || $(NOT_INSTALLED)
	@touch $@

$(READY_TO_TEST): $(READY)
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]' || $(NOT_INSTALLED)
	@touch $@

# Installing may end in an error where a package cannot start its daemon. That is no harm, since
# tests start their own: what counts is that the programs are there.
.PHONY: test-packages
test-packages:
	@missing=(); \
	for package in $(TEST_PACKAGES); do \
		state=$$(dpkg-query -W -f '$${db:Status-Status}' "$$package" 2>/dev/null || true); \
		[ "$$state" = installed ] || missing+=("$$package"); \
	done; \
	if [ $${#missing[@]} -eq 0 ]; then \
		exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq; \
		$(APT_INSTALL) "$${missing[@]}" || type -P $(TEST_PROGRAMS); \
	else \
		echo "Not installed, so the tests that need them are skipped: $${missing[*]}"; \
	fi

# Some distributions of node bring npm along, Debian has it in a package of its own. All clients go
# into one command, since npm removes what the command does not name.
.PHONY: test-clients
test-clients:
	@if ! type -P npm >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq; \
		$(APT_INSTALL) nodejs npm; \
	fi; \
	missing=(); \
	for client in $(TEST_CLIENTS); do \
		[ -d "$(TEST_CLIENTS_FOLDER)/node_modules/$${client%@*}" ] || missing+=("$$client"); \
	done; \
	if [ $${#missing[@]} -eq 0 ]; then \
		exit 0; \
	elif type -P npm >/dev/null; then \
		npm install --silent --no-save --no-package-lock --no-audit --no-fund \
			--prefix $(TEST_CLIENTS_FOLDER) $(TEST_CLIENTS); \
	else \
		echo "Not installed, so the tests that need them are skipped: $${missing[*]}"; \
	fi
