<?php
// A deployment on one host makes every host compile its scripts anew, with opcache.validate_timestamps=0 on all of them.
//
// After the new files are in place everywhere, run once, on any host:
//
//     php -r 'require "opcache_version.php"; echo code_version_raise(), "\n";'
//
// and at the start of every request (auto_prepend_file, or the front controller):
//
//     require 'opcache_version.php';
//     code_version_follow();
//
// The version only grows, so a host that has not heard of the last one yet (or is cut off) does nothing: it follows when
// it has. Of the workers that share an OPcache one resets it; the request that does so still runs the old code.

declare(strict_types=1);

const CODE_VERSION_KEY = 'code:version';

/** The next version of the code; false if it could not be counted. */
function code_version_raise(): int|false
{
    return ephpm_kv_incr(CODE_VERSION_KEY);
}

/** Resets this server's OPcache if the code has a version that it has not seen. Whether it did. */
function code_version_follow(): bool
{
    $version = ephpm_kv_get(CODE_VERSION_KEY) ?? '0';
    $status = opcache_get_status(false);
    if ($status === false) {
        return false;
    }
    // One OPcache per server: several may run on one host, and one that was restarted has compiled everything anew.
    $server = [gethostname(), function_exists('posix_getppid') ? posix_getppid() : php_ini_loaded_file()];
    $key = 'code:seen:' . implode(':', [...$server, $status['opcache_statistics']['start_time']]);
    $seen = ephpm_kv_get($key);
    if ($seen !== null && (int)$seen >= (int)$version) {
        return false;
    }
    // Of the workers that come here at once one goes on. What a server saw that is long gone ends by itself.
    return ephpm_kv_cas($key, $seen, $version, 30 * 86400) && $seen !== null && opcache_reset();
}
