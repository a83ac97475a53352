#!/usr/bin/env bash
# Tests the module in a thread-safe debug PHP, as FrankenPHP's is: a small threaded server (tests/zts/driver.c), then
# php-tests/. Builds what is missing. Ends with one line "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/php-zts.sh || exit
root=$PWD/target/php-zts
tests=$PWD/tests/zts
read -ra includes < <("$root/php/bin/php-config" --includes | sed 's/-I/-isystem /g')
cc -Wall -Wextra -Werror -O1 -DZEND_ENABLE_STATIC_TSRMLS_CACHE=1 "${includes[@]}" -o "$root/driver" \
    "$tests/driver.c" -L"$root/php/lib" -lphp -Wl,-rpath,"$root/php/lib" || exit 1
out=$(mktemp)
trap 'rm -f "$out"' EXIT
passed=0
failed=0

drive() { # drive OPTION... CYCLES THREADS REQUESTS WORK CHECK: the driver with the module
    timeout 120 "$root/driver" -d "extension=$root/modules/ephpm_kv.so" "$@"
}
count() { # count OPTION... CYCLES THREADS REQUESTS
    drive "$@" "$tests/count.php" "$tests/total.php"
}
silent() { # silent NAME COMMAND...: passes when it succeeds without a word; a debug PHP reports leaks
    local name=$1 status
    shift
    "$@" >"$out" 2>&1
    status=$?
    if ((status == 0)) && [[ ! -s $out ]]; then
        echo "ok      $name"
        passed=$((passed + 1))
    else
        echo "FAILED  $name: ended with status $status"
        head -n 50 "$out"
        failed=$((failed + 1))
    fi
}
free_port() {
    "$root/php/bin/php" -n -r 'require "php-tests/cluster.inc"; echo free_port();'
}
cluster() { # cluster PORT PORT...: options of a host at the first port
    local first=$1 other
    echo "-d ephpm_kv.bind=127.0.0.1:$first -d ephpm_kv.node_id=host$first -d ephpm_kv.log=/dev/null"
    shift
    for other; do
        echo "-d ephpm_kv.join=127.0.0.1:$other"
    done
}

reports_leaks() {
    drive -l 1 2 2 "$tests/count.php" "$tests/total.php" 2>&1 | grep '1 memory leaks detected' >/dev/null
}
two_hosts() {
    local one two first
    one=$(free_port)
    two=$(free_port)
    # shellcheck disable=SC2046
    count $(cluster "$one" "$two") 1 8 20 &
    first=$!
    # shellcheck disable=SC2046
    count $(cluster "$two" "$one") 1 8 20
    local second=$?
    wait "$first" && ((second == 0))
}
complains_once() { # a value that is not allowed is warned about when PHP starts, and not for each thread
    local complaints
    complaints=$(drive -d ephpm_kv.secret=, 1 8 2 "$tests/count.php" "$tests/total.php" 2>&1 |
        grep -c 'the value is not allowed')
    ((complaints == 1)) || echo "$complaints complaints"
}

of_one() {
    # shellcheck disable=SC2046
    ZTS_HOSTS=1 "$1" $(cluster "$(free_port)") "${@:2}"
}

silent 'this PHP reports leaks' reports_leaks
silent '1,000,000 increments in 16 threads' count 1 16 125
silent '1,000,000 increments in 16 threads, in a cluster of one' of_one count 1 16 125
ZTS_HOSTS=2 silent '80,000 increments in 8 threads of two hosts each' two_hosts
silent 'PHP started five times in one process' count 5 16 10
silent 'PHP started five times in one process, in a cluster of one' of_one count 5 16 10
silent 'every function in 8 threads' drive 1 8 20 "$tests/every.php" "$tests/every.php"
silent 'every function in 8 threads, in a cluster of one' of_one drive 1 8 20 "$tests/every.php" "$tests/every.php"
silent 'one complaint about a bad value' complains_once

export PHP=$root/php/bin/php PHP_CONFIG=$root/php/bin/php-config PHPT_MODULES=$root/modules
scripts/phpt.sh 2>&1 | sed 's/^/phpt: /' | tee "$out"
status=${PIPESTATUS[0]}
read -r good bad < <(sed -nE 's/^phpt: ([0-9]+) passed, ([0-9]+) failed.*/\1 \2/p' "$out")
passed=$((passed + ${good:-0}))
failed=$((failed + ${bad:-0}))
if ((status != 0 && ${bad:-0} == 0)); then
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
((failed == 0))
