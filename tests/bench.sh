#!/bin/bash
# bench.sh - the demo in miniature: it runs, and what must be exact is exact
#
# Rates are not judged here: that takes a quiet machine and `make demo`.
set -uo pipefail
: "${O:?}"

passed=0 failed=0
ok() {
	if [ "$2" = yes ]; then
		passed=$((passed + 1))
	else
		echo "not so: $1"
		failed=$((failed + 1))
	fi
}

# The number behind "key": in the line of one variant.
number() { sed -nE "s/.*\"variant\":\"$1\".*\"$2\":([0-9.]+).*/\1/p" <<< "$json"; }
is() { awk "BEGIN { print ($1) ? \"yes\" : \"no\" }"; }

json=$("$O/iomap-bench" overcharge --size 48m --seconds 1 --json --dir "${IOMAP_TEST_DIR:-$O}" 2> "${TMPDIR:-/tmp}/bench.log")
status=$?
if grep -q O_DIRECT "${TMPDIR:-/tmp}/bench.log" && [ $status != 0 ]; then
	echo "no O_DIRECT here"
	exit 77
fi
ok "the demo ends well" "$([ $status = 0 ] && echo yes)"
for variant in control folio page block; do
	ok "$variant has its line" "$([ -n "$(number $variant iops)" ] && echo yes)"
	ok "$variant wrote something" "$(is "$(number $variant device_written_bytes)+0 > 0")"
done
for variant in control page block; do
	ok "$variant charges each byte once for each time it is written" \
		"$([ "$(number $variant charged_bytes)" = "$(number $variant device_written_bytes)" ] && echo yes)"
done
ok "folio charges at least 8 bytes for each one written" "$(is "$(number folio charge_ratio)+0 >= 8")"
ok "the largest dirty folio of control is one page" "$([ "$(number control max_dirty_folio_bytes)" = 4096 ] && echo yes)"
hot=$("$O/iomap-bench" hot --seconds 0.05 --runs 1 --json --dir "${IOMAP_TEST_DIR:-$O}" 2> /dev/null)
ok "hot has a line for each of its regions, with something written both ways" \
	"$([ "$(grep -cE '"stable_bytes_per_s":[1-9].*"unstable_bytes_per_s":[1-9]' <<< "$hot")" = 4 ] && echo yes)"
[ $failed = 0 ] || { cat "${TMPDIR:-/tmp}/bench.log"; echo "$json"; }
echo "$passed passed, $failed failed"
[ $failed = 0 ]
