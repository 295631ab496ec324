#!/usr/bin/env bash
# overload.sh [FLAG...]: twenty tenants ask six simulated workers for twice what they can do, one of them floods.
#
# Runs deploy/bench/overload with the given flags; docs/0038-qos-figures.md says what it measures. Results go to
# OVERLOAD_OUT (default: .cache/bench/overload): overload.md, overload.json and a record of each request. Everything
# listens on loopback and ends with the script. Give it a machine of its own.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
go build -o bin/overload ./deploy/bench/overload
exec bin/overload -sluice "${SLUICE:-bin/sluice}" -out "${OVERLOAD_OUT:-.cache/bench/overload}" "$@"
