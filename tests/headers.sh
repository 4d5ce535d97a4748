#!/bin/bash
# headers.sh - each public header compiles alone, as C11 and as C++, without a warning
set -uo pipefail

passed=0 failed=0
try() {
	if "$@"; then
		passed=$((passed + 1))
	else
		echo "failed: $*"
		failed=$((failed + 1))
	fi
}
strict="-Wall -Wextra -Werror -pedantic -D_FILE_OFFSET_BITS=64 -Iinclude -fsyntax-only"
for header in include/iomap/*.h; do
	# included from a file, twice, as programs do; the INIT macros must fit their structs
	program="#include <${header#include/}>
#include <${header#include/}>
$(sed -nE 's/^#define IOMAP_([A-Z]+)_PARAMS_INIT .*/\1/p' "$header" | while read -r what; do
	echo "struct iomap_${what,,}_params init_${what,,}; struct iomap_${what,,}_params init2_${what,,} = IOMAP_${what}_PARAMS_INIT;"
done)"
	for std in c11 gnu17; do
		try "${CC:-gcc}" -std=$std $strict -x c - <<< "$program"
	done
	for std in c++11 c++20; do
		try "${CXX:-g++}" -std=$std $strict -x c++ - <<< "$program"
	done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
