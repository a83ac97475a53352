<?php
// Prints every setting, or with `set` tries to change each and prints the names of those that it could.
$settings = array_filter(ini_get_all(null, false), fn($name) => str_starts_with($name, 'ephpm_kv.'), ARRAY_FILTER_USE_KEY);
$settings['user_agent'] = ini_get('user_agent');
foreach ($settings as $name => $value) {
    if (!isset($_GET['set'])) {
        echo $name, ' ', rawurlencode((string)$value), "\n";
    } elseif (ini_set($name, '1') !== false) {
        echo "set $name\n";
    }
}
