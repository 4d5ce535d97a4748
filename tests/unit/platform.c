/*
 * platform.c - what the rest of the library relies on the operating system for
 */
#define _GNU_SOURCE
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "atomic.h"
#include "platform.h"
#include "rcu.h"
#include "util.h"

Suite *suite_platform(void);

/* --- locks and threads ---------------------------------------------------------------------------------- */

#define ROUNDS 20000

static struct mutex mutex;
static struct rwsem rwsem;
static struct cond cond;
static uint64_t guarded;

static void count_under_mutex(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		mutex_lock(&mutex);
		guarded++;
		mutex_unlock(&mutex);
	}
}

START_TEST(two_threads_never_hold_the_mutex)
{
	struct thread t[2];

	mutex_init(&mutex, LOCK_LEAF);
	for (unsigned i = 0; i < 2; i++)
		ck_assert_int_eq(thread_create(&t[i], "counter", count_under_mutex, NULL), 0);
	for (unsigned i = 0; i < 2; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(guarded, 2 * ROUNDS);
	mutex_fini(&mutex);
}
END_TEST

static void try_everything(void *arg)
{
	bool *got = arg;

	got[0] = mutex_trylock(&mutex);
	got[1] = rwsem_trylock_shared(&rwsem);
	if (got[1])
		rwsem_unlock_shared(&rwsem);
	got[2] = rwsem_trylock(&rwsem);
}

START_TEST(a_trylock_gets_only_what_is_free)
{
	struct thread t;
	bool got[3];

	mutex_init(&mutex, LOCK_APPEND);
	rwsem_init(&rwsem, LOCK_INODE);
	ck_assert(rwsem_trylock(&rwsem));
	ck_assert(mutex_trylock(&mutex));
	ck_assert_int_eq(thread_create(&t, "try", try_everything, got), 0);
	thread_join(&t);
	ck_assert(!got[0] && !got[1] && !got[2]);
	rwsem_unlock(&rwsem);
	ck_assert(rwsem_trylock_shared(&rwsem));
	ck_assert_int_eq(thread_create(&t, "try", try_everything, got), 0);
	thread_join(&t);
	ck_assert(!got[0] && got[1] && !got[2]);
	rwsem_unlock_shared(&rwsem);
	mutex_unlock(&mutex);
	mutex_fini(&mutex);
	rwsem_fini(&rwsem);
}
END_TEST

static void count_under_rwsem(void *arg)
{
	uint64_t *seen = arg;

	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		rwsem_lock(&rwsem);
		guarded++;
		rwsem_unlock(&rwsem);
		rwsem_lock_shared(&rwsem);
		*seen = guarded;
		rwsem_unlock_shared(&rwsem);
	}
}

START_TEST(an_exclusive_holder_is_alone)
{
	struct thread t[3];
	uint64_t seen[3];

	rwsem_init(&rwsem, LOCK_INODE);
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(thread_create(&t[i], "counter", count_under_rwsem, &seen[i]), 0);
	for (unsigned i = 0; i < 3; i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(guarded, 3 * (ROUNDS / 10));
	rwsem_fini(&rwsem);
}
END_TEST

static void write_once(void *arg)
{
	(void)arg;
	rwsem_lock(&rwsem);
	guarded = 1;
	rwsem_unlock(&rwsem);
}

START_TEST(a_waiting_writer_goes_before_new_readers)
{
	struct thread t;

	rwsem_init(&rwsem, LOCK_INODE);
	rwsem_lock_shared(&rwsem);
	ck_assert_int_eq(thread_create(&t, "writer", write_once, NULL), 0);
	for (unsigned spins = 0; rwsem_trylock_shared(&rwsem); spins++) {       /* until the writer waits */
		rwsem_unlock_shared(&rwsem);
		plat_relax(spins);
	}
	ck_assert_uint_eq(guarded, 0);
	rwsem_unlock_shared(&rwsem);
	rwsem_lock_shared(&rwsem);
	ck_assert_uint_eq(guarded, 1);
	rwsem_unlock_shared(&rwsem);
	thread_join(&t);
	rwsem_fini(&rwsem);
}
END_TEST

static void answer(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		mutex_lock(&mutex);
		while (guarded % 2 == 0)
			cond_wait(&cond, &mutex);
		guarded++;
		cond_signal(&cond);
		mutex_unlock(&mutex);
	}
}

START_TEST(a_signal_reaches_the_waiter)
{
	struct thread t;

	mutex_init(&mutex, LOCK_LEAF);
	cond_init(&cond);
	ck_assert_int_eq(thread_create(&t, "answer", answer, NULL), 0);
	for (unsigned i = 0; i < ROUNDS / 10; i++) {
		mutex_lock(&mutex);
		guarded++;
		cond_broadcast(&cond);
		while (guarded % 2)
			cond_wait_until(&cond, &mutex, UINT64_MAX);
		mutex_unlock(&mutex);
	}
	thread_join(&t);
	cond_fini(&cond);
	mutex_fini(&mutex);
}
END_TEST

START_TEST(a_wait_ends_when_its_time_has_passed)
{
	mutex_init(&mutex, LOCK_LEAF);
	cond_init(&cond);
	mutex_lock(&mutex);
	ck_assert(!cond_wait_until(&cond, &mutex, 0));
	uint64_t when = plat_now_ns() + NS_PER_MS;

	while (cond_wait_until(&cond, &mutex, when))    /* nobody signals, but early is allowed */
		;
	ck_assert_uint_ge(plat_now_ns(), when);
	mutex_unlock(&mutex);
	cond_fini(&cond);
	mutex_fini(&mutex);
}
END_TEST

struct self { sigset_t blocked; char name[16]; };

static void look_at_self(void *arg)
{
	struct self *self = arg;

	pthread_sigmask(SIG_SETMASK, NULL, &self->blocked);
	pthread_getname_np(pthread_self(), self->name, sizeof(self->name));
}

START_TEST(a_thread_blocks_every_signal_and_carries_its_name)
{
	struct thread t;
	struct self self;
	sigset_t mine;

	ck_assert_int_eq(thread_create(&t, "a-name-that-is-too-long", look_at_self, &self), 0);
	thread_join(&t);
	ck_assert_str_eq(self.name, "a-name-that-is-");
	ck_assert_int_eq(sigismember(&self.blocked, SIGINT), 1);
	ck_assert_int_eq(sigismember(&self.blocked, SIGALRM), 1);
	ck_assert_int_eq(sigismember(&self.blocked, SIGRTMAX), 1);
	pthread_sigmask(SIG_SETMASK, NULL, &mine);
	ck_assert_int_eq(sigismember(&mine, SIGINT), 0);
}
END_TEST

START_TEST(there_is_at_least_one_processor)
{
	ck_assert_uint_ge(plat_cpus(), 1);
}
END_TEST

/* --- per-thread storage --------------------------------------------------------------------------------- */

/* Stands for a cache: alive until tls_fini() has returned, and no longer. */
struct owner { struct tls_key key; unsigned handed_back; };
struct value { struct owner *owner; bool handed_back; };

static void hand_back(void *owner, void *value)
{
	struct owner *o = owner;
	struct value *v = value;

	o->handed_back++;
	v->handed_back = true;
}

static void set_and_exit(void *arg)
{
	struct value *v = arg;

	if (tls_get(&v->owner->key) || tls_set(&v->owner->key, v) || tls_get(&v->owner->key) != v)
		abort();
}

START_TEST(a_threads_exit_hands_its_value_to_the_owner_once)
{
	struct owner o = { 0 };
	struct value v = { .owner = &o };
	struct thread t;

	tls_init(&o.key, hand_back, &o);
	ck_assert_int_eq(thread_create(&t, "setter", set_and_exit, &v), 0);
	thread_join(&t);
	ck_assert_uint_eq(o.handed_back, 1);
	ck_assert(v.handed_back);
	ck_assert_ptr_null(tls_get(&o.key));
	tls_fini(&o.key);
	ck_assert_uint_eq(o.handed_back, 1);
}
END_TEST

static _Atomic uint32_t nr_set, may_exit;

static void set_and_race_to_exit(void *arg)
{
	set_and_exit(arg);
	add_acq_rel(&nr_set, 1);
	for (unsigned spins = 0; !load_acquire(&may_exit); spins++)
		plat_relax(spins);
}

START_TEST(after_tls_fini_no_exit_sees_the_owner)
{
	for (unsigned round = 0; round < 300; round++) {
		struct owner *o = calloc(1, sizeof(*o));
		struct value v[4];
		struct thread t[4];

		ck_assert_ptr_nonnull(o);
		tls_init(&o->key, hand_back, o);
		store_relaxed(&nr_set, 0);
		store_relaxed(&may_exit, 0);
		for (unsigned i = 0; i < ARRAY_SIZE(t); i++) {
			v[i] = (struct value){ .owner = o };
			ck_assert_int_eq(thread_create(&t[i], "racer", set_and_race_to_exit, &v[i]), 0);
		}
		for (unsigned spins = 0; load_acquire(&nr_set) < ARRAY_SIZE(t); spins++)
			plat_relax(spins);
		store_release(&may_exit, 1);
		for (unsigned spins = 0; spins < round % 16; spins++)
			plat_relax(UINT32_MAX);
		tls_fini(&o->key);
		unsigned handed_back = o->handed_back;

		memset(o, 0xff, sizeof(*o));
		free(o);
		for (unsigned i = 0; i < ARRAY_SIZE(t); i++) {
			thread_join(&t[i]);
			handed_back -= v[i].handed_back;
		}
		ck_assert_uint_eq(handed_back, 0);      /* each value went to the owner before tls_fini() or not at all */
	}
}
END_TEST

START_TEST(keys_do_not_see_each_others_values)
{
	struct owner o[5] = { 0 };
	struct value v[5];

	for (unsigned i = 0; i < 5; i++) {
		tls_init(&o[i].key, hand_back, &o[i]);
		ck_assert_ptr_null(tls_get(&o[i].key));
		ck_assert_int_eq(tls_set(&o[i].key, &v[i]), 0);
	}
	for (unsigned k = 0; k < 20; k++)
		ck_assert_ptr_eq(tls_get(&o[k * 3 % 5].key), &v[k * 3 % 5]);
	ck_assert_int_eq(tls_set(&o[2].key, NULL), 0);
	ck_assert_ptr_null(tls_get(&o[2].key));
	ck_assert_ptr_eq(tls_get(&o[1].key), &v[1]);
	for (unsigned i = 0; i < 5; i++)
		tls_fini(&o[i].key);
}
END_TEST

START_TEST(a_new_key_in_the_same_place_never_sees_an_old_keys_value)
{
	struct owner o = { 0 };
	struct value v;

	for (unsigned round = 0; round < 10; round++) {
		tls_init(&o.key, hand_back, &o);
		ck_assert_ptr_null(tls_get(&o.key));
		ck_assert_int_eq(tls_set(&o.key, &v), 0);
		tls_fini(&o.key);
	}
	ck_assert_uint_eq(o.handed_back, 0);
}
END_TEST

START_TEST(a_thread_that_outlives_many_keys_does_not_grow)
{
	size_t before = 0;

	for (unsigned round = 0; round < 10000; round++) {
		struct owner o = { 0 };
		struct value v;

		tls_init(&o.key, hand_back, &o);
		ck_assert_int_eq(tls_set(&o.key, &v), 0);
		tls_fini(&o.key);
		if (round == 100)
			before = mallinfo2().uordblks;
	}
	ck_assert_uint_le(mallinfo2().uordblks, before + 4096);
}
END_TEST

/* --- time, chance, fork --------------------------------------------------------------------------------- */

START_TEST(the_clock_is_never_zero_nor_goes_back)
{
	uint64_t last = 1;

	for (unsigned i = 0; i < 1000; i++) {
		uint64_t now = plat_now_ns();

		ck_assert_uint_ge(now, last);
		last = now;
	}
	plat_sleep_ns(1000);
	ck_assert_uint_ge(plat_now_ns(), last + 1000);
}
END_TEST

START_TEST(random_numbers_differ)
{
	uint64_t a = plat_random64(), b = plat_random64(), c = plat_random64();

	ck_assert(a != b && b != c && a != c);
}
END_TEST

/* The exit status of fn(arg) in a forked child, -1 if it did not exit. */
static int in_child(int (*fn)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0)
		_exit(fn(arg));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int read_word(void *arg)
{
	return (int)*(const volatile uint32_t *)arg;
}

START_TEST(the_alive_word_is_1_here_and_0_in_a_forked_child)
{
	const volatile uint32_t *word = plat_alive_create();

	ck_assert_ptr_nonnull((const void *)(uintptr_t)word);
	ck_assert_uint_eq(*word, 1);
	ck_assert_int_eq(in_child(read_word, (void *)(uintptr_t)word), 0);
	ck_assert_uint_eq(*word, 1);
	plat_alive_destroy(word);
	plat_alive_destroy(NULL);
}
END_TEST

static int use_tls(void *arg)
{
	struct owner *o = arg;
	struct value v;

	tls_init(&o->key, hand_back, o);
	if (tls_set(&o->key, &v) || tls_get(&o->key) != &v)
		return 1;
	tls_fini(&o->key);
	return 0;
}

static void exit_in_vain(void *owner, void *value)
{
	(void)owner;
	(void)value;
	_exit(1);
}

static void leave(void *unused)
{
	(void)unused;
	_exit(0);
}

static int end_this_thread(void *arg)
{
	pthread_key_t last;     /* destructors run in the order of their keys */

	if (pthread_key_create(&last, leave) || pthread_setspecific(last, "set"))
		return 2;
	pthread_exit(arg);
}

START_TEST(in_a_forked_child_no_exit_runs_for_keys_of_the_parent)
{
	const volatile uint32_t *word = plat_alive_create();
	struct owner o = { 0 };
	struct value v;

	tls_init(&o.key, exit_in_vain, &o);
	ck_assert_int_eq(tls_set(&o.key, &v), 0);
	ck_assert_int_eq(in_child(end_this_thread, NULL), 0);
	tls_fini(&o.key);
	plat_alive_destroy(word);
}
END_TEST

static _Atomic uint32_t stop;

static void hand_back_slowly(void *owner, void *value)
{
	for (unsigned i = 0; i < 20; i++)               /* so that forks happen meanwhile */
		plat_relax(UINT32_MAX);
	hand_back(owner, value);
}

static void start_threads_that_set(void *arg)
{
	(void)arg;
	while (!load_acquire(&stop)) {
		struct owner o = { 0 };
		struct value v = { .owner = &o };
		struct thread t;

		tls_init(&o.key, hand_back_slowly, &o);
		if (thread_create(&t, "setter", set_and_exit, &v))
			abort();
		thread_join(&t);
		tls_fini(&o.key);
	}
}

START_TEST(a_child_forked_while_threads_exit_can_use_per_thread_storage)
{
	const volatile uint32_t *word = plat_alive_create();
	struct thread t;
	struct owner o = { 0 };

	ck_assert_int_eq(thread_create(&t, "churn", start_threads_that_set, NULL), 0);
	for (unsigned i = 0; i < 100; i++)
		ck_assert_int_eq(in_child(use_tls, &o), 0);
	store_release(&stop, 1);
	thread_join(&t);
	plat_alive_destroy(word);
}
END_TEST

#ifndef IOMAP_TSAN      /* ThreadSanitizer forbids new threads in a forked child, and liburcu starts one */
struct rcu_thing { struct rcu_head head; bool freed; };

static void mark_freed(struct rcu_head *head)
{
	rcu_callback_begin(head);
	container_of(head, struct rcu_thing, head)->freed = true;
}

static int use_rcu(void *arg)
{
	struct rcu_thing thing = { .freed = false };

	(void)arg;
	rcu_enter();
	rcu_exit();
	rcu_free(&thing.head, mark_freed);
	rcu_drain();
	return thing.freed ? 0 : 1;
}

START_TEST(rcu_works_in_a_forked_child_and_in_the_parent_after)
{
	const volatile uint32_t *word = plat_alive_create();

	ck_assert_int_eq(use_rcu(NULL), 0);
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_int_eq(in_child(use_rcu, NULL), 0);
		ck_assert_int_eq(use_rcu(NULL), 0);
	}
	plat_alive_destroy(word);
}
END_TEST
#endif

struct range { char *p; size_t bytes; };

static int is_mapped(void *arg)
{
	const struct range *r = arg;
	unsigned char resident[16];

	return mincore(r->p, r->bytes, resident) == 0;
}

START_TEST(folio_memory_is_zeroed_and_not_inherited)
{
	struct range r = { .bytes = 16 * 4096 };

	r.p = plat_map(r.bytes, false);
	ck_assert_ptr_nonnull(r.p);
	plat_populate(r.p, r.bytes);
	for (size_t i = 0; i < r.bytes; i++)
		ck_assert_int_eq(r.p[i], 0);
	r.p[r.bytes - 1] = 1;
	ck_assert_int_eq(is_mapped(&r), 1);
#ifndef __SANITIZE_ADDRESS__      /* there it is: the shadow of what is not there would stay poisoned */
	ck_assert_int_eq(in_child(is_mapped, &r), 0);
#endif
	plat_unmap(r.p, r.bytes);
	ck_assert_int_eq(is_mapped(&r), 0);
}
END_TEST

START_TEST(huge_folio_memory_is_aligned_to_huge_pages)
{
	size_t bytes = (5 << 20) + 4096;
	char *p = plat_map(bytes, true);

	ck_assert_ptr_nonnull(p);
	ck_assert_uint_eq((uintptr_t)p & ((2 << 20) - 1), 0);
	p[0] = 1;
	p[bytes - 1] = 1;
	plat_unmap(p, bytes);
	ck_assert_ptr_null(plat_map((size_t)1 << 62, true));
	ck_assert_ptr_null(plat_map((size_t)1 << 62, false));
	ck_assert_ptr_null(plat_map(SIZE_MAX, true));
	plat_unmap(NULL, 4096);
}
END_TEST

/* --- files ---------------------------------------------------------------------------------------------- */

static char path[4096];
static int fd;

static void make_file(void)
{
	const char *dir = getenv("TMPDIR");

	snprintf(path, sizeof(path), "%s/iomap-platform-XXXXXX", dir ? dir : "/tmp");
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
}

static void remove_file(void)
{
	ck_assert_int_eq(plat_close(fd), 0);
	unlink(path);
}

START_TEST(bytes_come_back_from_where_they_went)
{
	char buf[8];
	struct stat st, by_path;

	ck_assert_int_eq(plat_pwrite(fd, "abcdef", 6, 5000), 6);
	ck_assert_int_eq(plat_pread(fd, buf, 8, 5002), 4);      /* short at the end of the file */
	ck_assert_mem_eq(buf, "cdef", 4);
	ck_assert_int_eq(plat_pread(fd, buf, 8, 6000), 0);
	ck_assert_int_eq(plat_fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, 5006);
	ck_assert_int_eq(plat_ftruncate(fd, 5001), 0);
	ck_assert_int_eq(plat_fallocate(fd, 0, 0, 10000), 0);
	ck_assert_int_eq(plat_stat(path, &by_path), 0);
	ck_assert_int_eq(by_path.st_size, 10000);
	ck_assert_uint_eq(by_path.st_ino, st.st_ino);
	ck_assert_int_eq(plat_pread(fd, buf, 2, 5000), 2);
	ck_assert_mem_eq(buf, "a\0", 2);
	ck_assert_int_eq(plat_fdatasync(fd), 0);
	ck_assert_int_eq(plat_fsync(fd), 0);
	ck_assert_int_eq(plat_fsync_dir_of(path), 0);
	ck_assert_int_eq(plat_fsync_dir_of("name-in-this-directory"), 0);
	ck_assert_int_eq(plat_fsync_dir_of("/no/such/directory/file"), -ENOENT);
}
END_TEST

START_TEST(a_failed_call_answers_its_errno)
{
	struct stat st;
	struct plat_dio_align align;
	uint64_t out;
	char c;

	ck_assert_int_eq(plat_open("/no/such/file", O_RDONLY, 0), -ENOENT);
	ck_assert_int_eq(plat_stat("/no/such/file", &st), -ENOENT);
	ck_assert_int_eq(plat_pread(-1, &c, 1, 0), -EBADF);
	ck_assert_int_eq(plat_pwrite(-1, &c, 1, 0), -EBADF);
	ck_assert_int_eq(plat_fstat(-1, &st), -EBADF);
	ck_assert_int_eq(plat_close(-1), -EBADF);
	ck_assert_int_eq(plat_fsync(-1), -EBADF);
	ck_assert_int_eq(plat_fd_flags(-1), -EBADF);
	ck_assert_int_eq(plat_reopen(-1, O_RDONLY), -ENOENT);
	ck_assert_int_eq(plat_dio_align(-1, &align), -EBADF);
	ck_assert_int_lt(plat_blockdev_size(fd, &out), 0);
	ck_assert_int_eq(plat_seek(fd, 0, SEEK_DATA, &out), -ENXIO);
}
END_TEST

START_TEST(seek_finds_data_and_hole)
{
	uint64_t out;

	ck_assert_int_eq(plat_ftruncate(fd, 1 << 20), 0);
	ck_assert_int_eq(plat_pwrite(fd, "x", 1, 512 << 10), 1);
	ck_assert_int_eq(plat_seek(fd, 0, SEEK_DATA, &out), 0);
	if (out == 0)
		return;         /* a file system that keeps no holes */
	ck_assert_uint_eq(out, 512 << 10);
	ck_assert_int_eq(plat_seek(fd, out, SEEK_HOLE, &out), 0);
	ck_assert_uint_gt(out, 512 << 10);
	ck_assert_uint_le(out, 1 << 20);
}
END_TEST

START_TEST(reopen_reaches_an_unlinked_file_with_other_flags)
{
	char buf[3];

	ck_assert_int_eq(plat_pwrite(fd, "abc", 3, 0), 3);
	unlink(path);
	int again = plat_reopen(fd, O_RDONLY);

	ck_assert_int_ge(again, 0);
	ck_assert_int_eq(plat_fd_flags(again) & O_ACCMODE, O_RDONLY);
	ck_assert_int_eq(fcntl(again, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	ck_assert_int_eq(plat_pread(again, buf, 3, 0), 3);
	ck_assert_mem_eq(buf, "abc", 3);
	ck_assert_int_eq(plat_pwrite(again, "x", 1, 0), -EBADF);
	ck_assert_int_eq(plat_close(again), 0);
}
END_TEST

START_TEST(a_byte_locked_through_one_open_file_is_busy_through_another)
{
	int other = plat_reopen(fd, O_RDWR);

	ck_assert_int_ge(other, 0);
	ck_assert_int_eq(plat_lock_byte(fd, 7, true), 0);
	ck_assert_int_eq(plat_lock_byte(fd, 7, true), 0);       /* one's own is no conflict */
	ck_assert_int_eq(plat_lock_byte(other, 7, true), -EBUSY);
	ck_assert_int_eq(plat_lock_byte(other, 7, false), -EBUSY);
	ck_assert_int_eq(plat_lock_byte(other, 8, true), 0);
	ck_assert_int_eq(plat_unlock_byte(fd, 7), 0);
	ck_assert_int_eq(plat_lock_byte(other, 7, false), 0);
	ck_assert_int_eq(plat_lock_byte(fd, 7, false), 0);
	ck_assert_int_eq(plat_lock_byte(fd, 7, true), -EBUSY);
	ck_assert_int_eq(plat_close(other), 0);
	ck_assert_int_eq(plat_lock_byte(fd, 7, true), 0);
}
END_TEST

/* --- asynchronous direct I/O ---------------------------------------------------------------------------- */

#define DEPTH 100       /* more than one batch */

/* The file opened for direct I/O, or -1 with a word about it where there is none. */
static int open_direct(struct plat_dio_align *align)
{
	ck_assert_int_eq(plat_dio_align(fd, align), 0);
	int direct = plat_reopen(fd, O_RDWR | O_DIRECT);

	if (align->offset == 0 || direct < 0) {
		printf("skipped: no direct I/O in the directory for temporary files\n");
		if (direct >= 0)
			plat_close(direct);
		return -1;
	}
	ck_assert(is_pow2(align->mem) && is_pow2(align->offset));
	ck_assert_uint_le(align->offset, 65536);
	return direct;
}

START_TEST(direct_io_at_the_alignment_told_works)
{
	struct plat_dio_align align;
	int direct = open_direct(&align);

	if (direct < 0)
		return;
	char *p = plat_map(1 << 20, false);

	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(plat_pwrite(direct, p + align.mem, align.offset, align.offset), align.offset);
	ck_assert_int_eq(plat_pread(direct, p + align.mem, align.offset, align.offset), align.offset);
	plat_unmap(p, 1 << 20);
	plat_close(direct);
}
END_TEST

START_TEST(aio_writes_and_reads_come_back_with_their_tags)
{
	struct plat_dio_align align;
	struct plat_aio_event events[DEPTH];
	struct plat_aio_op ops[DEPTH];
	struct iovec iov[DEPTH][2];
	plat_aio_t aio;
	int direct = open_direct(&align);

	if (direct < 0)
		return;
	size_t piece = max_u64(align.mem, align.offset);
	char *p = plat_map(DEPTH * 2 * piece, false);

	ck_assert_ptr_nonnull(p);
	ck_assert_int_eq(plat_aio_setup(DEPTH, &aio), 0);
	for (int pass = 0; pass < 2; pass++) {
		bool seen[DEPTH] = { false };

		for (unsigned i = 0; i < DEPTH; i++) {
			memset(p + 2 * i * piece, pass ? 0xee : (int)i + 1, 2 * piece);
			iov[i][0] = (struct iovec){ p + (2 * i + 1) * piece, piece };   /* not in order of memory */
			iov[i][1] = (struct iovec){ p + 2 * i * piece, piece };
			ops[i] = (struct plat_aio_op){ .fd = direct, .write = !pass, .pos = 2 * i * piece, .iov = iov[i],
						       .iovcnt = 2, .tag = &ops[i] };
		}
		ck_assert_int_eq(plat_aio_submit(aio, ops, DEPTH), DEPTH);
		memset(iov, 0xff, sizeof(iov));         /* copied at submission */
		ck_assert_int_eq(plat_aio_wait(aio, DEPTH, events, DEPTH), DEPTH);
		for (unsigned i = 0; i < DEPTH; i++) {
			size_t k = (size_t)((struct plat_aio_op *)events[i].tag - ops);

			ck_assert_uint_lt(k, DEPTH);
			ck_assert(!seen[k]);
			seen[k] = true;
			ck_assert_int_eq(events[i].result, (int64_t)(2 * piece));
		}
	}
	for (size_t i = 0; i < DEPTH * 2 * piece; i++)
		ck_assert_int_eq(p[i], (char)(i / (2 * piece) + 1));
	ck_assert_int_eq(plat_aio_wait(aio, 0, events, DEPTH), 0);
	plat_aio_destroy(aio);
	plat_unmap(p, DEPTH * 2 * piece);
	plat_close(direct);
}
END_TEST

START_TEST(aio_takes_no_more_than_its_depth_until_completions_are_fetched)
{
	char byte[4] = "abc";
	struct iovec iov = { byte, 1 };
	struct plat_aio_op ops[4];
	struct plat_aio_event events[4];
	plat_aio_t aio;

	for (unsigned i = 0; i < 4; i++)
		ops[i] = (struct plat_aio_op){ .fd = fd, .write = true, .pos = i, .iov = &iov, .iovcnt = 1, .tag = &ops[i] };
	ck_assert_int_eq(plat_aio_setup(0, &aio), -EINVAL);
	ck_assert_int_eq(plat_aio_setup(3, &aio), 0);
	ck_assert_int_eq(plat_aio_submit(aio, ops, 0), 0);
	ck_assert_int_eq(plat_aio_submit(aio, ops, 4), 3);
	ck_assert_int_eq(plat_aio_submit(aio, ops + 3, 1), -EAGAIN);
	ck_assert_int_eq(plat_aio_wait(aio, 1, events, 1), 1);
	ck_assert_int_eq(plat_aio_submit(aio, ops + 3, 1), 1);
	ck_assert_int_eq(plat_aio_wait(aio, 3, events, 4), 3);
	ck_assert_int_eq(plat_aio_submit(aio, ops, 3), 3);      /* all three are free again */
	ck_assert_int_eq(plat_aio_wait(aio, 3, events, 3), 3);
	plat_aio_destroy(aio);
	plat_aio_destroy(NULL);
}
END_TEST

START_TEST(aio_errors_come_from_submit_or_as_results)
{
	char byte = 'x';
	struct iovec iov = { &byte, 1 };
	struct plat_aio_op ops[2] = {
		{ .fd = fd, .write = true, .iov = &iov, .iovcnt = 1, .tag = &ops[0] },
		{ .fd = -1, .write = true, .iov = &iov, .iovcnt = 1, .tag = &ops[1] },
	};
	struct plat_aio_event event;
	plat_aio_t aio;

	ck_assert_int_eq(plat_aio_setup(2, &aio), 0);
	ck_assert_int_eq(plat_aio_submit(aio, ops, 2), 1);      /* up to the bad one */
	ck_assert_int_eq(plat_aio_wait(aio, 1, &event, 1), 1);
	ck_assert_ptr_eq(event.tag, &ops[0]);
	ck_assert_int_eq(event.result, 1);
	for (unsigned i = 0; i < 5; i++)                        /* and no slot is lost */
		ck_assert_int_eq(plat_aio_submit(aio, ops + 1, 1), -EBADF);
	struct plat_dio_align align;
	int direct = open_direct(&align);

	if (direct >= 0) {
		ops[0].fd = direct;                             /* misaligned */
		ck_assert_int_eq(plat_aio_submit(aio, ops, 1), 1);
		ck_assert_int_eq(plat_aio_wait(aio, 1, &event, 1), 1);
		ck_assert_int_eq(event.result, -EINVAL);
		plat_close(direct);
	}
	plat_aio_destroy(aio);
}
END_TEST

static struct plat_aio_event woken_by;

static void wait_for_one(void *arg)
{
	if (plat_aio_wait(arg, 1, &woken_by, 1) != 1)
		abort();
}

START_TEST(an_op_of_no_bytes_wakes_a_waiter)
{
	struct plat_dio_align align;
	int direct = open_direct(&align);
	struct plat_aio_op op = { .fd = direct >= 0 ? direct : fd, .tag = &op };
	struct thread t;
	plat_aio_t aio;

	ck_assert_int_eq(plat_aio_setup(1, &aio), 0);
	ck_assert_int_eq(thread_create(&t, "waiter", wait_for_one, aio), 0);
	ck_assert_int_eq(plat_aio_submit(aio, &op, 1), 1);
	thread_join(&t);
	ck_assert_ptr_eq(woken_by.tag, &op);
	ck_assert_int_eq(woken_by.result, 0);
	plat_aio_destroy(aio);
	if (direct >= 0)
		plat_close(direct);
}
END_TEST

/* What a submitter wrote before belongs to the waiter after: ThreadSanitizer looks on. */
static struct { plat_aio_t aio; uint64_t sum; } stream;

static void sum_payloads(void *arg)
{
	(void)arg;
	for (unsigned seen = 0; seen < ROUNDS; ) {
		struct plat_aio_event events[8];
		int n = plat_aio_wait(stream.aio, 1, events, 8);

		for (int i = 0; i < n; i++, seen++) {
			stream.sum += *(unsigned *)events[i].tag;
			free(events[i].tag);
		}
		if (n < 0)
			abort();
	}
}

START_TEST(a_completion_hands_over_the_submitters_memory)
{
	struct thread t;

	ck_assert_int_eq(plat_aio_setup(16, &stream.aio), 0);
	ck_assert_int_eq(thread_create(&t, "waiter", sum_payloads, NULL), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned *payload = malloc(sizeof(*payload));
		struct plat_aio_op op = { .fd = fd, .tag = payload };

		ck_assert_ptr_nonnull(payload);
		*payload = i;
		for (unsigned spins = 0; plat_aio_submit(stream.aio, &op, 1) != 1; spins++)
			plat_relax(spins);
	}
	thread_join(&t);
	ck_assert_uint_eq(stream.sum, (uint64_t)ROUNDS * (ROUNDS - 1) / 2);
	plat_aio_destroy(stream.aio);
}
END_TEST

static TCase *add_case(Suite *s, const char *name)
{
	TCase *tc = tcase_create(name);

	tcase_set_timeout(tc, 60);
	suite_add_tcase(s, tc);
	return tc;
}

static void reset(void)
{
	guarded = 0;
	store_relaxed(&stop, 0);
}

Suite *suite_platform(void)
{
	Suite *s = suite_create("platform");
	TCase *tc = add_case(s, "threads");

	tcase_add_checked_fixture(tc, reset, NULL);
	tcase_add_test(tc, two_threads_never_hold_the_mutex);
	tcase_add_test(tc, a_trylock_gets_only_what_is_free);
	tcase_add_test(tc, an_exclusive_holder_is_alone);
	tcase_add_test(tc, a_waiting_writer_goes_before_new_readers);
	tcase_add_test(tc, a_signal_reaches_the_waiter);
	tcase_add_test(tc, a_wait_ends_when_its_time_has_passed);
	tcase_add_test(tc, a_thread_blocks_every_signal_and_carries_its_name);
	tcase_add_test(tc, there_is_at_least_one_processor);
	tcase_add_test(tc, a_threads_exit_hands_its_value_to_the_owner_once);
	tcase_add_test(tc, after_tls_fini_no_exit_sees_the_owner);
	tcase_add_test(tc, keys_do_not_see_each_others_values);
	tcase_add_test(tc, a_new_key_in_the_same_place_never_sees_an_old_keys_value);
	tcase_add_test(tc, a_thread_that_outlives_many_keys_does_not_grow);
	tcase_add_test(tc, the_clock_is_never_zero_nor_goes_back);
	tcase_add_test(tc, random_numbers_differ);

	tc = add_case(s, "fork");
	tcase_add_checked_fixture(tc, reset, NULL);
	tcase_add_test(tc, the_alive_word_is_1_here_and_0_in_a_forked_child);
	tcase_add_test(tc, in_a_forked_child_no_exit_runs_for_keys_of_the_parent);
	tcase_add_test(tc, a_child_forked_while_threads_exit_can_use_per_thread_storage);
#ifndef IOMAP_TSAN
	tcase_add_test(tc, rcu_works_in_a_forked_child_and_in_the_parent_after);
#endif
	tcase_add_test(tc, folio_memory_is_zeroed_and_not_inherited);
	tcase_add_test(tc, huge_folio_memory_is_aligned_to_huge_pages);

	tc = add_case(s, "files");
	tcase_add_checked_fixture(tc, make_file, remove_file);
	tcase_add_test(tc, bytes_come_back_from_where_they_went);
	tcase_add_test(tc, a_failed_call_answers_its_errno);
	tcase_add_test(tc, seek_finds_data_and_hole);
	tcase_add_test(tc, reopen_reaches_an_unlinked_file_with_other_flags);
	tcase_add_test(tc, a_byte_locked_through_one_open_file_is_busy_through_another);
	tcase_add_test(tc, direct_io_at_the_alignment_told_works);
	tcase_add_test(tc, aio_writes_and_reads_come_back_with_their_tags);
	tcase_add_test(tc, aio_takes_no_more_than_its_depth_until_completions_are_fetched);
	tcase_add_test(tc, aio_errors_come_from_submit_or_as_results);
	tcase_add_test(tc, an_op_of_no_bytes_wakes_a_waiter);
	tcase_add_test(tc, a_completion_hands_over_the_submitters_memory);
	return s;
}
