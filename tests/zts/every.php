<?php
// Every function with right and wrong arguments, under a handler that throws or ends the request. Only that nothing
// breaks and nothing leaks is looked at: what they return is php-tests' business.

$calls = 0;
set_error_handler(function (int $level, string $message) use ($request, &$calls) {
    if ($request % 4 === 3 && $calls > 100) {
        exit(0);
    }
    throw new ErrorException($message);
});
$key = new class ("own:$thread") {
    public function __construct(private string $name)
    {
    }

    public function __toString(): string
    {
        return $this->name;
    }
};
$firsts = ['shared', "own:$thread", $key, '', str_repeat('k', 2000), null, 7, ['shared' => 1, "own:$thread" => -2, 5 => 3],
    ['shared' => 'x'], ['' => 1]];
$seconds = [1, -1, '5', 'text', PHP_INT_MAX, null, 0.5, INF];
$thirds = [60, 0, -1, 0.001, '3', NAN];
foreach (get_extension_funcs('ephpm_kv') as $function) {
    $lists = [[]];
    foreach ($firsts as $first) {
        $lists[] = [$first];
        foreach ($seconds as $second) {
            $lists[] = [$first, $second];
            $lists[] = [$first, $second, $thirds[$calls++ % count($thirds)]];
        }
    }
    foreach ($lists as $list) {
        try {
            $function(...$list);
        } catch (Throwable) {
        }
    }
}
