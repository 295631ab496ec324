#!/usr/bin/env bash
# isolation.sh: run the gateway before two real vLLM workers on CPU and check who shares their prefix caches
# with whom, by what the engines report, count and publish.
#
# workers.sh says where the workers come from (ENGINE_SCRIPTS, ENGINE_VENV, ENGINE_MODEL, ENGINE_WORKERS).
# Takes about two minutes, two cores and 10 GB of memory once vLLM is installed; ends all it started.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sluice=$root/bin/sluice
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
. "$root/deploy/e2e/workers.sh"
install_engine

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

# Isolation comes from a policy; the default shares everything.
mkdir "$work/policies"
cat >"$work/policies/isolation.yaml" <<YAML
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: isolation }
spec:
  effects:
    - { name: by-tenant,    when: "tenant.labels[?'isolation'].orValue('') == 'tenant'",    cacheIsolation: tenant }
    - { name: by-principal, when: "tenant.labels[?'isolation'].orValue('') == 'principal'", cacheIsolation: principal }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: isolation-all }
spec: { policyName: isolation, actions: [Deny] }
YAML
cat >"$work/tenants.yaml" <<YAML
tenants:
  - id: alpha
    labels: { isolation: tenant }
  - id: beta
    labels: { isolation: tenant }
  - id: gamma
    labels: { isolation: principal }
  - id: open
  - id: public
YAML
callers=""
for tenant in alpha alpha beta gamma gamma open public; do
  callers="$callers $tenant=$("$sluice" keys create --tenants "$work/tenants.yaml" --tenant "$tenant" 2>/dev/null)"
done
head -c 32 /dev/urandom >"$work/cache.key"
# A model for each worker, so that a request goes where its check wants it.
cat >"$work/sluice.yaml" <<YAML
listen:
  public: { address: "127.0.0.1:$(free_port)" }
  admin: { address: "127.0.0.1:$(free_port)" }
tenants: { file: tenants.yaml }
policy: { dir: policies }
cacheIsolation: { default: none, keyFile: cache.key }
models:
  - { name: left,  upstream: tiny, tokenizer: "$model", contextLength: 8192, defaultMaxTokens: 16 }
  - { name: right, upstream: tiny, tokenizer: "$model", contextLength: 8192, defaultMaxTokens: 16 }
pools:
  - { name: left,  models: [left],  cacheSalt: [chat, completion], workers: [{ name: w1, url: "http://127.0.0.1:$port1" }] }
  - { name: right, models: [right], cacheSalt: [chat, completion], workers: [{ name: w2, url: "http://127.0.0.1:$port2" }] }
scoring: { blockSize: 32, batchTokens: 1024, maxSeqs: 8 }
ledger: { path: sluice.db }
drain: { delay: 0s, deadline: 20s }
log: { level: info, format: json }
YAML

"$sluice" check -c "$work/sluice.yaml"
"$sluice" serve -c "$work/sluice.yaml" 2>"$work/sluice.log" &
gateway=$!
pids+=("$gateway")
address() { sed -n "s/.*address: \"\(127[^\"]*\)\".*/\1/p" "$work/sluice.yaml" | sed -n "$1p"; }
until curl -sf "http://$(address 1)/readyz" >/dev/null; do
  kill -0 "$gateway" 2>/dev/null || { echo "the gateway ended while starting" >&2; exit 1; }
  sleep 0.2
done

CALLERS=$callers "$ENGINE_VENV/bin/python" "$root/deploy/e2e/isolation_check.py" \
  --gateway "http://$(address 1)" --admin "http://$(address 2)" --token "$work/sluice.db.admin-token" --key "$work/cache.key" \
  --left "http://127.0.0.1:$port1" --right "http://127.0.0.1:$port2"
