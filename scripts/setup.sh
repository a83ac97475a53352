#!/usr/bin/env bash
# Installs the Debian packages that a target needs and this machine lacks. Usage: setup.sh build|test|bench|zts|php84
# Does nothing, and needs no root, when everything is there.
set -euo pipefail

need=()
want() { # want PACKAGE TEST...: the package is needed unless the test succeeds
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || need+=("$package")
}
has() { command -v "$1"; }
has_file() { compgen -G "$1"; }
extension_file() { test -f "$(php-config --extension-dir)/$1.so"; }

build() {
    want php8.2-cli has php
    want php8.2-dev has php-config
    # bindgen reads PHP's headers through libclang.
    want libclang-dev has_file '/usr/lib/llvm-*/lib/libclang*.so*'
    want clang has clang
    want gcc has gcc
    want make has make
}

case "${1:-build}" in
build) build ;;
test)
    build
    want faketime has_file '/usr/lib/*/faketime/libfaketimeMT.so.1'
    want php8.2-fpm has php-fpm8.2
    want apache2 has_file /usr/sbin/apache2
    want libapache2-mod-php8.2 has_file /usr/lib/apache2/modules/libphp8.2.so
    want php8.2-opcache extension_file opcache
    # ip: hosts in network namespaces.
    want iproute2 has ip
    # unshare: php-fpm as the first process of a container, and processes of other namespaces.
    want util-linux has unshare
    ;;
bench)
    build
    want php8.2-apcu extension_file apcu
    want php8.2-redis extension_file redis
    want redis-server has redis-server
    ;;
zts)
    build
    want dpkg-dev has dpkg-source
    want patch has patch
    want pkg-config has pkg-config
    ;;
php84)
    build
    want debootstrap has debootstrap
    want util-linux has unshare
    ;;
*)
    echo "usage: $0 build|test|bench|zts|php84" >&2
    exit 2
    ;;
esac

if ((${#need[@]})); then
    echo "Missing: ${need[*]}" >&2
    if ! command -v apt-get >/dev/null; then
        echo 'Not a Debian system: please install what these packages contain and try again.' >&2
        exit 1
    fi
    if ((EUID != 0)); then
        echo "Please run as root, once: apt-get install --no-install-recommends ${need[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # redis-server, php8.2-fpm and apache2 would start theirs; tests and benchmark start their own.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get update -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 >&2
    apt-get install -y -qq --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "${need[@]}" >&2
fi

if ! command -v cargo >/dev/null; then
    echo 'Missing: Rust 1.88 or newer. See https://rustup.rs' >&2
    exit 1
fi
if ! php -n -r 'exit(function_exists("pcntl_fork") ? 0 : 1);'; then
    echo "$(command -v php) has no pcntl: the tests and the demo need PHP's command line build with it" >&2
    exit 1
fi
