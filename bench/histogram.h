/*
 * histogram.h - latencies of any size in a fixed table, each to within 1/64
 *
 * Small and plain enough to be one per thread: no locks, no allocation. Threads' histograms are merged
 * afterwards.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUB_BITS   6                          /* 64 buckets an octave */
#define HISTOGRAM_SUB        (1U << HISTOGRAM_SUB_BITS)
#define HISTOGRAM_NR_BUCKETS ((64 - HISTOGRAM_SUB_BITS + 1) * HISTOGRAM_SUB)

/* All zero is empty. */
struct histogram {
	uint64_t count;
	uint64_t max;                                   /* exact */
	uint64_t buckets[HISTOGRAM_NR_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t value);
void histogram_merge(struct histogram *into, const struct histogram *from);

/*
 * The smallest value that at least @quantile (0 … 1) of the values do not exceed: never below the true one, at
 * most 1/64 (1.6 %) above it, exact below 128 and at the maximum. 0 for an empty histogram.
 */
uint64_t histogram_quantile(const struct histogram *h, double quantile);

/* The bucket of a value, and the largest value that a bucket holds. For the tests. */
unsigned histogram_bucket(uint64_t value);
uint64_t histogram_bucket_last(unsigned bucket);

#endif
