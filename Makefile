# spark-streams: every target does its own set-up; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the demo runs is there; `make setup` adds what is for development.
RUNS := $(VENV)/.runs
# What pip keeps to; nothing where what it gives today is tried (`make today`).
CONSTRAINTS := -c constraints.txt
# Runs what follows beside a RabbitMQ of its own; without one, saying why in a line, where none can be started.
WITH_BROKER := $(BIN)/python tests/real_rabbitmq/broker.py run --
export SPARK_CONF_DIR := $(CURDIR)/conf
# Tests and queries start hundreds of processes: only the first compiles what they import.
unexport PYTHONDONTWRITEBYTECODE

PIP := -m pip --quiet --disable-pip-version-check
PIP_INSTALL := $(PIP) install
# What every process of Spark and of the log imports; of the rest little is, and who imports it first compiles it.
COMPILED := pyspark py4j pyarrow numpy requests starlette uvicorn click rich
# conf/wheels.cfg: pyspark is built from its archive, into a wheel that only goes from here to there.
$(RUNS) .venv-spark-%/.ready: export DIST_EXTRA_CONFIG := $(CURDIR)/conf/wheels.cfg

# The supported Sparks beside the highest, which constraints.txt names.
OLDER_SPARKS := 4.0.5 4.1.4 4.2.1
# Modules run beside each other (tests/scheduling.py), as they mostly wait; WORKERS=0 runs them one after another.
WORKERS ?= 4
# The I-th of N parts of `make test-all`, each a share of the modules.
PART ?= 1/1
# The same examples every time: a change is judged by itself, not by luck. EXAMPLES=default seeks new ones.
EXAMPLES ?= ci

PYTEST := -m pytest -n $(WORKERS) --hypothesis-profile=$(EXAMPLES) $(PYTEST_ARGS)

.PHONY: help setup lint typecheck test unit test-all nightly today audit all-tests fuzz soak mutation bench bench-peers bench-hostile demo docs pictures site release-check clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(READY)  ## make .venv with the exact versions of constraints.txt: some minutes, once; it tells how far it is

$(RUNS): pyproject.toml constraints.txt conf/system-requirements.sh
	@PYTHON="$(PYTHON)" bash conf/system-requirements.sh python
	@[ -x $(BIN)/python ] || { echo "setup: $$($(PYTHON) --version) in $(VENV)" && $(PYTHON) -m venv $(VENV); }
	@echo "setup: pyspark, 400 MB, the log's packages, and spark-streams itself: up to a minute"
	@# What setuptools warns about is that an installation from a checkout finds other modules beside it.
	@PYTHONWARNINGS=ignore $(BIN)/python $(PIP_INSTALL) --no-compile $(CONSTRAINTS) -e '.[log,spark]'
	@cd $(VENV)/lib/python*/site-packages && ../../../bin/python -m compileall -q -j 2 $(COMPILED)
	@touch $@

$(READY): $(RUNS)
	@PYTHON="$(PYTHON)" bash conf/system-requirements.sh compiler
	@echo "setup: what spark-streams is tested and developed with; python-qpid-proton is compiled: a minute or two"
	@$(BIN)/python $(PIP_INSTALL) $(CONSTRAINTS) --upgrade pip
	@PYTHONWARNINGS=ignore $(BIN)/python $(PIP_INSTALL) --no-compile $(CONSTRAINTS) -e '.[dev]'
	@cd $(VENV)/lib/python*/site-packages && ../../../bin/python -m compileall -q -j 2 pandas proton
	@touch $@
	@echo "setup: done"

lint: $(READY)  ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

typecheck: $(READY)  ## mypy, strict, on everything that is shipped
	@rm -rf build/mypy && mkdir -p build/mypy/spark_streams
	@ln -s $(CURDIR)/spark_streams/* build/mypy/spark_streams/
	@ln -s $(CURDIR)/sources build/mypy/spark_streams/sources
	@ln -s $(CURDIR)/sinks build/mypy/spark_streams/sinks
	@# mypy cannot follow the package-dir mapping of pyproject.toml: it sees the same files through this view.
	@ln -s $(CURDIR)/pyspark_*.py build/mypy/
	@cd build/mypy && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p spark_streams -m pyspark_amqp_events -m pyspark_feedapi -m pyspark_rabbitmq_stream

test: lint typecheck unit  ## what a change must pass: lint, types, and all tests but the nightly ones

unit: $(READY)  ## the tests of `make test`, those marked `rabbitmq` too where a real RabbitMQ can be started
	@bash conf/system-requirements.sh java
	@$(WITH_BROKER) $(BIN)/python $(PYTEST) -m "not nightly"

test-all: $(OLDER_SPARKS:%=.venv-spark-%/.ready)  ## the rest, before a release and every night; PART=2/8 is an eighth of it
	@$(MAKE) --no-print-directory --keep-going nightly $(OLDER_SPARKS:%=test-spark-%)

nightly: $(READY)  ## of the rest, what runs on the highest Spark
	@bash conf/system-requirements.sh java
	@$(WITH_BROKER) $(BIN)/python $(PYTEST) --part $(PART) -m "nightly"

# What users have who install it today, in an environment that is made anew each time.
TODAY := $(MAKE) --no-print-directory VENV=.venv-today CONSTRAINTS=
today:  ## all tests with what pip gives today in place of constraints.txt, what differs, known vulnerabilities; PART as above
	@rm -rf .venv-today
	@$(TODAY) setup
	@.venv-today/bin/python tests/packaging/today.py
	@$(TODAY) --keep-going audit all-tests

# In an environment of its own. It names what it found nothing about, which is no failure.
audit: $(READY)
	@[ -x .venv-audit/bin/python ] || $(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python $(PIP_INSTALL) pip-audit
	@.venv-audit/bin/pip-audit --progress-spinner off --skip-editable --path $(VENV)/lib/python*/site-packages

all-tests: $(READY)
	@bash conf/system-requirements.sh java
	@$(WITH_BROKER) $(BIN)/python $(PYTEST) --part $(PART)

fuzz: $(READY)  ## throw broken bytes at the doors for SECONDS (600) of time, with the seed SEED or a random one
	@$(BIN)/python -m tests.fuzz.campaign --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

# Kept in .venv-spark-<version> as long as the dependencies stay as they are.
.venv-spark-%/.ready: pyproject.toml constraints.txt Makefile
	@PYTHON="$(PYTHON)" bash conf/system-requirements.sh python compiler java
	@[ -x .venv-spark-$*/bin/python ] || $(PYTHON) -m venv .venv-spark-$*
	@echo "setup: Spark $* in .venv-spark-$*: some minutes, 400 MB"
	@# Spark supports pandas 3 from 4.3 on.
	@sed -E '/^pyspark==/d; s/^pandas==.*/pandas<3/' constraints.txt > .venv-spark-$*/constraints.txt
	@.venv-spark-$*/bin/python $(PIP_INSTALL) \
		-c .venv-spark-$*/constraints.txt -e '.[log,spark,connect,test]' 'pyspark[sql,connect]==$*'
	@touch $@

.PRECIOUS: .venv-spark-%/.ready
test-spark-%: .venv-spark-%/.ready
	@echo "Spark $*"
	@.venv-spark-$*/bin/python $(PYTEST) --part $(PART) tests/e2e tests/testing \
		tests/docs/test_guides_with_jars.py tests/docs/test_sql_page.py \
		-m "spark and not rabbitmq"

soak: $(READY)  ## ten minutes of random faults on the way, on all three protocols; SECONDS=60 is shorter, SEED=1 repeats
	@bash conf/system-requirements.sh java
	@$(BIN)/python tests/faults/soak.py --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

mutation: $(READY)  ## which changes of FOLDER=spark_streams/filters (or of a module) its tests do not mind; SAMPLE=200, SEED=1
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[mutation]'
	@nice -n 15 $(BIN)/python tests/mutation.py $(or $(FOLDER),spark_streams/filters) --sample $(or $(SAMPLE),200) --seed $(or $(SEED),1)

bench: $(READY)  ## sources and sinks beside plain proton, rstream, zeroeventhub and requests, and filters, as ratios; ONLY and COMPARE as below
	@bash conf/system-requirements.sh java
	@$(WITH_BROKER) $(BIN)/python -m tests.bench.peers $(or $(ONLY),--plain) $(if $(COMPARE),--compare $(COMPARE)) --json build/bench
	@for each in $(if $(ONLY)$(COMPARE),,filters_eval filters_split filters); do $(BIN)/python tests/bench/$$each.py || exit; done

# Of these Sparks, Maven's central repository has Kafka's connector; the first is that of the JVM connector for RabbitMQ.
BENCH_SPARKS := 4.1.1 4.2.0
bench-peers: $(BENCH_SPARKS:%=.venv-spark-%/.ready)  ## beside Spark's Kafka and a JVM connector; ONLY="latency" is a part, COMPARE=REV two revisions
	@bash conf/system-requirements.sh jdk maven
	@for spark in $(BENCH_SPARKS); do .venv-spark-$$spark/bin/python -m tests.bench.peers $(ONLY) \
		$(if $(COMPARE),--compare $(COMPARE)) --json build/bench-peers/$$spark || exit; done

bench-hostile: $(READY)  ## how long a good client waits beside each bad one; ONLY=rabbitmq is a part, SECONDS (10) of each, TLS=1 all over TLS
	@$(BIN)/python tests/bench/hostile.py --seconds $(or $(SECONDS),10) $(if $(ONLY),--only "$(ONLY)") $(if $(TLS),--tls)

demo: $(RUNS)  ## start a log, run a streaming query AMQP -> Spark -> AMQP, show what happened, leave nothing behind
	@bash conf/system-requirements.sh java
	@$(BIN)/spark-streams demo

docs: $(READY)  ## write the tables of options and the pictures of states in docs/ anew from the code
	@PYTHONPATH=. $(BIN)/python docs/option_tables.py
	@PYTHONPATH=. $(BIN)/python docs/state_pictures.py

pictures: $(READY)  ## take the pictures of the log's window in docs/pictures anew, with the machine's Chromium; ONLY=stream is one
	@$(BIN)/python -m tests.browser.pictures $(if $(ONLY),--only $(ONLY))

release-check: $(READY)  ## build sdist and wheel, twine check, install each; the changelog has the version; TAG=v0.1.0, and a date
	@$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[release]'
	@$(BIN)/python tests/packaging/release.py $(if $(TAG),--tag "$$TAG")

# In an environment of its own: what builds the site keeps nothing back that the product needs.
SITE := .venv-site
$(SITE)/.ready: pyproject.toml constraints.txt $(READY)
	@[ -x $(SITE)/bin/python ] || $(BIN)/python -m venv $(SITE)
	@$(BIN)/python docs/site/requirements.py > $(SITE)/requirements.txt
	@$(SITE)/bin/python $(PIP_INSTALL) -c constraints.txt -r $(SITE)/requirements.txt
	@touch $@

site: $(SITE)/.ready  ## build the pages, the reference and the notebooks as a site, in build/site; open build/site/index.html
	@PYTHONPATH=. $(BIN)/python -m docs.site.source
	@cd build && ../$(SITE)/bin/zensical build --clean --strict

clean:  ## remove everything that was made here
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse artifacts
