SHELL := /bin/sh
.DEFAULT_GOAL := help
# Ansible starts in half the time when its bytecode may be kept.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# Name of the lab, so that several can run side by side: make demo LAB=other
LAB ?= triton-lab
export LAB

PLAYBOOK := ansible-playbook -i inventories/lab
# Our Python, without the parts that only run where torch or Triton is.
PYTHON_FILES := $(wildcard roles/*/files/[l-t]*/*.py roles/*/files/llamacpp/llamacpp_backend roles/*/filter_plugins roles/*/action_plugins) bench docs files lab tests

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: tools
tools: ## build .venv from requirements/tools.txt (no-op while that is unchanged)
	@lab/bin/tools

.PHONY: demo
demo: tools ## boot a lab host, deploy to it, show the four curl checks; leaves it running
	@$(PLAYBOOK) lab/create.yml lab/prepare.yml site.yml
	@lab/bin/curl-checks

.PHONY: demo-down
demo-down: tools ## remove everything that `make demo` made
	@$(PLAYBOOK) lab/destroy.yml

.PHONY: docs
docs: tools ## write docs/variables.md from the argument specs, docs/parameters.md from the backend's tables
	@python docs/make_variables.py
	@python docs/make_parameters.py

.PHONY: lint
lint: tools ## ansible-lint (production), yamllint, ruff, mypy --strict, no skip without a reason
	@ANSIBLE_INVENTORY=inventories/example ansible-lint
	@yamllint --strict .
	@ruff check .
	@ruff format --check .
	@mypy $(PYTHON_FILES)
	@lab/bin/skip_reasons.py

.PHONY: unit
unit: tools ## tests that need no host
	@pytest -q tests/unit

.PHONY: engine
engine: tools ## tests of the backend with a real llama.cpp (takes the wheel that scenario-default has built)
	@lab/bin/packages libgomp1
	@pytest -q tests/engine

.PHONY: soak
soak: tools ## an hour of mixed load on the demo host: nothing may grow (SOAK_SECONDS=600 for less)
	@SOAK_SECONDS=$${SOAK_SECONDS:-3600} TRITON_ENDPOINTS=.lab/endpoints.json pytest -q tests/e2e/test_soak.py

SCENARIOS := default debian13 bad_input
.PHONY: $(SCENARIOS:%=scenario-%)
$(SCENARIOS:%=scenario-%): scenario-%: tools
	@molecule test --scenario-name $*

.PHONY: test
test: ## everything that CI runs: lint, unit tests, molecule scenarios
	@lab/bin/steps lint unit scenario-default engine scenario-debian13 scenario-bad_input

.PHONY: test-full
test-full: ## everything there is, the deploy timings included
	@lab/bin/steps lint unit scenario-default engine scenario-debian13 scenario-bad_input bench-deploy

.PHONY: bench-deploy
bench-deploy: tools ## time a deploy: bare host, cold store, converged host (bench/results/deploy.json)
	@python bench/deploy.py --cold

.PHONY: bench
bench: tools ## every benchmark of the engine and its peers, for hours on a quiet machine (docs/benchmarks.md)
	@lab/bin/packages g++ libgomp1
	@python -m bench.run
	@python -m bench.report

.PHONY: bench-short
bench-short: tools ## see that every benchmark works, on a tiny model, in minutes; its figures mean nothing
	@lab/bin/packages g++ libgomp1
	@python -m bench.run --short

.PHONY: lock
lock: tools ## lock requirements/tools.in again
	@lab/bin/lock

.PHONY: clean-cache
clean-cache: ## remove cached images and wheels
	@rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/triton-llamacpp"
	@podman image ls --quiet --filter 'reference=localhost/triton-llamacpp/*' | xargs -r podman rmi
