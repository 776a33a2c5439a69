# make demo     the whole life of a drafter on this machine, in minutes
# make test     the tests          make check   lint, types, import contracts
# make e2e      the slow tests     make clean   remove the environment and what was built
# make bench-remote  how fast commands are on hosts behind SSH (three in network namespaces; needs root and sshd)
# make bench-relay   how fast a relay is, against scp -3, rsync and a pipe of two ssh (there too; BENCH_ARGS="--only small")
# make test-gpu     what needs a CUDA device: kernels, packed target, drafter step, resume in bf16
# make bench-train  how fast training is on a GPU, and its loader (BENCH_ARGS="--only loader"; without a GPU: that it works)
# make quality      tau after six minutes of one GPU, ours against the package speculators (QUALITY_ARGS=--tiny: that it works)
# make test-peers   compare with the packages of others, in .venv-peers (their pins clash with ours)
#
# Each makes .venv and installs what it needs. Variables:
#   PYTHON=...          interpreter, at least 3.11 (default: the first that is found)
#   TORCH_PIP_ARGS=...  pip arguments for torch alone, e.g. "--index-url URL" of a source of CPU-only wheels
#   GPU=1               install the gpu extra too (flash-linear-attention; it breaks hybrid targets without a GPU)
#   DEMO_ARGS=...       arguments of `dflashctl demo`
#   BENCH_ARGS=...      arguments of scripts/bench_relay.py, or of scripts/bench_train
#   QUALITY_ARGS=...    arguments of scripts/quality

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

CANDIDATES := python3.12 python3.11 python3.13 python3 python
is_recent = $(shell $(1) -c 'import sys, venv, ensurepip; print(sys.version_info >= (3, 11))' 2>/dev/null)
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(if $(filter True,$(call is_recent,$(p))),$(p))))
TORCH ?= torch==2.13.0
TORCH_PIP_ARGS ?=
GPU ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
QUALITY_ARGS ?=

comma := ,
BIN := .venv/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
PEERS_PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-peers/bin/python -m pip install --quiet
RUNTIME := train,serve$(if $(GPU),$(comma)gpu)
INPUTS := pyproject.toml constraints.txt Makefile

.PHONY: help demo test check e2e peers test-peers test-gpu bench-remote bench-relay bench-train quality clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

demo: .venv/.runtime
	$(BIN)/dflashctl demo $(DEMO_ARGS)

test: .venv/.dev
	$(BIN)/python -m pytest -q -m "not slow and not peers and not gpu"

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

e2e: .venv/.e2e
	$(BIN)/python -m pytest -q -s -m "slow and not gpu and not peers"

test-gpu: .venv/.dev
	$(BIN)/python -m pytest -q -m gpu -o filterwarnings=default

bench-remote: .venv/.dev
	$(BIN)/python scripts/bench_remote.py

bench-relay: .venv/.dev
	$(BIN)/python scripts/bench_relay.py $(BENCH_ARGS)

bench-train: .venv/.runtime
	$(BIN)/python scripts/bench_train $(BENCH_ARGS)

quality: .venv/.e2e peers
	$(BIN)/python scripts/smollm2.py .e2e
	$(BIN)/python scripts/quality prompts respond ours $(QUALITY_ARGS)
	.venv-peers/bin/python scripts/quality theirs $(QUALITY_ARGS)
	$(BIN)/python scripts/quality evaluate report $(QUALITY_ARGS)

peers: .venv-peers/.ready

test-peers: peers
	PYTHONPATH=remote .venv-peers/bin/python -m pytest -q -m "not gpu" -o filterwarnings=default tests/peers

# speculators asks for torchvision and torchaudio, whose builds need not fit this torch, and uses neither here;
# dflash pins a release of datasets that it does not import.
.venv-peers/.ready: .venv/bin/python Makefile
	.venv/bin/python -m venv .venv-peers
	$(PEERS_PIP) $(TORCH_PIP_ARGS) "$(TORCH)"
	$(PEERS_PIP) "transformers==5.19.0" "speculators==0.9.0" "pytest>=8.3"
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PEERS_PIP) --no-deps "dflash==0.1.0"
	@touch $@

clean:
	rm -rf .venv .venv-peers build dist dflashctl-demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .e2e
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "dflashctl needs Python 3.11 or newer with venv and pip, found none of: $(CANDIDATES); try make PYTHON=/path/to/python3.12" >&2; \
	  exit 2; \
	fi
	@if [ "$(call is_recent,$(PYTHON))" != True ]; then \
	  echo "dflashctl needs Python 3.11 or newer with venv and pip, and $(PYTHON) is not that; try another make PYTHON=..." >&2; \
	  exit 2; \
	fi
	$(PYTHON) -m venv .venv

.venv/.torch: .venv/bin/python Makefile
	@echo "installing $(TORCH)"
	$(PIP) $(TORCH_PIP_ARGS) "$(TORCH)"
	@touch $@

.venv/.runtime: .venv/.torch $(INPUTS)
	@echo "installing dflashctl[$(RUNTIME)]"
	$(PIP) -c constraints.txt -e ".[$(RUNTIME)]"
	@touch $@

.venv/.dev: .venv/.runtime $(INPUTS)
	@echo "installing dflashctl[$(RUNTIME),dev]"
	$(PIP) -c constraints.txt -e ".[$(RUNTIME),dev]"
	@touch $@

.venv/.e2e: .venv/.dev $(INPUTS)
	@echo "installing dflashctl[$(RUNTIME),dev,e2e]"
	$(PIP) -c constraints.txt -e ".[$(RUNTIME),dev,e2e]"
	@touch $@
