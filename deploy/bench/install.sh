#!/usr/bin/env bash
# install.sh NAME==VERSION...: give each package a virtual environment of its own, at BENCH_CACHE/NAME-VERSION.
#
# BENCH_CACHE is where they are kept (default: .cache/bench in this repository; clones may share one). PYTHON
# chooses the interpreter (default: python3). An environment that is complete is left alone, and several calls at
# a time are safe: one installs, the others wait. Prints each environment's folder, in the order asked for.
#
#   deploy/bench/install.sh sglang-router==0.3.2 vllm-router==0.1.17
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 NAME==VERSION..." >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${BENCH_CACHE:-$root/.cache/bench}
python=${PYTHON:-python3}
mkdir -p "$cache"

for package in "$@"; do
  case $package in
    ?*==?*) ;;
    *) echo "$0: $package is not NAME==VERSION: benchmarks name the exact version" >&2; exit 2 ;;
  esac
  dir=$cache/${package%%==*}-${package##*==}
  (
    flock 9
    # The mark is written last, so an installation that was broken off is made anew.
    if [ ! -f "$dir/complete" ]; then
      echo "installing $package into $dir (once)" >&2
      rm -rf "$dir"
      "$python" -m venv "$dir"
      "$dir/bin/pip" install --quiet --disable-pip-version-check "$package" >"$dir/install.log" 2>&1 ||
        { tail -n 20 "$dir/install.log" >&2; exit 1; }
      "$dir/bin/pip" freeze --disable-pip-version-check >"$dir/versions"
      mv "$dir/versions" "$dir/complete"
    fi
  ) 9>"$dir.lock"
  echo "$dir"
done
