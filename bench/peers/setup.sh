#!/usr/bin/env bash
# Builds what run.py drives: the program for the Rust products by cargo, pg-boss by npm, with a Node of its own on
# Linux x86-64. All of it lands in this folder; only npm itself is installed for the whole system, by apt-get as root.
set -euo pipefail
cd "$(dirname "$0")"

missing() {
  echo "$1 is missing: $2" >&2
  exit 1
}

command -v cargo >/dev/null || missing cargo "install Rust 1.95 or newer"
if ! command -v npm >/dev/null; then
  command -v apt-get >/dev/null || missing npm "install Node with npm"
  [ "$(id -u)" = 0 ] || missing npm "type: sudo apt-get install npm"
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends npm
fi

if [ ! node/node_modules/.package-lock.json -nt node/package-lock.json ]; then
  npm ci --prefix node --no-audit --no-fund
fi

# What run.py decides by itself.
python3 -m unittest --quiet test_run

# Cargo sets these for a program that it runs, and builds some crates anew when they change.
unset ${!CARGO_PKG_@} ${!CARGO_MANIFEST_@}
# With the address of a server sqlx checks apalis' statements against it, where its tables are not there yet.
unset DATABASE_URL
cargo build --release --target-dir target
