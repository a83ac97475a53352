--TEST--
ephpm_kv_set(): a canonical integer is a counter, and values read back byte for byte
--EXTENSIONS--
ephpm_kv
--FILE--
<?php
$values = ["0", "-7", "9223372036854775807", "-9223372036854775808", "007", "1e3", "0x1A", "-0", " 1", "1\n"];
foreach ($values as $value) {
    ephpm_kv_set("k", $value);
    echo json_encode($value), " ", ephpm_kv_get("k") === $value ? "same" : "changed", " ";
    var_dump(@ephpm_kv_incr("k", 0) !== false);
}
?>
--EXPECT--
"0" same bool(true)
"-7" same bool(true)
"9223372036854775807" same bool(true)
"-9223372036854775808" same bool(true)
"007" same bool(false)
"1e3" same bool(false)
"0x1A" same bool(false)
"-0" same bool(false)
" 1" same bool(false)
"1\n" same bool(false)
