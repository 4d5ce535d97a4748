/*
 * bench-histogram.c - the histogram that the benchmarks' latencies come from
 *
 * The module under test is no part of the library, so it is compiled in here.
 */
#include <check.h>
#include <stdlib.h>

#include "../../bench/histogram.h"
#include "../../bench/histogram.c"

Suite *suite_bench_histogram(void);

static struct histogram h;

static void empty(void)
{
	h = (struct histogram){ .count = 0 };
}

START_TEST(every_value_lies_in_its_bucket)
{
	/* around every power of two, and a spray in between */
	for (unsigned bit = 0; bit < 64; bit++) {
		for (int d = -2; d <= 2; d++) {
			uint64_t value = ((uint64_t)1 << bit) + (uint64_t)d;
			unsigned bucket = histogram_bucket(value);

			ck_assert_uint_lt(bucket, HISTOGRAM_NR_BUCKETS);
			ck_assert_uint_le(value, histogram_bucket_last(bucket));
			if (bucket)
				ck_assert_uint_gt(value, histogram_bucket_last(bucket - 1));
		}
	}
	ck_assert_uint_eq(histogram_bucket(UINT64_MAX), HISTOGRAM_NR_BUCKETS - 1);
	ck_assert_uint_eq(histogram_bucket_last(HISTOGRAM_NR_BUCKETS - 1), UINT64_MAX);
}
END_TEST

START_TEST(buckets_follow_each_other_and_are_no_wider_than_a_64th)
{
	for (unsigned b = 1; b < HISTOGRAM_NR_BUCKETS; b++) {
		uint64_t first = histogram_bucket_last(b - 1) + 1, last = histogram_bucket_last(b);

		ck_assert_uint_ge(last, first);
		ck_assert_uint_eq(histogram_bucket(first), b);
		ck_assert_uint_eq(histogram_bucket(last), b);
		ck_assert_uint_le(last - first, first / 64);
	}
}
END_TEST

START_TEST(empty_histogram_answers_zero)
{
	empty();
	ck_assert_uint_eq(histogram_quantile(&h, 0), 0);
	ck_assert_uint_eq(histogram_quantile(&h, 0.5), 0);
	ck_assert_uint_eq(histogram_quantile(&h, 1), 0);
}
END_TEST

START_TEST(one_value_is_every_quantile)
{
	empty();
	histogram_add(&h, 123456789);
	ck_assert_uint_eq(histogram_quantile(&h, 0), 123456789);
	ck_assert_uint_eq(histogram_quantile(&h, 0.5), 123456789);
	ck_assert_uint_eq(histogram_quantile(&h, 1), 123456789);
}
END_TEST

START_TEST(small_values_are_exact)
{
	empty();
	for (uint64_t value = 1; value <= 100; value++)
		histogram_add(&h, value);
	ck_assert_uint_eq(histogram_quantile(&h, 0.01), 1);
	ck_assert_uint_eq(histogram_quantile(&h, 0.5), 50);
	ck_assert_uint_eq(histogram_quantile(&h, 0.99), 99);
	ck_assert_uint_eq(histogram_quantile(&h, 0.991), 100);
}
END_TEST

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Against the sorted values themselves: never below, at most 1/64 above. */
START_TEST(quantiles_are_never_below_and_at_most_a_64th_above)
{
	enum { NR = 20000 };
	static uint64_t values[NR];
	static const double quantiles[] = { 0.0001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1 };
	uint64_t seed = 88172645463325252;

	empty();
	for (unsigned i = 0; i < NR; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		values[i] = seed >> (seed % 64);                /* all sizes alike */
		histogram_add(&h, values[i]);
	}
	qsort(values, NR, sizeof values[0], by_value);
	ck_assert_uint_eq(h.max, values[NR - 1]);
	for (unsigned i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++) {
		uint64_t truth = values[(unsigned)ceil(quantiles[i] * NR) - 1];
		uint64_t got = histogram_quantile(&h, quantiles[i]);

		ck_assert_uint_ge(got, truth);
		ck_assert_uint_le(got - truth, truth / 64);
	}
}
END_TEST

START_TEST(merging_is_adding_all_values_to_one)
{
	static struct histogram one, other;

	empty();
	one = other = h;
	for (uint64_t value = 1; value < 1000000; value += 777) {
		histogram_add(value % 2 ? &one : &other, value);
		histogram_add(&h, value);
	}
	histogram_merge(&one, &other);
	ck_assert_uint_eq(one.count, h.count);
	ck_assert_uint_eq(one.max, h.max);
	ck_assert_mem_eq(one.buckets, h.buckets, sizeof h.buckets);
}
END_TEST

Suite *suite_bench_histogram(void)
{
	Suite *suite = suite_create("bench-histogram");
	TCase *tc = tcase_create("histogram");

	tcase_add_test(tc, every_value_lies_in_its_bucket);
	tcase_add_test(tc, buckets_follow_each_other_and_are_no_wider_than_a_64th);
	tcase_add_test(tc, empty_histogram_answers_zero);
	tcase_add_test(tc, one_value_is_every_quantile);
	tcase_add_test(tc, small_values_are_exact);
	tcase_add_test(tc, quantiles_are_never_below_and_at_most_a_64th_above);
	tcase_add_test(tc, merging_is_adding_all_values_to_one);
	suite_add_tcase(suite, tc);
	return suite;
}
