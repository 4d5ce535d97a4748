/*
 * load.h - threads that write to one file at a wanted rate, watched while they do
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "histogram.h"

#include <stdint.h>

struct iomap_cache;
struct iomap_file;

/* What is to be done: writes at random places, each a multiple of their own size. */
struct load {
	const char *name;               /* for the live line */
	struct iomap_cache *cache;      /* sampled */
	struct iomap_file *file;        /* written */
	uint64_t file_bytes, write_bytes;
	double rate;                    /* writes per second, of all threads together */
	double seconds;
	unsigned threads;
	uint64_t seed;                  /* the same seed, the same places */
};

struct load_result {
	double iops;                    /* over the wanted time, or over that until the last write returned if longer */
	uint64_t lag_max_ns;            /* the furthest that any thread was behind its schedule */
	struct histogram latency;       /* of the calls, in nanoseconds */
};

/* Ten samples a second. */
struct load_series {
	unsigned nr, room;
	double *seconds;                /* since the start */
	double *dirty_mib;              /* dirty or in flight, as charged */
	double *iops;                   /* mean over the half second before */
	uint64_t *done;                 /* writes so far */
};

/*
 * Runs @load to its end. @result and @series start as zeros; @series is the caller's to free, in any case. Returns 0, or
 * the first error of a thread, at which all of them stop.
 */
int load_run(const struct load *load, struct load_result *result, struct load_series *series);
void load_series_free(struct load_series *s);

#endif
