.DEFAULT_GOAL := help
# vLLM's environment is made only by the targets that need it.
.PHONY: help setup setup-vllm setup-peers setup-profile serve demo profile test test-vllm \
	test-load-tools soak fuzz bench lint format lock clean

BIN := .venv/bin
MODEL ?= tandem
HOST ?= 127.0.0.1
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
COMMA := ,
# The draft's folder in the model's version has the method's name; of a list, the last one's.
DRAFT = $(notdir $(wildcard model_repository/$(MODEL)/1/$(lastword $(subst $(COMMA), ,$(METHOD)))))
OVERRIDES = $(if $(METHOD),--set speculative_method=$(METHOD)) \
	$(if $(DRAFT),--set draft_model=$(DRAFT)) $(if $(TREE),--set speculative_tree=$(TREE)) \
	$(if $(TOKENS),--set num_speculative_tokens=$(TOKENS)) \
	$(if $(ANSWERS),--set suffix_decoding_max_cached_requests=$(ANSWERS))
# The vLLM engine's environment, for models that name this engine.
NEEDS = $(if $(shell grep -s 'key: "engine" value { string_value: "vllm"' \
	model_repository/$(MODEL)/config.pbtxt),setup-vllm)
# Instead of the model's own, for example: make demo METHOD=suffix,eagle3 TREE=4 TOKENS=12
METHOD ?=
TREE ?=
ANSWERS ?=
TOKENS ?=
# A file of perf_analyzer_configs/, or a path, and what measures it: see docs/profiles.md
PROFILE ?= chat
TOOL ?= perf_analyzer
SECONDS ?= 60
HERE := not vllm and not load_tools
# Arguments for the demo and for pytest, for example: make test ARGS="-k serving -x"
ARGS ?=

help: ## this table
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## make .venv and .triton, or nothing when they are up to date
	@tools/setup/setup.sh

serve: setup $(NEEDS) ## serve MODEL on HTTP_PORT, GRPC_PORT and METRICS_PORT until Ctrl-C
	@$(BIN)/tandem serve --model $(MODEL) --http-port $(HTTP_PORT) \
		--grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT) $(OVERRIDES)

demo: setup $(NEEDS) ## start a server on free ports and compare plain with speculative decoding
	@$(BIN)/tandem demo --model $(MODEL) $(OVERRIDES) $(ARGS)

setup-profile: setup
	@tools/setup/perf_analyzer.sh
	@$(if $(filter-out perf_analyzer,$(TOOL)),tools/setup/load_tools.sh)

profile: setup-profile $(NEEDS) ## measure the load profile PROFILE with and without speculation, and report
	@$(BIN)/python -m tools.load_profiles $(PROFILE) --tool $(TOOL) --model $(MODEL) --host $(HOST) \
		--http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT) $(OVERRIDES)

# Those that ask a server much need both cores: they come by themselves. Where ARGS choose among tests,
# there may be none of a kind.
test test-vllm: NONE = $(if $(ARGS),5,0)
test: setup-profile ## run every test but those of vLLM and load tools; a GPU's are skipped without one
	@$(BIN)/python -m pytest -n 2 -m "$(HERE) and not triton" $(ARGS) || test $$? = $(NONE)
	@$(BIN)/python -m pytest -n 2 -m "$(HERE) and triton and waiting" $(ARGS) || test $$? = $(NONE)
	@$(BIN)/python -m pytest -m "$(HERE) and triton and not waiting" $(ARGS) || test $$? = $(NONE)

setup-vllm: setup ## make .venv-vllm, or nothing when it is up to date
	@tools/setup/vllm.sh

fuzz: setup ## look for requests and parameters that break the model, for SECONDS (60)
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-build-isolation \
		--constraint requirements.lock --editable '.[fuzz]'
	@$(BIN)/python -m tools.fuzz --seconds $(SECONDS) $(ARGS)

test-vllm: setup-vllm ## run the tests that need vLLM, and the contract's tests on tandem_vllm
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "vllm and waiting" $(ARGS) || test $$? = $(NONE)
	@$(BIN)/python -m pytest -m "vllm and not waiting" $(ARGS) || test $$? = $(NONE)
	@$(BIN)/python -m pytest tests/triton --ignore-glob "*_parallel.py" \
		--ignore-glob "*test_methods.py" --ignore-glob "*test_soak.py" \
		--ignore-glob "*_steps.py" --ignore-glob "*test_native.py" --serve tandem_vllm $(ARGS) || test $$? = $(NONE)

soak: setup $(NEEDS) ## 30 minutes of mixed traffic, 5 with kills, 1 of overload, 50 loads, reloads and unloads
	@for run in traffic faults overload reloads; do \
		$(BIN)/python -m tools.soak $$run --model $(MODEL) --plot .cache/soak/$$run.svg || exit 1; \
	done

test-load-tools: TOOL = all
test-load-tools: setup-profile ## run the tests that need genai-perf and aiperf
	@$(BIN)/python -m pytest -m load_tools $(ARGS)

setup-peers: setup-vllm ## make the environments of the engines that `bench` compares with
	@tools/setup/openvino.sh

bench: setup-peers ## measure everything (hours on a quiet machine) and write BENCHMARKS.md
	@for part in compare throughput steps adaptive "adaptive --megabytes 200" mixtures methods serving report; do \
		$(BIN)/python -m benchmarks.$$part || exit 1; done

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff sort imports and format
	@$(BIN)/ruff check --fix --select I .
	@$(BIN)/ruff format .

lock: setup ## pin the newest versions that pyproject.toml and tools/setup/lock.sh allow, in every lock
	@tools/setup/lock.sh

clean: ## remove what the other targets made
	rm -rf .venv .venv-vllm .venv-openvino .venv-profile .perf_analyzer .cache .triton .triton.* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
