#!/usr/bin/env bash
# Builds the module for PHP 8.4 and runs php-tests/ (or the tests given as arguments) with it. PHP 8.4 comes from a
# Debian 13 of its own below target/php-8.4/, which the first run makes; the module is built outside. As root.
#   target/php-8.4/root          that Debian, with php8.4 and php-fpm8.4
#   target/php-8.4/enter         runs a command in it, with this folder, /proc and /dev where they are
#   target/php-8.4/modules       the module
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh php84
. scripts/archive.sh
base=$PWD/target/php-8.4
root=$base/root

if [[ ! -d $root ]]; then
    # 75: it cannot be had here.
    ((EUID == 0)) || { echo 'php-84: making a Debian needs root' >&2; exit 75; }
    rm -rf "$base/new"
    mkdir -p "$base"
    read -r address _ < <(archive)
    echo "Making a Debian 13 with PHP 8.4; the log is $base/log" >&2
    debootstrap --variant=minbase --include=php8.4-cli,php8.4-fpm trixie "$base/new" "$address" >"$base/log" 2>&1 || {
        tail -n 20 "$base/log" >&2
        exit 75
    }
    # Unpacked, not installed: it would bring a compiler.
    archive_apt "$base/new/tmp" deb trixie || exit 75
    (cd "$base/new/tmp" && apt-get "${apt[@]}" download php8.4-dev && dpkg -x php8.4-dev_*.deb "$base/new") >/dev/null
    rm -rf "$base"/new/tmp/* "$base"/new/var/cache/apt/archives/*.deb
    # Last, so that one that was cut off is begun again.
    mv "$base/new" "$root"
fi

wrapper() { # wrapper NAME: a script of these lines; left alone when it is there, since cargo looks at its time
    local lines
    lines=$(printf '#!/bin/sh\n%s' "$(cat)")
    [[ -x $base/$1 && $(<"$base/$1") == "$lines" ]] && return
    printf '%s\n' "$lines" >"$base/$1"
    chmod +x "$base/$1"
}

mkdir -p "$root$PWD"
# In a mount namespace of the command's own: nothing is left mounted.
wrapper enter <<END
exec unshare --mount sh -ec '
    mount --bind "\$2" "\$1\$2"
    mount -t proc proc "\$1/proc"
    mount --rbind /dev "\$1/dev"
    root=\$1 folder=\$3
    shift 3
    exec chroot "\$root" sh -c "cd \"\\\$0\" && exec \"\\\$@\"" "\$folder" "\$@"' sh '$root' '$PWD' "\$PWD" "\$@"
END
wrapper php <<END
exec chroot '$root' php8.4 "\$@"
END
wrapper php-config <<END
chroot '$root' php-config8.4 "\$@" | sed 's#/usr/include#$root&#g'
END

PHP=$base/php PHP_CONFIG=$base/php-config CARGO_TARGET_DIR=$base/cargo scripts/build.sh "$base/modules/ephpm_kv.so"
export PHP=php8.4 PHP_CONFIG=php-config8.4 PHPT_MODULES=$base/modules
"$base/enter" scripts/phpt.sh "$@"
