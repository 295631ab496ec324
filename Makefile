# Sluice. `make` or `make help` lists the verbs; `make check` is all that CI asks for.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory --no-builtin-rules

GO ?= go
BIN := bin/sluice
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# What `make race` tests; `make check` takes the packages that share state between goroutines.
RACE ?= ./...
RACE_KEY := ./gateway/... ./ratelimit/... ./scoring/... ./tenancy/... ./policy/...
# `make bench BENCH=Pick COUNT=6`, `make fuzz FUZZTIME=2m`.
BENCH ?= .
COUNT ?= 1
FUZZTIME ?= 60s

say = @echo "== $(1)"

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: native ## build bin/sluice
	$(call say,build $(BIN))
	@$(GO) build -o $(BIN) ./cmd/sluice

.PHONY: native
native: tools ## build the static tokenizer library (kept until its sources change)
	@# The first time, the Go packages that don't need it are compiled beside it: cargo leaves a core idle
	@# for much of its time. What fails there fails again, and is shown, when it is built for good.
	@warm=; [ -f scoring/tokenize/native/lib/stamp ] || { \
	  $(GO) build -tags notokenizers -o /dev/null ./cmd/sluice >/dev/null 2>&1 & warm=$$!; }; \
	scoring/tokenize/native/build.sh; [ -z "$$warm" ] || wait "$$warm" || true

.PHONY: tools
tools:
	@for t in $(GO) cargo cc; do \
	  command -v $$t >/dev/null || { \
	    echo "make: $$t is not installed. Sluice needs Go 1.26, Rust (cargo) and a C compiler (cc)." >&2; \
	    echo "Without Rust and C there is 'make nocgo', which counts tokens through the workers instead." >&2; exit 1; }; \
	done

.PHONY: nocgo
nocgo: ## build, vet and test without cgo: bin/sluice-nocgo
	$(call say,without cgo)
	@CGO_ENABLED=0 $(GO) build -tags notokenizers -o bin/sluice-nocgo ./cmd/sluice
	@CGO_ENABLED=0 $(GO) vet -tags notokenizers ./...
	@CGO_ENABLED=0 $(GO) test -tags notokenizers ./scoring/tokenize

.PHONY: testdata
testdata:
	@scoring/tokenize/testdata/fetch.sh

.PHONY: test
test: native testdata ## run every test
	$(call say,test)
	@$(GO) test -timeout 20m -shuffle=on ./...

.PHONY: race
race: native testdata ## run every test under the race detector
	$(call say,race $(RACE))
	@$(GO) test -timeout 20m -race -shuffle=on $(RACE)

# `make crash KILLS=500 SEED=1`.
KILLS ?= 100
SEED ?=

.PHONY: crash
crash: native ## kill a whole gateway KILLS times under load and reconcile its books each time
	$(call say,crash: $(KILLS) kills for each database)
	@SLUICE_TEST_SERVICES=required SLUICE_TEST_KILLS=$(KILLS) SLUICE_TEST_SEED=$(SEED) \
	  $(GO) test -count=1 -timeout 120m -v -run '^TestKilledUnderLoad$$' ./cmd/sluice

# `make replicas SPAN=600`, in seconds.
SPAN ?= 60

.PHONY: replicas
replicas: native ## two gateways before 200 clients for SPAN seconds, with one ledger and one Redis, to the token
	$(call say,replicas)
	@SLUICE_TEST_SERVICES=required SLUICE_TEST_SECONDS=$(SPAN) SLUICE_TEST_SEED=$(SEED) \
	  $(GO) test -count=1 -timeout 30m -v -run '^TestReplicas' ./cmd/sluice

# `make flood CONNECTIONS=15000`.
CONNECTIONS ?= 10000

.PHONY: flood
flood: native ## CONNECTIONS half-open TLS handshakes before a gateway, of one address and of many, while a client is served
	$(call say,flood: $(CONNECTIONS) connections)
	@SLUICE_TEST_CONNECTIONS=$(CONNECTIONS) $(GO) test -count=1 -v -run '^TestHandshakeFlood$$' ./cmd/sluice

# `make soak SOAK=600`, in seconds.
SOAK ?= 1800

.PHONY: soak
soak: native ## 200 clients before a gateway for SOAK seconds, with failing workers, reloads and revocations; nothing may grow
	$(call say,soak: $(SOAK) s)
	@SLUICE_TEST_SECONDS=$(SOAK) SLUICE_TEST_SEED=$(SEED) \
	  $(GO) test -count=1 -timeout $$(( $(SOAK) + 900 ))s -v -run '^TestSoak$$' ./cmd/sluice

.PHONY: native-test
native-test: native ## run the tests of the Rust half of the tokenizer
	$(call say,native tests)
	@cargo test --release --locked --quiet --manifest-path scoring/tokenize/native/Cargo.toml --target-dir scoring/tokenize/native/target

.PHONY: bench
bench: native testdata ## run the benchmarks
	$(call say,bench)
	@$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...

.PHONY: fuzz
fuzz: native testdata ## run each fuzz target for FUZZTIME
	@for dir in $$(grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | xargs -r dirname | sort -u); do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$dir/*_test.go | sed 's/^func //' | sort -u); do \
	    echo "== fuzz $$dir $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$dir; \
	  done; \
	done

.PHONY: lint
lint: native ## gofmt, go vet, golangci-lint with the import rules
	$(call say,lint)
	@files=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	  [ -z "$$files" ] || { echo "not formatted by gofmt:" >&2; echo "$$files" >&2; exit 1; }
	@$(GO) vet ./...
	@$(GO) run $(GOLANGCI) run --allow-parallel-runners ./...

.PHONY: vuln
vuln: native ## known vulnerabilities in what is called (GOVULN=required fails on those of Go itself, and when nothing can be checked)
	$(call say,vulnerabilities)
	@$(GO) run ./deploy/vuln

.PHONY: policies
policies: build ## test the shipped policies, each rule seen both ways
	$(call say,policies)
	@$(BIN) policy test --coverage=operands --min-coverage 100 policies

.PHONY: observability
observability: ## check the alert rules and the dashboard's queries, test the rules (Prometheus' promtool; Debian's package prometheus has it)
	$(call say,alert rules)
	@command -v promtool >/dev/null || { echo "make: promtool is not installed; Debian's package prometheus has it" >&2; exit 1; }
	@promtool check rules --lint=all --lint-fatal deploy/prometheus/rules.yaml
	@cd deploy/prometheus && promtool test rules rules_test.yaml
	$(call say,queries of the dashboard)
	@mkdir -p .cache
	@awk 'BEGIN { print "groups: [ { name: dashboard, rules: [" } \
		/^ *"expr": ".*",?$$/ { sub(/^ *"expr": /, ""); sub(/,$$/, ""); gsub(/\$$__rate_interval/, "5m"); printf "{ record: \"query:%d\", expr: %s },\n", ++n, $$0 } \
		END { print "] } ]" }' deploy/grafana/sluice.json > .cache/dashboard.yaml
	@promtool check rules .cache/dashboard.yaml

.PHONY: demo
demo: build ## the whole thing on this machine, with simulated workers
	@$(BIN) demo

.PHONY: e2e
e2e: build ## the demo, playing a scripted tour against itself
	$(call say,e2e)
	@$(BIN) demo --check

.PHONY: focus
focus: ## validate the export's format against FOCUS 1.2 (Python 3.12 from PYTHON, and PyPI once)
	@deploy/focus/validate.sh $(FILE)

.PHONY: e2e-clients
e2e-clients: build ## the SDKs that people use, against the gateway before simulated workers (Python, node; PyPI and npm once)
	$(call say,e2e with real clients)
	@deploy/e2e/clients/run.sh

.PHONY: e2e-engine
e2e-engine: build ## the gateway before two real vLLM workers on CPU (needs about 6 GB of disk)
	$(call say,e2e with real engines)
	@deploy/e2e/engine.sh

.PHONY: e2e-isolation
e2e-isolation: build ## who shares the prefix caches of two real vLLM workers (docs/0019)
	$(call say,cache isolation on real engines)
	@deploy/e2e/isolation.sh

.PHONY: bench-engine
bench-engine: build ## routers before two real vLLM workers on CPU, under GuideLLM (13 GB of disk; docs/0011)
	$(call say,routers before real engines)
	@deploy/bench/engine.sh

.PHONY: bench-ledger
bench-ledger: native ## rows a second into the ledger beside a gateway that serves, for a minute on each database
	$(call say,the ledger beside the gateway)
	@deploy/bench/ledger.sh

# `make bench-arena ARENA='-workloads mixed -loads 80 -reps 1'`; docs/0012-bench-arena.md has the flags.
ARENA ?=

.PHONY: bench-arena
bench-arena: build ## Sluice and other routers before eight simulated workers (takes hours; ARENA= for less)
	@deploy/bench/arena.sh $(ARENA)

# `make bench-article WORKLOADS=long SCALE=0.25`; deploy/bench/article.sh has the variables.
.PHONY: bench-article
bench-article: build ## the published benchmark in shape: six simulated workers, GuideLLM, rising concurrency (an hour and a half; docs/0038)
	$(call say,bench-article)
	@deploy/bench/article.sh

# `make bench-overload OVERLOAD='-runs one,flood -flood 2m'`; go run ./deploy/bench/overload -help has the flags.
OVERLOAD ?=

.PHONY: bench-overload
bench-overload: build ## classes of service at twice the capacity: twenty tenants, one flooding (20 minutes; docs/0038)
	@deploy/bench/overload.sh $(OVERLOAD)

# `make simulate-overload SEEDS=3 SIMTIME=6m`.
SEEDS ?= 10
SIMTIME ?= 3m

.PHONY: simulate-overload
simulate-overload: ## the queue under overload in virtual time, beside what could be had instead, 10 seeds of 3 min (an hour of one core; docs/0038)
	$(call say,simulate-overload: $(SEEDS) seeds of $(SIMTIME))
	@$(GO) test -count=1 -timeout 240m -v -run '^Test(Overload|NobodyIsRefused|Baselines|LongRequests|Bursts|Returns|Hurrying)' \
	  ./scoring/simulate -overload.seeds $(SEEDS) -overload.time $(SIMTIME)

# `make bench-edge EDGE='-cells latency -rounds 3 -span 10s'`; docs/0034-edge-speed.md has the flags.
EDGE ?=

.PHONY: bench-edge
bench-edge: build ## what the edge adds to a request, beside Envoy, sglang-router and LiteLLM (half an hour; EDGE= for less)
	@deploy/bench/edge.sh $(EDGE)

.PHONY: check
check: lint test ## everything CI does
	@$(MAKE) race RACE="$(RACE_KEY)"
	@$(MAKE) native-test policies nocgo e2e vuln

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin scoring/tokenize/native/lib scoring/tokenize/native/target
