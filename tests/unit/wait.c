/*
 * wait.c - no wake is lost between a look and a sleep
 */
#include <check.h>
#include <stdlib.h>
#include "atomic.h"
#include "platform.h"
#include "util.h"
#include "wait.h"

Suite *suite_wait(void);

#define LOCKED  (1U << 0)
#define WAITERS (1U << 1)
#define ROUNDS  20000

static struct wait_table table;

static void setup(void) { wait_table_init(&table); }
static void teardown(void) { wait_table_fini(&table); }

/* A lock in one bit, as folios have it. */
struct object { _Alignas(64) _Atomic uint32_t flags; uint64_t counter; };

static bool try_lock(void *arg)
{
	struct object *o = arg;

	return !(or_acquire(&o->flags, LOCKED) & LOCKED);
}

static void lock(struct object *o)
{
	if (!try_lock(o))
		wait_until(&table, o, &o->flags, WAITERS, try_lock, o);
}

static void unlock(struct object *o)
{
	if (and_release(&o->flags, ~LOCKED) & WAITERS)
		wait_wake(&table, o, &o->flags, WAITERS);
}

static bool always(void *arg)
{
	++*(unsigned *)arg;
	return true;
}

START_TEST(what_is_done_already_is_looked_at_once)
{
	struct object o = { 0 };
	unsigned looks = 0;

	wait_until(&table, &o, &o.flags, WAITERS, always, &looks);
	ck_assert_uint_eq(looks, 1);
}
END_TEST

START_TEST(wake_clears_the_waiters_bit_and_no_other)
{
	struct object o = { .flags = WAITERS | 0xf0 };

	wait_wake(&table, &o, &o.flags, WAITERS);
	ck_assert_uint_eq(load_relaxed(&o.flags), 0xf0);
}
END_TEST

#define OBJECTS 3
static struct object objects[OBJECTS];

static void count_under_locks(void *arg)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct object *o = &objects[(i + (unsigned)(uintptr_t)arg) % OBJECTS];

		lock(o);
		o->counter++;
		unlock(o);
	}
}

START_TEST(a_bit_lock_built_on_it_excludes_and_wakes_everybody)
{
	struct thread t[4];
	uint64_t sum = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(t); i++)
		ck_assert_int_eq(thread_create(&t[i], "counter", count_under_locks, (void *)(uintptr_t)i), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(t); i++)
		thread_join(&t[i]);
	for (unsigned i = 0; i < OBJECTS; i++) {
		sum += objects[i].counter;
		ck_assert_uint_eq(load_relaxed(&objects[i].flags) & LOCKED, 0);
	}
	ck_assert_uint_eq(sum, ARRAY_SIZE(t) * ROUNDS);
}
END_TEST

/* The state waited for is another word than the flags. */
static struct { struct object o; _Atomic uint32_t turn; uint64_t data; } game;

static bool is_odd(void *arg)
{
	(void)arg;
	return load_acquire(&game.turn) & 1;
}

static bool is_even(void *arg)
{
	return !is_odd(arg);
}

static void pass_turn(void)
{
	game.data++;
	store_release(&game.turn, load_relaxed(&game.turn) + 1);
	fence_full();
	if (load_relaxed(&game.o.flags) & WAITERS)
		wait_wake(&table, &game.o, &game.o.flags, WAITERS);
}

static void play_odd(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		wait_until(&table, &game.o, &game.o.flags, WAITERS, is_odd, NULL);
		pass_turn();
	}
}

START_TEST(two_threads_pass_a_turn_without_losing_a_wake)
{
	struct thread t;

	ck_assert_int_eq(thread_create(&t, "odd", play_odd, NULL), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		wait_until(&table, &game.o, &game.o.flags, WAITERS, is_even, NULL);
		pass_turn();
	}
	thread_join(&t);
	ck_assert_uint_eq(game.data, 2 * ROUNDS);
}
END_TEST

static void wait_for_unlock(void *arg)
{
	lock(arg);
	unlock(arg);
}

START_TEST(objects_that_share_a_bucket_do_not_swallow_wakes)
{
	struct object *many = aligned_alloc(64, (WAIT_BUCKETS + 1) * sizeof(*many));
	struct thread t[WAIT_BUCKETS + 1];

	ck_assert_ptr_nonnull(many);
	for (unsigned i = 0; i <= WAIT_BUCKETS; i++) {
		many[i] = (struct object){ .flags = LOCKED };
		ck_assert_int_eq(thread_create(&t[i], "waiter", wait_for_unlock, &many[i]), 0);
	}
	for (unsigned i = 0; i <= WAIT_BUCKETS; i++)    /* the bit comes before the sleep: a state to wait for */
		for (unsigned spins = 0; !(load_relaxed(&many[i].flags) & WAITERS); spins++)
			plat_relax(spins);
	for (unsigned i = WAIT_BUCKETS + 1; i-- > 0; ) {
		unlock(&many[i]);
		thread_join(&t[i]);
	}
	free(many);
}
END_TEST

Suite *suite_wait(void)
{
	Suite *s = suite_create("wait");
	TCase *tc = tcase_create("wait");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, what_is_done_already_is_looked_at_once);
	tcase_add_test(tc, wake_clears_the_waiters_bit_and_no_other);
	tcase_add_test(tc, a_bit_lock_built_on_it_excludes_and_wakes_everybody);
	tcase_add_test(tc, two_threads_pass_a_turn_without_losing_a_wake);
	tcase_add_test(tc, objects_that_share_a_bucket_do_not_swallow_wakes);
	return s;
}
