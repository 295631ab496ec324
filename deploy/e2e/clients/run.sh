#!/usr/bin/env bash
# run.sh: the SDKs that people use, against the gateway before simulated workers. docs/0033-edge-clients.md says
# what each is asked.
#
# Installs pinned versions (once, into CLIENTS_CACHE; default: .cache/clients in this repository) with hashes, from
# PyPI and npm. PYTHON chooses the interpreter (default: python3, 3.10 or newer). CLIENTS names those to run (default:
# all). CLIENTS_WORKER takes the address of a worker that runs already, such as a real vLLM, with CLIENTS_MODEL as its
# model: then what needs faults on order is left out, and told. Everything listens on loopback and ends with the script.
set -euo pipefail

root=$(cd "$(dirname "$0")/../../.." && pwd)
here=$root/deploy/e2e/clients
sluice=$root/bin/sluice
[ -x "$sluice" ] || { echo "$sluice is missing: run make build first" >&2; exit 1; }
cache=${CLIENTS_CACHE:-$root/.cache/clients}
python=${PYTHON:-python3}
clients=${CLIENTS:-openai anthropic langchain litellm npm curl}
mkdir -p "$cache"

# environment NAME FILE: a virtual environment with what a file of requirements says, unless it is there.
environment() {
  local dir=$cache/$1 sum
  sum=$(sha256sum <"$here/$2" | cut -c1-16)
  [ ! -f "$dir/complete-$sum" ] || return 0
  rm -rf "$dir"
  "$python" -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check --no-compile --require-hashes --only-binary :all: -r "$here/$2" >"$dir.log" 2>&1 ||
    { tail -n 20 "$dir.log" >&2; return 1; }
  touch "$dir/complete-$sum"
}

# modules: the npm package, unless it is there.
modules() {
  local sum
  sum=$(sha256sum <"$here/package-lock.json" | cut -c1-16)
  [ ! -f "$cache/npm/complete-$sum" ] || return 0
  rm -rf "$cache/npm"
  mkdir -p "$cache/npm"
  cp "$here/package.json" "$here/package-lock.json" "$cache/npm/"
  npm ci --prefix "$cache/npm" --no-audit --no-fund --ignore-scripts >"$cache/npm.log" 2>&1 || { tail -n 20 "$cache/npm.log" >&2; return 1; }
  touch "$cache/npm/complete-$sum"
}

wanted() { case " $clients " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

began=$SECONDS
installing=()
if wanted openai || wanted anthropic || wanted langchain; then environment sdks requirements.txt & installing+=($!); fi
if wanted litellm; then environment litellm requirements-litellm.txt & installing+=($!); fi
if wanted npm; then modules & installing+=($!); fi
for job in "${installing[@]+"${installing[@]}"}"; do wait "$job" || { echo "cannot install a client" >&2; exit 1; }; done
echo "clients installed after $((SECONDS - began)) s"

work=$(mktemp -d)
pids=()
cleanup() {
  status=$?
  for pid in "${pids[@]+"${pids[@]}"}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]+"${pids[@]}"}"; do wait "$pid" 2>/dev/null || true; done
  if [ "$status" -ne 0 ]; then
    echo "--- gateway log, what is no ordinary end of a request (last 30 lines)"
    grep -v '"level":"INFO"' "$work/sluice.log" 2>/dev/null | tail -n 30 || true
  fi
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT

# The stage starts workers and gateway, says where they are, and answers what the clients' scripts ask about the
# workers and the ledger.
"$python" "$here/stage.py" --sluice "$sluice" --work "$work" --clients "$clients" \
  ${CLIENTS_WORKER:+--worker "$CLIENTS_WORKER" --model "${CLIENTS_MODEL:-tiny}"} >"$work/stage.json" 2>"$work/stage.log" &
stage=$!
pids+=("$stage")
until [ -s "$work/stage.json" ]; do
  kill -0 "$stage" 2>/dev/null || { cat "$work/stage.log" >&2; exit 1; }
  sleep 0.1
done
export STAGE=$work/stage.json NO_COLOR=1 LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONDONTWRITEBYTECODE=1 NODE_PATH=$cache/npm/node_modules
unset OPENAI_API_KEY OPENAI_BASE_URL ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_BASE_URL HTTP_PROXY HTTPS_PROXY http_proxy https_proxy ALL_PROXY all_proxy

# Each has tenants and a worker for faults of its own, so they run side by side.
run() {
  case $1 in
    openai) timeout 300 "$cache/sdks/bin/python" "$here/openai_sdk.py" ;;
    anthropic) timeout 300 "$cache/sdks/bin/python" "$here/anthropic_sdk.py" ;;
    langchain) timeout 300 "$cache/sdks/bin/python" "$here/langchain_openai_sdk.py" ;;
    litellm) timeout 300 "$cache/litellm/bin/python" "$here/litellm_sdk.py" ;;
    npm) timeout 300 node "$here/openai_npm.mjs" ;;
    curl) timeout 300 "$python" "$here/curl_client.py" ;;
    *) echo "there is no client $1" >&2; return 2 ;;
  esac
}
jobs=()
for client in $clients; do
  run "$client" >"$work/$client.out" 2>&1 &
  jobs+=("$!")
done
failed=0
i=0
for client in $clients; do
  code=0
  wait "${jobs[$i]}" || code=$?
  i=$((i + 1))
  cat "$work/$client.out"
  [ "$code" -eq 0 ] || { failed=1; echo "$client: exit code $code"; }
done
cat "$work"/*.out | awk -v took=$((SECONDS - began)) '
  match($0, /: [0-9]+ passed, [0-9]+ failed$/) { split(substr($0, RSTART + 2), n, " "); passed += n[1]; failed += n[3]; clients++ }
  END { printf "e2e-clients: %d clients, %d passed, %d failed, %d s\n", clients, passed, failed, took }'
exit "$failed"
