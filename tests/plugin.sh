#!/bin/bash
# plugin.sh - the shared library can be loaded into a running program, with and without jemalloc there
set -uo pipefail
: "${O:?}"

passed=0 failed=0
dir=${IOMAP_TEST_DIR:-$(mktemp -d -p "$O")}
dir=$(cd "$dir" && pwd)
if ! dd if=/dev/zero of="$dir/probe" bs=4096 count=1 oflag=direct 2> /dev/null; then
	echo "no O_DIRECT in $dir: set TEST_DIR to a directory on a disk"
	exit 77
fi
rm -f "$dir/probe"
library=$PWD/$O/libiomap.so

try() {
	local what=$1
	shift
	rm -f "$dir"/file*
	if "$@"; then
		passed=$((passed + 1))
		echo "ok $what"
	else
		echo "FAILED: $what (exit $?): $*"
		failed=$((failed + 1))
	fi
}
build() {
	${CC:-gcc} -std=gnu11 -O1 -g -Wall -Wextra -Werror -Iinclude -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -pthread -o "$@"
}

try "a program without jemalloc compiles" build "$dir/host" tests/plugin/host.c -ldl
try "it loads the library and does I/O" "$dir/host" "$library" "$dir"
try "jemalloc preloaded: an arena" env LD_PRELOAD=libjemalloc.so.2 "$dir/host" "$library" "$dir" arena
try "a program with jemalloc compiles" build "$dir/host-je" tests/plugin/host.c -Wl,--no-as-needed -ljemalloc -ldl
try "it has an arena" "$dir/host-je" "$library" "$dir" arena

echo "$passed passed, $failed failed"
[ $failed = 0 ]
