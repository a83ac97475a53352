<?php
// What the code says that this host has compiled, after it has followed the version.
declare(strict_types=1);
require $_GET['examples'] . '/opcache_version.php';
if (isset($_GET['raise'])) {
    code_version_raise();
}
code_version_follow();
echo require $_GET['code'];
