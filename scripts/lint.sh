#!/usr/bin/env bash
# Formatting, clippy without a warning, and the syntax of every script.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --check
cargo clippy --locked --all-targets --all-features -- -D warnings
while IFS= read -r -d '' file; do
    php -n -l "$file" >/dev/null || exit 1
done < <(find bench demo stubs tests examples -name '*.php' -print0 2>/dev/null)
for file in scripts/*.sh .ci/run; do
    bash -n "$file"
done
echo 'lint: clean'
