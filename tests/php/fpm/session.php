<?php
// One request of a visitor: what the session had, and what it has now.
declare(strict_types=1);
require $_GET['examples'] . '/sessions.php';
ini_set('session.gc_maxlifetime', $_GET['lifetime']);
ini_set('session.use_strict_mode', '1');
session_set_save_handler(new KvSessions(), true);
if (isset($_GET['id'])) {
    session_id($_GET['id']);
}
session_start();
$before = $_SESSION['cart'] ?? '';
if (isset($_GET['add'])) {
    $_SESSION['cart'] = trim("$before $_GET[add]");
}
$id = session_id();
if (isset($_GET['end'])) {
    session_destroy();
} else {
    session_write_close();
}
echo "$id\n$before\n", ephpm_kv_pttl("session:$id"), "\n", (int)ephpm_kv_degraded();
