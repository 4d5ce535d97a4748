/*
 * run.h - a runner for the programs in stress/ and model/, and what they all need
 *
 * Every case runs in a process of its own, forked while there is only one thread, with a deadline. So a crash or a hang is
 * one failed case, not the end of the program, and CHECK() may be used from any thread: it prints and ends the process.
 *
 * Options of every program: --long (what check-long runs), --list, --no-fork, and parts
 * of case names to run only those. The last line is "N passed, N failed", with ", N skipped" where a case could not run.
 */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "test.h"

struct t_run_case {
	const char *name;
	void (*fn)(void);
	unsigned seconds;               /* deadline, 0 = 30; multiplied by t_run_slow() */
};

#define T_RUN(fn)               { #fn, fn, 0 }
#define T_RUN_FOR(fn, seconds)  { #fn, fn, seconds }

int t_run_main(int argc, char **argv, const struct t_run_case *cases, unsigned nr);

bool t_run_is_long(void);
unsigned t_run_slow(void);                      /* 1, or 10 under a sanitizer: multiply time limits by it */
bool t_run_is_tsan(void);
_Noreturn void t_run_skip(const char *why);     /* ends the case, counted as skipped */

/* For programs with a main() of their own: takes --long out of argv. */
void t_run_options(int *argc, char **argv);

/* A directory of this case's own below t_dir(), removed afterwards with all that is in it. */
const char *t_run_dir(void);
void t_run_path(char *out, size_t len, const char *name);       /* of something in it */
void t_run_remove(const char *dir);             /* a directory with all that is in it; may not exist */

/* Time, only to bound waits. */
uint64_t t_run_now_ns(void);
void t_run_nap(void);                           /* a moment, inside a loop that waits for a state */

/* Waits until @cond holds, at most @ms milliseconds times t_run_slow(); its value is whether it did. */
#define T_WAIT(cond, ms) __extension__({						\
	uint64_t t_end_ = t_run_now_ns() + (uint64_t)(ms) * 1000000 * t_run_slow();	\
	bool t_ok_;									\
	while (!(t_ok_ = (cond)) && t_run_now_ns() < t_end_)				\
		t_run_nap();								\
	t_ok_; })

__attribute__((format(printf, 3, 4)))
_Noreturn void t_run_fail(const char *file, int line, const char *format, ...);

#define CHECK(cond) do {								\
	if (!(cond))									\
		t_run_fail(__FILE__, __LINE__, "%s", #cond);				\
} while (0)

#define CHECK_MSG(cond, ...) do {							\
	if (!(cond))									\
		t_run_fail(__FILE__, __LINE__, __VA_ARGS__);				\
} while (0)

#define CHECK_OP(a, op, b) do {								\
	long long t_a_ = (long long)(a), t_b_ = (long long)(b);				\
	if (!(t_a_ op t_b_))								\
		t_run_fail(__FILE__, __LINE__, "%s %s %s: %lld, %lld", #a, #op, #b, t_a_, t_b_); \
} while (0)

#define CHECK_EQ(a, b)  CHECK_OP(a, ==, b)
#define CHECK_LE(a, b)  CHECK_OP(a, <=, b)
#define CHECK_GE(a, b)  CHECK_OP(a, >=, b)

ssize_t t_run_bytes_differ(const void *buf, size_t len, int byte);      /* first that is not byte, or -1 */
#define CHECK_BYTES(buf, len, byte) CHECK_EQ(t_run_bytes_differ(buf, len, byte), -1)

#endif
