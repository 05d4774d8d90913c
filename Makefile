# `make help` says what each target does. All of them run from a fresh clone: setup installs what is missing.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help setup demo lint format unit test test-machines test-engine bench lock clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install host packages, Python environment, Pulumi's engine and plugins; seconds if all is there
	@scripts/setup

# the part of setup that works without the lab
python:
	@scripts/setup python

demo: setup ## start the lab's pair, `pulumi up` on the dev stack, ask one question; a second run changes nothing
	@scripts/env lab/demo

lint: python ## check format, lint, types and shell scripts of every file
	@scripts/check

format: python ## format every Python file and fix what ruff can, then lint
	@scripts/check --fix

unit: python ## run the tests that need no node: plain functions, and the whole program under Pulumi's mocks
	@scripts/unit

test: setup ## run everything: lint, unit, the lab's tests with the real `pulumi`, a short pass on machines
	@scripts/test

test-machines: setup ## run every test that needs kernels of its own: NFS, soft-RoCE, reboots, power cuts; slow
	@scripts/env .venv/bin/pytest -v tests/lab/machines

test-engine: setup ## run a real vLLM (CPU build) on the lab's pair; needs 10 GiB of disk and 6 GiB of memory; slow
	@scripts/env .venv/bin/python -m lab.vllm_cpu
	@scripts/env .venv/bin/pytest -v tests/engine

bench: setup ## measure on the lab: no-op up, end of up after ready, download, tests; on loopback: the mirror and rsync
	@scripts/env scripts/measure_lab
	@scripts/bench_mirror

lock: python ## make requirements.txt from requirements.in, with each package at its newest allowed version
	@.venv/bin/uv pip compile requirements.in --output-file requirements.txt --upgrade --quiet --universal \
	  --python-version 3.11 --generate-hashes --only-binary :all: --custom-compile-command 'make lock'

clean: ## take the lab down and remove .venv and .lab; say where the cache stays
	@scripts/clean
