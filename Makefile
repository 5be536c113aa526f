# A fresh machine needs make and python3 >= 3.11, nothing else: each target first builds what it needs in .venv.
# Another interpreter: make clean, then make test PYTHON=python3.12. Another case: make plan SCENARIO=my.yaml.
PYTHON ?= python3
SCENARIO ?= planner/presets/scenarios/chat-llama-70b.yaml
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help plan test coverage app lint docs wheel sbom clean

help:
	@echo "make plan   plan the worked example (SCENARIO=file for another one)"
	@echo "make test   style, types and tests, on two cores"
	@echo "make coverage   tests with coverage: twice the time"
	@echo "make app    open the web app on localhost"
	@echo "make lint   style and types only"
	@echo "make docs   build the documentation into site/, strictly and without a network"
	@echo "make wheel  build dist/*.whl"
	@echo "make sbom   list what the container image holds, in sbom.json (CycloneDX)"
	@echo "make clean  remove .venv and everything that was built"

plan: $(VENV)/runtime.stamp
	$(BIN)/planner plan $(SCENARIO)

# Types are checked beside the tests, so that no core idles meanwhile, and complained of after them. A first plan compiles
# what numba compiles once, which both cores would otherwise do at the same time; a fault in it is for the tests to tell.
# Files go to the two cores in order of name: the slow ones (pages, the browser, calibration) come early, doctests last.
# One thread of linear algebra each: more would take the cores from one another. Bytecode is kept whatever the container
# says: some hundred processes of the tests would each compile the package anew.
# On a clean clone both workers would rewrite every assert, so that it says its values should it fail: what fails is run
# once more for that.
test coverage: export OMP_NUM_THREADS = 1
test coverage: export OPENBLAS_NUM_THREADS = 1
test coverage: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & mypy=$$!; \
	$(BIN)/planner plan chat-llama-70b --set workload.drift=none --set "search.skus=[h100-sxm]" --set "search.tp=[8]" -q > $(VENV)/compiled.txt 2>&1; \
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --assert=plain; tests=$$?; \
	[ $$tests -ne 1 ] || $(BIN)/python -m pytest -q --last-failed; \
	wait $$mypy; types=$$?; cat $(VENV)/mypy.txt; exit $$((tests | types))

coverage: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --cov=planner --cov-report=term:skip-covered --cov-fail-under=90

app: $(VENV)/app.stamp
	$(BIN)/streamlit run app.py --browser.gatherUsageStats false --server.showEmailPrompt false --server.address localhost

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "built site/; to read it with its search: python3 -m http.server --directory site"

wheel: $(VENV)/runtime.stamp
	rm -rf build dist
	$(BIN)/python -m pip --disable-pip-version-check wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist
	@ls dist/*.whl

sbom: $(VENV)/app.stamp
	$(BIN)/python -m docs.sbom sbom.json

clean:
	rm -rf $(VENV) sbom.json build dist site *.egg-info .coverage .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache

# One stamp per set of extras, newer than the two files it was installed from. The build backend comes first and by
# constraint, so that the project itself is built with the pinned one and nothing is downloaded twice.
$(VENV)/created.stamp:
	@command -v $(PYTHON) >/dev/null || { echo "PYTHON = $(PYTHON): not found. Fix: install Python >= 3.11, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PYTHON = $(PYTHON): is $$($(PYTHON) -V 2>&1), needs >= 3.11. Fix: name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "PYTHON = $(PYTHON): has no venv with pip. Fix: install it, on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/runtime.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/app.stamp: $(VENV)/runtime.stamp
	$(INSTALL) --no-build-isolation --editable '.[app]'
	@touch $@

$(VENV)/docs.stamp: $(VENV)/runtime.stamp
	$(INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	$(INSTALL) setuptools
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $(VENV)/runtime.stamp $(VENV)/app.stamp $(VENV)/docs.stamp $@
