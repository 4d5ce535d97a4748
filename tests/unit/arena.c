/*
 * arena.c - every frame is handed out once, comes back, and joins its neighbours again
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "arena.h"
#include "test.h"

Suite *suite_arena(void);

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define ASAN 1
#endif
#ifdef ASAN
#include <sanitizer/asan_interface.h>
#endif

static struct arena arena;

static void init(uint32_t frames)
{
	ck_assert_int_eq(arena_init(&arena, frames * PAGE_BYTES), 0);
}

static void check(void)
{
	char why[200];

	if (arena_check(&arena, why, sizeof(why)))
		ck_abort_msg("%s", why);
}

/* All is free again, in as few runs as there can be. */
static void fini(void)
{
	uint32_t runs = 0;

	check();
	ck_assert_uint_eq(arena_free_bytes(&arena), arena.nr_frames * PAGE_BYTES);
	for (uint32_t i = 0; i < arena.nr_frames; i++)
		runs += arena.free_order[i] != FRAME_NOT_FREE;
	ck_assert_uint_eq(runs, (arena.nr_frames >> MAX_ORDER) +
				(uint32_t)__builtin_popcount(arena.nr_frames & ((1U << MAX_ORDER) - 1)));
	arena_fini(&arena);
}

START_TEST(size_is_rounded_down_to_whole_frames)
{
	struct iomap_folio *f, *g, *none;

	ck_assert_int_eq(arena_init(&arena, 3 * PAGE_BYTES + PAGE_BYTES - 1), 0);
	ck_assert_uint_eq(arena.nr_frames, 3);
	ck_assert_uint_eq(arena_free_bytes(&arena), 3 * PAGE_BYTES);
	ck_assert_int_eq(arena_alloc(&arena, 2, &none), -ENOMEM);
	ck_assert_int_eq(arena_alloc(&arena, 1, &f), 0);
	ck_assert_int_eq(arena_alloc(&arena, 0, &g), 0);
	ck_assert_uint_eq(arena_free_bytes(&arena), 0);
	ck_assert_int_eq(arena_alloc(&arena, 0, &none), -ENOMEM);
	check();
	arena_free(&arena, f, 1);
	arena_free(&arena, g, 0);
	fini();
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
	ck_assert_int_eq(arena_init(&arena, 0), -ENOMEM);
	ck_assert_int_eq(arena_init(&arena, PAGE_BYTES - 1), -ENOMEM);
	ck_assert_int_eq(arena_init(&arena, UINT64_C(1) << 50), -ENOMEM);
	ck_assert_int_eq(arena_init(&arena, UINT64_MAX), -ENOMEM);
}
END_TEST

static const uint32_t sizes[] = { 1, 2, 3, 4, 511, 512, 513, 1000, 1023, 1024, 1025 };

START_TEST(every_frame_is_handed_out_once)
{
	static bool seen[2048];
	static struct iomap_folio *all[2048];
	struct iomap_folio *f;
	uint32_t nr = sizes[_i];

	init(nr);
	check();
	memset(seen, 0, sizeof(seen));
	for (uint32_t i = 0; i < nr; i++) {
		ck_assert_int_eq(arena_alloc(&arena, 0, &all[i]), 0);
		uint32_t n = frame_number(&arena, all[i]);
		ck_assert(n < nr && !seen[n]);
		seen[n] = true;
		memset(frame_addr(&arena, all[i]), 0xff, PAGE_BYTES);
		ck_assert_uint_eq(load_relaxed(&all[i]->order), 0);
		ck_assert_uint_eq(load_relaxed(&all[i]->refs), 0);
	}
	ck_assert_int_eq(arena_alloc(&arena, 0, &f), -ENOMEM);
	check();
	/* every second one first: nothing can be joined until the others come */
	for (uint32_t i = 0; i < nr; i += 2)
		arena_free(&arena, all[i], 0);
	check();
	for (uint32_t i = 1; i < nr; i += 2)
		arena_free(&arena, all[i], 0);
	fini();
}
END_TEST

START_TEST(runs_are_aligned_and_whole)
{
	struct iomap_folio *f[MAX_ORDER + 1];

	init(2048);
	for (unsigned order = 0; order <= MAX_ORDER; order++) {
		ck_assert_int_eq(arena_alloc(&arena, order, &f[order]), 0);
		ck_assert_uint_eq(frame_number(&arena, f[order]) & ((1U << order) - 1), 0);
		ck_assert_uint_eq((uintptr_t)frame_addr(&arena, f[order]) & ((PAGE_BYTES << order) - 1), 0);
		ck_assert_uint_eq(load_relaxed(&f[order]->order), order);
		memset(frame_addr(&arena, f[order]), (int)order + 1, PAGE_BYTES << order);
		check();
	}
	ck_assert_uint_eq(arena_free_bytes(&arena), (2048 - 1023) * PAGE_BYTES);
	for (unsigned order = 0; order <= MAX_ORDER; order++) {
		const unsigned char *p = frame_addr(&arena, f[order]);

		for (uint64_t i = 0; i < PAGE_BYTES << order; i++)
			if (p[i] != order + 1)
				ck_abort_msg("order %u byte %llu", order, (unsigned long long)i);
		arena_free(&arena, f[order], order);
		check();
	}
	fini();
}
END_TEST

START_TEST(parts_of_a_run_come_back_in_any_order)
{
	struct iomap_folio *f;
	uint32_t at = 0;

	init(512);
	ck_assert_int_eq(arena_alloc(&arena, MAX_ORDER, &f), 0);
	/* 256 128 64 32 16 8 4 2 1 1 */
	for (unsigned order = MAX_ORDER; order--; at += 1U << order) {
		arena_free(&arena, f + at, order);
		check();
		ck_assert_uint_eq(arena_free_bytes(&arena), (at + (1U << order)) * PAGE_BYTES);
	}
	arena_free(&arena, f + at, 0);
	fini();
}
END_TEST

START_TEST(counts_of_a_frame_survive_reuse)
{
	struct iomap_folio *f, *again;

	init(1);
	ck_assert_int_eq(arena_alloc(&arena, 0, &f), 0);
	store_relaxed(&f->identity, 42);
	store_relaxed(&f->content, 44);
	arena_free(&arena, f, 0);
	ck_assert_int_eq(arena_alloc(&arena, 0, &again), 0);
	ck_assert_ptr_eq(again, f);
	ck_assert_uint_eq(load_relaxed(&f->identity), 42);
	ck_assert_uint_eq(load_relaxed(&f->content), 44);
	arena_free(&arena, f, 0);
	fini();
}
END_TEST

START_TEST(checker_sees_what_is_broken)
{
	struct iomap_folio *f;
	char why[200];

	init(8);
	ck_assert_int_eq(arena_alloc(&arena, 0, &f), 0);
	uint32_t n = frame_number(&arena, f), buddy = n ^ 1;
	check();
#define BROKEN() ck_assert_int_eq(arena_check(&arena, why, sizeof(why)), -EUCLEAN)
	arena.free_order[n] = 0;                /* not joined */
	BROKEN();
	arena.free_order[n] = 1;                /* overlaps */
	BROKEN();
	arena.free_order[n] = MAX_ORDER + 1;
	BROKEN();
	arena.free_order[n] = FRAME_NOT_FREE;
	arena.free_order[buddy] = FRAME_NOT_FREE;
	BROKEN();
	arena.free_order[buddy] = 1;
	BROKEN();
	arena.free_order[buddy] = 0;
	store_relaxed(&arena.frames[buddy].refs, 1);
	BROKEN();
	store_relaxed(&arena.frames[buddy].refs, 0);
	arena.frames[buddy].next = buddy;
	BROKEN();
	arena.frames[buddy].next = FRAME_NONE;
	arena.frames[buddy].prev = 0;
	BROKEN();
	arena.frames[buddy].prev = FRAME_NONE;
	arena.free_list[3] = 0;
	BROKEN();
	arena.free_list[3] = FRAME_NONE;
	store_relaxed(&arena.free_frames, 6);
	BROKEN();
	store_relaxed(&arena.free_frames, 7);
	arena_free(&arena, f, 0);
	fini();
}
END_TEST

START_TEST(free_frames_are_poisoned)
{
#ifdef ASAN
	struct iomap_folio *f;

	init(4);
	ck_assert_ptr_eq(__asan_region_is_poisoned(arena.base, 1), arena.base);
	ck_assert_int_eq(arena_alloc(&arena, 1, &f), 0);
	char *p = frame_addr(&arena, f);
	ck_assert_ptr_null(__asan_region_is_poisoned(p, 2 * PAGE_BYTES));
	arena_free(&arena, f + 1, 0);
	ck_assert_ptr_null(__asan_region_is_poisoned(p, PAGE_BYTES));
	ck_assert_ptr_eq(__asan_region_is_poisoned(p, 2 * PAGE_BYTES), p + PAGE_BYTES);
	arena_free(&arena, f, 0);
	ck_assert_ptr_eq(__asan_region_is_poisoned(p, 1), p);
	fini();
#else
	t_skip("only with the address sanitizer");
#endif
}
END_TEST

/* --- populating in the background ---------------------------------------------------------------------------------------- */

START_TEST(populating_leaves_memory_in_use_alone)
{
	enum { RUNS = 48 };     /* 96 MiB */
	struct iomap_folio *f[RUNS];

	ck_assert_int_eq(arena_init(&arena, RUNS * (PAGE_BYTES << MAX_ORDER)), 0);
	ck_assert(arena.populating);
	for (unsigned i = 0; i < RUNS; i++) {
		ck_assert_int_eq(arena_alloc(&arena, MAX_ORDER, &f[i]), 0);
		for (uint64_t off = 0; off < PAGE_BYTES << MAX_ORDER; off += PAGE_BYTES)
			*(uint64_t *)((char *)frame_addr(&arena, f[i]) + off) = i + off + 1;
	}
	thread_join(&arena.populate);
	arena.populating = false;
	for (unsigned i = 0; i < RUNS; i++) {
		for (uint64_t off = 0; off < PAGE_BYTES << MAX_ORDER; off += PAGE_BYTES)
			if (*(uint64_t *)((char *)frame_addr(&arena, f[i]) + off) != i + off + 1)
				ck_abort_msg("run %u offset %llu changed", i, (unsigned long long)off);
		arena_free(&arena, f[i], MAX_ORDER);
	}
	fini();
}
END_TEST

START_TEST(arena_can_go_before_it_is_populated)
{
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(arena_init(&arena, UINT64_C(1) << 28), 0);
		ck_assert(arena.populating);
		fini();
	}
}
END_TEST

START_TEST(small_arenas_are_not_populated)
{
	ck_assert_int_eq(arena_init(&arena, UINT64_C(64) << 20), 0);
	ck_assert(!arena.populating);
	fini();
}
END_TEST

/* --- against an owner for each frame -------------------------------------------------------------------------------------- */

#define FRAMES  1000            /* 512 + 256 + 128 + 64 + 32 + 8 */

static uint32_t owner[FRAMES];                  /* the number of the run it belongs to; 0: free */
static struct run { uint32_t first; unsigned order; } runs[FRAMES + 1];
static unsigned nr_runs;

static bool free_run_exists(unsigned order)
{
	for (uint32_t at = 0, size = 1U << order; at + size <= FRAMES; at += size) {
		uint32_t n = 0;

		while (n < size && !owner[at + n])
			n++;
		if (n == size)
			return true;
	}
	return false;
}

static void set_owner(uint32_t first, unsigned order, uint32_t who)
{
	for (uint32_t i = first; i < first + (1U << order); i++)
		owner[i] = who;
}

/* Takes a run of @order: must succeed exactly where there is one. */
static const char *model_alloc(unsigned order, uint32_t who)
{
	bool exists = free_run_exists(order);
	struct iomap_folio *f;
	int ret = arena_alloc(&arena, order, &f);

	if (ret != (exists ? 0 : -ENOMEM))
		return exists ? "a free run was not found" : "a run was handed out that is not free";
	if (ret)
		return NULL;
	uint32_t first = frame_number(&arena, f);
	if (first & ((1U << order) - 1) || first + (1U << order) > FRAMES)
		return "misaligned or out of bounds";
	for (uint32_t i = first; i < first + (1U << order); i++)
		if (owner[i])
			return "a frame was handed out twice";
	set_owner(first, order, who);
	runs[nr_runs++] = (struct run){ first, order };
	return NULL;
}

static void model_free(unsigned i)
{
	arena_free(&arena, arena.frames + runs[i].first, runs[i].order);
	set_owner(runs[i].first, runs[i].order, 0);
	runs[i] = runs[--nr_runs];
}

/* As a folio is split: from now on these are two runs. */
static void model_split(unsigned i, uint32_t who)
{
	if (!runs[i].order)
		return;
	struct run right = { runs[i].first + (1U << (runs[i].order - 1)), --runs[i].order };
	set_owner(right.first, right.order, who);
	runs[nr_runs++] = right;
}

START_TEST(random_operations_agree_with_an_owner_array)
{
	uint64_t state = 77 + (uint64_t)_i;
	uint32_t who = 0;

	init(FRAMES);
	memset(owner, 0, sizeof(owner));
	nr_runs = 0;
	for (unsigned step = 0; step < 20000; step++) {
		bool filling = step / 500 % 2 == 0;     /* in turns: nearly full, nearly empty */
		uint64_t dice = t_random_below(&state, 16);
		const char *broken = NULL;

		if (dice < (filling ? 9U : 4U) || !nr_runs)
			broken = model_alloc((unsigned)t_random_below(&state, 1 + t_random_below(&state, MAX_ORDER + 1)), ++who);
		else if (dice < 14)
			model_free((unsigned)t_random_below(&state, nr_runs));
		else
			model_split((unsigned)t_random_below(&state, nr_runs), ++who);

		char why[200];
		uint64_t free = 0;
		for (uint32_t i = 0; i < FRAMES; i++)
			free += !owner[i];
		if (!broken && arena_free_bytes(&arena) != free * PAGE_BYTES)
			broken = "wrong count of free bytes";
		if (!broken && arena_check(&arena, why, sizeof(why)))
			broken = why;
		if (broken)
			ck_abort_msg("seed %d step %u: %s", 77 + _i, step, broken);
	}
	while (nr_runs)
		model_free(0);
	fini();
}
END_TEST

/* --- threads ----------------------------------------------------------------------------------------------------------- */

struct worker { struct thread thread; uint64_t seed; const char *broken; };

/* Keeps up to HELD runs and writes its own mark into each page: nobody else may change it. */
static void alloc_and_free(void *arg)
{
	enum { HELD = 48, STEPS = 20000 };
	struct worker *w = arg;
	struct iomap_folio *held[HELD] = { NULL };
	uint64_t state = w->seed;

	for (unsigned step = 0; step < STEPS + HELD && !w->broken; step++) {
		unsigned i = (unsigned)(step < STEPS ? t_random_below(&state, HELD) : step - STEPS);

		if (held[i]) {
			unsigned order = load_relaxed(&held[i]->order);

			for (uint64_t off = 0; off < PAGE_BYTES << order; off += PAGE_BYTES)
				if (*(uint64_t *)((char *)frame_addr(&arena, held[i]) + off) != w->seed)
					w->broken = "somebody else wrote here";
			arena_free(&arena, held[i], order);
			held[i] = NULL;
		} else if (step < STEPS && !arena_alloc(&arena, (unsigned)t_random_below(&state, 5), &held[i])) {
			unsigned order = load_relaxed(&held[i]->order);

			for (uint64_t off = 0; off < PAGE_BYTES << order; off += PAGE_BYTES)
				*(uint64_t *)((char *)frame_addr(&arena, held[i]) + off) = w->seed;
		}
	}
}

START_TEST(two_threads_never_get_the_same_frame)
{
	struct worker workers[2] = { { .seed = 1001 }, { .seed = 2002 } };

	init(300);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(thread_create(&workers[i].thread, "alloc", alloc_and_free, &workers[i]), 0);
	for (int i = 0; i < 50; i++)
		check();
	for (int i = 0; i < 2; i++) {
		thread_join(&workers[i].thread);
		if (workers[i].broken)
			ck_abort_msg("%s", workers[i].broken);
	}
	fini();
}
END_TEST

Suite *suite_arena(void)
{
	Suite *s = suite_create("arena");
	TCase *tc = tcase_create("arena");

	tcase_add_test(tc, size_is_rounded_down_to_whole_frames);
	tcase_add_test(tc, impossible_sizes_are_refused);
	tcase_add_loop_test(tc, every_frame_is_handed_out_once, 0, sizeof(sizes) / sizeof(sizes[0]));
	tcase_add_test(tc, runs_are_aligned_and_whole);
	tcase_add_test(tc, parts_of_a_run_come_back_in_any_order);
	tcase_add_test(tc, counts_of_a_frame_survive_reuse);
	tcase_add_test(tc, checker_sees_what_is_broken);
	tcase_add_test(tc, free_frames_are_poisoned);
	tcase_add_test(tc, populating_leaves_memory_in_use_alone);
	tcase_add_test(tc, arena_can_go_before_it_is_populated);
	tcase_add_test(tc, small_arenas_are_not_populated);
	tcase_add_loop_test(tc, random_operations_agree_with_an_owner_array, 0, 4);
	tcase_add_test(tc, two_threads_never_get_the_same_frame);
	suite_add_tcase(s, tc);
	return s;
}
