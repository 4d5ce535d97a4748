/*
 * folio.c - references, the lock and who gets it next, sequence counts
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "folio.h"
#include "platform.h"
#include "test.h"

Suite *suite_folio(void);

#define MEMORY (UINT64_C(8) << 20)

static struct zone zone;

static void setup(void)
{
	mem_init_malloc(&zone.mem);
	ck_assert_int_eq(arena_init(&zone.arena, MEMORY), 0);
	wait_table_init(&zone.waits);
}

static void teardown(void)
{
	ck_assert_uint_eq(arena_free_bytes(&zone.arena), MEMORY);
	arena_fini(&zone.arena);
	wait_table_fini(&zone.waits);
}

static struct iomap_folio *make(unsigned order)
{
	struct iomap_folio *f;

	ck_assert_int_eq(folio_alloc(&zone, order, &f), 0);
	return f;
}

static void unmake(struct iomap_folio *f)
{
	folio_unlock(&zone, f);
	folio_put(&zone, f);
}

START_TEST(new_folio_is_locked_and_nobody_elses)
{
	for (unsigned order = 0; order <= MAX_ORDER; order++) {
		struct iomap_folio *f = make(order);

		ck_assert(folio_is_locked(f));
		ck_assert(!folio_trylock(f));
		ck_assert_uint_eq(load_relaxed(&f->refs), 1);
		ck_assert_ptr_null(folio_mapping(f));
		ck_assert_uint_eq(folio_flags(f), FOLIO_LOCKED);
		ck_assert_uint_eq(folio_bytes(f), PAGE_BYTES << order);
		ck_assert_uint_eq((uintptr_t)folio_addr(&zone, f) % PAGE_BYTES, 0);
		memset(folio_addr(&zone, f), 1, folio_bytes(f));
		unmake(f);
	}
}
END_TEST

START_TEST(last_reference_frees_and_none_comes_back_from_the_dead)
{
	struct iomap_folio *f = make(3);

	ck_assert(folio_tryget(f));
	folio_get(f);
	folio_unlock(&zone, f);
	folio_put(&zone, f);
	folio_put(&zone, f);
	ck_assert_uint_eq(arena_free_bytes(&zone.arena), MEMORY - folio_bytes(f));
	folio_put(&zone, f);
	ck_assert_uint_eq(arena_free_bytes(&zone.arena), MEMORY);
	ck_assert(!folio_tryget(f));
}
END_TEST

START_TEST(memory_runs_out_with_an_error)
{
	struct iomap_folio *f[4], *none = NULL;

	for (unsigned i = 0; i < 4; i++)
		f[i] = make(MAX_ORDER);
	ck_assert_int_eq(folio_alloc(&zone, 0, &none), -ENOMEM);
	for (unsigned i = 0; i < 4; i++)
		unmake(f[i]);
}
END_TEST

/* --- counts that never go back -------------------------------------------------------------------------- */

START_TEST(identity_is_odd_while_it_changes_and_only_grows)
{
	struct iomap_folio *f = make(0), *again;
	uint32_t was = folio_identity(f);

	ck_assert(!(was & 1));
	folio_identity_begin(f);
	ck_assert_uint_eq(folio_identity(f), was + 1);
	folio_identity_end(f);
	ck_assert_uint_eq(folio_identity(f), was + 2);
	unmake(f);
	/* A reader may hold a stale pointer: over free and reuse too. */
	for (unsigned i = 0; i < 10; i++) {
		again = make(0);
		if (again == f)
			ck_assert_uint_ge(folio_identity(f), was + 2);
		unmake(again);
	}
}
END_TEST

START_TEST(content_counts_are_those_of_the_64_kib_touched)
{
	static const struct { uint64_t off, len; unsigned first, last; } cases[] = {
		{ 0, 1, 0, 0 }, { 65535, 1, 0, 0 }, { 65535, 2, 0, 1 }, { 65536, 65536, 1, 1 }, { 65536, 65537, 1, 2 },
		{ 0, 524288, 0, 7 }, { 524287, 1, 7, 7 }, { 131072 - 1, 196610, 1, 5 },
	};
	struct iomap_folio *f = make(7);        /* 512 KiB: eight of them */
	uint32_t was[8];

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		for (unsigned s = 0; s < 8; s++) {
			ck_assert_ptr_eq(folio_segment(f, s * 65536 + 12345), f + s * 16);
			was[s] = load_relaxed(&(f + s * 16)->content);
			ck_assert(!(was[s] & 1));
		}
		folio_content_begin(f, cases[i].off, cases[i].len);
		for (unsigned s = 0; s < 8; s++)
			ck_assert_uint_eq(load_relaxed(&(f + s * 16)->content) - was[s],
					  s >= cases[i].first && s <= cases[i].last);
		folio_content_end(f, cases[i].off, cases[i].len);
		for (unsigned s = 0; s < 8; s++)
			ck_assert_uint_eq(load_relaxed(&(f + s * 16)->content) - was[s],
					  2 * (s >= cases[i].first && s <= cases[i].last));
	}
	unmake(f);
}
END_TEST

START_TEST(stable_requests_are_counted)
{
	struct iomap_folio *f = make(0);

	ck_assert(!folio_has_stable_io(f));
	add_relaxed(&f->stable, 2);
	ck_assert(folio_has_stable_io(f));
	sub_acq_rel(&f->stable, 1);
	ck_assert(folio_has_stable_io(f));
	sub_acq_rel(&f->stable, 1);
	ck_assert(!folio_has_stable_io(f));
	unmake(f);
}
END_TEST

START_TEST(description_names_what_is_set_and_fits)
{
	struct iomap_folio *f = make(2);
	char text[200], little[12];

	folio_flags_set(f, FOLIO_DIRTY | FOLIO_READAHEAD);
	folio_describe(f, text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "order 2"));
	ck_assert_ptr_nonnull(strstr(text, "locked"));
	ck_assert_ptr_nonnull(strstr(text, "dirty"));
	ck_assert_ptr_nonnull(strstr(text, "readahead"));
	ck_assert_ptr_null(strstr(text, "uptodate"));
	memset(little, 'x', sizeof(little));
	folio_describe(f, little, sizeof(little));
	ck_assert_ptr_nonnull(memchr(little, 0, sizeof(little)));
	folio_flags_clear(f, FOLIO_DIRTY | FOLIO_READAHEAD);
	unmake(f);
}
END_TEST

/* --- between threads ------------------------------------------------------------------------------------ */

enum { THREADS = 4, ROUNDS = 3000 };

static struct iomap_folio *shared;
static uint64_t plain;                  /* under the folio lock */
static uint64_t plain_too;              /* under the state lock */

static void take_turns(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (i % 5 || !folio_trylock(shared))
			folio_lock(&zone, shared);
		plain++;
		folio_unlock(&zone, shared);
		folio_state_lock(shared);
		plain_too++;
		folio_state_unlock(shared);
	}
}

START_TEST(locks_exclude_and_nobody_is_forgotten)
{
	struct thread t[THREADS];

	shared = make(0);
	for (unsigned i = 0; i < THREADS; i++)
		ck_assert_int_eq(thread_create(&t[i], "lock", take_turns, NULL), 0);
	folio_unlock(&zone, shared);
	for (unsigned i = 0; i < THREADS; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(plain, THREADS * ROUNDS);
	ck_assert_uint_eq(plain_too, THREADS * ROUNDS);
	ck_assert_uint_eq(folio_flags(shared) & FOLIO_LOCKED, 0);
	folio_put(&zone, shared);
}
END_TEST

static _Atomic unsigned passed;

static void wait_for_lock(void *arg)
{
	(void)arg;
	folio_lock(&zone, shared);
	add_relaxed(&passed, 1);
	folio_unlock(&zone, shared);
}

static void wait_for_unlock(void *arg)
{
	(void)arg;
	folio_wait_unlocked(&zone, shared);
	add_relaxed(&passed, 1);
}

static void wait_for_writeback(void *arg)
{
	(void)arg;
	folio_wait_writeback(&zone, shared);
	add_relaxed(&passed, 1);
}

/* A sleeper leaves FOLIO_WAITERS behind before it sleeps: a state to wait for. */
static void until_somebody_waits(void)
{
	for (unsigned spins = 0; !(folio_flags(shared) & FOLIO_WAITERS); spins++)
		plat_relax(spins);
}

START_TEST(lock_passes_to_an_io_and_back_to_who_waits)
{
	struct thread t[3];

	shared = make(4);
	lockdep_forget(shared);         /* a read's from here on */
	ck_assert_int_eq(thread_create(&t[0], "lock", wait_for_lock, NULL), 0);
	ck_assert_int_eq(thread_create(&t[1], "unlocked", wait_for_unlock, NULL), 0);
	ck_assert_int_eq(thread_create(&t[2], "lock", wait_for_lock, NULL), 0);
	until_somebody_waits();
	ck_assert_uint_eq(load_relaxed(&passed), 0);
	folio_unlock_by_io(&zone, shared);
	for (unsigned i = 0; i < 3; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(load_relaxed(&passed), 3);
	ck_assert(!folio_is_locked(shared));
	folio_put(&zone, shared);
}
END_TEST

START_TEST(end_of_writeback_wakes_who_waits_for_it)
{
	struct thread t[2];

	shared = make(0);
	folio_wait_writeback(&zone, shared);            /* nothing in flight: nothing to wait for */
	folio_flags_set(shared, FOLIO_WRITEBACK);
	folio_unlock(&zone, shared);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(thread_create(&t[i], "writeback", wait_for_writeback, NULL), 0);
	until_somebody_waits();
	ck_assert_uint_eq(load_relaxed(&passed), 0);
	folio_flags_clear(shared, FOLIO_WRITEBACK);
	folio_wake(&zone, shared);
	for (unsigned i = 0; i < 2; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(load_relaxed(&passed), 2);
	folio_put(&zone, shared);
}
END_TEST

/*
 * One write after the other: each new one is put in flight under the folio lock before the last one's end is noticed.
 * The waiter gets through because at last it takes that lock.
 */
static void keep_busy(void *arg)
{
	(void)arg;
	while (!load_relaxed(&passed)) {
		folio_lock(&zone, shared);
		folio_flags_set(shared, FOLIO_WRITEBACK);
		folio_unlock(&zone, shared);
		folio_wake(&zone, shared);
		folio_flags_clear(shared, FOLIO_WRITEBACK);
		folio_wake(&zone, shared);
	}
}

START_TEST(stream_of_writes_does_not_hold_a_waiter_for_ever)
{
	struct thread t;

	shared = make(0);
	folio_unlock(&zone, shared);
	for (unsigned i = 0; i < 100; i++) {
		store_relaxed(&passed, 0);
		ck_assert_int_eq(thread_create(&t, "busy", keep_busy, NULL), 0);
		for (unsigned k = 0; k < 20; k++)
			folio_wait_writeback(&zone, shared);
		store_relaxed(&passed, 1);
		thread_join(&t);
	}
	folio_put(&zone, shared);
}
END_TEST

/* What readers without a lock do: a copy between two equal, even counts has no bytes of two writers in it. */
static _Atomic bool over;
static _Atomic unsigned torn, believed;

static void read_without_lock(void *arg)
{
	char buf[4096];

	(void)arg;
	while (!load_relaxed(&over)) {
		uint32_t content = load_acquire(&shared->content);

		if (content & 1)
			continue;
		seq_copy(buf, folio_addr(&zone, shared) + 8192, sizeof(buf));
		fence_acquire();
		if (load_relaxed(&shared->content) != content)
			continue;
		add_relaxed(&believed, 1);
		for (unsigned i = 1; i < sizeof(buf); i++) {
			if (buf[i] != buf[0]) {
				add_relaxed(&torn, 1);
				break;
			}
		}
	}
}

START_TEST(copy_between_equal_counts_is_whole)
{
	struct thread t[2];

	shared = make(2);
	memset(folio_addr(&zone, shared), 0, folio_bytes(shared));
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(thread_create(&t[i], "reader", read_without_lock, NULL), 0);
	for (unsigned i = 0; i < 3000 || !load_relaxed(&believed); i++) {
		folio_content_begin(shared, 8192, 4096);
		memset(folio_addr(&zone, shared) + 8192, (int)i, 4096);
		folio_content_end(shared, 8192, 4096);
		plat_relax(i % 64);
	}
	store_relaxed(&over, true);
	for (unsigned i = 0; i < 2; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(load_relaxed(&torn), 0);
	unmake(shared);
}
END_TEST

Suite *suite_folio(void)
{
	Suite *s = suite_create("folio");
	TCase *tc = tcase_create("folio");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, new_folio_is_locked_and_nobody_elses);
	tcase_add_test(tc, last_reference_frees_and_none_comes_back_from_the_dead);
	tcase_add_test(tc, memory_runs_out_with_an_error);
	tcase_add_test(tc, identity_is_odd_while_it_changes_and_only_grows);
	tcase_add_test(tc, content_counts_are_those_of_the_64_kib_touched);
	tcase_add_test(tc, stable_requests_are_counted);
	tcase_add_test(tc, description_names_what_is_set_and_fits);
	tcase_add_test(tc, locks_exclude_and_nobody_is_forgotten);
	tcase_add_test(tc, lock_passes_to_an_io_and_back_to_who_waits);
	tcase_add_test(tc, end_of_writeback_wakes_who_waits_for_it);
	tcase_add_test(tc, stream_of_writes_does_not_hold_a_waiter_for_ever);
	tcase_add_test(tc, copy_between_equal_counts_is_whole);
	return s;
}
