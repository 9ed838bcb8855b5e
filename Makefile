# Everything from nothing: Python 3.11 to 3.14 (with its venv module and headers), make and g++ are enough.
# PYTHON is the first one here that is supported and has venv.
IS_FIT := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3; do \
            if $$each -c "$(IS_FIT)" 2>/dev/null; then echo $$each; break; fi; done)
VENV   ?= .venv
NAME   ?= gpu
# Figures of `make gpu` go to GPU_JSON: to OUT/NAME.json where OUT is set, also by the environment, else to NAME.json where
# NAME is a path, else beside the others.
GPU_JSON = $(if $(OUT),$(OUT)/$(notdir $(NAME)),$(if $(findstring /,$(NAME)),$(NAME),experiments/results/gpu/$(NAME))).json
# What pip is given to install PyTorch. PyTorch's CPU build is a tenth of the default one, which brings CUDA:
#   make demo TORCH="--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps

# Two processes, files with costly tests first; one that crashes ends the run. What takes longest is listed at the end.
PYTEST := env OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 --durations=20
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: demo test studies e2e rest versions lint audit results package docs sbom chaos fuzz bench gpu sparse clean

demo: $(STAMPS)/base            ## set up, then show training, ranking and placement in three minutes: runs/demo/report.html
	$(BIN)/gst demo --json runs/demo.json

test: $(STAMPS)/dev             ## set up, then check every law, unit and property of the product (five minutes on two quiet cores)
	.ci/cpu_seconds 480 2400 "make test" $(PYTEST) -m "not e2e and not slow and not rest" --ignore=tests/experiments --ignore=tests/reproductions

studies: $(STAMPS)/dev          ## tests of benchmarks and reproductions, in experiments/
	$(PYTEST) -m "not e2e and not slow and not rest" tests/experiments tests/reproductions

e2e: $(STAMPS)/dev              ## slow tests, and commands end to end in processes of their own: kills, browser, fleets, code of README and docs
	$(PYTEST) -m "(e2e or slow) and not rest"

rest: $(STAMPS)/dev             ## the rest of long lists of parameters, of which the other three take a few (an hour)
	$(PYTEST) -m rest

versions:                       ## quick tests on the oldest and the newest Python and PyTorch, in environments of ~/.cache/gst-versions
	.ci/versions

lint: $(STAMPS)/dev             ## style, types, import contracts, plain sentences, size of the product
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	.ci/plain

results: $(STAMPS)/dev         ## tables and pictures of all READMEs, made anew from the tracked results (seconds)
	$(BIN)/python -m experiments.figures

docs: $(STAMPS)/dev            ## the pages of docs/, as build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

package: $(STAMPS)/dev         ## wheel and sdist, tried in an environment of their own, far from the repository
	.ci/package $(BIN)/python

chaos: $(STAMPS)/dev            ## kill prepare, fit, measure and place fifty times each: nothing may be lost (half an hour)
	$(BIN)/python -m experiments.bench chaos --kills 50 --json runs/chaos.json

fuzz: $(STAMPS)/dev             ## ten thousand damaged files for every reader, two thousand random programs: sound, or a clear error; a hundred changed lines: the tests fail (a night)
	$(BIN)/python -m experiments.bench fuzz --cases 10000 --coverage --json runs/fuzz.json
	$(BIN)/python -m experiments.bench fuzz_programs --json runs/fuzz_programs.json
	$(BIN)/python -m experiments.bench mutants --json runs/mutants.json

audit: $(STAMPS)/dev            ## known vulnerabilities of what is installed
	$(BIN)/python .ci/audit.py

sbom: $(STAMPS)/dev             ## bill of materials (CycloneDX), runs/sbom.json
	mkdir -p runs
	$(BIN)/cyclonedx-py environment --of JSON -o runs/sbom.json $(BIN)/python

bench: $(STAMPS)/dev           ## most figures of README.md, made anew (two hours); not those of published code or of others' programs; placement goes to runs/
	$(BIN)/python -m experiments.bench step --json experiments/results/step.json
	$(BIN)/python -m experiments.bench step --against full --json experiments/results/against_full.json
	$(BIN)/python -m experiments.bench score --json experiments/results/score.json
	$(BIN)/python -m experiments.bench memory --json experiments/results/memory.json
	$(BIN)/python -m experiments.bench table --json experiments/results/table.json
	$(BIN)/python -m experiments.bench partition --json experiments/results/partition.json
	$(BIN)/python -m experiments.bench distributed --json experiments/results/distributed.json
	$(BIN)/python -m experiments.bench checkpoint --json experiments/results/checkpoint.json
	$(BIN)/python -m experiments.bench executor --json experiments/results/executor.json
	$(BIN)/python -m experiments.bench simulator --programs rnnlm,gnmt,wavenet,inception,gpt,moe --json experiments/results/simulator.json
	for name in inception rnnlm gpt moe wavenet gnmt; do $(BIN)/python -m experiments.bench placement --programs $$name --evaluations 2000 --seeds 2 \
	  --json runs/placement_$$name.json || exit 1; done
	for name in tpugraphs.alexnet kaggle.ablation kaggle.reduction tpugraphs.tile; do $(BIN)/python -m experiments.reproductions.$$name || exit 1; done
	$(BIN)/python -m experiments.figures

gpu:                            ## tests and benchmarks of the GPU here with the python at hand, nineteen minutes (LIMIT=540: nine; RESUME=1 goes on)
	$(if $(wildcard $(BIN)/python),$(BIN)/python,python3) -m experiments.bench gpu \
	  $(if $(PROGRAMS),--programs $(PROGRAMS)) $(if $(LIMIT),--total-limit $(LIMIT)) $(if $(RESUME),--resume) --json $(GPU_JSON)

sparse: $(STAMPS)/sparse        ## torch-scatter and torch-sparse, built from source once (twenty minutes or more)

$(STAMPS)/base: pyproject.toml constraints.txt
	@echo "== setting up $(VENV), once: about 300 MB to fetch with PyTorch's CPU build (see TORCH in the Makefile), several GB with the default CUDA build"
	@test -x $(BIN)/python || { python="$(PYTHON)"; test -n "$$python" || { echo "no Python 3.11 to 3.14 with venv here; \
	  install one (on Debian python3-venv and python3-dev), or set PYTHON" >&2; exit 1; }; $$python -m venv $(VENV); }
	@echo "   torch (200 MB; with CUDA several GB)"
	@$(PIP) $(TORCH) setuptools
	@echo "   what gst stands on (100 MB), and Optuna for sweeps"
	@$(PIP) -e ".[sweep]"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(STAMPS)/base
	@echo "== tools of the tests, once: about 250 MB to fetch, one to three minutes"
	@$(PIP) -e ".[dev]"
	@touch $@

$(STAMPS)/sparse: $(STAMPS)/base
	@echo "== building torch-scatter and torch-sparse, once: twenty minutes or more"
	@$(PIP) --no-build-isolation -e ".[sparse]"
	@touch $@

clean:
	rm -rf $(VENV) runs build dist *.egg-info
