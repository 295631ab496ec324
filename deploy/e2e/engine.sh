#!/usr/bin/env bash
# engine.sh: run the gateway before two real vLLM workers on CPU and check it from outside.
#
# ENGINE_SCRIPTS is a folder with the scripts that install and run a worker: install.sh, fetch-tokenizer.sh,
# mkmodel.py and serve.sh (default: ../shared/engine beside this repository). What they make is kept under
# .cache: a virtual environment with vLLM (6 GB; ENGINE_VENV names another) and a small random model
# (ENGINE_MODEL names another). The OpenAI SDK gets an environment of its own. ENGINE_WORKERS takes two
# workers that run already, as "PORT=PID PORT=PID"; the last check ends the first of them.
#
# Takes about five minutes, two cores and 10 GB of memory once vLLM is installed; ends all it started.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cache=$root/.cache/engine
scripts=${ENGINE_SCRIPTS:-$root/../shared/engine}
model=${ENGINE_MODEL:-$cache/model}
sluice=$root/bin/sluice
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
[ -x "$scripts/serve.sh" ] || { echo "no serve.sh in $scripts: set ENGINE_SCRIPTS to the folder that has it" >&2; exit 1; }
export ENGINE_VENV=${ENGINE_VENV:-$cache/venv}
mkdir -p "$cache"
if [ ! -x "$ENGINE_VENV/bin/vllm" ]; then
  echo "installing vLLM into $ENGINE_VENV (once)"
  "$scripts/install.sh" "$ENGINE_VENV" >"$cache/install.log" 2>&1 || { tail -n 20 "$cache/install.log" >&2; exit 1; }
fi
if [ ! -f "$model/tokenizer.json" ]; then
  "$scripts/fetch-tokenizer.sh" qwen3 "$cache/tokenizer" >/dev/null
  "$ENGINE_VENV/bin/python" "$scripts/mkmodel.py" "$cache/tokenizer" "$model"
fi

sdk=$root/.cache/openai
if [ ! -x "$sdk/bin/python" ]; then
  python3 -m venv "$sdk"
  "$sdk/bin/pip" install --quiet --disable-pip-version-check 'openai==3.57.0'
fi

work=$(mktemp -d)
pids=()
cleanup() {
  status=$?
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [ "$status" -ne 0 ]; then
    echo "--- gateway log (last 40 lines)"; tail -n 40 "$work/sluice.log" 2>/dev/null || true
    for n in 1 2; do echo "--- worker $n log (last 5 lines)"; tail -n 5 "$work/w$n.log" 2>/dev/null || true; done
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

if [ -n "${ENGINE_WORKERS:-}" ]; then
  n=0
  for w in $ENGINE_WORKERS; do
    n=$((n + 1))
    eval "port$n=${w%%=*} pid$n=${w##*=}"
  done
else
  echo "starting two vLLM workers"
  for n in 1 2; do
    port=$(free_port) events=$(free_port) replay=$(free_port)
    "$scripts/serve.sh" "$n" "$port" "$events" "$replay" "$model" \
      --enable-prompt-tokens-details >"$work/w$n.log" 2>&1 &
    pids+=($!)
    eval "port$n=$port pid$n=$!"
  done
fi
for n in 1 2; do
  eval "port=\$port$n pid=\$pid$n"
  until curl -sf "localhost:$port/health" >/dev/null; do
    kill -0 "$pid" 2>/dev/null || { echo "worker $n ended while starting" >&2; exit 1; }
    sleep 1
  done
done

cat >"$work/tenants.yaml" <<YAML
tenants:
  - id: alpha
    team: research
    tier: gold
    expose: { worker: true, policy: true, overhead: true }
  - id: beta
    team: support
    tier: gold
    expose: { worker: true, policy: true, overhead: true }
YAML
alpha=$("$sluice" keys create --tenants "$work/tenants.yaml" --tenant alpha | grep -o 'slk_[A-Za-z0-9_-]*' | head -n 1)
beta=$("$sluice" keys create --tenants "$work/tenants.yaml" --tenant beta | grep -o 'slk_[A-Za-z0-9_-]*' | head -n 1)
cat >"$work/prices.yaml" <<YAML
prices:
  - { model: tiny, currency: EUR, input: 500000, cachedInput: 50000, output: 1500000, validFrom: 2026-01-01 }
YAML
head -c 32 /dev/urandom >"$work/cache.key"
cat >"$work/sluice.yaml" <<YAML
listen:
  public: { address: "127.0.0.1:$(free_port)" }
  admin: { address: "127.0.0.1:$(free_port)" }
tenants: { file: tenants.yaml }
policy: { dir: policies }
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: tiny, aliases: [default], family: qwen, tokenizer: "$model", contextLength: 8192, defaultMaxTokens: 64 }
pools:
  - name: cpu
    models: [tiny]
    workers:
      - { name: w1, url: "http://127.0.0.1:$port1" }
      - { name: w2, url: "http://127.0.0.1:$port2" }
scoring: { blockSize: 32, batchTokens: 1024, maxSeqs: 8, prior: { base: 70ms, perKilo: 450ms } }
prices: { file: prices.yaml }
ledger: { path: sluice.db }
drain: { delay: 0s, deadline: 20s }
log: { level: info, format: json }
YAML
mkdir -p "$work/policies"
cp "$root/policies/qos-tiers.yaml" "$work/policies/"

"$sluice" check -c "$work/sluice.yaml"
"$sluice" serve -c "$work/sluice.yaml" 2>"$work/sluice.log" &
gateway=$!
pids+=("$gateway")
address() { sed -n "s/.*address: \"\(127[^\"]*\)\".*/\1/p" "$work/sluice.yaml" | sed -n "$1p"; }
until curl -sf "http://$(address 1)/readyz" >/dev/null; do
  kill -0 "$gateway" 2>/dev/null || { echo "the gateway ended while starting" >&2; exit 1; }
  sleep 0.2
done

ALPHA_KEY=$alpha BETA_KEY=$beta "$sdk/bin/python" "$root/deploy/e2e/engine_check.py" \
  --gateway "http://$(address 1)" --admin "http://$(address 2)" \
  --worker "w1=http://127.0.0.1:$port1=$pid1" --worker "w2=http://127.0.0.1:$port2=$pid2" \
  --sluice "$sluice" --tokenizer "$model" --ledger "$work/sluice.db" \
  --parity "$root/scoring/tokenize/testdata/parity/qwen3.json"
