# The two commands of the README are `make run` and `make test`.
.PHONY: run test check bench soak build worker clean

CARGO ?= cargo

build:
	@scripts/need build
	$(CARGO) build --workspace --locked

# A small example from start to end, on this machine, with nothing left running.
run:
	@scripts/need build
	$(CARGO) build --locked -p atoll -p atoll-worker
	@scripts/demo

# Everything. Services that tests need run on private ports and directories and end with them.
test:
	@scripts/need build postgresql python
	@scripts/setup-fuzz
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked

# The quick loop: format, lints, unit tests.
check:
	@scripts/need build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --exclude atoll-tests --lib

# The figures beside their floors and bars.
bench:
	@scripts/need build postgresql
	$(CARGO) build --release --locked -p atoll -p atoll-worker -p atoll-bench
	target/release/atoll-bench

# The whole of what `make test` does at a tenth.
soak:
	@scripts/need build postgresql python
	@scripts/setup-fuzz
	$(CARGO) build --workspace --locked
	ATOLL_TEST_SCALE=1 $(CARGO) test --workspace --locked

# The worker as one static file, to put anywhere: target/worker/atoll-worker.
worker:
	@scripts/need build
	@scripts/build-worker

clean:
	$(CARGO) clean
