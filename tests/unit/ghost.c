/*
 * ghost.c - the fingerprint table remembers the newest, forgets the oldest, and answers once
 */
#include <check.h>
#include <errno.h>
#include "alloc.h"
#include "ghost.h"

Suite *suite_ghost(void);

#define SET 16          /* entries up to so many are one set */

static struct mem mem;
static struct ghost ghost;

static void init(uint64_t entries)
{
	mem_init_malloc(&mem);
	ck_assert_int_eq(ghost_init(&ghost, &mem, entries), 0);
}

static void fini(void)
{
	ghost_fini(&ghost);
	ck_assert_uint_eq(mem_bytes(&mem), 0);
}

START_TEST(what_went_in_comes_out_once)
{
	init(1000);
	ck_assert(!ghost_take(&ghost, 1, 0));
	ghost_insert(&ghost, 1, 0);
	ghost_insert(&ghost, 1, UINT64_MAX);
	ghost_insert(&ghost, UINT64_MAX, 0);
	ghost_insert(&ghost, 0, 0);
	ck_assert(!ghost_take(&ghost, 1, 1));
	ck_assert(!ghost_take(&ghost, 2, 0));
	ck_assert(ghost_take(&ghost, 1, 0));
	ck_assert(!ghost_take(&ghost, 1, 0));
	ck_assert(ghost_take(&ghost, 1, UINT64_MAX));
	ck_assert(ghost_take(&ghost, UINT64_MAX, 0));
	ck_assert(ghost_take(&ghost, 0, 0));
	ck_assert(!ghost_take(&ghost, 0, 0));
	fini();
}
END_TEST

START_TEST(twice_inserted_is_there_once)
{
	init(1);
	ghost_insert(&ghost, 7, 7);
	ghost_insert(&ghost, 7, 7);
	ck_assert(ghost_take(&ghost, 7, 7));
	ck_assert(!ghost_take(&ghost, 7, 7));
	fini();
}
END_TEST

START_TEST(oldest_of_a_full_set_goes)
{
	init(SET);
	for (uint64_t i = 0; i <= SET; i++)
		ghost_insert(&ghost, 1, i);
	ck_assert(!ghost_take(&ghost, 1, 0));
	for (uint64_t i = 1; i <= SET; i++)
		ck_assert(ghost_take(&ghost, 1, i));
	fini();
}
END_TEST

START_TEST(inserted_again_is_young_again)
{
	init(SET);
	for (uint64_t i = 0; i < SET; i++)
		ghost_insert(&ghost, 1, i);
	ghost_insert(&ghost, 1, 0);
	ghost_insert(&ghost, 1, SET);
	ck_assert(ghost_take(&ghost, 1, 0));
	ck_assert(!ghost_take(&ghost, 1, 1));
	ck_assert(ghost_take(&ghost, 1, 2));
	fini();
}
END_TEST

START_TEST(what_was_taken_leaves_its_place)
{
	init(SET);
	for (uint64_t i = 0; i < SET; i++)
		ghost_insert(&ghost, 1, i);
	ck_assert(ghost_take(&ghost, 1, 5));
	ghost_insert(&ghost, 1, SET);
	ck_assert(ghost_take(&ghost, 1, 0));
	ck_assert(ghost_take(&ghost, 1, SET));
	fini();
}
END_TEST

START_TEST(entries_are_rounded_up_to_whole_sets)
{
	static const struct { uint64_t entries; uint32_t nr_sets; } cases[] = {
		{ 0, 0 }, { 1, 1 }, { SET, 1 }, { SET + 1, 2 }, { 100 * SET, 100 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		init(cases[i].entries);
		ck_assert_uint_eq(ghost.nr_sets, cases[i].nr_sets);
		ghost_insert(&ghost, 1, 2);
		ck_assert(ghost_take(&ghost, 1, 2) == (cases[i].entries > 0));
		fini();
	}
}
END_TEST

/* Half full, few sets have more than they hold; of what was never inserted, nothing is taken for old. */
START_TEST(neighbours_spread_over_the_table)
{
	enum { ENTRIES = 1 << 14, FILES = 8 };
	unsigned found = 0, wrong = 0;

	init(ENTRIES);
	for (uint64_t i = 0; i < ENTRIES / 2; i++)
		ghost_insert(&ghost, i % FILES, i / FILES);
	for (uint64_t i = 0; i < ENTRIES * 4; i++)
		wrong += ghost_take(&ghost, FILES + i % FILES, i / FILES);
	for (uint64_t i = 0; i < ENTRIES / 2; i++)
		found += ghost_take(&ghost, i % FILES, i / FILES);
	ck_assert_uint_le(wrong, 2);
	ck_assert_uint_ge(found, ENTRIES / 2 - ENTRIES / 100);
	fini();
}
END_TEST

START_TEST(no_memory_for_the_table_is_an_error)
{
	struct t_alloc alloc;

	t_alloc_init(&alloc);
	ck_assert_int_eq(mem_init(&mem, &alloc.ops), 0);
	t_alloc_fail(&alloc, 1);
	ck_assert_int_eq(ghost_init(&ghost, &mem, 100), -ENOMEM);
	ck_assert_int_eq(alloc.bytes, 0);
	ck_assert_int_eq(ghost_init(&ghost, &mem, UINT64_MAX), -ENOMEM);
	ck_assert_int_eq(ghost_init(&ghost, &mem, 100), 0);
	fini();
	ck_assert_int_eq(alloc.bytes, 0);
	mem_fini(&mem);
}
END_TEST

Suite *suite_ghost(void)
{
	Suite *s = suite_create("ghost");
	TCase *tc = tcase_create("ghost");

	tcase_add_test(tc, what_went_in_comes_out_once);
	tcase_add_test(tc, twice_inserted_is_there_once);
	tcase_add_test(tc, oldest_of_a_full_set_goes);
	tcase_add_test(tc, inserted_again_is_young_again);
	tcase_add_test(tc, what_was_taken_leaves_its_place);
	tcase_add_test(tc, entries_are_rounded_up_to_whole_sets);
	tcase_add_test(tc, neighbours_spread_over_the_table);
	tcase_add_test(tc, no_memory_for_the_table_is_an_error);
	suite_add_tcase(s, tc);
	return s;
}
