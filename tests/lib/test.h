/*
 * test.h - small helpers that all tests share; their names start with t_ (run.h: what programs with cases need)
 */
#ifndef TESTS_LIB_TEST_H
#define TESTS_LIB_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- files ---------------------------------------------------------------------------------------------------------- */

/* Where test files go: IOMAP_TEST_DIR, else a directory below build/. Absolute. */
const char *t_dir(void);

/* Whether O_DIRECT works there; if not, a test that needs it calls t_skip() and returns. */
bool t_direct_io(void);

/*
 * A path in t_dir() at which nothing exists, different at each call in each process. The string lasts as long as the
 * process, what is at the path goes when the process exits.
 */
const char *t_tmpfile(void);

/* --- skipping ------------------------------------------------------------------------------------------------------- */

/* Says why this test cannot run here; it is counted as skipped if it then passes. Also from a test that Check forked. */
void t_skip(const char *why);
void t_skip_init(void);                 /* before the first fork: unit-main.c, or a program of its own */
unsigned t_skip_count(void);

/* --- contents that tell their own position -------------------------------------------------------------------------- */

/* Fills [buf, buf + len) with what belongs at file position @pos on; every 8 bytes differ by position and by seed (16 bits). */
void t_fill(void *buf, uint64_t pos, size_t len, uint64_t seed);

/* True if that is what is there; else says on stderr where it differs first, and what it found in its place. */
bool t_check_fill(const void *buf, uint64_t pos, size_t len, uint64_t seed);

/* --- chance --------------------------------------------------------------------------------------------------------- */

/* splitmix64: the next number, any @state is good. */
uint64_t t_random(uint64_t *state);
/* 0 … n - 1; n > 0. */
uint64_t t_random_below(uint64_t *state, uint64_t n);

/* --- the command line of a test program -------------------------------------------------------------------------------- */

/*
 * Fields not named on the command line keep what the caller put there. "--long" (or IOMAP_TEST_LONG in the environment)
 * sets long_run, and seconds and ops to their long_ values first. A seed of 0 becomes one drawn from the clock, and is
 * printed in any case.
 */
struct t_options {
	uint64_t seconds, ops, seed;
	uint64_t long_seconds, long_ops;
	bool long_run;
};
void t_parse_options(struct t_options *options, int argc, char **argv);         /* exits on what it does not know */

#endif
