/*
 * histogram.c - latencies of any size in a fixed table, each to within 1/64
 *
 * Log-linear: every octave [2^e, 2^(e+1)) is cut into 64 buckets of equal width 2^(e-6), so a bucket is never
 * wider than 1/64 of the values in it. Values below 64 have a bucket each; so have those of the first octave,
 * 64 … 127.
 *
 *	value   0 … 63    64 … 127   128 … 255   256 … 511
 *	bucket  0 … 63    64 … 127   128 … 191   192 … 255
 *	width      1          1          2           4
 *
 * A quantile answers with the last value of its bucket: it may call a latency longer than it was, never
 * shorter.
 *
 * Invariants: count is the sum of the buckets; no value exceeds max; histogram_bucket(histogram_bucket_last(b))
 * == b.
 */
#include "histogram.h"

#include <math.h>

unsigned histogram_bucket(uint64_t value)
{
	unsigned shift;

	if (value < HISTOGRAM_SUB)
		return (unsigned)value;
	shift = 63 - (unsigned)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
	/* value >> shift is 64 … 127, its leading one makes the + 1 octave */
	return shift * HISTOGRAM_SUB + (unsigned)(value >> shift);
}

uint64_t histogram_bucket_last(unsigned bucket)
{
	unsigned shift;
	uint64_t first;

	if (bucket < HISTOGRAM_SUB)
		return bucket;
	shift = bucket / HISTOGRAM_SUB - 1;
	first = (uint64_t)(bucket - shift * HISTOGRAM_SUB) << shift;
	return first + (((uint64_t)1 << shift) - 1);
}

void histogram_add(struct histogram *h, uint64_t value)
{
	h->buckets[histogram_bucket(value)]++;
	h->count++;
	if (value > h->max)
		h->max = value;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	for (unsigned i = 0; i < HISTOGRAM_NR_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
	into->count += from->count;
	if (from->max > into->max)
		into->max = from->max;
}

uint64_t histogram_quantile(const struct histogram *h, double quantile)
{
	uint64_t rank, seen = 0;

	if (!h->count)
		return 0;
	if (!(quantile > 0))
		rank = 1;
	else if (quantile >= 1)
		return h->max;
	else
		rank = (uint64_t)ceil(quantile * (double)h->count);
	for (unsigned i = 0; i < HISTOGRAM_NR_BUCKETS; i++) {
		seen += h->buckets[i];
		if (seen >= rank && h->buckets[i]) {
			uint64_t last = histogram_bucket_last(i);

			return last < h->max ? last : h->max;
		}
	}
	return h->max;
}
