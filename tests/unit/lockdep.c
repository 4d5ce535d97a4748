/*
 * lockdep.c - a wrong order of locks is found at once, a right one never complained about
 */
#define _GNU_SOURCE
#include <check.h>
#include "lockdep.h"

Suite *suite_lockdep(void);

#ifdef IOMAP_DEBUG
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bug.h"
#include "platform.h"

static char complaint[4096];    /* what the child last tried by aborts() printed */

/* Whether fn() ends in abort(). It runs in a forked child. */
static bool aborts(void (*fn)(void))
{
	int pipe_fd[2], status;
	size_t len = 0;
	ssize_t n;

	ck_assert_int_eq(pipe(pipe_fd), 0);
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		const struct rlimit no_core = { 0, 0 };

		setrlimit(RLIMIT_CORE, &no_core);
		dup2(pipe_fd[1], STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		fn();
		_exit(0);
	}
	close(pipe_fd[1]);
	while (len < sizeof(complaint) - 1 && (n = read(pipe_fd[0], complaint + len, sizeof(complaint) - 1 - len)) > 0)
		len += (size_t)n;
	complaint[len] = '\0';
	close(pipe_fd[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void take_lower_under_higher(void)
{
	lockdep_acquire(LOCK_TREE, "tree", 0, false);
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
}

START_TEST(a_lower_rank_under_a_higher_one_aborts_naming_both)
{
	ck_assert(aborts(take_lower_under_higher));
	ck_assert_ptr_nonnull(strstr(complaint, "taking inode (rank 10"));
	ck_assert_ptr_nonnull(strstr(complaint, "holding tree (rank 50"));
}
END_TEST

static void take_two_mutexes_of_one_rank(void)
{
	struct mutex a, b;

	mutex_init(&a, LOCK_LEAF);
	mutex_init(&b, LOCK_LEAF);
	mutex_lock(&a);
	mutex_lock(&b);
}

static void take_rwsem_twice_shared(void)
{
	struct rwsem s;

	rwsem_init(&s, LOCK_INODE);
	rwsem_lock_shared(&s);
	rwsem_lock_shared(&s);
}

START_TEST(two_locks_of_one_rank_abort)
{
	ck_assert(aborts(take_two_mutexes_of_one_rank));
	ck_assert(aborts(take_rwsem_twice_shared));
}
END_TEST

static void take_folios_ascending(void)
{
	lockdep_acquire(LOCK_FOLIO, "a", 7, false);
	lockdep_acquire(LOCK_FOLIO, "b", 8, false);
	lockdep_acquire(LOCK_FOLIO, "c", UINT64_MAX, false);
}

static void take_folios_descending(void)
{
	lockdep_acquire(LOCK_FOLIO, "a", 8, false);
	lockdep_acquire(LOCK_FOLIO, "b", 7, false);
}

static void take_folios_of_one_index(void)
{
	lockdep_acquire(LOCK_FOLIO, "a", 8, false);
	lockdep_acquire(LOCK_FOLIO, "b", 8, false);
}

START_TEST(folio_locks_nest_in_ascending_order_only)
{
	ck_assert(!aborts(take_folios_ascending));
	ck_assert(aborts(take_folios_descending));
	ck_assert(aborts(take_folios_of_one_index));
}
END_TEST

static void take_lower_under_trylocked(void)
{
	lockdep_acquire(LOCK_TREE, "tree", 0, true);
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
}

START_TEST(a_trylock_may_break_the_order_but_counts_for_what_follows)
{
	lockdep_acquire(LOCK_TREE, "tree", 0, false);
	lockdep_acquire(LOCK_FOLIO, "folio", 3, true);
	lockdep_assert_held("folio");
	lockdep_release("folio");
	lockdep_release("tree");
	lockdep_assert_none_held();
	ck_assert(aborts(take_lower_under_trylocked));
}
END_TEST

START_TEST(locks_may_be_released_in_any_order)
{
	lockdep_acquire(LOCK_APPEND, "a", 0, false);
	lockdep_acquire(LOCK_INODE, "b", 0, false);
	lockdep_acquire(LOCK_TREE, "c", 0, false);
	lockdep_release("b");
	lockdep_assert_held("a");
	lockdep_assert_held("c");
	lockdep_release("a");
	lockdep_assert_held("c");
	lockdep_release("c");
	lockdep_assert_none_held();
}
END_TEST

static void release_unheld(void) { lockdep_release("nothing"); }
static void forget_unheld(void) { lockdep_forget("nothing"); }
static void assert_unheld(void) { lockdep_assert_held("nothing"); }
static void assert_none_with_one(void)
{
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
	lockdep_assert_none_held();
}

START_TEST(claims_about_held_locks_are_checked)
{
	ck_assert(aborts(release_unheld));
	ck_assert(aborts(forget_unheld));
	ck_assert(aborts(assert_unheld));
	ck_assert(aborts(assert_none_with_one));
}
END_TEST

START_TEST(a_forgotten_lock_is_held_no_more_and_can_be_adopted)
{
	lockdep_acquire(LOCK_FOLIO, "folio", 3, false);
	lockdep_forget("folio");
	lockdep_assert_none_held();
	lockdep_acquire(LOCK_FOLIO, "folio", 3, true);
	lockdep_release("folio");
	lockdep_assert_none_held();
}
END_TEST

static void sleep_under_short(void)
{
	lockdep_acquire(LOCK_TREE, "tree", 0, false);
	might_sleep();
}

static void sleep_under_long(void)
{
	lockdep_acquire(LOCK_FLUSH, "flush", 0, false);
	might_sleep();
}

static void wait_under_another_short(void)
{
	struct mutex tree, leaf;
	struct cond c;

	mutex_init(&tree, LOCK_TREE);
	mutex_init(&leaf, LOCK_LEAF);
	cond_init(&c);
	mutex_lock(&tree);
	mutex_lock(&leaf);
	cond_wait_until(&c, &leaf, 1);
}

START_TEST(sleeping_under_a_short_lock_aborts)
{
	ck_assert(aborts(sleep_under_short));
	ck_assert(!aborts(sleep_under_long));
	ck_assert(aborts(wait_under_another_short));
}
END_TEST

static void unlock_twice(void)
{
	struct mutex m;

	mutex_init(&m, LOCK_LEAF);
	mutex_lock(&m);
	mutex_unlock(&m);
	mutex_unlock(&m);
}

START_TEST(unlocking_a_mutex_that_is_not_held_aborts)
{
	ck_assert(aborts(unlock_twice));
}
END_TEST

static void hold_in_thread(void *arg)
{
	lockdep_assert_none_held();
	lockdep_acquire(LOCK_INODE, arg, 0, false);
	lockdep_release(arg);
}

START_TEST(each_thread_has_its_own_list)
{
	struct thread t;

	lockdep_acquire(LOCK_APPEND, "append", 0, false);
	ck_assert_int_eq(thread_create(&t, "holder", hold_in_thread, t.name), 0);
	thread_join(&t);
	lockdep_release("append");
}
END_TEST

static void lower_under_one_taken_in_the_callback(void)
{
	unsigned outer;

	lockdep_acquire(LOCK_EXTEND, "outer extend", 0, false);
	outer = lockdep_callback_begin();
	lockdep_acquire(LOCK_EXTEND, "extend", 0, false);
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
	lockdep_callback_end(outer);
}

static void lower_after_the_callback(void)
{
	lockdep_acquire(LOCK_EXTEND, "extend", 0, false);
	lockdep_callback_end(lockdep_callback_begin());
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
}

static void the_same_lock_in_the_callback(void)
{
	lockdep_acquire(LOCK_EXTEND, "extend", 0, false);
	lockdep_callback_begin();
	lockdep_acquire(LOCK_EXTEND, "extend", 0, false);
}

static void under_a_short_lock_in_the_callback(void)
{
	lockdep_acquire(LOCK_TREE, "tree", 0, false);
	lockdep_callback_begin();
	lockdep_acquire(LOCK_INODE, "inode", 0, false);
}

START_TEST(a_callback_begins_anew_but_for_short_locks)
{
	unsigned first, second;

	lockdep_acquire(LOCK_EXTEND, "extend", 0, false);
	lockdep_acquire(LOCK_FLUSH, "flush", 0, false);
	first = lockdep_callback_begin();
	lockdep_acquire(LOCK_INODE, "other inode", 0, false);
	second = lockdep_callback_begin();
	lockdep_acquire(LOCK_APPEND, "third append", 0, false);
	lockdep_release("third append");
	lockdep_callback_end(second);
	lockdep_release("flush");               /* as a completion may */
	lockdep_acquire(LOCK_EXTEND, "other extend", 0, false);
	lockdep_release("other extend");
	lockdep_release("other inode");
	lockdep_callback_end(first);
	lockdep_assert_held("extend");
	lockdep_release("extend");
	lockdep_assert_none_held();
	ck_assert(aborts(lower_under_one_taken_in_the_callback));
	ck_assert_ptr_nonnull(strstr(complaint, "holding extend"));
	ck_assert(aborts(lower_after_the_callback));
	ck_assert(aborts(the_same_lock_in_the_callback));
	ck_assert(aborts(under_a_short_lock_in_the_callback));
}
END_TEST

static int one = 1;
static void bug(void) { IOMAP_BUG_ON(one == 1); }

START_TEST(a_bug_prints_its_condition_and_place)
{
	ck_assert(aborts(bug));
	ck_assert_ptr_nonnull(strstr(complaint, "one == 1"));
	ck_assert_ptr_nonnull(strstr(complaint, "lockdep.c:"));
}
END_TEST
#endif

Suite *suite_lockdep(void)
{
	Suite *s = suite_create("lockdep");
	TCase *tc = tcase_create("lockdep");

	suite_add_tcase(s, tc);
#ifdef IOMAP_DEBUG
	tcase_add_test(tc, a_lower_rank_under_a_higher_one_aborts_naming_both);
	tcase_add_test(tc, two_locks_of_one_rank_abort);
	tcase_add_test(tc, folio_locks_nest_in_ascending_order_only);
	tcase_add_test(tc, a_trylock_may_break_the_order_but_counts_for_what_follows);
	tcase_add_test(tc, locks_may_be_released_in_any_order);
	tcase_add_test(tc, claims_about_held_locks_are_checked);
	tcase_add_test(tc, a_forgotten_lock_is_held_no_more_and_can_be_adopted);
	tcase_add_test(tc, sleeping_under_a_short_lock_aborts);
	tcase_add_test(tc, unlocking_a_mutex_that_is_not_held_aborts);
	tcase_add_test(tc, each_thread_has_its_own_list);
	tcase_add_test(tc, a_callback_begins_anew_but_for_short_locks);
	tcase_add_test(tc, a_bug_prints_its_condition_and_place);
#endif
	return s;
}
