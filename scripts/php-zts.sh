#!/usr/bin/env bash
# Builds a thread-safe debug PHP from Debian's source package, and the module for it. Both are kept below
# target/php-zts/, so that a second run only looks whether the module is up to date.
# Downloads with apt from where this machine's own packages come from; changes nothing of its configuration.
#   target/php-zts/php           the PHP, a link to the folder of its version
#   target/php-zts/modules       the module
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh zts
. scripts/archive.sh
root=$PWD/target/php-zts
work=$root/work

source_package() { # unpacks the source package of this release's PHP as $work/php and sets $version
    local apt release
    # Not the security archive's: it keeps no sources of what it has replaced.
    read -r _ release < <(archive)
    archive_apt "$work" deb-src "$release" || return
    version=$(apt-cache "${apt[@]}" showsrc php8.2 | awk '/^Version:/ { print $2 }')
    [[ -n $version ]] || return
    (cd "$work" && apt-get "${apt[@]}" source --download-only "php8.2=$version" >/dev/null) || return
    # As PHP's developers released it: Debian's patches are for its own rules.
    dpkg-source --no-check --skip-patches -x "$work"/php8.2_*.dsc "$work/php" >/dev/null
}

built() { # a PHP knows its own folder: a copy of another's target is none
    [[ -x $root/php/bin/php && $("$root/php/bin/php-config" --prefix) -ef $root/php ]]
}

if ! built; then
    rm -rf "$work"
    mkdir -p "$work"
    # 75: it cannot be had here (no root for the packages, no archive of sources).
    source_package || exit 75
    echo "Building PHP $version (thread-safe, debug); the log is $work/log" >&2
    prefix=$root/$version
    configure=(./configure --prefix="$prefix" --disable-all --enable-zts --enable-debug --disable-cgi --disable-phpdbg
        --enable-embed=shared --enable-filter --enable-pcntl --enable-posix CFLAGS='-O0 -g1')
    (cd "$work/php" && "${configure[@]}" && make -j"$(nproc)" && make install) >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        exit 1
    }
    # Last, so that a build that was cut off is begun again.
    ln -sfn "$version" "$root/php"
    rm -rf "$work"
fi

export PHP=$root/php/bin/php PHP_CONFIG=$root/php/bin/php-config CARGO_TARGET_DIR=$root/cargo
scripts/build.sh "$root/modules/ephpm_kv.so" "$@"
