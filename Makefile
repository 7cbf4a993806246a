# The commands of the project. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPOSE ?= $(shell docker compose version > /dev/null 2>&1 && echo docker compose || echo docker-compose)
CLUSTER = command -v $(firstword $(COMPOSE)) > /dev/null || { echo "Docker with Compose is needed; without it: make demo" >&2; exit 1; }; \
	$(COMPOSE) --file deploy/compose.yaml

.DEFAULT_GOAL := help
.PHONY: help demo test test-grpc test-slow test-all chaos fuzz mutants mutants-new lint format docs screenshots protos locks bench clean compose-up compose-logs compose-down compose-test kubernetes-test slurm-test

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'
	@echo "What a command needs is added to $(VENV), and said; with VENV=DIR to another environment: make test VENV=.venv-dev"

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED = $(PIP) --require-hashes --requirement locks/package.txt --requirement locks/build.txt

# The package and its dependencies: sufficient to train.
$(BIN)/.installed: pyproject.toml locks/package.txt locks/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "$(VENV): installing the package and its dependencies, in the versions of locks/package.txt"
	$(PYTHON) -m venv $(VENV)
	$(LOCKED)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The dependencies of tests, linters and generated code; of the generator of the documentation site; of the fuzzer; and of
# the tool that makes mutants.
$(BIN)/.installed-dev: $(BIN)/.installed locks/dev.txt
	@echo "$(VENV): adding the tools of tests, linters and generated code (locks/dev.txt)"
	$(LOCKED) --requirement locks/dev.txt
	@touch $@

$(BIN)/.installed-docs: $(BIN)/.installed-dev locks/docs.txt
	@echo "$(VENV): adding the generator of the site (locks/docs.txt)"
	$(LOCKED) --requirement locks/docs.txt
	@touch $@

$(BIN)/.installed-fuzz: $(BIN)/.installed-dev locks/fuzz.txt
	@echo "$(VENV): adding the fuzzer (locks/fuzz.txt)"
	$(LOCKED) --requirement locks/fuzz.txt
	@touch $@

$(BIN)/.installed-mutants: $(BIN)/.installed-dev locks/mutants.txt
	@echo "$(VENV): adding the tool that makes mutants (locks/mutants.txt)"
	$(LOCKED) --requirement locks/mutants.txt
	@touch $@

demo: $(BIN)/.installed ## Train softmax regression on MNIST with a server and two workers
	$(BIN)/psworker local --workers 2 --shards 1 examples/softmax_mnist.py

test: $(BIN)/.installed-dev ## Run the fast tests
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

test-grpc: $(BIN)/.installed-dev ## Run the fast tests of whole jobs over gRPC in place of direct connections
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" --transport grpc tests/integration tests/cluster

test-slow: $(BIN)/.installed-dev ## Run the tests marked slow, without those marked exhaustive
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not exhaustive"

test-all: $(BIN)/.installed-dev ## Run all tests: before a release (about an hour)
	$(BIN)/python -m pytest -n 2 --dist worksteal

chaos: $(BIN)/.installed-dev ## Train under injected faults, verify the guarantees (docs/reliability.md; a quarter of an hour); TRANSPORT=grpc or direct
	$(BIN)/python -m tests.chaos --transport $(or $(TRANSPORT),auto)
	$(BIN)/python -m tests.chaos.minimize

fuzz: $(BIN)/.installed-fuzz ## Fuzz each message and file reader for SECONDS (60); TARGETS=... selects (docs/security.md)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(TARGETS)

mutants: $(BIN)/.installed-dev ## Install known faults, one at a time; a test must fail for each (WORDS=... selects)
	$(BIN)/python -m tests.tools.mutants $(WORDS)

mutants-new: $(BIN)/.installed-mutants ## Change COUNT (40) random places of MODULES=...; list what no test of TESTS=... notices
	$(BIN)/python -m tests.tools.new_mutants $(MODULES) $(TESTS:%=--tests %) --count $(or $(COUNT),40) --seed $(or $(SEED),0)

lint: $(BIN)/.installed-dev ## Check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/manual_descent.py tests/repository/typed_program.py
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check

format: $(BIN)/.installed-dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(BIN)/.installed-docs ## Build the documentation site in build/site, and check it
	rm -rf build/site
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site --doctree-dir build/doctrees . build/site
	$(BIN)/python -m pytest tests/repository/built_site.py
	@echo "The site is in build/site: open build/site/index.html"

screenshots: $(BIN)/.installed-dev ## Make the pictures of the documentation, of real runs in Chromium (NAMES=... selects)
	$(BIN)/python -m tests.tools.screenshots $(NAMES)

protos: $(BIN)/.installed-dev ## Write what protos/ says: pswire/v1, messages and codec
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=. --pyi_out=. protos/pswire/v1/*.proto
	$(BIN)/python protos/generate.py

locks: $(BIN)/.installed-dev ## Write locks/: the packages of constraints.txt, with the hashes of their files
	$(PIP) --constraint constraints.txt uv
	$(BIN)/python -m tests.tools.locks

bench: $(BIN)/.installed ## Run the benchmarks (python benchmarks/NAME.py --peers DIR compares with other systems)
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

compose-up: ## Start a cluster of containers: two shards and WORKERS workers (docs/deploy/docker.md)
	@$(CLUSTER) up --build --detach

compose-logs: ## Show the output of its containers until Ctrl-C or its end
	@$(CLUSTER) logs --follow

compose-down: ## Stop it and remove its containers
	@$(CLUSTER) down

kubernetes-test: $(BIN)/.installed-dev ## Run the pods of deploy/kubernetes as containers, preempt and lose some; the Job must complete
	$(BIN)/python -m pytest --capture=no -vv tests/kubernetes/cluster.py

slurm-test: $(BIN)/.installed-dev ## Run jobs of Debian's Slurm on three nodes, kill some; they must complete (slurmctld slurmd slurm-client)
	$(BIN)/python -m pytest --capture=no -vv -rs tests/slurm/jobs.py

compose-test: $(BIN)/.installed-dev ## Kill and disconnect parts of such a cluster, and all of it; the job must complete
	$(BIN)/python -m pytest --capture=no -vv tests/compose/containers.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
