# Everything a fresh machine with Python and make needs. A wheel instead of the checkout:
# make test WHEEL=dist/nodeproof-0.1.0-py3-none-any.whl
PYTHON ?= python3
VENV ?= .venv
WHEEL ?=
PROFILE ?= quick
OUTPUT ?= nodeproof-results
JOBS ?= 2 # tests at a time: most of their time they wait for processes they started
# A GPU that is in the machine is tested, even where its driver is missing (and the run is then
# undecided); only a machine without one rehearses.
DEVICE ?= $(shell grep -lsx 0x10de /sys/bus/pci/devices/*/vendor >/dev/null && echo cuda || { test -e /dev/nvidiactl && echo cuda || echo cpu; })

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TARGET := $(if $(WHEEL),$(WHEEL),.)
HOW := $(if $(WHEEL),,--editable)

.PHONY: accept test test-all lint format manifest clean
.DEFAULT_GOAL := accept

accept: $(VENV)/node
	@$(BIN)/nodeproof run --profile $(PROFILE) --device $(DEVICE) --output $(OUTPUT)

test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not long"

test-all: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

manifest: $(VENV)/dev
	$(BIN)/python docs/generate.py

$(VENV)/node: pyproject.toml constraints.txt $(WHEEL)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(HOW) "$(TARGET)[node]"
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt $(WHEEL)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(HOW) "$(TARGET)[dev]"
	@touch $@ $(VENV)/node

clean:
	rm -rf build dist $(VENV) nodeproof-results src/*.egg-info
