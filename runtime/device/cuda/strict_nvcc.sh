#!/bin/sh
# nvcc, for kernels with wgmma: where ptxas finds no registers for products under way it waits for
# each of them, several times slower, and says so in passing (C7510 to C7520). Here that is an error.
output=$("$@" 2>&1)
status=$?
[ -z "$output" ] || printf '%s\n' "$output" >&2
case $output in
*"Potential Performance Loss"*)
  echo "error: attention would be several times slower; -DMTL_WERROR=OFF builds it all the same" >&2
  exit 1
  ;;
esac
exit "$status"
