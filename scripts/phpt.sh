#!/bin/sh
# Runs php-tests/ (or the tests given as arguments) against the module with PHP's own run-tests.php.
# Builds nothing. Fails unless at least one test passed and every other one did too: run-tests.php itself is content
# when it finds nothing to run or skips everything.
#   PHP, PHP_CONFIG   the PHP to test (default: php, php-config)
#   PHPT_MODULES      the folder of its ephpm_kv.so (default: modules)
#   PHPT_ALLOW_SKIP   1: a skipped test is no failure
#   PHPT_JOBS         tests at a time (default 2)
set -u
cd "$(dirname "$0")/.." || exit 1

php=$(command -v "${PHP:-php}") || { echo "phpt: no PHP found" >&2; exit 1; }
config=${PHP_CONFIG:-php-config}
modules=${PHPT_MODULES:-$PWD/modules}
[ -f "$modules/ephpm_kv.so" ] || { echo "phpt: $modules/ephpm_kv.so is missing" >&2; exit 1; }

runner=
for candidate in "/usr/lib/php/$("$config" --phpapi)/build/run-tests.php" \
    "$("$config" --prefix)/lib/php/build/run-tests.php" \
    "$("$config" --lib-dir 2>/dev/null)/build/run-tests.php"; do
    [ -f "$candidate" ] && runner=$candidate && break
done
[ -n "$runner" ] || { echo "phpt: run-tests.php not found beside $config's build files" >&2; exit 1; }

[ $# -gt 0 ] || set -- php-tests
report=$(mktemp) || exit 1
: >"$report.start"
trap 'rm -f "$report" "$report.start"' EXIT
trap 'exit 130' INT TERM

NO_INTERACTION=1 TEST_PHP_EXECUTABLE=$php "$php" -n "$runner" -n -q -j"${PHPT_JOBS:-2}" \
    -d "extension_dir=$modules" "$@" >"$report" 2>&1
code=$?
grep -E '^(FAIL|BORK|SKIP|WARN|LEAK|XFAIL|XLEAK) ' "$report"
for test in "$@"; do
    for diff in "$test"/*.diff "${test%.phpt}.diff"; do
        if [ "$diff" -nt "$report.start" ]; then echo "--- $diff"; cat "$diff"; echo; fi
    done
done

total() {
    sed -n "s/^Tests $1 *: *\([0-9][0-9]*\).*/\1/p" "$report" | head -n 1
}
passed=$(total passed); failed=$(total failed); skipped=$(total skipped); warned=$(total warned)
borked=$(grep -c '^BORK' "$report")
failed=$((${failed:-0} + borked + ${warned:-0}))
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"

[ "${passed:-0}" -gt 0 ] || { cat "$report"; echo "phpt: no test passed" >&2; exit 1; }
[ "$failed" -eq 0 ] && [ "$code" -eq 0 ] || exit 1
[ "${skipped:-0}" -eq 0 ] || [ "${PHPT_ALLOW_SKIP:-0}" = 1 ] || { echo "phpt: tests were skipped" >&2; exit 1; }
