# Everything sets itself up: `make demo` and `make test` need python3 (3.11 or newer) and make.

PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OTHERS ?= $(wildcard $(foreach v,3.12 3.13 3.14,$(HOME)/.pyenv/versions/$(v).*/bin/python3) /usr/bin/python3.12 /usr/bin/python3.13)

# At most as many as there are processors, each with up to 2 GiB; WORKERS=8 for more.
WORKERS ?= 2
JOBS ?= 1
# Printed last: the ten tests that took longest.
PYTEST := -m pytest -q -n auto --maxprocesses $(WORKERS) --dist worksteal --durations=10
FAST := "not slow and not gpu and not exhaustive and not targets"

.PHONY: help demo quick test test-slow test-exhaustive test-all test-oldest test-next test-sources test-clusters test-targets check docs mutants format bench peers benchmarks-page gpu wheels test-wheels release lock clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# --no-deps, since pip would ask for the tensorflow-text that pyproject.toml leaves out.
$(READY): requirements/dev.txt pyproject.toml millrace-ipu/pyproject.toml
	@test -d $(VENV) || $(PY) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PY) cannot make a virtual environment: apt-get install python3-venv, then again"; exit 1; }
	@echo "installing $$(grep -c == requirements/dev.txt) packages into $(VENV), which takes some minutes ..."
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./millrace-ipu
	@touch $@

demo: $(READY)  ## within a budget of memory, cut in two, and faster than plain Keras: a minute
	@$(BIN)/python examples/demo.py --output demo-output

quick: $(READY)  ## the tests to run while writing: a minute
	@$(BIN)/python $(PYTEST) -m "quick and not slow and not gpu and not exhaustive and not targets"

test: $(READY)  ## the tests, on the python3 at hand: minutes; COMPILER=shipped for XLA as users have it
	@$(BIN)/python $(PYTEST) -m $(FAST) $(if $(COMPILER),--compiler=$(COMPILER)) $(TESTS)

test-slow: $(READY)  ## the tests that take longest; SHARE=1/3 or TESTS=... for some, COMPILER=shipped as above
	@$(BIN)/python $(PYTEST) -m "slow and not gpu and not exhaustive and not targets" $(if $(SHARE),--share=$(SHARE)) \
	  $(if $(COMPILER),--compiler=$(COMPILER)) $(TESTS)

test-exhaustive: $(READY)  ## every combination of replicas, and more cases of the slow tests; an hour
	@$(BIN)/python $(PYTEST) -m "exhaustive and not gpu and not targets"

test-oldest:  ## the tests on the oldest supported Keras and JAX
	@test -d .venv-oldest || $(PY) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install -q --disable-pip-version-check -r requirements/oldest.txt
	@.venv-oldest/bin/python -m pip install -q --disable-pip-version-check --no-deps -e . -e ./millrace-ipu
	@.venv-oldest/bin/python $(PYTEST) -m $(FAST)

test-next:  ## the tests on the next Keras and the newest JAX for the python3 at hand; TESTS=... for some
	@test -d .venv-next || $(PY) -m venv .venv-next
	@.venv-next/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/next.txt
	@.venv-next/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./millrace-ipu
	@.venv-next/bin/python $(PYTEST) -m $(FAST) $(TESTS)

test-sources:  ## the tests with tensorflow, torch, W&B, MLflow, Orbax and others installed (2 GB)
	@test -d .venv-sources || $(PY) -m venv .venv-sources
	@.venv-sources/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/sources.txt
	@.venv-sources/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 torchdata==0.11.0 \
	  datasets==5.2.0 orbax-checkpoint==0.11.36 wandb==0.31.0 mlflow-skinny==3.17.2 flax==0.12.8 jax2onnx==0.17.1 onnx==1.23.2
	@.venv-sources/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./millrace-ipu
	@.venv-sources/bin/python -m pytest -q tests/feeds/test_data_sources.py tests/planning/test_planned_data.py tests/resuming/test_library_positions.py tests/benchmark/test_benchmark.py tests/millrace_ipu/tf_standin/test_real_data.py tests/test_works_with.py

test-clusters:  ## the tests on Ray, and on Slurm and Open MPI where they are installed (1 GB)
	@test -d .venv-clusters || $(PY) -m venv .venv-clusters
	@.venv-clusters/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@.venv-clusters/bin/python -m pip install -q --disable-pip-version-check "ray[train]==2.60.0" kubernetes==37.0.2
	@.venv-clusters/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./millrace-ipu
	@.venv-clusters/bin/python -m pytest -q -rs tests/test_clusters.py

test-targets:  ## the programs compiled for GPUs and TPUs, without either (1.3 GB); TESTS=..., MARKS=quick
	@test -d .venv-targets || $(PY) -m venv .venv-targets
	@.venv-targets/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/targets.txt
	@.venv-targets/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./millrace-ipu
	@JAX_PLATFORMS=cpu .venv-targets/bin/python $(PYTEST) -m "targets$(if $(MARKS), and $(MARKS))" $(or $(TESTS),tests/targets)

test-all: test  ## the tests on every other python that is installed, too
	@for python in $(OTHERS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "== python $$version"; \
	  $(MAKE) --no-print-directory test PY=$$python VENV=.venv-$$version || exit 1; \
	done

check: $(READY)  ## format, lint, types, layering
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@$(BIN)/python -m pytest -q tests/test_layering.py tests/test_public_api.py

docs: $(READY)  ## the documentation as a site, build/docs/index.html; a warning is an error
	@rm -rf build/docs build/docs-source && mkdir -p build/docs-source
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site -d build/docs-doctrees build/docs-source build/docs
	@echo "build/docs/index.html"

mutants: $(READY)  ## puts errors into a copy of the source: which do the tests notice? MUTANTS="--area plan"
	@$(BIN)/python tests/mutants/run.py $(MUTANTS)

format: $(READY)  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

bench: $(READY)  ## all benchmarks, or SHARE=1/3; BENCH=--small JOBS=3: only whether they run, three at a time
	@printf "%s\n" benchmarks/calls.py benchmarks/peers.py benchmarks/[a-z]*_*.py \
	  | awk -v share=$(or $(SHARE),0/1) 'split(share, s, "/") && NR % s[2] == s[1] % s[2]' | xargs -n 1 -P $(JOBS) sh -c '$(BIN)/python "$$0" $(BENCH) || exit 255; echo'

peers: $(READY)  ## against Keras 3.15 and 3.16, Keras on torch, torch's pipelines and handwritten JAX (1 GB)
	@test -d .venv-peers-next || $(PY) -m venv .venv-peers-next
	@.venv-peers-next/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/next.txt
	@test -d .venv-peers-torch || $(PY) -m venv .venv-peers-torch
	@.venv-peers-torch/bin/python -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@.venv-peers-torch/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
	@$(BIN)/python benchmarks/peers.py $(PEERS) \
	  --next-python .venv-peers-next/bin/python --torch-python .venv-peers-torch/bin/python

benchmarks-page: $(READY)  ## docs/benchmarks.md and README's table, from benchmarks/results/
	@$(BIN)/python benchmarks/page.py

gpu:  ## all that needs a GPU, in 20 minutes, with PY as it is; WHEELS=dir of what it lacks
	@$(PY) benchmarks/gpu.py $(if $(WHEELS),--wheels $(WHEELS)) \
	  $(if $(NEXT_WHEELS),--next-wheels $(NEXT_WHEELS)) $(GPU)

wheels: $(READY)  ## the wheels and sdists of both distributions, into dist/
	@$(BIN)/python release.py

test-wheels: $(READY)  ## what is in dist/, installed for every Python: minutes, and a network
	@$(BIN)/python tests/installed_wheels.py $(PY) $(OTHERS)

release: $(READY)  ## the same of a tag, which is checked: TAG=v1.2.3
	@$(BIN)/python release.py $(or $(TAG),$(error Set TAG to the tag of the release))

lock:  ## resolve pyproject.toml anew into requirements/
	@$(BIN)/python -m pip install -q uv
	@$(BIN)/uv lock -q
	@for part in dev sources; do \
	  extra=$$( [ $$part = sources ] && echo "--group sources" ); \
	  $(BIN)/uv export -q --locked --group dev $$extra --no-emit-project --no-emit-index-url \
	    --no-header --no-annotate -o requirements/$$part.txt > /dev/null; \
	done
	@rm uv.lock
	@for part in next targets; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --fork-strategy requires-python --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url -o requirements/$$part.txt requirements/$$part.in > /dev/null; \
	done

clean:  ## remove what the other commands made
	rm -rf .venv .venv-* .pytest_cache .ruff_cache build dist demo-output
