#!/usr/bin/env bash
# engine.sh: run the gateway before two real vLLM workers on CPU and check it from outside.
#
# workers.sh says where the workers come from (ENGINE_SCRIPTS, ENGINE_VENV, ENGINE_MODEL, ENGINE_WORKERS). The
# OpenAI SDK gets a virtual environment of its own. The last check ends the first worker.
#
# Takes about five minutes, two cores and 10 GB of memory once vLLM is installed; ends all it started.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sluice=$root/bin/sluice
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
. "$root/deploy/e2e/workers.sh"
install_engine

sdk=$root/.cache/openai
if [ ! -x "$sdk/bin/python" ]; then
  python3 -m venv "$sdk"
  "$sdk/bin/pip" install --quiet --disable-pip-version-check 'openai==3.57.0'
fi

work=$(mktemp -d)
cleanup() {
  status=$?
  end_all
  if [ "$status" -ne 0 ]; then
    echo "--- gateway log (last 40 lines)"; tail -n 40 "$work/sluice.log" 2>/dev/null || true
    show_logs
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT

start_workers --enable-prompt-tokens-details

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
    cacheSalt: [chat, completion]
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
cp "$root/policies/starter/qos-tiers.yaml" "$work/policies/"

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
  --gateway "http://$(address 1)" --admin "http://$(address 2)" --token "$work/sluice.db.admin-token" \
  --worker "w1=http://127.0.0.1:$port1=$pid1" --worker "w2=http://127.0.0.1:$port2=$pid2" \
  --sluice "$sluice" --tokenizer "$model" --ledger "$work/sluice.db" \
  --parity "$root/scoring/tokenize/testdata/parity/qwen3.json"
