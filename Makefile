# Warren on a bare Debian 12, as root:  make up  ·  make test  ·  make down
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= /usr/bin/python3
PY := .venv/bin/python
STAMPS := build/stamps

# What the programs need at run time, what builds the images, and what the benchmarks compare with.
RUN_PACKAGES := qemu-system-x86 libnftables1 iproute2 util-linux e2fsprogs procps curl zstd
BUILD_PACKAGES := python3 python3-venv mmdebstrap lz4 ca-certificates
TEST_PACKAGES := nftables tmux git mount busybox-static chromium
BENCH_PACKAGES := crun bubblewrap nginx-light wrk squid

.PHONY: help up down images base-images test-images test test-unit test-faults test-fuzz test-egress test-tasks test-cluster check \
	lint types contracts lock clean \
	bench-create bench-density bench-slots bench-ledger bench-pause bench-hibernate bench-deaths bench-gateway bench-egress \
	bench-tasks bench-durability bench-store bench-packages

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMPS)/packages: Makefile
	@mkdir -p $(STAMPS)
	@bash -c 'need=(); for p in $(RUN_PACKAGES) $(BUILD_PACKAGES) $(TEST_PACKAGES); do \
	  dpkg-query -W -f="\$${db:Status-Status}" $$p 2>/dev/null | grep -qx installed || need+=($$p); done; \
	  if [ $${#need[@]} -gt 0 ]; then \
	    echo "· installing Debian packages: $${need[*]}"; \
	    apt-get update -q >build/apt.log 2>&1 && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $${need[@]} >>build/apt.log 2>&1 \
	    || { tail -n 20 build/apt.log; echo "apt-get failed; the whole log: build/apt.log"; exit 1; }; fi'
	@touch $@

.venv/.installed: requirements.lock pyproject.toml guest/pyproject.toml $(STAMPS)/packages
	@echo "· making the virtual environment .venv"
	@[ -x $(PY) ] || $(PYTHON) -m venv .venv
	@$(PY) -m pip install -q --require-hashes -r requirements.lock
	@printf '%s\n' '$(CURDIR)' '$(CURDIR)/guest' '$(CURDIR)/sdk/python' \
	  > $$($(PY) -c 'import site; print(site.getsitepackages()[0])')/warren.pth
	@for pair in poold:poold pooldctl:poold.ctl gateway:gateway warren:warren.cli; do \
	  printf '#!/bin/sh\nexec "%s" -m %s "$$@"\n' '$(CURDIR)/$(PY)' "$${pair#*:}" > .venv/bin/"$${pair%%:*}"; \
	  chmod +x .venv/bin/"$${pair%%:*}"; done
	@touch $@

images: .venv/.installed  ## build every machine image (again only if something changed)
	@$(PY) -m images build minimal python agent node go rust nextjs

base-images: .venv/.installed
	@$(PY) -m images build minimal python

test-images: .venv/.installed
	@$(PY) -m images build minimal python agent

up: base-images  ## start hosts and a gateway in the background, with warm machines; STORE=s3: and an S3 server for them
	@STORE=$(STORE) $(PY) -m poold.dev up

down:  ## stop all that `make up` started
	@if [ -x $(PY) ]; then $(PY) -m poold.dev down; fi

test: test-images  ## the tests, with real microVMs
	@$(PY) -m tests

test-unit: .venv/.installed  ## the tests that need no microVM
	@$(PY) -m pytest tests/unit

test-faults: base-images  ## poold killed 200 times at random moments, under clients that do everything (10 minutes)
	@WARREN_FAULTS_ROUNDS=$${WARREN_FAULTS_ROUNDS:-200} $(PY) -m pytest -s tests/faults

test-fuzz: base-images  ## whatever the API's document allows and forbids, asked of a real gateway for 5 minutes
	@WARREN_FUZZ_S=$${WARREN_FUZZ_S:-300} $(PY) -m pytest -s tests/fuzz

test-egress: base-images  ## attempts to get out, 200 warm claims, real clients: all in a world of their own (10 minutes)
	@WARREN_EGRESS_CLAIMS=$${WARREN_EGRESS_CLAIMS:-200} \
	  WARREN_EGRESS_DOWNLOAD_MB=$${WARREN_EGRESS_DOWNLOAD_MB:-500} $(PY) -m pytest tests/egress

test-tasks: test-images  ## tasks of real agents, 30 kills of their host, agents that print and keep without end (20 minutes)
	@WARREN_TASKS_KILLS=$${WARREN_TASKS_KILLS:-30} WARREN_TASKS_PRINT_MB=$${WARREN_TASKS_PRINT_MB:-1024} \
	  WARREN_TASKS_REAL_MB=$${WARREN_TASKS_REAL_MB:-300} $(PY) -m pytest -s tests/tasks

test-cluster: base-images  ## five hosts, three gateways and an S3 server, and all that can go wrong with them (25 minutes)
	@WARREN_NEMESIS_S=$${WARREN_NEMESIS_S:-900} WARREN_NEMESIS_QEMU=$${WARREN_NEMESIS_QEMU:-1} $(PY) -m pytest -s tests/nemesis

check: lint types contracts test  ## what a review asks for: lint, types, contracts, tests

lint: .venv/.installed  ## ruff
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

types: .venv/.installed  ## mypy, strict
	@$(PY) -m mypy

contracts: .venv/.installed  ## who may import whom
	@PYTHONPATH=guest .venv/bin/lint-imports

bench-packages: .venv/.installed
	@bash -c 'for p in $(BENCH_PACKAGES); do dpkg-query -W $$p >/dev/null 2>&1 || need+=" $$p"; done; \
	  if [ -n "$$need" ]; then apt-get install -yq --no-install-recommends $(BENCH_PACKAGES) >build/apt.log 2>&1; fi; \
	  if [[ "$$need" == *squid* ]]; then systemctl disable -q --now squid 2>/dev/null || true; fi'

bench-create: base-images bench-packages  ## cold boot, restore and warm claim beside crun and bwrap
	@$(PY) -m tests.bench.bench_create

bench-density: base-images  ## idle machines until 8 GiB are used
	@$(PY) -m tests.bench.bench_density

bench-slots: .venv/.installed  ## network slots
	@$(PY) -m tests.bench.bench_slots

bench-ledger: .venv/.installed  ## durable events and moves a second, beside bare SQLite
	@$(PY) -m tests.bench.bench_ledger

bench-pause: base-images  ## pause and resume of a small and a large machine
	@$(PY) -m tests.bench.bench_pause

bench-hibernate: base-images  ## a machine of 1 GiB into the store and out on another host, beside the plain way
	@$(PY) -m tests.bench.bench_hibernate

bench-deaths: base-images  ## how soon a killed machine is known to be dead
	@$(PY) -m tests.bench.bench_deaths

bench-gateway: bench-packages  ## the gateway beside nginx: requests, bodies, events, WebSockets
	@$(PY) -m tests.bench.bench_gateway

bench-egress: bench-packages  ## a machine's proxy beside a cable and beside squid: MB/s, connections, memory
	@$(PY) -m tests.bench.bench_egress

bench-tasks: test-images  ## how soon a task begins, how soon its events arrive, tasks a minute
	@$(PY) -m tests.bench.bench_tasks

bench-durability: .venv/.installed  ## rows that kill -9 costs in each mode of durability, and what each mode costs (20 minutes)
	@$(PY) -m tests.bench.bench_durability

bench-store: .venv/.installed  ## the store: objects a second and MB/s, beside plain files and beside bare clients of S3
	@$(PY) -m tests.bench.bench_store

lock: .venv/.installed  ## pin every Python package again
	@$(PY) -m piptools compile -q --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate --all-extras -o requirements.lock pyproject.toml

clean: down  ## remove everything that was built
	@rm -rf build .venv
