#!/bin/bash
# examples.sh - the examples do what they say, and the programs in README.md and docs/engines.md compile and run
set -uo pipefail
: "${O:?}"

passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() {
	echo "FAILED: $*"
	failed=$((failed + 1))
}
here=$PWD
dir=${IOMAP_TEST_DIR:-$(mktemp -d -p "$O")}
dir=$(cd "$dir" && pwd)
if ! dd if=/dev/zero of="$dir/probe" bs=4096 count=1 oflag=direct 2> /dev/null; then
	echo "no O_DIRECT in $dir: set TEST_DIR to a directory on a disk"
	exit 77
fi
rm -f "$dir/probe"

# examples/copy: same bytes and size as other programs see them, for sizes at and around the edges
sizes="0 1 511 4095 4097 $((100 * 1024 * 1024 + 1))"
[ -n "${IOMAP_TEST_LONG:-}" ] && sizes+=" $((3 * 1024 * 1024 * 1024 + 1))"
if [ -x "$O/examples/copy" ]; then
	for size in $sizes; do
		head -c "$size" /dev/urandom > "$dir/src"
		rm -f "$dir/dst"
		if ! "$O/examples/copy" "$dir/src" "$dir/dst"; then
			bad "copy of $size bytes: exit $?"
			continue
		fi
		want=$(sha256sum < "$dir/src") got=$(sha256sum < "$dir/dst")
		if [ "$want" = "$got" ] && [ "$(stat -c %s "$dir/dst")" = "$size" ]; then
			ok
			echo "ok copy of $size bytes"
		else
			bad "copy of $size bytes: size $(stat -c %s "$dir/dst"), sha256 $got, wanted $want"
		fi
		# over a longer file: its old tail must go
		if [ "$size" -lt 10000 ]; then
			head -c 20000 /dev/urandom > "$dir/dst"
			"$O/examples/copy" "$dir/src" "$dir/dst" && cmp -s "$dir/src" "$dir/dst" && ok || bad "copy of $size bytes over 20000"
		fi
	done
	"$O/examples/copy" "$dir/none" "$dir/dst2" > /dev/null 2>&1 && bad "copy of a missing file succeeds" || ok
	rm -f "$dir/src" "$dir/dst" "$dir/dst2"
fi

# The first C program of each page, against the public headers and the static library alone.
for page in README.md docs/engines.md; do
	[ -e $page ] || continue
	awk '/^```c$/ {on = 1; n++; next} /^```/ {on = 0} on && n == 1' $page > "$dir/page.c"
	if [ ! -s "$dir/page.c" ]; then
		bad "$page has no C program"
	elif ! ${CC:-gcc} -std=c11 -Wall -Wextra -Werror -Iinclude -o "$dir/page" "$dir/page.c" ${LINK:?}; then
		bad "$page's program does not compile"
	elif ! (cd "$dir" && ./page); then
		bad "$page's program fails"
	else
		ok
		echo "ok $page's program ($(grep -c . "$dir/page.c") lines)"
	fi
done
cd "$here" || exit 1
echo "$passed passed, $failed failed"
[ $failed = 0 ]
