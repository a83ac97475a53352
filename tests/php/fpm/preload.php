<?php
// Preloaded: counts, and leaves a class.
ephpm_kv_incr('preload');

class Preloaded
{
    public static function count(): int
    {
        return ephpm_kv_incr('preload');
    }
}
