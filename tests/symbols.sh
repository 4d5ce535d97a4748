#!/bin/bash
# symbols.sh - the library shows only its public names, and has only one door to the operating system
set -uo pipefail
: "${O:?}"

passed=0 failed=0
# Passes where nothing is found.
none() {
	if [ -z "$2" ]; then
		passed=$((passed + 1))
	else
		printf '%s:\n%s\n' "$1" "$2"
		failed=$((failed + 1))
	fi
}

shown=$(nm -D --defined-only "$O/libiomap.so" | awk '{print $3}' | sed 's/@.*//' | sort -u)
declared=$(cat include/iomap/*.h | tr '\n' ' ' | grep -oE 'IOMAP_API [^;(]*\(' | grep -oE 'iomap_[a-z0-9_]+ *\($' | tr -d '( ' | sort -u)
none "exported, but not named iomap_* nor the version node" "$(grep -vE '^(iomap_[a-z0-9_]+|IOMAP_0\.1)$' <<< "$shown")"
none "exported, but in no public header" "$(comm -23 <(grep '^iomap_' <<< "$shown") <(echo "$declared"))"
none "in a public header, but not exported" "$(comm -13 <(grep '^iomap_' <<< "$shown") <(echo "$declared"))"
none "without the version node" "$(nm -D --defined-only "$O/libiomap.so" | awk '{print $3}' | grep '^iomap_' | grep -v '@@IOMAP_0\.1$')"
none "needs more than liburcu, libaio and libc" "$(readelf -d "$O/libiomap.so" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' |
	grep -vE '^(liburcu-(bp|common)|libaio|libc|libpthread|ld-linux-.*)\.so')"

# The static library is one object, in which the same names are global and nothing else, common and weak symbols included;
# jemalloc is asked for only where it is. The plugin for fio shows what fio looks for.
static=$(nm -g --defined-only "$O/libiomap.a" | awk 'NF == 3 {print $3}' | sort -u)
none "in the static library, but not in the shared one, or the other way round" "$(diff <(grep '^iomap_' <<< "$shown") <(echo "$static"))"
none "asked for by the static library, but not weakly" "$(nm -u "$O/libiomap.a" | grep -E '(mallocx|dallocx|mallctl)$' | grep -v ' w ')"
plugin=$O/examples/fio/libiomap-fio.so
none "shown by the plugin for fio" "$(nm -D --defined-only "$plugin" | awk '{print $3}' | grep -vx ioengine)"
none "the plugin for fio needs" "$(readelf -d "$plugin" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' |
	grep -vE '^(liburcu-(bp|common)|libaio|libc|libpthread|ld-linux-.*)\.so')"

# Undefined symbols of each object but the platform's: no threads, clocks, sleeps, environment or I/O of its own, and no
# abort, exit or printing.
door='pthread_.*|thrd_.*|mtx_.*|cnd_.*|tss_.*|sem_.*|clock.*|gettimeofday|time|timespec_get|n?anosleep|u?sleep|poll|ppoll|select'
door+='|(secure_)?getenv|(p?read|p?write)v?(64)?(v2|v64v?2?)?|open(at)?(64)?|close|dup[23]?|fcntl(64)?|ioctl|l?seek(64)?|lseek(64)?'
door+='|ftruncate(64)?|fallocate(64)?|posix_f.*|f(data)?sync|sync_file_range|f?l?stat(at|x)?(64)?|fstatat(64)?|statx|unlink|rename'
door+='|io_[a-z]+|syscall|mmap(64)?|munmap|madvise|fork|getrandom|random|rand|sched_yield|eventfd|sysconf|futex'
silence='abort|exit|_exit|_Exit|quick_exit|printf|puts|putchar|fprintf|perror|vprintf|stdout|stderr|signal|sigaction|atexit|__assert_fail'
for object in "$O"/libiomap/*.o; do
	name=$(basename "$object" .o)
	symbols=$(nm -u "$object" | awk '{print $NF}' | sed -E 's/@.*//; s/^__(.*)_chk$/\1/')
	if [ "$name" != platform-posix ]; then
		none "$name.c goes past platform.h" "$(grep -xE "$door" <<< "$symbols")"
	fi
	case $name in
	bug | lockdep | platform-posix | stat) talk='-' ;;      # reports before an abort in debug builds; iomap_stat_print()
	*) talk=$silence ;;
	esac
	none "$name.c ends the process or prints" "$(grep -xE -e "$talk" <<< "$symbols")"
	if [ "${BUILD:-release}" = release ] && [ "$name" != stat ]; then
		none "$name.c ends the process or prints in a release build" "$(grep -xE "$silence" <<< "$symbols")"
	fi
done

# What the symbol table cannot tell: words in the sources, comments left out.
words=$(for file in libiomap/*.[ch]; do
	case $file in libiomap/platform-posix.[ch]) continue ;; esac
	"${CC:-gcc}" -fpreprocessed -dD -E -P "$file" 2> /dev/null |
		grep -nE '\b(pthread_|clock_gettime|nanosleep|__thread|_Thread_local|getenv)' | sed "s|^|$file: |"
done)
none "threads, clocks, per-thread storage or environment outside platform-posix" "$words"
none "liburcu outside rcu.h" "$(grep -lE '#include <urcu' libiomap/*.[ch] | grep -v '^libiomap/rcu.h$')"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
