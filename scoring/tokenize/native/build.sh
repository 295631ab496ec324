#!/usr/bin/env bash
# build.sh: build lib/libtokenizers.a, the native half of scoring/tokenize.
#
# It holds the Rust source of the Go module github.com/daulet/tokenizers, which
# is compiled where the Go module cache has it, and the crate of this folder.
# The archive is built once; it is built again when a source file, Cargo.lock,
# the module's version or the compiler changes. Runs in parallel wait for each
# other. CARGO_BUILD_JOBS and the other variables of cargo are heeded.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
module=github.com/daulet/tokenizers
archive=lib/libtokenizers.a
stamp=lib/stamp
# The Go side compiles the digest in. Without it the go command would not notice
# that the archive changed, and would go on using binaries linked to the old one.
header=../native_digest.h

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

for tool in cargo rustc; do
  command -v "$tool" >/dev/null ||
    fail "$tool is not installed. The tokenizers need Rust 1.85 or newer (rustup, or Debian: apt-get install cargo). A binary without them: go build -tags notokenizers"
done
command -v go >/dev/null || fail "go is not installed"

go mod download "$module" || fail "cannot download the Go module $module"
source=$(go list -m -f '{{.Dir}}' "$module")
[ -f "$source/src/lib.rs" ] || fail "the Go module $module has no src/lib.rs in $source"

# What the archive depends on. Paths do not count, so that a clone elsewhere
# gets the same digest.
digest() {
  {
    go list -m -f '{{.Version}}' "$module"
    rustc --version --verbose
    go env GOARCH
    sha256sum build.sh Cargo.toml Cargo.lock daulet/Cargo.toml tiktoken/Cargo.toml tiktoken/src/*.rs src/*.rs
  } | sha256sum | cut -d' ' -f1
}

mkdir -p lib target
if command -v flock >/dev/null; then
  exec 9>lib/lock
  flock 9
fi
want=$(digest)
line="#define SLUICE_DIGEST \"$want\""
if [ -f "$archive" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ "$(cat "$header" 2>/dev/null)" = "$line" ]; then
  exit 0
fi

echo "build.sh: building the native tokenizers (a few minutes the first time)" >&2
start=$SECONDS
ln -sfn "$source" target/module
cargo build --release --locked --quiet --manifest-path Cargo.toml --target-dir target ||
  fail "cargo failed; its message is above"

# Cargo's archive is moved into place in one step, so that a linker never sees
# half of it.
cp target/release/libsluice_native.a "$archive.new"
mv "$archive.new" "$archive"
echo "$line" >"$header.new"
mv "$header.new" "$header"
echo "$want" >"$stamp"
echo "build.sh: $archive is ready after $((SECONDS - start)) s" >&2
