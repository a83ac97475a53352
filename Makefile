# make           build modules/ephpm_kv.so
# make demo      three web servers as one cluster, and one of them killed, before your eyes
# make test      every test: units, phpt, real processes; ends with "N passed, N failed"
# Each of these sets up what it needs by itself (Debian 12 with Rust, as root for missing packages).

export PATH := $(PATH):$(HOME)/.cargo/bin
PHP_CONFIG ?= php-config

SOURCES := Cargo.toml Cargo.lock build.rs $(shell find src -name '*.rs')
MODULE := modules/ephpm_kv.so
TEST_MODULE := target/testing-modules/ephpm_kv.so

.NOTPARALLEL:
.PHONY: all setup demo test test-module install phpt zts php84 chaos simulation bench bench-cluster lint soak clean

all: $(MODULE)

setup:
	@scripts/setup.sh build

# Both builds share one target directory, so that dependencies are compiled once.
$(MODULE): $(SOURCES) | setup
	@scripts/build.sh $@

$(TEST_MODULE): $(SOURCES) | setup
	@scripts/build.sh $@ --features testing

test-module: $(TEST_MODULE)

demo: $(MODULE)
	@php -n demo/run.php $(CURDIR)/$(MODULE)

test: $(MODULE) $(TEST_MODULE)
	@scripts/setup.sh test
	@scripts/test.sh all

phpt: $(MODULE)
	@scripts/phpt.sh

# With a thread-safe debug PHP, which the first run builds.
zts:
	@scripts/zts.sh

# php-tests/ with PHP 8.4, in a Debian 13 of its own that the first run makes. As root.
php84:
	@scripts/php-84.sh

# Hosts in network namespaces, a mixed load and faults drawn from a seed (as root; report and timeline in target/chaos/),
# faults planted on purpose that must be found, and then the fault tests, longer and with a new seed each round.
# EPHPM_KV_SEED repeats a run; EPHPM_KV_CHAOS_ROUNDS (3), EPHPM_KV_CHAOS_SECONDS (60), EPHPM_KV_CHAOS_HOSTS (3 or 5).
chaos: $(TEST_MODULE)
	@scripts/setup.sh test
	@scripts/test.sh chaos

# Many nodes in one process on a simulated network: EPHPM_KV_SIM_SEEDS seeds (2,000), from EPHPM_KV_SIM_FIRST (1) on.
# EPHPM_KV_SEED=N runs one and tells what happened.
simulation: setup
	@EPHPM_KV_SIM_SEEDS=$${EPHPM_KV_SIM_SEEDS:-2000} cargo test --release --lib node::simulation::whatever -- --nocapture

# Half an hour by default: EPHPM_KV_SOAK_SECONDS.
soak: $(TEST_MODULE)
	@scripts/setup.sh test
	@scripts/test.sh soak

bench: $(MODULE)
	@scripts/setup.sh bench
	@php -n bench/bench.php $(CURDIR)/$(MODULE)

# Ten hosts under a rate limiter's load: processor time of each node, lag, traffic, memory. About two minutes;
# EPHPM_KV_BENCH_SECONDS=600 for ten, more in bench/limiter.php.
bench-cluster: $(MODULE)
	@scripts/setup.sh bench
	@php -n bench/limiter.php $(CURDIR)/$(MODULE)

lint: setup
	@scripts/lint.sh

install: $(MODULE)
	install -D -m 0644 $(MODULE) "$(DESTDIR)$$($(PHP_CONFIG) --extension-dir)/ephpm_kv.so"
	@echo 'Now load it: extension=ephpm_kv.so'

clean:
	cargo clean
	rm -rf modules
