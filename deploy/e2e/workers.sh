# workers.sh, to be sourced: two real vLLM workers on CPU, for the check and for the benchmark of the gateway.
#
# ENGINE_SCRIPTS is a folder with the scripts that install and run a worker: install.sh, fetch-tokenizer.sh,
# mkmodel.py and serve.sh (default: ../shared/engine beside this repository). What they make is kept under
# .cache/engine: a virtual environment with vLLM (6 GB; ENGINE_VENV names another) and a small random model
# (ENGINE_MODEL names another). ENGINE_WORKERS takes two workers that run already, as "PORT=PID PORT=PID".
#
# PIN_WORKERS, when set, gives each worker a processor of its own, as each has a GPU of its own elsewhere. Each engine
# is two processes that compute and wait in turns, and both spin while they wait. Left alone, the kernel may put the
# two that compute on one processor for as long as they run: half the speed, by chance.
#
# The caller has set root (this repository) and work (a folder for logs), and ends what `pids` lists.

cache=$root/.cache/engine
scripts=${ENGINE_SCRIPTS:-$root/../shared/engine}
model=${ENGINE_MODEL:-$cache/model}
export ENGINE_VENV=${ENGINE_VENV:-$cache/venv}
pids=()

# free_port prints a port that nothing listens on.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# install_engine makes the virtual environment and the model, unless they are there.
install_engine() {
  [ -x "$scripts/serve.sh" ] || { echo "no serve.sh in $scripts: set ENGINE_SCRIPTS to the folder that has it" >&2; return 1; }
  mkdir -p "$cache"
  if [ ! -x "$ENGINE_VENV/bin/vllm" ]; then
    echo "installing vLLM into $ENGINE_VENV (once)"
    "$scripts/install.sh" "$ENGINE_VENV" >"$cache/install.log" 2>&1 || { tail -n 20 "$cache/install.log" >&2; return 1; }
  fi
  if [ ! -f "$model/tokenizer.json" ]; then
    "$scripts/fetch-tokenizer.sh" qwen3 "$cache/tokenizer" >/dev/null
    "$ENGINE_VENV/bin/python" "$scripts/mkmodel.py" "$cache/tokenizer" "$model"
  fi
}

# start_workers [FLAG...] starts both, or takes those of ENGINE_WORKERS, and waits until they serve, ten
# minutes at most. It sets port1, pid1, port2 and pid2. Events have the engine's own default topic, the empty one:
# some subscribers take no other.
start_workers() {
  local n w port pid events replay until
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
      # serve.sh sets a topic; the last of several settings counts.
      ${PIN_WORKERS:+taskset -c $(((n - 1) % $(nproc)))} "$scripts/serve.sh" "$n" "$port" "$events" "$replay" "$model" "$@" \
        --kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:$events\",\"replay_endpoint\":\"tcp://*:$replay\"}" \
        >"$work/w$n.log" 2>&1 &
      pids+=($!)
      eval "port$n=$port pid$n=$!"
    done
  fi
  until=$((SECONDS + 600))
  for n in 1 2; do
    eval "port=\$port$n pid=\$pid$n"
    until curl -sf "localhost:$port/health" >/dev/null; do
      kill -0 "$pid" 2>/dev/null || { echo "worker $n ended while starting" >&2; return 1; }
      [ "$SECONDS" -lt "$until" ] || { echo "worker $n does not serve after ten minutes" >&2; return 1; }
      sleep 1
    done
  done
}

# end_all ends every process that `pids` lists, and waits for it. An engine that is still starting may not heed
# the first signal; after 20 s it gets one that it must.
end_all() {
  local pid until=$((SECONDS + 20))
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  for pid in ${pids[@]+"${pids[@]}"}; do
    while [ "$SECONDS" -lt "$until" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
}

# show_logs prints the end of the workers' logs.
show_logs() {
  local n
  for n in 1 2; do echo "--- worker $n log (last 5 lines)"; tail -n 5 "$work/w$n.log" 2>/dev/null || true; done
}
