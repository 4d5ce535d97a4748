/*
 * bench.h - what every workload of iomap-bench is made of
 *
 * A workload is one file: it parses its own options, asks one question, runs its baseline and the thing under
 * test in turns within one process, and answers in a table for people or in JSON for machines. To add one,
 * write the file, declare it here, and put it into the table in main.c. Workloads use the public headers of the
 * library only.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* One sub-command. @run gets the arguments from its own name on and returns the exit status of the program. */
struct workload {
	const char *name;
	const char *question;
	int (*run)(int argc, char **argv);
};

extern const struct workload overcharge_workload;
extern const struct workload readers_workload;
extern const struct workload hot_workload;

/* Time, in nanoseconds: the wall's (monotonic), and what the calling thread has used of a CPU. */
uint64_t now_ns(void);
uint64_t thread_cpu_ns(void);
void sleep_until_ns(uint64_t when_ns);

/* A small fast random generator (splitmix64): any seed is good, one per thread. */
struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *rng);
uint64_t rng_below(struct rng *rng, uint64_t bound);

/* "4096", "256k", "1.5g": bytes; a plain number; a count from 1 to @max. Each returns false on anything else. */
bool parse_bytes(const char *text, uint64_t *out);
bool parse_number(const char *text, double *out);
bool parse_count(const char *text, unsigned max, unsigned *out);

/* Numbers for people, in a ring of buffers: the last 32 results are good. Only the main thread calls these. */
const char *show_bytes(double bytes);
const char *show_count(double count);
const char *show_fixed(double value);           /* three significant digits, never an exponent */

/* The middle and the ends of @nr repeats; sorts @values. */
struct spread {
	double median, min, max;
};

struct spread spread_of(double *values, unsigned nr);

/* "iomap-bench: " and the message, on stderr. Says what is wrong and what to do about it. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
