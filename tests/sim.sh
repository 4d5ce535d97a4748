#!/bin/bash
# sim.sh - what every check runs in the simulator: known seeds, sweeps, many seeds, and the same seeds twice
#
# Environment: O (where iomap-sim is), SIM_COUNT (24000 seeds from 1 on), CLANG_SIM (another build of it, to compare).
# Prints a line for each part, and totals last.
set -uo pipefail
sim=$O/iomap-sim
count=${SIM_COUNT:-24000}
jobs=$(nproc)
passed=0 failed=0

# One test: its name, then the command; what it says is shown where it fails.
run() {
	local name=$1 out start=$SECONDS
	shift
	if out=$("$@" 2> /dev/null); then
		passed=$((passed + 1))
		printf 'ok      %-72s %4d s\n' "$name" $((SECONDS - start))
	else
		failed=$((failed + 1))
		printf '%s\nFAILED  %s: %s\n' "$out" "$name" "$*"
	fi
	last=$(tail -n 1 <<< "$out")
}

while IFS='|' read -r name replay; do
	run "$(sed 's/ *$//' <<< "$name")" "$sim" --json --replay "${replay// /}"
done < <(grep -vE '^(#|$)' tests/sim/seeds.txt)

run 'the n-th allocation, request, flush, thread start fail' "$sim" --sweep
run "$count seeds" "$sim" --seed 1 --count "$count" --jobs "$jobs"
echo "        $last"

hash_of() { "$1" --seed 7000 --count 500 --json | sed 's/.*trace_hash//'; }
same_hash() { [ "$(hash_of "$1")" = "$(hash_of "$2")" ]; }
run 'the same seeds take the same steps in another process' same_hash "$sim" "$sim"
if [ -n "${CLANG_SIM:-}" ]; then
	run 'the same seeds take the same steps built by clang' same_hash "$sim" "$CLANG_SIM"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
