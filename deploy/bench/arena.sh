#!/usr/bin/env bash
# arena.sh [FLAG...]: compare Sluice with other routers before eight simulated workers.
#
# Installs the other routers (once, into BENCH_CACHE), then runs deploy/bench/arena with them and the given flags.
# BENCH_TRACE names the trace of the trace workload (default: ../shared/traces/mooncake-conversation-4k.jsonl beside
# this repository); results go to ARENA_OUT (default: .cache/bench/arena). Everything listens on loopback and ends
# with the script.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
{ read -r sglang; read -r vllm; } < <(deploy/bench/install.sh sglang-router==0.3.2 vllm-router==0.1.17)
go build -o bin/arena ./deploy/bench/arena
exec bin/arena -sluice bin/sluice -sglang "$sglang" -vllm "$vllm" \
  -trace "${BENCH_TRACE:-../shared/traces/mooncake-conversation-4k.jsonl}" \
  -out "${ARENA_OUT:-.cache/bench/arena}" "$@"
