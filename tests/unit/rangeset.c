/*
 * rangeset.c - a range set is exact while it has room, and wrong in one direction only when it has none
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "alloc.h"
#include "rangeset.h"
#include "test.h"
#include "util.h"

Suite *suite_rangeset(void);

static struct mem mem;
static struct rangeset rs;

static void init(enum rangeset_policy policy, unsigned max)
{
	mem_init_malloc(&mem);
	rangeset_init(&rs, &mem, policy, max);
}

static void check(struct rangeset *set)
{
	char why[200];

	if (rangeset_check(set, why, sizeof(why)))
		ck_abort_msg("%s", why);
}

static void fini(void)
{
	check(&rs);
	rangeset_fini(&rs);
	ck_assert_uint_eq(mem_bytes(&mem), 0);
}

static void expect(struct rangeset *set, const struct range *want, size_t n)
{
	struct range got;
	uint64_t pos = 0, bytes = 0;

	check(set);
	for (size_t i = 0; i < n; i++) {
		ck_assert(rangeset_next(set, pos, &got));
		ck_assert_uint_eq(got.start, want[i].start);
		ck_assert_uint_eq(got.end, want[i].end);
		ck_assert(rangeset_contains(set, got.start, got.end));
		if (got.end < UINT64_MAX)
			ck_assert(!rangeset_contains(set, got.start, got.end + 1));
		pos = got.end;
		bytes += got.end - got.start;
	}
	ck_assert(!rangeset_next(set, pos, &got));
	ck_assert_uint_eq(rangeset_count(set), n);
	ck_assert_uint_eq(rangeset_bytes(set), bytes);
	ck_assert(rangeset_empty(set) == !n);
}
/* The set is exactly these ranges. */
#define EXPECT(set, ...) expect((set), (const struct range[]){ { 0, 0 }, __VA_ARGS__ } + 1, \
				ARRAY_SIZE(((const struct range[]){ { 0, 0 }, __VA_ARGS__ })) - 1)

START_TEST(empty_set_has_nothing)
{
	struct range gap;

	init(RANGESET_SUPERSET, RANGESET_MAX);
	EXPECT(&rs);
	ck_assert(!rangeset_contains(&rs, 0, 1));
	ck_assert(!rangeset_contains(&rs, UINT64_MAX - 1, UINT64_MAX));
	ck_assert(rangeset_contains(&rs, 5, 5));
	ck_assert(rangeset_next_gap(&rs, 3, 9, &gap));
	ck_assert(gap.start == 3 && gap.end == 9);
	ck_assert(!rangeset_next_gap(&rs, 3, 3, &gap));
	rangeset_remove(&rs, 0, UINT64_MAX);
	rangeset_add(&rs, 7, 7);
	rangeset_add(&rs, 8, 7);
	EXPECT(&rs);
	fini();
}
END_TEST

START_TEST(overlapping_and_touching_ranges_are_one)
{
	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 30, 40);
	EXPECT(&rs, { 10, 20 }, { 30, 40 });
	rangeset_add(&rs, 20, 25);
	EXPECT(&rs, { 10, 25 }, { 30, 40 });
	rangeset_add(&rs, 28, 30);
	EXPECT(&rs, { 10, 25 }, { 28, 40 });
	rangeset_add(&rs, 12, 14);
	EXPECT(&rs, { 10, 25 }, { 28, 40 });
	rangeset_add(&rs, 25, 28);
	EXPECT(&rs, { 10, 40 });
	rangeset_add(&rs, 50, 60);
	rangeset_add(&rs, 70, 80);
	rangeset_add(&rs, 5, 75);
	EXPECT(&rs, { 5, 80 });
	fini();
}
END_TEST

START_TEST(removing_cuts_where_it_is_told)
{
	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_add(&rs, 10, 40);
	rangeset_remove(&rs, 0, 10);
	rangeset_remove(&rs, 40, 50);
	EXPECT(&rs, { 10, 40 });
	rangeset_remove(&rs, 0, 12);
	rangeset_remove(&rs, 38, 50);
	EXPECT(&rs, { 12, 38 });
	rangeset_remove(&rs, 20, 21);
	EXPECT(&rs, { 12, 20 }, { 21, 38 });
	rangeset_remove(&rs, 30, 32);
	EXPECT(&rs, { 12, 20 }, { 21, 30 }, { 32, 38 });
	rangeset_remove(&rs, 19, 33);
	EXPECT(&rs, { 12, 19 }, { 33, 38 });
	rangeset_remove(&rs, 12, 19);
	EXPECT(&rs, { 33, 38 });
	rangeset_remove(&rs, 0, UINT64_MAX);
	EXPECT(&rs);
	fini();
}
END_TEST

START_TEST(first_and_last_bytes_are_ranges_too)
{
	struct range r;

	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_add(&rs, 0, 1);
	rangeset_add(&rs, UINT64_MAX - 1, UINT64_MAX);
	EXPECT(&rs, { 0, 1 }, { UINT64_MAX - 1, UINT64_MAX });
	ck_assert(!rangeset_next(&rs, UINT64_MAX, &r));
	ck_assert(rangeset_next_gap(&rs, 0, UINT64_MAX, &r));
	ck_assert(r.start == 1 && r.end == UINT64_MAX - 1);
	rangeset_add(&rs, 0, UINT64_MAX);
	EXPECT(&rs, { 0, UINT64_MAX });
	ck_assert(!rangeset_next_gap(&rs, 0, UINT64_MAX, &r));
	rangeset_remove(&rs, 1, UINT64_MAX - 1);
	EXPECT(&rs, { 0, 1 }, { UINT64_MAX - 1, UINT64_MAX });
	rangeset_remove(&rs, 0, 1);
	rangeset_remove(&rs, UINT64_MAX - 1, UINT64_MAX);
	EXPECT(&rs);
	fini();
}
END_TEST

START_TEST(gaps_are_what_is_missing)
{
	static const struct { struct range in, gap; } cases[] = {
		{ { 0, 5 }, { 0, 5 } }, { { 0, 15 }, { 0, 10 } }, { { 10, 20 }, { 0, 0 } }, { { 10, 21 }, { 20, 21 } },
		{ { 15, 35 }, { 20, 30 } }, { { 20, 30 }, { 20, 30 } }, { { 25, 27 }, { 25, 27 } }, { { 30, 99 }, { 40, 99 } },
		{ { 39, 40 }, { 0, 0 } }, { { 40, 41 }, { 40, 41 } },
	};

	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 30, 40);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct range gap = { 0, 0 };
		bool some = rangeset_next_gap(&rs, cases[i].in.start, cases[i].in.end, &gap);

		ck_assert(some == (cases[i].gap.end > 0));
		ck_assert_uint_eq(gap.start, cases[i].gap.start);
		ck_assert_uint_eq(gap.end, cases[i].gap.end);
	}
	fini();
}
END_TEST

START_TEST(full_superset_fills_its_smallest_gap)
{
	init(RANGESET_SUPERSET, 3);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 25, 30);
	rangeset_add(&rs, 100, 110);
	rangeset_add(&rs, 200, 210);            /* old neighbours are closest */
	EXPECT(&rs, { 10, 30 }, { 100, 110 }, { 200, 210 });
	rangeset_add(&rs, 0, 1);                /* in front, closest to what follows */
	EXPECT(&rs, { 0, 30 }, { 100, 110 }, { 200, 210 });
	rangeset_add(&rs, 215, 220);            /* at the end, closest to what goes before */
	EXPECT(&rs, { 0, 30 }, { 100, 110 }, { 200, 220 });
	rangeset_add(&rs, 150, 151);            /* in the middle, a tie: before */
	EXPECT(&rs, { 0, 30 }, { 100, 151 }, { 200, 220 });
	rangeset_remove(&rs, 5, 6);             /* the hole is the smallest gap */
	EXPECT(&rs, { 0, 30 }, { 100, 151 }, { 200, 220 });
	rangeset_remove(&rs, 101, 199);
	EXPECT(&rs, { 0, 30 }, { 100, 101 }, { 200, 220 });
	rangeset_remove(&rs, 205, 215);
	EXPECT(&rs, { 0, 30 }, { 100, 101 }, { 200, 220 });
	rangeset_add(&rs, 60, 61);
	EXPECT(&rs, { 0, 61 }, { 100, 101 }, { 200, 220 });
	fini();
}
END_TEST

START_TEST(full_subset_forgets_its_smallest_range)
{
	init(RANGESET_SUBSET, 3);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 30, 35);
	rangeset_add(&rs, 50, 60);
	rangeset_add(&rs, 40, 41);              /* the new one */
	EXPECT(&rs, { 10, 20 }, { 30, 35 }, { 50, 60 });
	rangeset_add(&rs, 100, 110);
	EXPECT(&rs, { 10, 20 }, { 50, 60 }, { 100, 110 });
	rangeset_add(&rs, 0, 9);                /* smaller than all others */
	EXPECT(&rs, { 10, 20 }, { 50, 60 }, { 100, 110 });
	rangeset_remove(&rs, 51, 55);           /* what is left of the cut */
	EXPECT(&rs, { 10, 20 }, { 55, 60 }, { 100, 110 });
	rangeset_remove(&rs, 105, 109);         /* what is right of it */
	EXPECT(&rs, { 10, 20 }, { 55, 60 }, { 100, 105 });
	fini();
}
END_TEST

START_TEST(one_place_is_enough)
{
	init(_i, 1);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 30, 35);
	rangeset_add(&rs, 0, 1);
	if (_i == RANGESET_SUPERSET)
		EXPECT(&rs, { 0, 35 });
	else
		EXPECT(&rs, { 10, 20 });
	rangeset_remove(&rs, 12, 18);
	ck_assert_uint_eq(rangeset_count(&rs), 1);
	fini();
}
END_TEST

START_TEST(reserved_places_can_be_counted_on)
{
	init(RANGESET_SUBSET, 100);
	for (uint64_t i = 0; i < 100; i += 5) {
		rangeset_reserve(&rs, 5);
		for (uint64_t j = i; j < i + 5; j++)
			rangeset_add(&rs, j * 10, j * 10 + 1);
		ck_assert_uint_eq(rangeset_count(&rs), i + 5);
	}
	rangeset_reserve(&rs, UINT32_MAX);
	ck_assert_uint_eq(rs.cap, 100);
	rangeset_add(&rs, 5000, 5001);
	ck_assert_uint_eq(rangeset_count(&rs), 100);
	fini();
}
END_TEST

START_TEST(no_memory_to_grow_leaves_the_set_as_it_is)
{
	struct t_alloc alloc;

	t_alloc_init(&alloc);
	ck_assert_int_eq(mem_init(&mem, &alloc.ops), 0);
	rangeset_init(&rs, &mem, RANGESET_SUPERSET, RANGESET_MAX);
	for (uint64_t i = 0; i < 4; i++)
		rangeset_add(&rs, i * 10, i * 10 + 1);
	t_alloc_fail(&alloc, 1);
	rangeset_reserve(&rs, 10);
	EXPECT(&rs, { 0, 1 }, { 10, 11 }, { 20, 21 }, { 30, 31 });
	ck_assert_uint_eq(rs.cap, 4);
	rangeset_add(&rs, 33, 34);
	EXPECT(&rs, { 0, 1 }, { 10, 11 }, { 20, 21 }, { 30, 34 });
	rangeset_reserve(&rs, 10);
	rangeset_add(&rs, 50, 51);
	EXPECT(&rs, { 0, 1 }, { 10, 11 }, { 20, 21 }, { 30, 34 }, { 50, 51 });
	fini();
	ck_assert_int_eq(alloc.bytes, 0);
	mem_fini(&mem);
}
END_TEST

START_TEST(moving_takes_everything_along)
{
	static const unsigned counts[] = { 0, 1, 63, 64, 65, 128, 1000 };

	for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
		struct rangeset to;
		unsigned n = counts[i];

		init(RANGESET_SUPERSET, RANGESET_MAX);
		rangeset_init(&to, &mem, RANGESET_SUPERSET, RANGESET_MAX);
		rangeset_reserve(&rs, n);
		rangeset_reserve(&to, n + 1);
		for (uint64_t j = 0; j < n; j++)
			rangeset_add(&rs, j * 10, j * 10 + 5);
		rangeset_add(&to, 5, 8);
		unsigned cap = rs.cap;
		rangeset_move(&to, &rs);
		EXPECT(&rs);
		ck_assert_uint_eq(rs.cap, cap);
		check(&to);
		ck_assert_uint_eq(rangeset_count(&to), n ? n : 1);
		ck_assert_uint_eq(rangeset_bytes(&to), n * 5 + 3);
		rangeset_fini(&to);
		fini();
	}
}
END_TEST

START_TEST(checker_sees_what_is_broken)
{
	char why[200];

	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_add(&rs, 10, 20);
	rangeset_add(&rs, 30, 40);
	rs.ranges[1].start = 20;
	ck_assert_int_eq(rangeset_check(&rs, why, sizeof(why)), -EUCLEAN);
	rs.ranges[1].start = 40;
	ck_assert_int_eq(rangeset_check(&rs, why, sizeof(why)), -EUCLEAN);
	rs.ranges[1].start = 30;
	rs.nr = 5;
	ck_assert_int_eq(rangeset_check(&rs, why, sizeof(why)), -EUCLEAN);
	rs.nr = 2;
	fini();
}
END_TEST

/* --- against a bitmap -------------------------------------------------------------------------------------------------- */

#define BITS 512

/* Bit i stands for [i * scale, (i + 1) * scale); the last one may end at UINT64_MAX. */
static bool model[BITS];

static void compare(uint64_t base, uint64_t scale, int policy, uint64_t seed, unsigned step)
{
	const char *what = NULL;

	check(&rs);
	for (uint64_t i = 0; i < BITS; i++) {
		bool has = rangeset_contains(&rs, base + i * scale, base + (i + 1) * scale);

		if (has && !model[i] && policy != RANGESET_SUPERSET)
			what = "more than was added";
		if (!has && model[i] && policy != RANGESET_SUBSET)
			what = "less than was added";
	}
	if (what)
		ck_abort_msg("seed %llu step %u: %s", (unsigned long long)seed, step, what);
}

static void run_model(uint64_t seed, unsigned steps, unsigned max, int policy, uint64_t base, uint64_t scale)
{
	uint64_t state = seed;
	int exact = max >= BITS ? -1 : policy;  /* -1: must not be wrong in either direction */

	init((enum rangeset_policy)policy, max);
	memset(model, 0, sizeof(model));
	for (unsigned step = 0; step < steps; step++) {
		/* mostly small changes; phases in which the set gets full or empty */
		uint64_t i = t_random_below(&state, BITS);
		uint64_t n = 1 + t_random_below(&state, t_random_below(&state, 20) ? 4 : BITS - i);
		bool add = t_random_below(&state, 8) < (step / 256 % 2 ? 6 : 3);

		n = min_u64(n, BITS - i);
		rangeset_reserve(&rs, 1);
		if (add)
			rangeset_add(&rs, base + i * scale, base + (i + n) * scale);
		else
			rangeset_remove(&rs, base + i * scale, base + (i + n) * scale);
		memset(model + i, add, n);
		if (add && exact != RANGESET_SUBSET && !rangeset_contains(&rs, base + i * scale, base + (i + n) * scale))
			ck_abort_msg("seed %llu step %u: not added", (unsigned long long)seed, step);

		/* the first gap and the next range from here on */
		struct range r;
		uint64_t end = i;
		while (end < BITS && model[end])
			end++;
		if (exact < 0) {
			bool gap = rangeset_next_gap(&rs, base + i * scale, base + BITS * scale, &r);
			if (gap != (end < BITS) || (gap && r.start != base + end * scale))
				ck_abort_msg("seed %llu step %u: wrong gap", (unsigned long long)seed, step);
			for (end = i; end < BITS && !model[end]; )
				end++;
			bool next = rangeset_next(&rs, base + i * scale, &r);
			if (next != (end < BITS) || (next && max_u64(r.start, base + i * scale) != base + end * scale))
				ck_abort_msg("seed %llu step %u: wrong next range", (unsigned long long)seed, step);
		}
		if (step % 16 == 0 || step + 1 == steps)
			compare(base, scale, exact, seed, step);
	}
	fini();
}

START_TEST(random_operations_agree_with_a_bitmap)
{
	run_model(1 + (uint64_t)_i, 20000, RANGESET_MAX, _i % 2, 0, 1);
	run_model(101 + (uint64_t)_i, 5000, RANGESET_MAX, _i % 2, UINT64_MAX - BITS * 4096, 4096);
}
END_TEST

START_TEST(random_operations_in_a_small_set_err_to_one_side)
{
	static const unsigned max[] = { 1, 2, 3, 4, 5, 7, 16, 40 };

	for (size_t i = 0; i < ARRAY_SIZE(max); i++)
		run_model(1 + i, 4000, max[i], _i, 1000, 10);
}
END_TEST

/* --- threads ----------------------------------------------------------------------------------------------------------- */

static struct rangeset taken;

static void add_some(void *arg)
{
	uint64_t first = (uint64_t)(uintptr_t)arg;

	for (uint64_t i = 0; i < 500; i++) {
		rangeset_reserve(&rs, 2);       /* one place may go to the other thread */
		rangeset_add(&rs, (first + 2 * i) * 10, (first + 2 * i) * 10 + 5);
		if (i % 50 == 0)
			rangeset_move(&taken, &rs);
	}
}

START_TEST(two_threads_lose_nothing)
{
	struct thread threads[2];

	init(RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_init(&taken, &mem, RANGESET_SUPERSET, RANGESET_MAX);
	rangeset_reserve(&taken, 2000);
	rangeset_reserve(&rs, 2000);
	for (uintptr_t i = 0; i < 2; i++)
		ck_assert_int_eq(thread_create(&threads[i], "add", add_some, (void *)i), 0);
	for (int i = 0; i < 2; i++)
		thread_join(&threads[i]);
	rangeset_move(&taken, &rs);
	check(&taken);
	ck_assert_uint_eq(rangeset_count(&taken), 1000);
	ck_assert_uint_eq(rangeset_bytes(&taken), 5000);
	rangeset_fini(&taken);
	fini();
}
END_TEST

Suite *suite_rangeset(void)
{
	Suite *s = suite_create("rangeset");
	TCase *tc = tcase_create("rangeset");

	tcase_add_test(tc, empty_set_has_nothing);
	tcase_add_test(tc, overlapping_and_touching_ranges_are_one);
	tcase_add_test(tc, removing_cuts_where_it_is_told);
	tcase_add_test(tc, first_and_last_bytes_are_ranges_too);
	tcase_add_test(tc, gaps_are_what_is_missing);
	tcase_add_test(tc, full_superset_fills_its_smallest_gap);
	tcase_add_test(tc, full_subset_forgets_its_smallest_range);
	tcase_add_loop_test(tc, one_place_is_enough, 0, 2);
	tcase_add_test(tc, reserved_places_can_be_counted_on);
	tcase_add_test(tc, no_memory_to_grow_leaves_the_set_as_it_is);
	tcase_add_test(tc, moving_takes_everything_along);
	tcase_add_test(tc, checker_sees_what_is_broken);
	tcase_add_loop_test(tc, random_operations_agree_with_a_bitmap, 0, 4);
	tcase_add_loop_test(tc, random_operations_in_a_small_set_err_to_one_side, 0, 2);
	tcase_add_test(tc, two_threads_lose_nothing);
	suite_add_tcase(s, tc);
	return s;
}
