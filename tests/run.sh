#!/bin/bash
# run.sh - run tests side by side, print one line each as they end, totals last
#
# usage, from `make check`: tests/run.sh NAME… [--alone NAME…]
# A NAME is unit/SUITE, a test program or a script. A test passes by exit code 0 and is skipped by 77; where the last line of
# its output says "N passed, N failed" it counts as so many. Each runs with a directory of its own (IOMAP_TEST_DIR and TMPDIR, on
# a disk, so that O_DIRECT works), below TEST_DIR if that is set. Output is kept in $O/logs/. JOBS says how many run at a time;
# what follows --alone measures something, and has the machine to itself after the others.
set -uo pipefail
: "${O:?}" "${BUILD:?}"
export O CC CXX LINK

jobs=${JOBS:-$(nproc)}
limit=${TEST_TIMEOUT:-$([ -n "${LONG:-}" ] && echo 43200 || echo 600)}
[ -n "${LONG:-}" ] && export IOMAP_TEST_LONG=1
export CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-$([ "$BUILD" = release ] && echo 60 || echo 300)}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp second_deadlock_stack=1 allow_addr2line=1 atexit_sleep_ms=0}

# Randomised addresses of newer kernels are too wide for clang 14's ThreadSanitizer.
fixed=()
[ "$BUILD" = tsan ] && setarch -R true 2> /dev/null && fixed=(setarch -R)

mkdir -p "$O/logs" "${TEST_DIR:-$O}"
top=$(mktemp -d -p "${TEST_DIR:-$O}" tmp.XXXXXX)
top=$(cd "$top" && pwd)
trap 'rm -rf "$top"' EXIT
trap 'kill $(jobs -p) 2> /dev/null; wait; exit 130' INT TERM

# Runs one test; leaves "passed failed skipped seconds" in $top/RESULT.
run_one() {
	local test=$1 id=${1#"$O/"} command start status counts child
	id=${id//\//-}
	case $test in
	unit/*) command=("$O/unit-tests"); export CK_RUN_SUITE=${test#unit/} ;;
	*.sh) command=("$test") ;;
	*) command=("$test"); [ -n "${LONG:-}" ] && command+=(--long) ;;
	esac
	export IOMAP_TEST_DIR=$top/$id TMPDIR=$top/$id
	mkdir -p "$IOMAP_TEST_DIR"
	start=$SECONDS
	timeout -k 5 "$limit" "${fixed[@]}" "${command[@]}" > "$O/logs/$id.log" 2>&1 < /dev/null &
	child=$!
	trap 'kill $child 2> /dev/null; exit 1' TERM
	{ wait $child; } 2> /dev/null           # a crash is in the log already
	status=$?
	rm -rf "$IOMAP_TEST_DIR"
	counts=$(tail -n 1 "$O/logs/$id.log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 \4/p')
	set -- $counts
	if [ $status = 77 ]; then
		set -- 0 0 1
	elif [ $status = 0 ]; then
		set -- "${1:-1}" "${2:-0}" "${3:-0}"
	else
		set -- "${1:-0}" "${2:-1}" "${3:-0}"
		[ "$2" = 0 ] && set -- "$1" 1 "$3"
	fi
	echo "$1 $2 $3" > "$top/$id.result"
	if [ "$2" != 0 ]; then
		{
			echo "FAIL $test (exit $status, $((SECONDS - start)) s): $1 passed, $2 failed; $O/logs/$id.log ends:"
			tail -n 40 "$O/logs/$id.log" | sed 's/^/    /'
		} > "$top/$id.report"
		cat "$top/$id.report"
	elif [ "$3" != 0 ] && [ "$1" = 0 ]; then
		echo "skip $test: $(tail -n 1 "$O/logs/$id.log")"
	else
		echo "ok   $test ($1 passed$([ "$3" != 0 ] && echo ", $3 skipped"), $((SECONDS - start)) s)"
	fi
}

tests=()
for test in "$@"; do
	if [ "$test" = --alone ]; then
		wait
		jobs=1
		continue
	fi
	tests+=("$test")
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
		wait -n
	done
	run_one "$test" &
done
wait

passed=0 failed=0 skipped=0
for test in "${tests[@]}"; do
	id=${test#"$O/"}
	p=0 f=1 s=0
	[ -e "$top/${id//\//-}.result" ] && read -r p f s < "$top/${id//\//-}.result"
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "BUILD=$BUILD, $SECONDS s$([ $skipped != 0 ] && echo ", $skipped skipped"):"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
