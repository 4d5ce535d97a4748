#!/bin/bash
# run.sh - run the fuzzers one after the other, say every few seconds where they are, end in a table
#
# usage, from `make fuzz`: tests/fuzz/run.sh TARGET…
# Each runs for FUZZ_SECONDS, starting from tests/fuzz/corpus/TARGET and from what earlier runs added to
# $O/corpus/TARGET. An input that fails is kept as $O/found/TARGET-…; look at it again by $O/tests/fuzz/TARGET FILE.
# When the fault is understood, the input goes into tests/fuzz/corpus/TARGET, where `make check` replays it.
set -uo pipefail
: "${O:?}" "${FUZZ_SECONDS:?}"
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# Leaks are found by the targets themselves, which count: what RCU has yet to free would look like one.
options=(-max_total_time="$FUZZ_SECONDS" -max_len=2048 -len_control=20 -timeout=60 -rss_limit_mb=4096 -detect_leaks=0
	-print_final_stats=1)
trap 'kill $(jobs -p) 2> /dev/null; exit 130' INT TERM

# The last value that libFuzzer printed behind $1 in log $2.
last() { grep -oE "$1 *[0-9]+" "$2" | tail -n 1 | grep -oE '[0-9]+$' || echo -; }
files() { find "$@" -type f | wc -l; }

failed=0 table=()
mkdir -p "$O/found" "$O/logs"
for target in "$@"; do
	log=$O/logs/fuzz-$target.log
	mkdir -p "$O/corpus/$target" "tests/fuzz/corpus/$target"
	known=$(files "$O/found" -name "$target-*") old=$(files "$O/corpus/$target")
	"$O/tests/fuzz/$target" "${options[@]}" -artifact_prefix="$O/found/$target-" "$O/corpus/$target" \
		"tests/fuzz/corpus/$target" > "$log" 2>&1 < /dev/null &
	child=$!
	while kill -0 $child 2> /dev/null; do
		sleep 0.2
		[ $((SECONDS % 5)) = 0 ] && [ "$SECONDS" != "${said:-}" ] || continue
		said=$SECONDS
		echo "$target: $(grep -aE '^#[0-9]+' "$log" | tail -n 1 | cut -c 1-100)"
	done
	wait $child
	status=$?
	new=$(($(files "$O/found" -name "$target-*") - known))
	[ $status != 0 ] && [ $new = 0 ] && new=1
	if [ $new != 0 ]; then
		failed=$((failed + new))
		echo "FAILED $target (exit $status); $log has:"
		grep -aE ': BUG at|^tests/fuzz|^==.*ERROR|runtime error|^SUMMARY|Test unit written' "$log" |
			head -n 10 | sed 's/^/    /'
	fi
	table+=("$(printf '%-10s %12s %8s %8s %9s %6s %8s' "$target" \
		"$(last 'stat::number_of_executed_units:' "$log")" "$(last 'stat::average_exec_per_sec:' "$log")" \
		"$(last 'cov:' "$log")" "$(last 'ft:' "$log")" "$(($(files "$O/corpus/$target") - old))" "$new")")
done
printf '%-10s %12s %8s %8s %9s %6s %8s\n' target executions 'per s' edges features new failures
printf '%s\n' "${table[@]}"
[ $failed = 0 ]
