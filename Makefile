# Everything that a developer or CI does. Needs Python 3.11, g++, make, patch, and cmake (or its wheel, which is then
# installed).
# The tests are several pytest runs in two environments; each leaves its JUnit report in build/junit.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PYTHON
# Compiled modules and tests are kept for the next run, which is seconds faster; `make clean` removes them.
unexport PYTHONDONTWRITEBYTECODE

CLUSTER := local
AIRFLOW := .venv/bin
TRAINER := .venv-trainer/bin
TENSORFLOW := .venv-tensorflow/bin
SITE := .venv-site/bin
MANIFESTS := .venv-manifests/bin
FRAMEWORKS := .venv-frameworks/bin
SCRIPTS_PYTHON := .venv-scripts/bin
# What checks the page's accessibility, where there is an npm to fetch it.
AXE := provider/frontend/node_modules/axe-core/axe.min.js
export ELASTIC_TRAINING_TRAINER_PYTHON := $(CURDIR)/$(TRAINER)/python

# $(call pytest,environment,report,folders)
pytest = $(1)/python -m pytest --junitxml=build/junit/$(2).xml $(3)
# For tests of real runs, which wait half of their time: two at once take half as long, and keep their limits.
PAIRS := --numprocesses 2 --dist loadfile

help: ## show this
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

setup: ## make .venv and .venv-trainer, or bring them up to date
	@tools/setup

setup-tensorflow: ## make .venv-tensorflow, with .venv; FAMILY=both: with torch beside TensorFlow; five minutes the first time
	@tools/setup $(or $(FAMILY),tensorflow)

setup-frameworks: setup ## make .venv-frameworks: Accelerate, DeepSpeed, Lightning, Megatron-Core, Transformers; two minutes the first time
	@tools/setup frameworks

setup-scripts: setup ## make .venv-scripts: what other people's training scripts import; two minutes the first time
	@tools/setup scripts

setup-ray: setup ## make .venv-ray: Ray, beside what .venv-trainer has; a minute the first time
	@tools/setup ray

setup-torchft: ## make .venv-torchft, with .venv: TorchFT, a peer of the benchmarks; a minute the first time
	@tools/setup torchft

setup-spark: ## make .venv-spark: pyspark, for the tests in Spark; a minute the first time
	@tools/setup spark

# The one list of what `make test` and CI run, one after the other.
PARTS := lint test-unit test-security test-contract test-engines test-local test-airflow test-browser test-oldest test-kubernetes

test: ## everything that CI checks: goes on after a part that fails, and says at the end what did; LIMIT: seconds for all
	@MAKE="$(MAKE)" tools/test-parts $(or $(LIMIT),0) $(PARTS)

lint: lint-ruff lint-types lint-imports lint-locks lint-prose lint-tested ## style, types, who may import whom, stale locks, prose of the docs, the table of what is tested

lint-ruff: setup
	$(AIRFLOW)/ruff check
	$(AIRFLOW)/ruff format --check

lint-types: setup
	$(AIRFLOW)/mypy --cache-dir=.mypy_cache/airflow --exclude '^tools/gpu_check' \
	    provider/src tools tests/conftest.py tests/leaks.py \
	    benchmarks/deferred benchmarks/deferred_runs.py benchmarks/page_load.py benchmarks/page/runs.py \
	    tests/chaos/pods.py tests/wheels/airflow_2.py tests/wheels/table.py tests/wheels/__main__.py tests/manifests/__main__.py \
	    tests/tutorial/__main__.py tests/compose
	$(TRAINER)/mypy --cache-dir=.mypy_cache/trainer --exclude '^(benchmarks/deferred|tests/chaos/pods)' \
	    images/trainer/src benchmarks tools/gpu_check.py dags/digits dags/digits_train.py dags/examples/circle.py dags/examples/circle_in_shards.py dags/examples/points_in_s3.py \
	    tests/chaos tests/matrix tests/soak tests/engines/distribution/hub_engine

lint-imports: setup
	$(AIRFLOW)/lint-imports

lint-locks: setup
	$(AIRFLOW)/python tools/locks.py --check

lint-prose: setup
	$(AIRFLOW)/python tools/prose.py

lint-tested: setup
	$(AIRFLOW)/python tools/tested.py --check

tested: setup ## docs/tested.md from the tests' marks: what is tested where
	$(AIRFLOW)/python tools/tested.py

test-all: setup ## all targets of docs/tested.md, one after the other; goes on where it was stopped; FRESH=1: from the first; hours
	$(AIRFLOW)/python tools/test_all.py $(if $(FRESH),--fresh)

test-unit: setup ## unit tests, on virtual time; a minute on two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(UNIT)
UNIT := test-unit-runtime test-unit-provider test-unit-checkpoints # the longest first

test-unit-provider: setup
	$(call pytest,$(AIRFLOW),unit-provider,tests/unit/provider tests/unit/tools)

test-unit-runtime: setup
	$(call pytest,$(TRAINER),unit-runtime,tests/unit/runtime)

test-unit-checkpoints: setup
	$(call pytest,$(TRAINER),unit-checkpoints,tests/unit/checkpoints)

test-security: setup ## attacks: each hole that was closed, tried again
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-security-runtime test-security-provider

test-security-runtime: setup
	$(call pytest,$(TRAINER),security-runtime,tests/security/runtime tests/security/fuzz/runtime $(wildcard tests/security/local))

test-security-provider: setup
	$(call pytest,$(AIRFLOW),security-provider,tests/security/provider tests/security/fuzz/provider)

test-contract: setup ## what every kind of cluster must do
	$(call pytest,$(AIRFLOW),contract,$(PAIRS) tests/contract)

test-engines: setup ## what every engine must do, with real ranks
	$(call pytest,$(TRAINER),engines,$(PAIRS) tests/engines)

test-local: setup ## real Horovod runs on this machine, from the launcher down
	$(call pytest,$(TRAINER),local,$(PAIRS) tests/local)

test-long: setup ## more variants of tests of `make test`; a quarter of an hour, not a part of it
	$(call pytest,$(TRAINER),long-unit,-m long tests/unit/runtime/test_forming_model.py)
	$(call pytest,$(TRAINER),long-local,-m long $(PAIRS) tests/local)
	$(call pytest,$(TRAINER),long-engines,-m long $(PAIRS) tests/engines)
	$(call pytest,$(AIRFLOW),long-airflow,-m long tests/airflow)

test-faults: setup ## scripted resizes, losses and notices with torch.distributed, sharded and not; a quarter of an hour, not a part of `make test`
	ENGINES=all $(TRAINER)/python -m pytest tests/local/test_resizes.py tests/local/test_losses.py tests/local/test_reclaims.py -k torch

test-frameworks: setup-frameworks ## trainings by Accelerate, DeepSpeed, Lightning, Megatron-Core and Transformers, restarted; five minutes, not a part of `make test`
	$(call pytest,$(FRAMEWORKS),frameworks,tests/frameworks)

test-scripts: setup-scripts ## other people's training scripts, from a folder with a checkout of each project: make test-scripts SCRIPTS=FOLDER; ten minutes, not a part of `make test`
	$(if $(SCRIPTS),ELASTIC_TRAINING_TEST_SCRIPTS=$(abspath $(SCRIPTS))) $(call pytest,$(SCRIPTS_PYTHON),scripts,tests/scripts)

test-tensorflow: setup-tensorflow ## the same with TensorFlow and Keras; SCRIPTS as for test-scripts; ten minutes, not a part of `make test`
	$(if $(SCRIPTS),ELASTIC_TRAINING_TEST_SCRIPTS=$(abspath $(SCRIPTS))) $(call pytest,$(TENSORFLOW),tensorflow,tests/tensorflow)

test-tensorflow-kubernetes: setup ## TensorFlow's scripts in pods; a quarter of an hour with the image, not a part of `make test`
	tools/test-kubernetes --tensorflow $(AIRFLOW)

test-airflow: setup ## real Airflow components, from the DAG down
	$(call pytest,$(AIRFLOW),airflow,tests/airflow)

test-gpu-steps: setup ## all that `make gpu-check` tries on a GPU, gone through without one; three minutes, not a part of `make test`
	$(call pytest,$(TRAINER),gpu-steps,tests/gpu_steps)

test-viewers: setup ## 200 people look at a task with a silent store, in a real API server: do its other routes go on? a minute, not a part of `make test`
	$(call pytest,$(AIRFLOW),viewers,tests/viewers)

test-browser: setup $(if $(shell command -v npm),$(AXE)) ## the page of a run in a headless Chromium, of made-up and of real runs; skipped where there is none
	$(call pytest,$(AIRFLOW),browser,tests/browser)

screenshots: setup ## pictures of a real run's pages and of the form into build/screenshots, at two widths and in both themes; four minutes
	mkdir -p build/screenshots
	SCREENSHOTS=$(CURDIR)/build/screenshots $(AIRFLOW)/python -m pytest tests/browser/test_pictures.py tests/browser/test_trigger_form.py

$(AXE): provider/frontend/package-lock.json
	cd provider/frontend && npm ci --no-audit --no-fund
	touch $@

test-kubernetes: setup ## pods on a real Kubernetes, where there is a way to one
	tools/test-kubernetes $(AIRFLOW) $(TRAINER)

test-kubernetes-long: setup ## API server, scheduler and triggerer away; 20 rounds of clear; variants; 25 minutes, not a part of `make test`
	tools/test-kubernetes --long $(AIRFLOW) $(TRAINER)

# What fails of a long target keeps none of the rest from being run.
test-slurm: setup ## launcher and workers as jobs of a real Slurm on this machine, Debian as root; ROUNDS: 1, of preempted jobs; 20 minutes, not a part of `make test`
	tools/slurm with -- sh -c 'failed=0; $(if $(ROUNDS),export ROUNDS=$(ROUNDS);) $(call pytest,$(TRAINER),slurm,tests/slurm) || failed=1; \
	    ELASTIC_TRAINING_CONTRACT=slurm $(call pytest,$(AIRFLOW),contract-slurm,tests/contract) || failed=1; \
	    ELASTIC_TRAINING_CONTRACT=slurmrestd $(call pytest,$(AIRFLOW),contract-slurmrestd,tests/contract/test_cluster_contract.py \
	        -k "adopted_and or failed_run or fresh or cancelled_run") || failed=1; \
	    ELASTIC_TRAINING_TEST_PLACE=slurm $(call pytest,$(AIRFLOW),airflow-slurm,-m "" tests/airflow/test_digits_end_to_end.py tests/airflow/test_pausing.py) || failed=1; \
	    exit $$failed'

test-spark: setup setup-spark ## workers as tasks of a real Spark on this machine, with Java 17; half an hour, not a part of `make test`
	tools/spark with -- sh -c 'failed=0; $(call pytest,$(TRAINER),spark,tests/spark) || failed=1; \
	    ELASTIC_TRAINING_CONTRACT=spark $(call pytest,$(AIRFLOW),contract-spark,tests/contract) || failed=1; \
	    $(call pytest,$(AIRFLOW),dataframe-spark,tests/spark_dataframe) || failed=1; \
	    ELASTIC_TRAINING_TEST_PLACE=spark $(call pytest,$(AIRFLOW),airflow-spark,-m "" tests/airflow/test_digits_end_to_end.py tests/airflow/test_pausing.py) || failed=1; \
	    exit $$failed'

test-ray: setup setup-ray ## launcher as a job, workers as actors of a real Ray on this machine; ROUNDS: 1, of drained nodes; a quarter of an hour, not a part of `make test`
	tools/ray with -- sh -c 'failed=0; $(if $(ROUNDS),export ROUNDS=$(ROUNDS);) $(call pytest,$(TRAINER),ray,tests/ray) || failed=1; \
	    ELASTIC_TRAINING_CONTRACT=ray $(call pytest,$(AIRFLOW),contract-ray,tests/contract) || failed=1; \
	    ELASTIC_TRAINING_TEST_PLACE=ray $(call pytest,$(AIRFLOW),airflow-ray,-m "" tests/airflow/test_digits_end_to_end.py tests/airflow/test_pausing.py) || failed=1; \
	    exit $$failed'

test-oldest: build ## the wheels with the oldest Airflow there is, deferred, marked, cleared; three minutes
	@$(AIRFLOW)/python -m tests.wheels --airflow 2.11.2

test-compose: setup ## docker-compose.yml without Docker: every service's command as a process, an example in pods; five minutes, not a part of `make test`
	tools/cluster with -- sh -c '$(AIRFLOW)/python tools/image && tools/cluster load build/trainer-image.tar && $(AIRFLOW)/python -m tests.compose'

compose-up: ## with Docker: Airflow, PostgreSQL, S3 and Kubernetes in containers of this machine: docs/deploy.md
	tools/compose up

compose-down: ## end them, and forget all
	tools/compose down

# Around a program whose runs are in PLACE, and the environment that it needs.
around = $(if $(filter kubernetes,$(PLACE)),tools/cluster with -- sh -c '$(AIRFLOW)/python tools/image && \
    tools/cluster load build/trainer-image.tar && exec "$$@"' sh)$(if $(filter slurm spark ray,$(PLACE)),tools/$(PLACE) with --)
place_bin = $(if $(filter kubernetes,$(PLACE)),$(AIRFLOW),$(TRAINER))

chaos: setup ## random faults on local runs, or PLACE=kubernetes, slurm, spark, ray, pool; ROUNDS, SEED, JOBS, LOAD, ENGINE, …: see tests/README.md
	@$(around) $(place_bin)/python -m tests.chaos $(foreach option,PLACE ROUNDS SEED PLAN REPEAT ENGINE JOBS LOAD MINUTES,\
	    $(if $($(option)),--$(shell tr A-Z a-z <<< $(option)) $($(option))))

test-matrix: setup ## each training through each fault alone; PLACE=kubernetes, slurm, spark, ray, pool: there; TESTS: some, as pytest -k; half an hour, not a part of `make test`
	@$(around) env PLACE=$(or $(PLACE),local) \
	    $(call pytest,$(place_bin),matrix-$(or $(PLACE),local),$(if $(TESTS),-k "$(TESTS)") tests/matrix)

test-matrix-tensorflow: setup-tensorflow ## the same with trainings by TensorFlow, on this machine; TESTS as above; a quarter of an hour, not a part of `make test`
	PLACE=local FAMILY=tensorflow $(call pytest,$(TENSORFLOW),matrix-tensorflow,$(if $(TESTS),-k "$(TESTS)") tests/matrix)

chaos-bar: setup ## how much of its time a training of 8 ranks keeps with a fault each 29 s; MINUTES: 30, SEED, EVERY, COMPUTING
	@$(TRAINER)/python -m tests.chaos.bar $(foreach option,MINUTES SEED EVERY COMPUTING,\
	    $(if $($(option)),--$(shell tr A-Z a-z <<< $(option)) $($(option))))

test-pool: setup ## the contract of clusters with workers of a pool; PLACE=kubernetes: in pods; not a part of `make test`
	@$(around) env ELASTIC_TRAINING_CONTRACT=$(if $(filter kubernetes,$(PLACE)),pool-kubernetes,pool) \
	    $(call pytest,$(AIRFLOW),pool,tests/contract)

test-notebook: setup ## a cell of a pool's notebook trains in the pool: with the JupyterLab of the Python that ELASTIC_TRAINING_TEST_JUPYTERLAB names
	ELASTIC_TRAINING_TRAINER_PYTHON=$(CURDIR)/$(TRAINER)/python $(call pytest,$(AIRFLOW),notebook,tests/notebook)

pool-rounds: setup ## hand-overs between two trainings of a pool, each way: same weights? in what time? PLACE=kubernetes; ROUNDS: 5, MOST: seconds of one
	@$(around) env ELASTIC_TRAINING_TRAINER_PYTHON=$(CURDIR)/$(TRAINER)/python $(place_bin)/python -m tests.local.pool_rounds \
	    $(foreach option,PLACE ROUNDS MOST,$(if $($(option)),--$(shell tr A-Z a-z <<< $(option)) $($(option))))

standstills: setup ## ranks that stand still in runs of each engine: named, healed in place? ROUNDS, SEED, ENGINE, WAY, LOAD; CALM: minutes without one
	@$(TRAINER)/python -m tests.chaos.standstills $(foreach option,ROUNDS SEED ENGINE WAY LOAD CALM,\
	    $(if $($(option)),--$(shell tr A-Z a-z <<< $(option)) $($(option))))

fuzz: setup ## every parser of what comes from outside, with FUZZ inputs each: 10000; an hour on two cores
	FUZZ=$(or $(FUZZ),10000) $(call pytest,$(AIRFLOW),fuzz-provider,--timeout=0 tests/security/fuzz/provider)
	FUZZ=$(or $(FUZZ),10000) $(call pytest,$(TRAINER),fuzz-runtime,--timeout=0 tests/security/fuzz/runtime)

kills: setup ## 300 ranks killed at random, one after another: does a survivor go with one? KILLS, LOAD, SEED, ENGINE; ten minutes
	@$(TRAINER)/python -m tests.chaos.kills $(foreach option,KILLS LOAD SEED ENGINE,\
	    $(if $($(option)),--$(shell tr A-Z a-z <<< $(option)) $($(option))))

soak: setup ## a run trains while 2,000 connections of strangers are held; CONNECTIONS, SECONDS; seven minutes
	@$(TRAINER)/python -m tests.soak $(if $(CONNECTIONS),--connections $(CONNECTIONS)) $(if $(SECONDS),--seconds $(SECONDS))

test-wheels: build ## the wheels in clean environments with Airflow 2.11, 3.3 and 3.4: deferred, marked, cleared, the page; Debian; ten minutes
	@$(AIRFLOW)/python -m tests.wheels --newest --airflow 2.11.2 3.3.2 3.4.0b2

# Interpreters of MATRIX, by path or by the names under which they are found.
MATRIX := python3.11 python3.12 python3.13
matrix: build ## the same with each minor of Airflow and each Python of MATRIX, and the table of docs/compatibility.md; an hour
	@$(AIRFLOW)/python -m tests.wheels --table docs/compatibility.md --python $(MATRIX)

test-tutorial: setup ## docs/getting-started.md, followed block by block from an empty folder; five minutes, not a part of `make test`
	@$(AIRFLOW)/python -m tests.tutorial

demo: setup $(if $(filter kubernetes,$(CLUSTER)),$(if $(IMAGE),,image)) ## the digits DAG through real Airflow, with a report; CLUSTER=kubernetes: with pods, IMAGE and STORAGE_CLASS: in your cluster; CLUSTER=ray (make setup-ray), CLUSTER=slurm: with jobs; CLUSTER=spark: with tasks; ENGINE=torch; KEEP=1: Airflow stays up
	$(if $(filter kubernetes,$(CLUSTER)),tools/cluster with --)$(if $(filter slurm spark ray,$(CLUSTER)),tools/$(CLUSTER) with --) $(AIRFLOW)/python tools/demo.py --cluster $(CLUSTER) $(if $(IMAGE),--image $(IMAGE)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(KEEP),--keep)

bench: setup setup-torchft ## all benchmarks that are not done on this code yet, three hours; benchmarks/RESULTS.md and results.html
	$(AIRFLOW)/python benchmarks/everything.py

bench-launcher: setup ## our launcher against horovodrun; a quarter of an hour
	$(TRAINER)/python benchmarks/run.py

bench-torch: setup setup-torchft ## the engine torch against torchrun and TorchFT; forty minutes, most of them torchrun's 30 s waits
	$(TRAINER)/python benchmarks/torch_peers.py

bench-sharded: setup ## a model under fully_shard: resharded in place, against torchrun; ten minutes
	$(TRAINER)/python benchmarks/sharded_peers.py

bench-checkpoints: setup ## durable checkpoints: stall, upload, hand-over at a notice; a quarter of an hour, 10 GiB of memory
	$(TRAINER)/python benchmarks/checkpoints.py

gpu-check: setup ## all that needs a GPU, on one: NCCL, ranks that share it, checkpoints; CPU=1: the same steps without one
	$(TRAINER)/python tools/gpu_check.py $(if $(CPU),--cpu)

bench-status: setup ## size of a status, its launcher's memory and time, training with all metrics; five minutes
	$(TRAINER)/python benchmarks/status_load.py

bench-workers: setup ## a launcher of 100 and of 1,000 workers, which are played: start, idle, resize, restart; five minutes
	$(TRAINER)/python benchmarks/many_workers.py

bench-page: setup ## the page's API with 200 runs in a folder; two minutes
	$(AIRFLOW)/python benchmarks/page_load.py

bench-deferred: setup ## N deferred runs in one triggerer against KubernetesPodOperator's; Debian as root; half an hour
	$(AIRFLOW)/python benchmarks/deferred_runs.py

bench-traces: setup ## spot traces alone: goodput against an oracle, steps lost, cost, deadlines; five to ten minutes
	$(TRAINER)/python benchmarks/replay.py

evidence: setup setup-torchft ## published comparisons of fault tolerance, done here: docs/evidence.md; ONLY: faults, leaks, mass or halves; half an hour
	$(TRAINER)/python -m benchmarks.evidence $(ONLY)

image: setup ## the trainer's image into build/trainer-image.tar, with Docker or buildah; FAMILY=torch, tensorflow or both; CUDA=1
	$(AIRFLOW)/python tools/image $(if $(FAMILY),--build-arg FAMILY=$(FAMILY)) \
		$(if $(CUDA),--build-arg TORCH=$(shell sed 's/ .*//' requirements/torch.in) --build-arg HOROVOD_GPU_OPERATIONS=NCCL)

cluster-up: setup ## a Kubernetes for tests: KUBECONFIG's, kind's, or Debian's; see tools/cluster --help
	$(AIRFLOW)/python tools/cluster up

cluster-down: setup ## end it, if it was started from here
	$(AIRFLOW)/python tools/cluster down

setup-site: ## make .venv-site, with .venv
	@tools/setup site

site: setup-site ## the documentation as a site into build/site; warnings are errors; a minute
	rm -rf build/site
	$(SITE)/sphinx-build -q -W --keep-going -c tools/docs_site -d build/site-read docs build/site

test-site: site ## the site's links and anchors, and its pages in a headless Chromium at two widths; not a part of `make test`
	$(call pytest,$(AIRFLOW),site,tests/site)

setup-manifests: ## make .venv-manifests, with .venv
	@tools/setup manifests

test-manifests: setup-manifests ## the manifests of runs against the schemas of Kubernetes 1.28 to 1.37 and Pod Security; not a part of `make test`
	$(AIRFLOW)/python -m tests.manifests build/manifests
	$(MANIFESTS)/python tests/manifests/check.py build/manifests

frontend: ## the page of a run, from provider/frontend into the provider; wants node 20 or newer
	cd provider/frontend && npm ci --no-audit --no-fund && npm run check && npm test && npm run build

build: setup ## wheels of both distributions into build/dist
	$(AIRFLOW)/uv build --wheel --out-dir build/dist images/trainer
	$(AIRFLOW)/uv build --wheel --out-dir build/dist provider

dist: setup-site ## wheels and sdists of both distributions into build/release, checked as for a release; TAG=v…: of that one
	rm -rf build/release
	$(AIRFLOW)/uv build --out-dir build/release images/trainer
	$(AIRFLOW)/uv build --out-dir build/release provider
	rm -f build/release/.gitignore
	$(SITE)/twine check --strict build/release/*
	$(AIRFLOW)/python tools/release.py --files build/release $(if $(TAG),--tag $(TAG))
	$(AIRFLOW)/python tools/registry_entry.py build/registry/provider.yaml

requirements: setup ## make the locks that are stale (requirements/*.txt); UPGRADE=yes: all, in the newest versions
	$(AIRFLOW)/python tools/locks.py $(if $(UPGRADE),--upgrade)

clean: ## remove what was built; `make clean-all` removes the environments too
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find dags images provider tools tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

clean-all: clean
	rm -rf .venv .venv-trainer .venv-tensorflow .venv-frameworks .venv-scripts .venv-torchft .venv-ray .venv-site .venv-manifests

.PHONY: help setup setup-tensorflow setup-torchft setup-ray setup-site site test-site setup-manifests test-manifests test-tutorial test-tensorflow test-tensorflow-kubernetes frontend test lint lint-ruff lint-types lint-imports lint-locks lint-prose lint-tested tested test-all test-unit $(UNIT) \
    test-security test-security-runtime test-security-provider test-contract test-engines test-local test-airflow test-gpu-steps test-long test-viewers test-browser screenshots \
    test-faults test-frameworks test-scripts setup-frameworks setup-scripts test-kubernetes test-kubernetes-long test-slurm test-ray setup-spark test-spark test-oldest test-compose compose-up compose-down test-wheels matrix chaos chaos-bar test-pool test-notebook pool-rounds standstills fuzz kills soak \
    demo test-matrix test-matrix-tensorflow bench bench-torch bench-sharded bench-deferred bench-checkpoints bench-status bench-workers bench-page bench-traces evidence gpu-check image cluster-up cluster-down build dist requirements clean clean-all
