/*
 * errseq.c - every observer hears of an error once
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include "errseq.h"

Suite *suite_errseq(void);

static errseq_t seq;

static void setup(void)
{
	store_relaxed(&seq, 0);
}

START_TEST(no_error_is_no_error)
{
	uint32_t since = errseq_sample(&seq);

	errseq_set(&seq, 0);
	ck_assert_uint_eq(load_relaxed(&seq), 0);
	ck_assert_int_eq(errseq_check(&seq, since), 0);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &since), 0);
	ck_assert_uint_eq(since, errseq_sample(&seq));
}
END_TEST

START_TEST(everyone_there_hears_of_it_once)
{
	uint32_t a = errseq_sample(&seq), b = errseq_sample(&seq);

	errseq_set(&seq, -EIO);
	ck_assert_int_eq(errseq_check(&seq, a), -EIO);
	ck_assert_int_eq(errseq_check(&seq, a), -EIO);          /* looking marks nothing */
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), -EIO);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), 0);
	ck_assert_int_eq(errseq_check(&seq, a), 0);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &b), -EIO);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &b), 0);
}
END_TEST

START_TEST(latecomer_hears_of_what_nobody_has_heard)
{
	uint32_t late, later;

	errseq_set(&seq, -ENOSPC);
	late = errseq_sample(&seq);
	ck_assert_int_eq(errseq_check(&seq, late), -ENOSPC);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &late), -ENOSPC);
	later = errseq_sample(&seq);            /* somebody has: it is not his */
	ck_assert_int_eq(errseq_check_and_advance(&seq, &later), 0);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &late), 0);
}
END_TEST

START_TEST(errors_between_two_looks_are_one_and_the_last_counts)
{
	uint32_t a = errseq_sample(&seq), was;

	errseq_set(&seq, -EIO);
	was = load_relaxed(&seq);
	errseq_set(&seq, -EIO);
	ck_assert_uint_eq(load_relaxed(&seq), was);
	errseq_set(&seq, -ENOSPC);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), -ENOSPC);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), 0);
	errseq_set(&seq, -ENOSPC);              /* the same again, after it was seen: news */
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), -ENOSPC);
}
END_TEST

START_TEST(who_looked_before_hears_of_later_errors)
{
	uint32_t a = errseq_sample(&seq), b = a;

	for (unsigned i = 0; i < 1000; i++) {
		errseq_set(&seq, i % 2 ? -EIO : -EDQUOT);
		ck_assert_int_eq(errseq_check_and_advance(&seq, &a), i % 2 ? -EIO : -EDQUOT);
		if (i % 3 == 0)
			ck_assert_int_lt(errseq_check_and_advance(&seq, &b), 0);
	}
	ck_assert_int_eq(errseq_check_and_advance(&seq, &b), 0);        /* 999 is a multiple of 3 */
}
END_TEST

START_TEST(counter_wraps_without_touching_the_error)
{
	uint32_t a;

	store_relaxed(&seq, ~UINT32_C(0) << 12 | EIO);          /* last count, seen */
	a = errseq_sample(&seq);
	errseq_set(&seq, -ENOSPC);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), -ENOSPC);
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), 0);
	errseq_set(&seq, -4095);                /* the largest errno there is room for */
	ck_assert_int_eq(errseq_check_and_advance(&seq, &a), -4095);
}
END_TEST

/* One sets and waits to be heard, the other hears: none twice, none lost. */
enum { ROUNDS = 20000 };
static _Atomic unsigned heard;

static void *listen(void *arg)
{
	uint32_t since = 0;

	(void)arg;
	while (load_relaxed(&heard) < ROUNDS)
		if (errseq_check_and_advance(&seq, &since))
			add_acq_rel(&heard, 1);
	return NULL;
}

START_TEST(none_is_lost_between_threads)
{
	pthread_t t;
	uint32_t other = 0;

	ck_assert_int_eq(pthread_create(&t, NULL, listen, NULL), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		errseq_set(&seq, -EIO);
		if (i % 7 == 0)
			ck_assert_int_eq(errseq_check_and_advance(&seq, &other), -EIO);
		while (load_acquire(&heard) == i)
			;
		ck_assert_uint_eq(load_acquire(&heard), i + 1);
	}
	pthread_join(t, NULL);
}
END_TEST

Suite *suite_errseq(void)
{
	Suite *s = suite_create("errseq");
	TCase *tc = tcase_create("errseq");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, no_error_is_no_error);
	tcase_add_test(tc, everyone_there_hears_of_it_once);
	tcase_add_test(tc, latecomer_hears_of_what_nobody_has_heard);
	tcase_add_test(tc, errors_between_two_looks_are_one_and_the_last_counts);
	tcase_add_test(tc, who_looked_before_hears_of_later_errors);
	tcase_add_test(tc, counter_wraps_without_touching_the_error);
	tcase_add_test(tc, none_is_lost_between_threads);
	return s;
}
