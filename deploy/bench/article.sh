#!/usr/bin/env bash
# article.sh: the published benchmark in shape: two pools of three simulated workers, GuideLLM, rising concurrency, the
# gateway routing by chance, in turn, to the least loaded worker, and as it does. docs/0038-qos-figures.md has figures.
#
#   ROUTERS    random round-robin least-loaded sluice   what is compared
#   WORKLOADS  shared long independent                  under which load (article_workloads.json)
#   STREAMS    (as in article_workloads.json)           levels of concurrency
#   SCALE      0.5                 time scale of the workers; 0.25 is twice as fast again
#   REPS       1                   repetitions, each with other prompts
#   MORE       (none)              file with further sections of the gateway's configuration
#   SUFFIX     (none)              what tells these runs from others of the same routers in the tables
#   OUT        .cache/bench/article   where results.json, table.md and the logs go; runs of former calls stay in them
#   SLUICE     bin/sluice          the gateway
#   BENCH_CACHE (.cache/bench)     where GuideLLM is installed
#
# Everything listens on loopback and ends with the script. Four ways under three loads take an hour and a half.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sluice=${SLUICE:-$root/bin/sluice}
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
out=${OUT:-$root/.cache/bench/article}
mkdir -p "$out/logs"
out=$(cd "$out" && pwd)
guidellm=$("$root/deploy/bench/install.sh" guidellm==0.8.1)
exec python3 "$root/deploy/bench/article.py" --guidellm "$guidellm" --sluice "$sluice" --model "$root/scoring/simworker/model" \
  --policies "$root/deploy/bench/internal/rig/policies" --out "$out" --logs "$out/logs" \
  --routers ${ROUTERS:-random round-robin least-loaded sluice} --workloads ${WORKLOADS:-shared long independent} \
  ${STREAMS:+--streams $STREAMS} --scale "${SCALE:-0.5}" --reps "${REPS:-1}" ${MORE:+--more "$MORE"} ${SUFFIX:+"--suffix=$SUFFIX"}
