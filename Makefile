# Everything from nothing: python3.11 and gcc are enough.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps

.PHONY: demo test lint bench sparse clean

demo: $(STAMPS)/base            ## set up, then run the whole loop on what this machine has
	$(BIN)/gst demo --json runs/demo.json

test: $(STAMPS)/dev             ## set up, then run every test
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMPS)/dev             ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMPS)/dev           ## the figures of README.md, made anew (two hours)
	$(BIN)/gst bench step --json experiments/results/step.json
	$(BIN)/gst bench step --against full --json experiments/results/against_full.json
	$(BIN)/gst bench score --json experiments/results/score.json
	$(BIN)/gst bench memory --json experiments/results/memory.json
	$(BIN)/gst bench table --json experiments/results/table.json
	$(BIN)/gst bench partition --json experiments/results/partition.json
	$(BIN)/gst bench executor --json experiments/results/executor.json
	$(BIN)/gst bench simulator --programs rnnlm,gnmt,wavenet,inception,gpt,moe --json experiments/results/simulator.json
	for name in inception rnnlm gpt moe wavenet gnmt; do $(BIN)/gst bench placement --programs $$name --evaluations 2000 --seeds 1 \
	  --json runs/placement_$$name.json || exit 1; done
	$(BIN)/python -m experiments.variants.compare
	$(BIN)/python -m experiments.benchmarks.alexnet
	for name in alexnet ablation reduction tile; do $(BIN)/python -m experiments.reproductions.tpugraphs_$$name || exit 1; done

sparse: $(STAMPS)/sparse        ## torch-scatter and torch-sparse, built from source once (twenty minutes or more)

$(STAMPS)/base: pyproject.toml constraints.txt
	@echo "== setting up $(VENV) (once; about 300 MB to fetch)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt torch==2.13.0 setuptools
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(STAMPS)/base
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e ".[dev]"
	@touch $@

$(STAMPS)/sparse: $(STAMPS)/base
	$(BIN)/python -m pip install --no-build-isolation -c constraints.txt -e ".[sparse]"
	@touch $@

clean:
	rm -rf $(VENV) runs build dist *.egg-info
