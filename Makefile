# The two commands of the README are `make run` and `make test`.
.PHONY: run test check lint bench soak build worker clean

CARGO ?= cargo

# The worker first: `atoll` carries it, so that one file is all one installs.
export EMBED_WORKER ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/worker/atoll-worker

# A machine without the agents skips their tests and says so; CI does not skip.
export ATOLL_TEST_AGENTS ?= $(if $(CI),1)

# Where nothing is built a second time, notes for that only cost time.
ifdef CI
export CARGO_INCREMENTAL ?= 0
endif

build: worker
	$(CARGO) build --workspace --locked

# An agent works in a real sandbox on a small sample repository; nothing keeps running afterwards.
run: worker
	@scripts/need git
	$(CARGO) build --locked -p atoll
	@scripts/demo

# Everything. Services that tests need run on private ports and directories and end with them. The programs are built
# together with the tests: by themselves they would want other features of what both use, and all would be built twice.
test:
	@scripts/need build git postgresql python sandbox
	@scripts/setup-fuzz
	@scripts/agents
	@$(MAKE) --no-print-directory -j2 worker lint
	$(CARGO) build --workspace --all-targets --locked
	$(CARGO) test --workspace --locked

# The quick loop: format, lints, unit tests.
check: worker lint
	$(CARGO) test --workspace --locked --exclude atoll-tests --lib

# Looks at sources only: with no worker to carry, it can go on beside the building of one, whose linking keeps one
# processor busy at most.
lint:
	$(CARGO) fmt --all --check
	EMBED_WORKER= $(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# The figures beside their floors and bars.
bench: worker
	@scripts/need postgresql sandbox
	$(CARGO) build --release --locked -p atoll -p atoll-worker -p atoll-bench
	target/release/atoll-bench

# The whole of what `make test` does at a tenth.
soak: worker
	@scripts/need git postgresql python sandbox
	@scripts/setup-fuzz
	@scripts/agents
	$(CARGO) build --workspace --all-targets --locked
	ATOLL_TEST_SCALE=1 $(CARGO) test --workspace --locked

# The worker as one static file, to put anywhere: target/worker/atoll-worker.
worker:
	@scripts/need build
	@scripts/build-worker

clean:
	$(CARGO) clean
