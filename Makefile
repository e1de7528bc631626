# Prints itself: the text behind ## is what `make help` shows.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-spark test-deep simulate kills soak check bench figures screenshots docs docs-serve release clean

PYTHON ?= python3
HEADGATE_CACHE ?= $(HOME)/.cache/headgate
export HEADGATE_CACHE

BIN := .venv/bin
BENCHES := objects wal_write wal_replay wal_requests open_replay stream_open decode stream freshness maintenance vector \
	read scale search search_query round_trips console
BENCH ?= $(BENCHES)
# The promise lives in these rooms, so this much of their branches must be tested.
GATED := headgate/shards/*,headgate/checkpoints/*
GATE := 90

help: ## Say what can be made
	@echo "headgate needs Python 3.11 or newer, Java 17 or newer, and make."
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
		printf '  make %-11s %s\n' "$$name" "$$what"; done
	@echo
	@echo "  PYTHON=python3.12    another Python for .venv      BENCH=objects    one benchmark ($(BENCHES))"
	@echo "  SPARK=4.0            the line of Spark of test-spark (3.5, 4.0, 4.1, 4.2)"
	@echo "  HEADGATE_CACHE=dir   where the jars are kept (now $(HEADGATE_CACHE))"

setup: ## Make .venv and fetch the jars; does nothing when both are there
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "headgate needs Python 3.11 or newer, and $(PYTHON) is not: install one, or name it: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) scripts/bootstrap.py

demo: setup ## See a topic flow into a table
	@$(BIN)/headgate demo

# Tests sync thousands of files, so that their folders lie in memory where there is room: 4 GB, of which few are used.
TEST_ROOT = $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "/dev/shm"}')
# They start hundreds of processes: the package is compiled once for all, whatever the environment says.
TEST_ENV = PYTHONDONTWRITEBYTECODE= $(if $(TEST_ROOT),PYTEST_DEBUG_TEMPROOT=$(TEST_ROOT))

# Spark and Kafka tests stay on two workers each (tests/conftest.py), so that few Sparks and brokers serve them all. They
# wait for a good part of their time: a fifth worker fills it with the other tests.
RUN_TESTS = $(TEST_ENV) $(BIN)/python -m tests.support.rerun -n 5 --dist loadgroup

# `make test` runs one stream on these too. Where one cannot be made, that is said, and the stream's test fails.
SHORT_LINES = 3.5 4.0
ENVIRONMENTS = $(PYTHON) scripts/bootstrap.py

test: setup ## Run the tests
	@$(ENVIRONMENTS) $(SHORT_LINES) || true
	@$(BIN)/python -m tests.support.servers versitygw toxiproxy
	@$(BIN)/python -m tests.support.browser
	@$(BIN)/python -m tests.support.classes
	@HEADGATE_LINES="$(SHORT_LINES)" $(RUN_TESTS)

# What meets Spark, on one line of it. Its environment is the few packages of constraints-spark-$(SPARK).txt before .venv.
SPARK ?= 4.0
LINES = 3.5 4.0 4.1 4.2
SPARK_BIN = $(if $(wildcard constraints-spark-$(SPARK).txt),.venv-spark-$(SPARK),.venv)/bin
SPARK_TESTS ?= tests/spark tests/recovery tests/streaming tests/search tests/network_faults
SPARK_MARKS ?= spark and not s3

test-spark: setup ## Run the tests that meet Spark on SPARK=3.5, 4.0, 4.1 or 4.2; their results go to docs by make figures
	@$(ENVIRONMENTS) $(filter-out 4.2,$(SPARK))
	@$(SPARK_BIN)/python -m tests.support.classes
	@$(TEST_ENV) HEADGATE_RESULTS=$(RESULTS) HEADGATE_LINE=$(SPARK) $(SPARK_BIN)/python -m tests.support.rerun \
		-n 4 --dist loadgroup -m "$(SPARK_MARKS)" $(SPARK_TESTS)

# Long tests write result files here; `make figures` renders docs/evidence.md from them.
RESULTS ?= tests/results

# Measuring branches takes half as long again, so it is done here. The gate is silent when it holds.
test-deep: setup ## Run the tests with branch coverage, and those that take minutes
	@$(BIN)/python -m tests.support.servers versitygw minio toxiproxy prometheus compose
	@$(BIN)/python -m tests.support.browser
	@$(BIN)/python -m tests.support.classes
	@$(BIN)/coverage erase
	@$(RUN_TESTS) --cov --cov-report=term
	@$(BIN)/coverage report --include='$(GATED)' --fail-under=$(GATE) >/dev/null || { \
		$(BIN)/coverage report --include='$(GATED)'; \
		echo "Branch coverage of $(GATED) is below $(GATE) %."; exit 1; }
	@$(TEST_ENV) HEADGATE_RESULTS=$(RESULTS) HEADGATE_LINES="$(LINES)" $(BIN)/pytest -m deep
	@for line in $(LINES); do $(MAKE) --no-print-directory test-spark SPARK=$$line SPARK_MARKS="spark" || exit 1; done

SCHEDULES ?= 100000
simulate: setup ## Run SCHEDULES=100000 seeded schedules of the product's own code against faults; HEADGATE_SEED replays
	@SCHEDULES=$(SCHEDULES) HEADGATE_RESULTS=$(RESULTS) $(BIN)/pytest -q -s -o faulthandler_timeout=0 tests/simulation -k no_schedule_breaks

COUNT ?= 10000
kills: setup ## Kill COUNT=10000 writing processes, every 50th of a stream; no acknowledged row may be lost or doubled
	@$(TEST_ENV) HEADGATE_RESULTS=$(RESULTS) $(BIN)/python -m tests.kills --count $(COUNT)

MINUTES ?= 30
soak: setup ## Kill and cut off every part of a stream for MINUTES=30; in the end the table is the topic
	@$(BIN)/python -m tests.support.servers versitygw toxiproxy
	@HEADGATE_RESULTS=$(RESULTS) $(BIN)/python -m tests.soak --minutes $(MINUTES)

check: setup ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## Run the benchmarks
	@for name in $(BENCH); do $(BIN)/python -m benchmarks.$$name || exit 1; done

figures: setup ## Render docs and charts from the result files of benchmarks and long tests
	@$(BIN)/python -m benchmarks.figures

screenshots: setup ## Take pictures of every page of the console into docs/images
	@$(BIN)/python -m tests.support.browser
	@$(BIN)/python -m tests.support.screenshots

DOCS = NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs

docs: setup ## Build the documentation into build/site
	@$(DOCS) build --quiet --strict
	@echo "Open build/site/index.html."

docs-serve: setup ## Show the documentation at 127.0.0.1:8000 while you write it
	@$(DOCS) serve

release: setup ## Build wheel, source archive and documentation into build/release, and check them
	@$(BIN)/python scripts/release.py

clean: ## Remove .venv and every cache in this checkout
	@rm -rf .venv .venv-spark-* .coverage .coverage.* .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
		build dist spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "The jars stay in $(HEADGATE_CACHE); rm -r \"$(HEADGATE_CACHE)\" removes them."
