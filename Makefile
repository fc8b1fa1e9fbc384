# The two commands of the README are `make run` and `make test`.
.PHONY: run test test-programs test-tools test-page test-vm check lint bench soak build install worker page clean

CARGO ?= cargo

TARGET := $(or $(CARGO_TARGET_DIR),target)

# `atoll` embeds the worker and the web page, so that users install one file. Both are built first.
export EMBED_WORKER ?= $(abspath $(TARGET))/worker/atoll-worker
export EMBED_PAGE ?= $(if $(wildcard web/package.json),$(abspath web/dist))

# Tests with real agents are skipped where the agents cannot be installed, but never in CI.
export ATOLL_TEST_AGENTS ?= $(if $(CI),1)

# CI builds once, so incremental compilation would only cost time. Without debug information, programs are built faster.
ifdef CI
export CARGO_INCREMENTAL ?= 0
export CARGO_PROFILE_DEV_DEBUG ?= 0
endif

build: worker page
	$(CARGO) build --workspace --locked

# Installs one self-contained file, `atoll`. PREFIX and DESTDIR choose the directory, as usual.
install: worker page
	$(CARGO) build --release --locked -p atoll
	@scripts/install $(TARGET)/release/atoll

# Runs the demo agent in a real sandbox on a small sample repository. No process remains afterwards.
run: worker page
	@scripts/need git
	$(CARGO) build --locked -p atoll
	@scripts/demo

# Everything. The tests start the services they need on private ports and directories and stop them again.
# Downloads and builds run side by side.
test: export WORKER_PROFILE ?= test-worker
LINTED = RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# End-to-end tests mostly wait, so more of them run than there are processors.
test: export RUST_TEST_THREADS ?= $(shell echo $$(($$(nproc) * 2)))
test: export ATOLL_TEST_LOG = $(abspath $(TARGET))/test-output.log
test:
	@scripts/need build git
	$(CARGO) fmt --all --check
	@$(MAKE) --no-print-directory -j3 test-tools test-page test-programs SOAK_FEATURE="$(SOAK_FEATURE)"
	@rm -f $(ATOLL_TEST_LOG)
	@$(LINTED) $(CARGO) test --workspace --locked $(SOAK_FEATURE) --no-fail-fast --config "target.'cfg(unix)'.runner='scripts/timed-test'"; \
	    status=$$?; scripts/test-summary $(ATOLL_TEST_LOG); exit $$status

# Clippy's compiler builds programs and tests once, so that no separate run of clippy is needed; CLIPPY_ARGS is its own
# form of `-D warnings`. The worker comes first, because `atoll` embeds it.
test-programs: worker page
	$(LINTED) $(CARGO) build --workspace --all-targets --locked $(SOAK_FEATURE)

# Programs that tests run against: databases, sandbox tools, the API fuzzer, the agents.
test-tools:
	@scripts/need git postgresql python sandbox $(if $(CI),docker go chromium npm)
	@scripts/setup-fuzz
	@scripts/agents
	@scripts/sshd
	@scripts/forge-tools

# The quick loop: format, lints, unit tests.
check: export WORKER_PROFILE = test-worker
check: worker lint test-page
	$(CARGO) test --workspace --locked --exclude atoll-tests --lib

# Needs neither the worker nor the page, so it can run beside their builds.
lint:
	$(CARGO) fmt --all --check
	EMBED_WORKER= EMBED_PAGE= $(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Measures Atoll and prints each figure beside its floor and its bar.
bench: worker page
	@scripts/need postgresql rsync sandbox chromium
	$(CARGO) build --release --locked -p atoll -p atoll-worker -p atoll-bench
	target/release/atoll-bench

# The launcher's tests, the escape table and `atoll verify` in an emulated guest with systemd and cgroup v2.
test-vm: page
	@scripts/need build git vm
	$(CARGO) test --locked --no-run -p atoll-jail -p atoll-tests
	$(CARGO) build --locked -p atoll -p atoll-worker
	@scripts/test-vm

# `make test` at full scale, and `make test-vm`.
soak: export ATOLL_TEST_SCALE = 1
soak: SOAK_FEATURE = --features atoll-tests/soak
soak: test test-vm

# Builds the worker as one static file: target/worker/atoll-worker.
worker:
	@scripts/need build
	@scripts/build-worker

# Types, lints and unit tests of the web page.
test-page: page
	@scripts/check-page

# Builds the web page: web/dist. Needs no installed node.
page:
	@scripts/build-page

clean:
	$(CARGO) clean
