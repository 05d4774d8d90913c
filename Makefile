# Every target says what it does in `make help`. All of them run from a fresh clone: what is missing, setup brings.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help setup demo lint format unit test test-machines bench lock clean python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## host packages, Python environment, Pulumi's engine and plugins; seconds when all is there
	@scripts/setup

# the part of setup that needs no lab
python:
	@scripts/setup python

demo: setup ## boot the lab pair, `pulumi up` the dev stack, one completion; again: nothing changes
	@scripts/env lab/demo

lint: python ## format, lint, types and shellcheck over every file
	@scripts/check

format: python ## format every Python file and mend what ruff can, then lint
	@scripts/check --fix

unit: python ## tests that need no machine: pure functions, and the whole program under Pulumi's mocks
	@scripts/unit

test: setup ## all that must hold: lint, unit, the lab's tests with the real `pulumi`, a short pass on machines
	@scripts/test

test-machines: setup ## every test that needs kernels of its own: NFS, soft-RoCE, reboots, power cuts; takes long
	@scripts/env .venv/bin/pytest -v tests/lab/machines

bench: setup ## measure, on the lab: no-op up, end of up after ready, download and mirror, tests; on loopback: the mirror against rsync
	@scripts/env scripts/measure_lab
	@scripts/bench_mirror

lock: python ## remake requirements.txt from requirements.in, each package at its newest allowed version
	@.venv/bin/uv pip compile requirements.in --output-file requirements.txt --upgrade --quiet --universal \
	  --python-version 3.11 --generate-hashes --only-binary :all: --custom-compile-command 'make lock'

clean: ## take the lab down and remove .venv and .lab; says where the cache stays
	@scripts/clean
