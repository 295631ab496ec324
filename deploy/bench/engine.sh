#!/usr/bin/env bash
# engine.sh: the gateway and other routers, in turns, before the same two real vLLM workers on CPU, under the same
# load from GuideLLM. engine.py measures; this script installs, starts the workers, and ends what it started.
#
#   ROUTERS    sluice sglang/cache_aware sglang/round_robin vllm/kv_aware vllm/cache_aware   what is measured
#   WORKLOADS  shared mixed independent                                                      under which load
#   REPS       3             repetitions, each with other prompts, the routers in rotated order
#   REQUESTS   (as in engine_workloads.json)   requests of a run
#   OUT        .cache/bench/engine             where results.json, table.md and the logs go
#   PIN_WORKERS 1            a processor for each worker (workers.sh says why); empty: as the kernel likes
#   BENCH_CACHE (.cache/bench), ENGINE_SCRIPTS, ENGINE_VENV, ENGINE_MODEL, ENGINE_WORKERS: see install.sh, workers.sh
#
# It needs two cores and 12 GB of memory, and a machine that does nothing else: what others use is in the results.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sluice=$root/bin/sluice
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
. "$root/deploy/e2e/workers.sh"

routers=${ROUTERS:-sluice sglang/cache_aware sglang/round_robin vllm/kv_aware vllm/cache_aware}
workloads=${WORKLOADS:-shared mixed independent}
out=${OUT:-$root/.cache/bench/engine}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/logs
rm -rf "$work" && mkdir -p "$work"

install_engine
guidellm=$("$root/deploy/bench/install.sh" guidellm==0.8.1)
args=(--guidellm "$guidellm")
# A router that cannot be installed is named in the table and costs only its own rows.
for package in sglang-router==0.3.2 vllm-router==0.1.17; do
  name=${package%%-*}
  case " $routers " in *" $name/"*) ;; *) continue ;; esac
  if dir=$("$root/deploy/bench/install.sh" "$package"); then args+=(--package "$name=$dir"); fi
done

cleanup() {
  status=$?
  end_all
  [ "$status" -eq 0 ] || show_logs
  exit "$status"
}
trap cleanup EXIT

export PIN_WORKERS=${PIN_WORKERS-1}
start_workers --enable-prompt-tokens-details --enable-scale-out
python3 "$root/deploy/bench/engine.py" "${args[@]}" --sluice "$sluice" --model "$model" --out "$out" --logs "$work" \
  --policies "$root/policies/starter" --routers $routers --workloads $workloads --reps "${REPS:-3}" ${REQUESTS:+--requests "$REQUESTS"} \
  --worker "http://127.0.0.1:$port1=$pid1" --worker "http://127.0.0.1:$port2=$pid2" &
pids+=($!)
wait $!
