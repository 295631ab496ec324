#!/usr/bin/env bash
# How many rows a second a ledger stores for a minute while the gateway that has it open serves clients, on
# two processors: SQLite, and PostgreSQL on the same machine. docs/0027-proofs.md has what came of it.
#
#   deploy/bench/ledger.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-60}
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
run=(go test -run '^$' -bench 'LedgerBesideGateway' -benchtime "${seconds}s" -timeout 30m ./cmd/sluice)
if command -v taskset >/dev/null && [ "$(nproc)" -gt 2 ]; then
  run=(taskset -c 0,1 "${run[@]}")
fi
SLUICE_TEST_SERVICES=required "${run[@]}"
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
