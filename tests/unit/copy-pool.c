/*
 * copy-pool.c - copies do not overlap, come back whole, and run out without harm
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "alloc.h"
#include "copy-pool.h"
#include "test.h"

Suite *suite_copy_pool(void);

enum { FRAMES = 100 };          /* not a multiple of 16 or 64 */

static struct mem mem;
static struct copy_pool pool;

static void setup(void)
{
	mem_init_malloc(&mem);
	ck_assert_int_eq(copy_pool_init(&pool, &mem, FRAMES * PAGE_BYTES + 100), 0);
	ck_assert_uint_eq(copy_pool_bytes(&pool), FRAMES * PAGE_BYTES);
}

static void teardown(void)
{
	copy_pool_fini(&pool, &mem);
	ck_assert_uint_eq(mem_bytes(&mem), 0);
}

static unsigned frames(size_t bytes) { return (unsigned)div_round_up(bytes, PAGE_BYTES); }

START_TEST(copies_are_aligned_and_lie_inside)
{
	static const size_t sizes[] = { 1, 512, 4095, 4096, 4097, 12288, 65535, 65536 };

	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		char *p = copy_pool_get(&pool, sizes[i]);

		ck_assert_ptr_nonnull(p);
		ck_assert_uint_eq((uintptr_t)p % PAGE_BYTES, 0);
		ck_assert(p >= pool.base && p + sizes[i] <= pool.base + pool.bytes);
		memset(p, 1, frames(sizes[i]) * PAGE_BYTES);
		copy_pool_put(&pool, p, sizes[i]);
	}
}
END_TEST

START_TEST(all_of_it_can_be_used_and_then_there_is_none)
{
	void *p[FRAMES];

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < FRAMES; i++)
			ck_assert_ptr_nonnull(p[i] = copy_pool_get(&pool, 100));
		ck_assert_ptr_null(copy_pool_get(&pool, 1));
		copy_pool_put(&pool, p[FRAMES / 2], 100);       /* one is free: it is found wherever it lies */
		ck_assert_ptr_null(copy_pool_get(&pool, 4097));
		ck_assert_ptr_eq(copy_pool_get(&pool, 4096), p[FRAMES / 2]);
		for (unsigned i = 0; i < FRAMES; i++)
			copy_pool_put(&pool, p[i], 100);
	}
}
END_TEST

START_TEST(run_does_not_wrap_around_the_end)
{
	char *most = NULL, *got[7];

	for (unsigned i = 0; i < 6; i++)        /* 96 of 100 frames */
		ck_assert_ptr_nonnull(got[i] = copy_pool_get(&pool, COPY_MAX_BYTES));
	ck_assert_ptr_null(copy_pool_get(&pool, 5 * PAGE_BYTES));
	copy_pool_put(&pool, got[0], COPY_MAX_BYTES);
	/* Four at the end, sixteen at the start: not twenty, and not one run. */
	ck_assert_ptr_nonnull(most = copy_pool_get(&pool, COPY_MAX_BYTES));
	ck_assert_ptr_eq(most, got[0]);
	ck_assert_ptr_null(copy_pool_get(&pool, COPY_MAX_BYTES));
	ck_assert_ptr_nonnull(got[6] = copy_pool_get(&pool, 4 * PAGE_BYTES));
	for (unsigned i = 0; i < 6; i++)
		copy_pool_put(&pool, got[i], COPY_MAX_BYTES);
	copy_pool_put(&pool, got[6], 4 * PAGE_BYTES);
}
END_TEST

START_TEST(pool_smaller_than_a_copy_says_no)
{
	struct copy_pool tiny;
	void *p;

	ck_assert_int_eq(copy_pool_init(&tiny, &mem, 3 * PAGE_BYTES), 0);
	ck_assert_ptr_null(copy_pool_get(&tiny, 4 * PAGE_BYTES));
	ck_assert_ptr_nonnull(p = copy_pool_get(&tiny, 3 * PAGE_BYTES));
	ck_assert_ptr_null(copy_pool_get(&tiny, 1));
	copy_pool_put(&tiny, p, 3 * PAGE_BYTES);
	copy_pool_fini(&tiny, &mem);
}
END_TEST

/* Against one byte a frame: a run is given where one is, and none where there is none. */
START_TEST(random_gets_and_puts_agree_with_a_map)
{
	struct { char *p; size_t bytes; } out[FRAMES];
	unsigned nr = 0;
	uint8_t map[FRAMES] = { 0 };
	uint64_t chance = 9;

	for (unsigned i = 0; i < 20000; i++) {
		if (t_random_below(&chance, 2) && nr < FRAMES) {
			size_t bytes = 1 + t_random_below(&chance, t_random_below(&chance, 2) ? COPY_MAX_BYTES : 5000);
			unsigned run = 0, longest = 0, first;
			char *p = copy_pool_get(&pool, bytes);

			for (unsigned f = 0; f < FRAMES; f++) {
				run = map[f] ? 0 : run + 1;
				longest = run > longest ? run : longest;
			}
			ck_assert((p != NULL) == (longest >= frames(bytes)));
			if (!p)
				continue;
			first = (unsigned)((size_t)(p - pool.base) / PAGE_BYTES);
			for (unsigned f = first; f < first + frames(bytes); f++) {
				ck_assert_uint_lt(f, FRAMES);
				ck_assert_uint_eq(map[f]++, 0);
			}
			out[nr].p = p;
			out[nr++].bytes = bytes;
		} else if (nr) {
			unsigned which = (unsigned)t_random_below(&chance, nr);
			unsigned first = (unsigned)((size_t)(out[which].p - pool.base) / PAGE_BYTES);

			memset(&map[first], 0, frames(out[which].bytes));
			copy_pool_put(&pool, out[which].p, out[which].bytes);
			out[which] = out[--nr];
		}
	}
	while (nr--)
		copy_pool_put(&pool, out[nr].p, out[nr].bytes);
	for (unsigned i = 0; i < div_round_up(FRAMES, 64); i++)
		ck_assert_uint_eq(pool.used[i], 0);
}
END_TEST

static _Atomic unsigned clashes;

static void use(void *arg)
{
	uint64_t chance = (uintptr_t)arg;

	for (unsigned i = 0; i < 2000; i++) {
		size_t bytes = 1 + t_random_below(&chance, COPY_MAX_BYTES);
		unsigned char *p = copy_pool_get(&pool, bytes);

		if (!p)
			continue;
		memset(p, (int)(uintptr_t)arg, bytes);
		for (size_t b = 0; b < bytes; b += 512)
			if (p[b] != (unsigned char)(uintptr_t)arg)
				add_relaxed(&clashes, 1);
		copy_pool_put(&pool, p, bytes);
	}
}

START_TEST(threads_do_not_share_a_copy)
{
	struct thread t[4];

	for (uintptr_t i = 0; i < ARRAY_SIZE(t); i++)
		ck_assert_int_eq(thread_create(&t[i], "copy", use, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(t); i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(load_relaxed(&clashes), 0);
}
END_TEST

START_TEST(no_memory_is_said_so)
{
	struct t_alloc alloc;
	struct copy_pool none;
	struct mem failing;

	t_alloc_init(&alloc);
	ck_assert_int_eq(mem_init(&failing, &alloc.ops), 0);
	t_alloc_fail(&alloc, 1);
	ck_assert_int_eq(copy_pool_init(&none, &failing, 1 << 20), -ENOMEM);
	ck_assert_uint_eq(mem_bytes(&failing), 0);
	mem_fini(&failing);
	ck_assert_int_eq(alloc.bytes, 0);
}
END_TEST

Suite *suite_copy_pool(void)
{
	Suite *s = suite_create("copy-pool");
	TCase *tc = tcase_create("copy-pool");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, copies_are_aligned_and_lie_inside);
	tcase_add_test(tc, all_of_it_can_be_used_and_then_there_is_none);
	tcase_add_test(tc, run_does_not_wrap_around_the_end);
	tcase_add_test(tc, pool_smaller_than_a_copy_says_no);
	tcase_add_test(tc, random_gets_and_puts_agree_with_a_map);
	tcase_add_test(tc, threads_do_not_share_a_copy);
	tcase_add_test(tc, no_memory_is_said_so);
	return s;
}
