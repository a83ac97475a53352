<?php
// Tries to open the host segment in every way that a script has. Prints a line "memfd ..." for each place where it can
// be seen, and a line "opened ..." for each place where it could be opened.
error_reporting(0);
foreach (file('/proc/self/maps') as $line) {
    if (str_contains($line, 'memfd:')) {
        echo 'memfd ', preg_replace('/\s+/', ' ', trim($line)), "\n";
        [$range] = explode(' ', $line);
        attempt("/proc/self/map_files/$range");
    }
}
foreach (['self', $_GET['node'], $_GET['master']] as $pid) {
    for ($number = 0; $number < 256; $number++) {
        $path = "/proc/$pid/fd/$number";
        $target = readlink($path);
        if ($target !== false && str_contains($target, 'memfd:')) {
            echo "memfd $path\n";
            attempt($path);
            if ($pid === 'self') {
                attempt("php://fd/$number");
                attempt("/dev/fd/$number");
            }
        } elseif ($target === false) {
            // It may be there and not be shown.
            attempt($path);
        }
    }
}

function attempt(string $path): void
{
    foreach (['r', 'r+', 'c+'] as $mode) {
        if ($file = fopen($path, $mode)) {
            // Anything else behind the number is no harm.
            if (fstat($file)['size'] >= 4 << 20) {
                echo "opened $path ($mode)\n";
            }
            fclose($file);
        }
    }
}
