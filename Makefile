# One definition of every check; CI calls the same targets.
VENV ?= .venv
BIN = $(VENV)/bin
PYTHON ?= python3
STAMP = $(VENV)/.installed
SIM = $(BIN)/gpu-bootstate --simulate hgx-h200-8 --sim-dir build/demo --config config/config.yaml

.PHONY: demo test chaos fuzz mutations lint types check fmt clean

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	touch $@

# The main job on a simulated, just rebooted 8-GPU HGX node: no GPU, no root.
demo: $(STAMP)
	@echo '== a just booted node with eight H200, and what is to be done'
	$(SIM) simulate new --pace 0.05
	$(SIM) plan
	@echo '== first run: everything is brought up, then the gate opens'
	$(SIM) apply
	@echo '== second run: nothing to do, no call that changes anything'
	$(SIM) simulate show --trace | wc -l > build/demo/calls
	$(SIM) apply
	test "$$($(SIM) simulate show --trace | wc -l)" -eq "$$(cat build/demo/calls)"
	@echo '== reboot: the state is gone, the gate is shut; the next run brings it back'
	$(SIM) simulate reboot
	$(SIM) simulate show
	test ! -e build/demo/root/run/gpu-bootstate/ready
	$(SIM) apply
	test -e build/demo/root/run/gpu-bootstate/ready
	$(SIM) status

# The boot tests by themselves, two machines at a time: beside more, an emulated machine is slower
# than its limits.
# SKIP_BOOT_TESTS=1 leaves them out.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m 'not boot'
	$(BIN)/python -m pytest -n 2 --dist loadfile -m boot

# The long matrix of crashes and faults; `make test` has a seeded part of it.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(CHAOS)

# Coverage-guided, of the parser; atheris has no wheel for every Python, so it is no dependency.
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet atheris
	mkdir -p build/fuzz/corpus
	cp config/*.yaml tests/device/*.yaml build/fuzz/corpus
	cd build/fuzz && $(abspath $(BIN))/python ../../tests/fuzz/config.py \
		-timeout=10 -rss_limit_mb=1024 -max_len=4096 -max_total_time=$(or $(FUZZ),60) corpus

# Faults planted in our own code, and which test notices.
mutations: $(STAMP)
	$(BIN)/python -m tests.chaos.mutations

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy --strict tests

check: lint types test

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
