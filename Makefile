# `make demo` and `make test` are the two commands to know; both install what they need (scripts/install).
# First the tools that scripts/install built; last, a cargo that is found even where a login shell has not run yet.
CACHE := $(or $(NEARSIDE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nearside)
export PATH := $(CACHE)/tools/bin:$(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

TIMES := $(CURDIR)/lab/test_times.py

FUZZ_SECONDS ?= 600
PREFIX ?= /usr/local

# One target after the other, whatever -j says: cargo uses all CPUs by itself, and a guest wants them.
.NOTPARALLEL:
.PHONY: help demo build install deb-numad test lint unit api-test libvirt-test libvirt-xml lab-test properties simulation loom miri lock-figures collapse-figures replicas-race replicas-stress compare-test model-test figures demo-test deny advisories fuzz bench docs findings install-deps clean

help: ## list these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 24

# Durations of tests, for the list at the end of `make test`.
.PHONY: forget-times
test: export NEARSIDE_TEST_TIMES := $(CURDIR)/target/test-times
forget-times:
	@mkdir -p target && rm -f target/test-times

demo: ## boot four nodes and watch Nearside at work (two to three minutes, once built)
	scripts/install build lab
	cargo build --release --package nearside --package nearside-lab
	lab/demo

build: ## nearside as users have it: target/release/nearside, and the object for mutexes beside it
	scripts/install build
	cargo build --release --package nearside --package nearside-locks-preload

install: ## copy the programs of `make build` and the object for mutexes below PREFIX (default /usr/local), its systemd units, its configuration and the hooks of libvirt and of container runtimes (as root)
	install -D target/release/nearside -t $(DESTDIR)$(PREFIX)/bin
	install -Dm644 target/release/libnearside_locks_preload.so -t $(DESTDIR)$(PREFIX)/lib/nearside
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/lib/systemd/system
	target/release/nearside man $(DESTDIR)$(PREFIX)/share/man/man1
	target/release/nearside completions bash | install -Dm644 /dev/stdin $(DESTDIR)$(PREFIX)/share/bash-completion/completions/nearside
	target/release/nearside completions zsh | install -Dm644 /dev/stdin $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nearside
	for unit in nearside nearside-replicator; do sed "s|/usr/bin/nearside|$(PREFIX)/bin/nearside|" packaging/systemd/$$unit.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit.service || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/nearside
	sed "s|/usr/bin/nearside|$(PREFIX)/bin/nearside|" packaging/systemd/service.d-nearside-replicas.conf > $(DESTDIR)$(PREFIX)/share/nearside/service.d-nearside-replicas.conf
	test -e $(DESTDIR)/etc/nearside/daemon.toml || install -Dm644 packaging/nearside.toml $(DESTDIR)/etc/nearside/daemon.toml
	install -Dm644 packaging/logrotate $(DESTDIR)/etc/logrotate.d/nearside
	install -d $(DESTDIR)/etc/libvirt/hooks/qemu.d
	sed 's|/usr/bin/nearside|$(PREFIX)/bin/nearside|' packaging/libvirt/qemu.d/nearside > $(DESTDIR)/etc/libvirt/hooks/qemu.d/nearside
	chmod 755 $(DESTDIR)/etc/libvirt/hooks/qemu.d/nearside
	install -d $(DESTDIR)/usr/share/containers/oci/hooks.d
	sed 's|/usr/bin/nearside|$(PREFIX)/bin/nearside|' packaging/oci/nearside-replicas.json > $(DESTDIR)/usr/share/containers/oci/hooks.d/nearside-replicas.json

deb-numad: build ## target/nearside-numad_VERSION_ARCH.deb, which answers libvirt as numad, tested in an empty root
	packaging/numad/test-deb "$$(packaging/numad/build-deb)"

test: forget-times install-deps lint deny unit api-test libvirt-test lab-test compare-test demo-test ## everything CI checks, 40 to 50 minutes on 2 idle cores
	@echo "make test: all passed"
	@$(TIMES) show

lint: ## formatting, clippy (fuzz targets, and the model, frames and locks without std, too), rustdoc, shell and Python scripts
	scripts/check-code
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --manifest-path fuzz/Cargo.toml --locked --target-dir target -- -D warnings
	cargo clippy --package nearside-topology --no-default-features -- -D warnings
	cargo clippy --package nearside-frames --no-default-features -- -D warnings
	cargo clippy --package nearside-locks --no-default-features -- -D warnings
	if [ -d "$$(rustc --print target-libdir --target x86_64-unknown-none)" ]; then \
	  cargo clippy --package nearside-frames --package nearside-locks --no-default-features --target x86_64-unknown-none -- -D warnings; \
	else echo "make lint: without rustup's target x86_64-unknown-none, nearside-frames and nearside-locks are not built for it"; fi
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items
	shellcheck -x lab/demo lab/scratch lab/kernel lab/packages lab/apt lab/qemu lab/guest lab/guest-init lab/modelled-init lab/xen-dom0-init lab/xen-domu-init lab/libvirt-numad lab/virtqemud packaging/libvirt/qemu.d/nearside packaging/numad/build-deb packaging/numad/test-deb scripts/install scripts/libvirtd findings/*.sh .ci/run
	python3 -W error -c 'import pathlib, sys; [compile(pathlib.Path(name).read_bytes(), name, "exec") for name in sys.argv[1:]]' \
	  lab/run lab/calibrate lab/compare lab/measure lab/migrate lab/numatune lab/replicate lab/test lab/text-costs lab/*.py lab/demo-guest docs/images/draw-demo

# A change is judged by the same cases each time; `make properties` looks at others.
unit: export PROPTEST_RNG_SEED ?= 20261130
unit: ## the tests that need no lab
	cargo test --workspace --config 'target."cfg(unix)".runner = ["$(TIMES)", "run"]'
	$(TIMES) time "lab's Python tests" -- python3 -m unittest discover --start-directory lab --pattern '*_test.py'
	$(TIMES) time "Python tests of scripts" -- python3 -m unittest discover --start-directory scripts --pattern '*_test.py'

api-test: ## a property-based client of the API, and Prometheus's parsers of its metrics (once built, half a minute)
	scripts/install build api
	NEARSIDE_SCHEMATHESIS='$(CACHE)/schemathesis/bin/schemathesis' \
	  cargo test --workspace --lib -- --ignored --nocapture daemon::api::tests

libvirt-test: ## the client and the actuator of libvirt against a libvirtd, with virsh as the witness (as root; once built, half a minute)
	scripts/install libvirt
ifeq ($(shell id -u),0)
	cargo test --workspace --test libvirtd --config 'target."cfg(unix)".runner = ["$(TIMES)", "run"]' -- --ignored
else
	@echo "make libvirt-test: skipped, a libvirtd for QEMU needs root"
endif

libvirt-xml: ## generated domains: libvirt and lint refuse the same ones, and libvirt takes what place completes, on request (as root; once built, half a minute)
	scripts/install libvirt
	cargo test --package nearside-libvirt --test generated -- --ignored --nocapture

properties: ## the tests that need no lab with 5,000 new cases for each property (PROPTEST_CASES=N), on request
	PROPTEST_CASES=$(or $(PROPTEST_CASES),5000) cargo test --workspace

simulation: ## a million events of the daemon on a simulated host, from new seeds (RUNS=N runs of 20 events), on request (once built, 13 minutes)
	NEARSIDE_RUNS=$(or $(RUNS),50000) cargo test --package nearside --lib -- simulation::no_promise

loom: ## the locks, and the frames' maps, in many orders of their atomic operations, on request (once built, half a minute)
	RUSTFLAGS='--cfg loom' cargo test --package nearside-locks --lib --release --target-dir target/loom
	RUSTFLAGS='--cfg loom' cargo test --package nearside-frames --no-default-features --features std --lib --release \
	  --target-dir target/loom

miri: ## the fair locks under Miri, which looks at each access of memory, on request (needs nightly's miri; minutes)
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package nearside-locks --lib \
	  --target-dir target/miri -- --skip within_the_bound --skip order_is
	MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --package nearside-locks --test threads \
	  --target-dir target/miri -- so_many no_turn

lock-figures: ## locks on a modelled machine of four nodes, on request (once built, half a minute)
	scripts/install lab
	cargo build --release --package nearside-lab --bin locks
	cargo build --release --package nearside-locks-preload
	lab/run --model x460-small -- target/release/locks
	lab/run --model x460-small --with target/release/libnearside_locks_preload.so=/lib/queue.so \
	  --env LD_PRELOAD=/lib/queue.so --env NEARSIDE_LOCKS=on -- target/release/locks --kind pthread --ms 600

collapse-figures: ## how long writers, and readers of an emptied file, wait for copies to go, under modelled time, on request (COLLAPSES="--readers 1": with arguments)
	cargo build --release --package nearside --package nearside-lab --bin nearside --bin collapses
	lab/run --model x460-small --timeout 3600 --with target/release/nearside=/bin/nearside -- target/release/collapses $(COLLAPSES)

replicas-race: ## an attacker who races 100,000 binds of copies, on request (as root)
	cargo test --package nearside-replicas --test racing -- --ignored --nocapture

replicas-stress: ## 20,000 writes beside eight readers of copies, on this machine, on request (as root; once built, ten minutes)
	cargo build --release --package nearside
	cargo test --package nearside-lab --features nearside-lab/in-lab --test replicas --no-run
	NEARSIDE_BIN=$(CURDIR)/target/release/nearside lab/scratch cargo test --offline --package nearside-lab \
	  --features nearside-lab/in-lab --test replicas -- --nocapture --test-threads 1 10_000_rounds

lab-test: ## the integration tests, in emulated NUMA machines (LAB_MINUTES=N: those that N minutes suffice for)
	lab/test $(if $(LAB_MINUTES),--minutes $(LAB_MINUTES))

compare-test: ## in modelled time, a guest that hangs and a workload on stock Linux and under Nearside (once built, half a minute to one)
	mkdir -p target && rm -f target/hung.json
	lab/run --model one-node --counters target/hung.json -- busybox halt -f; test $$? -eq 123
	test -s target/hung.json
	$(TIMES) time "lab/compare --quick --debug" -- lab/compare --quick --debug

model-test: ## modelled time against its machine files, and some figures of the scheduler under it (on request; ten minutes)
	lab/calibrate pairs
	lab/calibrate one-node
	lab/calibrate x460-small
	lab/measure --quick

# The second, too, where a figure of the first is off.
figures: ## docs/performance/calibration.md and comparison.md, measured anew (hours)
	scripts/install build lab
	lab/calibrate --required; calibrated=$$?; lab/compare --required && exit $$calibrated

demo-test: ## the demo, which fails where a command of it does
	lab/test --build
	$(TIMES) time "lab/demo" -- lab/demo debug

deny: ## licences, banned crates and sources of all dependencies
	cargo deny --all-features check licenses bans sources

advisories: ## known vulnerabilities of dependencies (reads the advisory database: network)
	cargo deny --all-features check advisories

fuzz: ## every fuzz target for FUZZ_SECONDS each (default 600)
	scripts/install fuzz
	cd fuzz && for target in $$(cargo fuzz list); do \
	  echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
	  mkdir -p "target/corpus/$$target"; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run "$$target" "target/corpus/$$target" "corpus/$$target" -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

bench: ## the benchmarks
	cargo bench --workspace

findings: ## surprises of other software, shown by running it (on request: downloads packages)
	for finding in findings/*-*.sh; do echo "== $$finding"; "$$finding" || exit 1; done

docs: ## the API documentation
	cargo doc --workspace --no-deps

install-deps: ## install the packages of make test
	scripts/install test

clean: ## build products; the cache of kernels and tools stays
	cargo clean
