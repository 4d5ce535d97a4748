/*
 * throttle.c - who is slowed down, by what, and who is not
 *
 * The arithmetic has tests of its own (throttle-math.c). Here devices are held, so that levels stand still: nothing
 * depends on speed.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "file.h"
#include "flusher.h"
#include "rig.h"
#include "throttle.h"

Suite *suite_throttle(void);

enum { STEP = 16384 };
#define LIMIT      (4 * MIB)
#define BACKGROUND (2 * MIB)
#define FREE_RUN   (3 * MIB)
#define FILE_BYTES (8 * MIB)

static struct t_rig rig;
static unsigned char buf[STEP];

/* A stored file of FILE_BYTES, so that no write makes it longer. */
static void up(void)
{
	t_rig_init(&rig);
	rig.params.memory_bytes = 32 * MIB;
	rig.params.dirty_bytes = LIMIT;
	rig.params.dirty_background_bytes = BACKGROUND;
	rig.device_params.capacity = FILE_BYTES;
	rig.device_params.size = FILE_BYTES;
	t_rig_up(&rig);
}

static uint64_t level(void)
{
	struct iomap_cache_stat s = t_rig_stat(&rig);

	return s.dirty_bytes + s.writeback_bytes;
}

static uint64_t pauses(void) { return t_rig_stat(&rig).throttle_pauses; }

static ssize_t write_step(uint64_t pos, int flags)
{
	struct iovec iov = { buf, STEP };

	return iomap_pwritev2(rig.file, &iov, 1, (off_t)(pos % FILE_BYTES), flags);
}

/* Writes up to @arg bytes in order; the error, or how many. */
static int64_t write_many(void *arg)
{
	uint64_t done = 0, want = *(uint64_t *)arg;

	while (done < want) {
		ssize_t n = write_step(done, 0);

		if (n < 0)
			return n;
		done += (uint64_t)n;
	}
	return (int64_t)done;
}

static int64_t write_once(void *arg)
{
	(void)arg;
	return write_step(0, 0);
}

START_TEST(nobody_sleeps_below_free_run)
{
	uint64_t bytes = FREE_RUN;
	struct iomap_cache_stat s;

	up();
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(write_many(&bytes), (int64_t)bytes);
	s = t_rig_stat(&rig);
	ck_assert_uint_eq(s.dirty_bytes + s.writeback_bytes, FREE_RUN);
	ck_assert_uint_eq(s.throttle_pauses, 0);
	ck_assert_uint_eq(s.throttled_ns, 0);
	ck_assert_uint_eq(s.dirty_limit_bytes, LIMIT);
	ck_assert_uint_eq(s.background_limit_bytes, BACKGROUND);
	ck_assert(s.setpoint_bytes > FREE_RUN && s.setpoint_bytes < LIMIT);
	ck_assert(T_WAIT(t_hold_parked(rig.hold), 10000));      /* above background the flusher is at work */
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}
END_TEST

START_TEST(flusher_rests_up_to_background)
{
	uint64_t bytes = FREE_RUN;

	up();
	ck_assert_int_eq(write_many(&bytes), (int64_t)bytes);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);     /* all completions, so all of the limit, are this device's */
	t_rig_reset(&rig);
	bytes = BACKGROUND - STEP;
	ck_assert_int_eq(write_many(&bytes), (int64_t)bytes);
	ck_assert(!throttle_over_background(rig.cache, rig.file->inode->wb));
	ck_assert_uint_eq(t_rig_io(&rig).write_ios, 0);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, bytes);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	bytes = FREE_RUN;
	ck_assert_int_eq(write_many(&bytes), (int64_t)bytes);
	ck_assert(T_WAIT(t_hold_parked(rig.hold), 10000));      /* up to there nothing, from there on it works */
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}
END_TEST

/*
 * The device stands still: the writer fills up to the hard limit and stays there, holding nothing, until the device
 * goes on.
 */
START_TEST(writer_stops_at_the_hard_limit_holding_nothing)
{
	uint64_t bytes = FILE_BYTES, slept;
	struct iomap_cache_stat before, s;
	struct inode *inode;
	struct t_call call;

	up();
	inode = rig.file->inode;
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fn(&call, write_many, &bytes);
	ck_assert(T_WAIT(level() >= LIMIT, 20000));
	slept = pauses();
	ck_assert(T_WAIT(pauses() > slept + 1, 20000));         /* it goes round there, and sleeps */
	do {    /* the two counters are read one after the other: what moves from one to the other meanwhile would count twice */
		before = t_rig_stat(&rig);
		s = t_rig_stat(&rig);
	} while (s.dirty_bytes != before.dirty_bytes || s.writeback_bytes != before.writeback_bytes);
	ck_assert_uint_le(s.dirty_bytes + s.writeback_bytes, LIMIT + STEP);
	ck_assert(!t_call_done(&call));

	ck_assert(T_WAIT(rwsem_trylock(&inode->rwsem), 10000));
	ck_assert(rwsem_trylock(&inode->mapping.invalidate_lock));
	ck_assert(mutex_trylock(&inode->append_lock));
	mutex_unlock(&inode->append_lock);
	rwsem_unlock(&inode->mapping.invalidate_lock);
	rwsem_unlock(&inode->rwsem);
	for (pgoff_t i = 0; i < FILE_BYTES / PAGE_BYTES; i++) {
		struct iomap_folio *f = NULL;

		ck_assert_int_eq(mapping_get_trylocked(&inode->mapping, i, &f), 0);
		if (f) {
			folio_unlock(inode->mapping.zone, f);
			folio_put(inode->mapping.zone, f);
		}
	}
	ck_assert(!t_call_done(&call));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&call), FILE_BYTES);
	t_call_free(&call);
	t_rig_check(&rig);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_gt(t_rig_stat(&rig).throttled_ns, 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(raised_limit_lets_a_stopped_writer_go)
{
	uint64_t bytes = FILE_BYTES, slept;
	struct t_call call;

	up();
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fn(&call, write_many, &bytes);
	ck_assert(T_WAIT(level() >= LIMIT, 20000));
	slept = pauses();
	ck_assert(T_WAIT(pauses() > slept, 20000));
	ck_assert(!t_call_done(&call));
	ck_assert_int_eq(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BYTES, 24 * MIB), 0);
	ck_assert_int_eq(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, 20 * MIB), 0);
	ck_assert_int_eq(t_call_wait(&call), FILE_BYTES);       /* nothing was cleaned */
	ck_assert_uint_eq(level(), FILE_BYTES);
	t_call_free(&call);
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}
END_TEST

/* Above the hard limit in one go, as a thread that nobody slows: @done bytes. */
static void fill_up(uint64_t done)
{
	struct task *task = cache_task(rig.cache);

	task->internal = true;
	ck_assert_int_eq(write_many(&done), (int64_t)done);
	task->internal = false;
	ck_assert_uint_eq(level(), done);
	ck_assert_uint_eq(pauses(), 0);
}

static int64_t write_y(void *file)
{
	unsigned char *y = malloc(262144);
	ssize_t n = iomap_pwrite(file, memset(y, 'N', 262144), 262144, 0);

	free(y);
	return n;
}

/* C32: nobody writes anything back, so only the truncate can let the writer go */
START_TEST(a_throttled_writer_goes_on_when_dirty_data_is_cancelled)
{
	struct t_hold *hold_y = t_hold_create(NULL);
	struct iomap_file_params fp = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *y;
	struct iomap_cache_stat s;
	struct t_call call;
	uint64_t cut;

	t_rig_init(&rig);
	rig.params.dirty_bytes = MIB;
	rig.params.dirty_background_bytes = MIB / 2;
	t_rig_up(&rig);
	fp.device = t_hold_device(hold_y);
	ck_assert_int_eq(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &fp, &y), 0);
	flusher_stop_helpers(rig.cache);
	flusher_stop(rig.file->inode->wb);
	flusher_stop(y->inode->wb);
	t_rig_write(&rig, 0, 983040, 'A');
	t_call_fn(&call, write_y, y);
	ck_assert(!T_WAIT(t_call_done(&call), 500));
	ck_assert_uint_ge(t_rig_stat(&rig).throttle_pauses, 1);
	ck_assert_uint_eq(t_rig_stat(&rig).writeback_bytes, 0);
	cut = t_run_now_ns();
	ck_assert_int_eq(iomap_ftruncate(rig.file, 0), 0);
	ck_assert(T_WAIT(t_call_done(&call), 1000));
	ck_assert_uint_le(t_run_now_ns() - cut, 1000000000ULL * t_run_slow());
	ck_assert_int_eq(t_call_wait(&call), 262144);
	t_call_free(&call);
	s = t_rig_stat(&rig);
	ck_assert_uint_eq(s.dirty_bytes, 262144);
	ck_assert_uint_eq(s.written_bytes, 0);
	ck_assert_uint_eq(s.submitted_bytes, 0);
	ck_assert_uint_eq(t_rig_io(&rig).write_ios, 0);
	ck_assert_int_eq(iomap_fsync(y), 0);
	ck_assert_int_eq(iomap_close(y), 0);
	ck_assert_int_eq(iomap_device_close(fp.device), 0);
	t_rig_down(&rig);
	t_hold_free(hold_y);
}
END_TEST

START_TEST(nowait_does_not_sleep_and_writes_nothing)
{
	uint64_t before;

	up();
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	fill_up(LIMIT + STEP);
	before = t_rig_stat(&rig).dirtied_bytes;
	for (unsigned i = 0; i < 3; i++)
		ck_assert_int_eq(write_step(LIMIT + STEP, IOMAP_RWF_NOWAIT), -EAGAIN);
	ck_assert_uint_eq(t_rig_stat(&rig).dirtied_bytes, before);
	ck_assert_uint_eq(pauses(), 0);
	t_hold_release(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_int_eq(write_step(LIMIT + STEP, IOMAP_RWF_NOWAIT), STEP);
	t_rig_down(&rig);
}
END_TEST

/* A device that has failed for good: its error instead of a sleep without end; whole again, all goes on. */
START_TEST(dead_device_answers_its_error)
{
	uint64_t bytes = 100 * MIB;
	struct iomap_cache_stat s;
	int64_t ret;

	up();
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	ret = write_many(&bytes);
	ck_assert_int_eq(ret, -EIO);
	s = t_rig_stat(&rig);
	ck_assert_uint_le(s.dirty_bytes + s.writeback_bytes, LIMIT + STEP);
	ck_assert_uint_gt(s.failed_bytes, 0);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, s.dirty_bytes + s.writeback_bytes);
	ck_assert_int_eq(write_step(0, 0), -EIO);               /* at once: what failed holds half the limit */
	ck_assert_int_eq(write_step(0, IOMAP_RWF_NOWAIT), -EIO);
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	bytes = FREE_RUN;
	ck_assert_int_eq(write_many(&bytes), (int64_t)bytes);
	t_rig_down(&rig);
}
END_TEST

/* --- who owes what -------------------------------------------------------------------------------------- */

START_TEST(debts_are_counted_in_whole_units_and_no_byte_is_lost)
{
	struct task task = { 0 };

	throttle_task_init(&task.throttle);
	for (unsigned i = 0; i < 7; i++)
		throttle_dirtied(&task, 512);
	ck_assert_uint_eq(task.throttle.nr_dirtied, 0);
	throttle_dirtied(&task, 512);
	ck_assert_uint_eq(task.throttle.nr_dirtied, 1);
	throttle_dirtied(&task, 65536 + 1024);
	ck_assert_uint_eq(task.throttle.nr_dirtied, 17);
	throttle_dirtied(&task, 3072);
	ck_assert_uint_eq(task.throttle.nr_dirtied, 18);
	ck_assert_uint_eq(load_relaxed(&task.stat[TASK_DIRTIED_BYTES]), 18 * 4096);
}
END_TEST

START_TEST(overwriting_what_is_dirty_costs_nothing)
{
	struct task *task;
	uint64_t owed;

	up();
	write_once(NULL);
	task = cache_task(rig.cache);
	owed = task->throttle.nr_dirtied;
	ck_assert_uint_eq(owed, STEP / 4096);
	for (unsigned i = 0; i < 1000; i++)
		write_once(NULL);
	ck_assert_uint_eq(task->throttle.nr_dirtied, owed);
	t_rig_down(&rig);
}
END_TEST

START_TEST(debts_of_threads_that_are_gone_are_paid_by_others)
{
	struct task *task;
	struct t_call call;

	up();
	task = cache_task(rig.cache);
	t_call_fn(&call, write_once, NULL);
	ck_assert_int_eq(t_call_wait(&call), STEP);
	t_call_free(&call);
	ck_assert_uint_eq(load_relaxed(&rig.cache->leaked_units), STEP / 4096);
	ck_assert_uint_eq(task->throttle.nr_dirtied, 0);
	ck_assert_int_eq(throttle_balance(rig.cache, rig.file->inode->wb, task, true), 0);
	ck_assert_uint_eq(load_relaxed(&rig.cache->leaked_units), 0);
	ck_assert_uint_eq(task->throttle.nr_dirtied, STEP / 4096);
	ck_assert_uint_eq(cache_task_sum(rig.cache, TASK_DIRTIED_BYTES), STEP);   /* totals outlive the thread */
	/* No more than makes it look at the limits at once. */
	store_relaxed(&rig.cache->leaked_units, 1000000);
	ck_assert_int_eq(throttle_balance(rig.cache, rig.file->inode->wb, task, true), 0);
	ck_assert_uint_ge(load_relaxed(&rig.cache->leaked_units), 1000000 - THROTTLE_POLL_MIN);
	store_relaxed(&rig.cache->leaked_units, 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(threads_of_the_library_are_never_slowed)
{
	struct task *task;

	up();
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	fill_up(FILE_BYTES);
	task = cache_task(rig.cache);
	ck_assert_int_eq(throttle_balance(rig.cache, rig.file->inode->wb, task, true), -EAGAIN);
	task->internal = true;
	ck_assert_int_eq(throttle_balance(rig.cache, rig.file->inode->wb, task, false), 0);
	task->internal = false;
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}
END_TEST

/* Much more than one look at the limits. */
static int64_t write_other(void *file)
{
	for (unsigned i = 0; i < 64; i++)
		if (iomap_pwrite(file, buf, STEP, (off_t)i * STEP) != STEP)
			return -1;
	return iomap_fsync(file);
}

/* Another device, fast, beside one that stands still at the limit: its writer gets through, it cleans what it dirties. */
START_TEST(writer_of_an_idle_device_does_not_wait_for_a_held_one)
{
	struct iomap_file_params fp = IOMAP_FILE_PARAMS_INIT;
	uint64_t bytes = FILE_BYTES, slept;
	struct iomap_device *other;
	struct iomap_file *file;
	struct t_call call, fast;

	up();
	ck_assert_int_eq(iomap_device_open_mem(NULL, &other), 0);
	fp.device = other;
	ck_assert_int_eq(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &fp, &file), 0);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fn(&call, write_many, &bytes);
	ck_assert(T_WAIT(level() >= LIMIT, 20000));
	slept = pauses();
	ck_assert(T_WAIT(pauses() > slept, 20000));
	t_call_fn(&fast, write_other, file);
	ck_assert_int_eq(t_call_wait(&fast), 0);
	t_call_free(&fast);
	ck_assert(!t_call_done(&call));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&call), FILE_BYTES);
	t_call_free(&call);
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_device_close(other), 0);
	t_rig_down(&rig);
}
END_TEST

Suite *suite_throttle(void)
{
	Suite *s = suite_create("throttle");
	TCase *tc = tcase_create("throttle");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, nobody_sleeps_below_free_run);
	tcase_add_test(tc, flusher_rests_up_to_background);
	tcase_add_test(tc, writer_stops_at_the_hard_limit_holding_nothing);
	tcase_add_test(tc, raised_limit_lets_a_stopped_writer_go);
	tcase_add_test(tc, a_throttled_writer_goes_on_when_dirty_data_is_cancelled);
	tcase_add_test(tc, nowait_does_not_sleep_and_writes_nothing);
	tcase_add_test(tc, dead_device_answers_its_error);
	tcase_add_test(tc, debts_are_counted_in_whole_units_and_no_byte_is_lost);
	tcase_add_test(tc, overwriting_what_is_dirty_costs_nothing);
	tcase_add_test(tc, debts_of_threads_that_are_gone_are_paid_by_others);
	tcase_add_test(tc, threads_of_the_library_are_never_slowed);
	tcase_add_test(tc, writer_of_an_idle_device_does_not_wait_for_a_held_one);
	return s;
}
