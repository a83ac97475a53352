<?php
// Counts only when the answer has been sent: at once, in a shutdown function and in destructors.
final class Counting
{
    public static ?self $last = null;

    public function __destruct()
    {
        ephpm_kv_incr($_GET['key']);
    }
}

$object = new Counting();
Counting::$last = new Counting();
register_shutdown_function(fn() => ephpm_kv_incr($_GET['key']));
echo 'sent before anything is counted';
fastcgi_finish_request();
for ($n = 0; $n < 3; $n++) {
    ephpm_kv_incr($_GET['key']);
}
