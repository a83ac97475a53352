<?php
// Has another PHP count, and prints what it prints.
$code = 'echo ephpm_kv_incr("started"), ephpm_kv_degraded() ? " degraded" : " not degraded";';
echo exec('PHP_INI_SCAN_DIR= php ' . $_GET['options'] . ' -r ' . escapeshellarg($code) . ' 2>&1');
