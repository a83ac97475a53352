#!/usr/bin/env bash
# Builds the module and puts it at a path. Usage: build.sh PATH [CARGO OPTION...]
#   PHP, PHP_CONFIG, CARGO_TARGET_DIR   for another PHP than the system's: one target directory for each
set -euo pipefail
cd "$(dirname "$0")/.."
path=$1
shift
cargo build --release --lib --locked "$@"
mkdir -p "$(dirname "$path")"
# Renamed, not overwritten: a PHP process may have the old one mapped.
cp "${CARGO_TARGET_DIR:-target}"/release/libephpm_kv.so "$path.new"
mv -f "$path.new" "$path"
