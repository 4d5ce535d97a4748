#!/bin/bash
# cases.sh - every regression case has its test
#
# C01 to C93 are bugs of other page caches, file systems and databases. A test says in the comment above it which one it is; this
# fails where a case is in no comment, where a comment names one that does not exist, and where an exception is none any more.
set -uo pipefail
cd "$(dirname "$0")/.."

# case, why there is no test
exceptions="
C33 many writers of a slow device beside one of a fast: takes strict_limit and shares, which are not there yet
"

# of comments alone: a test's own code may well have a C10 in a name or a string
named=$(cat tests/stress/*.c tests/unit/*.c | awk '
	{
		line = $0
		while (line != "") {
			if (!inside) {
				at = index(line, "/*")
				if (!at)
					break
				inside = 1
				line = substr(line, at + 2)
			}
			at = index(line, "*/")
			print at ? substr(line, 1, at - 1) : line
			if (!at)
				break
			inside = 0
			line = substr(line, at + 2)
		}
	}' | grep -owE 'C[0-9]{2}' | sort -u)
excepted=$(sed -nE 's/^(C[0-9]{2}) .+/\1/p' <<< "$exceptions")

failed=0 passed=0
complain() {
	echo "$1"
	failed=$((failed + 1))
}
for id in $(seq -f 'C%02g' 1 93); do
	if grep -qx "$id" <<< "$named"; then
		grep -qx "$id" <<< "$excepted" && complain "$id has a test and is an exception all the same"
		passed=$((passed + 1))
	elif grep -qx "$id" <<< "$excepted"; then
		grep "^$id " <<< "$exceptions"
	else
		complain "$id is in no comment above a test in tests/stress or tests/unit"
	fi
done
for id in $named; do
	[ "$id" != C00 ] && [ "${id#C}" -le 93 ] 2> /dev/null || complain "$id is no case"
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
