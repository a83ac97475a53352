<?php
// Counts for ever, or `calls` times and then, if it is told so, crashes.
set_time_limit(0);
if (isset($_GET['mark'])) {
    ephpm_kv_set('mark:text', $_GET['mark']);
}
for ($n = (int)($_GET['calls'] ?? PHP_INT_MAX); $n > 0; $n--) {
    @ephpm_kv_incr($_GET['key']);
    if (isset($_GET['churn'])) {
        @ephpm_kv_incr_ttl('endless:' . $n % 50, 1, 0.05);
        @ephpm_kv_del('endless:' . ($n + 25) % 50);
    }
}
if (isset($_GET['crash'])) {
    posix_kill(getmypid(), 11);
}
