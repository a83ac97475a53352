<?php
// Uses what was preloaded.
echo Preloaded::count();
