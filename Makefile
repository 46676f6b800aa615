# `make demo` shows the main result in minutes, `make reproduce-small` the papers' comparison in less than an hour, `make test` runs the
# tests. All make their own environment in .venv first.
# PYTHON chooses the interpreter; PIP_ARGS goes to every pip install (for example to choose a CPU or CUDA index for torch).

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TORCH := $(shell grep '^torch==' requirements/requirements.txt)

.PHONY: demo reproduce-small test test-slow install clean

install: $(INSTALLED)

$(INSTALLED): requirements/requirements.txt requirements/requirements-dev.txt requirements/requirements-tensorboard.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(PIP_ARGS) --upgrade pip setuptools wheel
	@echo "installing $(TORCH), then DeepSpeed and the rest (DeepSpeed's build looks at torch)"
	$(BIN)/pip install -q $(PIP_ARGS) $(TORCH)
	$(BIN)/pip install -q $(PIP_ARGS) --no-build-isolation -r requirements/requirements.txt
	$(BIN)/pip install -q $(PIP_ARGS) -r requirements/requirements-tensorboard.txt -r requirements/requirements-dev.txt
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python prepare_data.py stdlib -d demo/data --vocab-size 4096
	$(BIN)/python deepy.py train.py -d configs demo.yml
	$(BIN)/python tools/analysis/plot_perplexity.py demo/logs/results.json --output demo/perplexity.png
	$(BIN)/python generate.py -d configs demo.yml

reproduce-small: $(INSTALLED)
	$(BIN)/python prepare_data.py stdlib -d reproduce_small/data --vocab-size 1024
	$(BIN)/python tools/reproduce_small.py

test: $(INSTALLED)
	$(BIN)/python -m pytest -q

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -q -m slow

clean:
	rm -rf demo reproduce_small
