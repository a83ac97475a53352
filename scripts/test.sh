#!/usr/bin/env bash
# Runs tests and ends with one line "N passed, N failed". Usage: test.sh all|chaos|soak
# Fails when a test failed, when something did not even run, or when nothing was tested.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp)
trap 'rm -f "$out"' EXIT
passed=0
failed=0

add() { # add STATUS PASSED FAILED NAME: a run that failed without a failed test counts as one failure
    local status=$1 good=${2:-0} bad=${3:-0} name=$4
    if ((status != 0 && bad == 0)); then
        echo "$name: ended with status $status" >&2
        bad=1
    elif ((good + bad == 0)); then
        echo "$name: nothing was tested" >&2
        bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
}

sum() { # sum PATTERN: adds up the number in the first group of every match in the output
    sed -E 's/\x1b\[[0-9;]*m//g' "$out" | sed -nE "s/.*$1.*/\\1/p" | awk '{ sum += $1 } END { print sum + 0 }'
}

rust() { # rust NAME NEXTEST-OPTION... [-- FILTER...]: through nextest where it is installed
    local name=$1 status
    shift
    local options=() filters=()
    while (($#)) && [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    (($#)) && shift
    filters=("$@")
    if cargo nextest --version >/dev/null 2>&1; then
        local extra=()
        [[ $name == tests ]] || extra=(--no-capture)
        [[ $name == soak || $name == hosts ]] && extra+=(--run-ignored only)
        cargo nextest run --locked "${options[@]}" "${extra[@]}" "${filters[@]}" 2>&1 | tee "$out"
        status=${PIPESTATUS[0]}
        add "$status" "$(sum 'Summary \[.* ([0-9]+) passed')" "$(sum 'Summary \[.* ([0-9]+) failed')" "$name"
    else
        local extra=(--test-threads=1)
        [[ $name == tests ]] || extra+=(--nocapture)
        [[ $name == soak || $name == hosts ]] && extra+=(--ignored)
        cargo test --locked --no-fail-fast "${options[@]}" -- "${extra[@]}" "${filters[@]}" 2>&1 | tee "$out"
        status=${PIPESTATUS[0]}
        add "$status" "$(sum 'test result: .* ([0-9]+) passed')" "$(sum 'test result: .* ([0-9]+) failed')" "$name"
    fi
}

other() { # other NAME: tests with another PHP, which is fetched and built first; where it cannot be had, that is said
    scripts/"$1".sh 2>&1 | tee "$out"
    local status=${PIPESTATUS[0]}
    if ((status == 75)); then
        echo "$1: this PHP cannot be had here, so nothing was tested with it" >&2
        return
    fi
    add "$status" "$(sum '^([0-9]+) passed, [0-9]+ failed')" "$(sum '^[0-9]+ passed, ([0-9]+) failed')" "$1"
}

case "${1:-all}" in
all)
    rust tests --lib --tests
    scripts/phpt.sh 2>&1 | tee "$out"
    status=${PIPESTATUS[0]}
    add "$status" "$(sum '^([0-9]+) passed, [0-9]+ failed')" "$(sum '^[0-9]+ passed, ([0-9]+) failed')" phpt
    other zts
    other php-84
    ;;
chaos)
    export EPHPM_KV_CHAOS_ROUNDS=${EPHPM_KV_CHAOS_ROUNDS:-3}
    rust hosts --test chaos
    export EPHPM_KV_TEST_SECONDS=${EPHPM_KV_TEST_SECONDS:-20} EPHPM_KV_TEST_CALLS=${EPHPM_KV_TEST_CALLS:-200000}
    export EPHPM_KV_KILLS=${EPHPM_KV_KILLS:-1000} EPHPM_KV_RELOADS=${EPHPM_KV_RELOADS:-100} EPHPM_KV_STOPS=${EPHPM_KV_STOPS:-50}
    for ((round = 1; round <= EPHPM_KV_CHAOS_ROUNDS; round++)); do
        echo "round $round"
        rust chaos --test cluster --test fpm --test servers -- owner_killed timeout_safety disagreeing_views fork_and_exit members \
            one_count create_with_deadline kill_storm reload orderly_end stop_and_start recycled_workers \
            graceful_restarts
    done
    ;;
soak) rust soak --test cluster -- soak ;;
*)
    echo "usage: $0 all|chaos|soak" >&2
    exit 2
    ;;
esac

echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
