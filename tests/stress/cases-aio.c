/*
 * cases-aio.c - bugs that others reported, as short sequences with the exact right result: requests, and how they end
 */
#define _GNU_SOURCE
#include "cases.h"

/* C49 */
static void a_negative_completion_is_an_error_number(void)
{
	struct t_hold_rule once = { .ops = T_HOLD_READ, .pos = 8192, .len = 4096, .action = T_HOLD_FAIL, .value = EIO,
				    .times = 1 };
	struct t_hold_entry log[16];
	unsigned char buf[4096];
	struct t_rig rig;
	unsigned nr;

	t_rig_init(&rig);
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 16384, 'A');
	fsync_and_drop(&rig);
	t_hold_rule(rig.hold, &once);
	t_hold_log_clear(rig.hold);
	CHECK_EQ(iomap_pread(rig.file, buf, 4096, 8192), -EIO);
	CHECK_EQ(iomap_pread(rig.file, buf, 4096, 8192), 4096);
	CHECK_BYTES(buf, 4096, 'A');
	nr = t_hold_log(rig.hold, log, 16);
	CHECK_GE(nr, 2);
	CHECK_LE(nr, 16);
	for (unsigned i = 0; i < nr; i++) {
		CHECK_EQ(log[i].pos % 512, 0);
		CHECK_EQ(log[i].len % 512, 0);
		CHECK_GE(log[i].pos, 8192);
		CHECK_LE(log[i].pos + log[i].len, 12288);
	}
	t_rig_down(&rig);
}

/* C50 */
static void a_short_completion_is_continued(void)
{
	struct t_hold_rule short_write = { .ops = T_HOLD_WRITE, .action = T_HOLD_SHORT, .value = 4096, .times = 1 };
	struct t_hold_rule short_read = { .ops = T_HOLD_READ, .action = T_HOLD_SHORT, .value = 1000, .times = 1 };
	struct t_hold_rule second = { .ops = T_HOLD_WRITE, .action = T_HOLD_FAIL, .value = EIO, .skip = 1, .times = 1 };
	struct t_hold_entry log[16];
	struct t_rig rig;
	unsigned nr;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 16384, 'A');
	t_hold_rule(rig.hold, &short_write);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, 16384, 'A');
	nr = t_hold_log(rig.hold, log, 16);
	CHECK_GE(nr, 2);
	CHECK(log[1].op == IOMAP_REQ_WRITE && (log[1].pos == 0 || log[1].pos == 4096));
	CHECK(t_drops_all(rig.cache));
	t_hold_log_clear(rig.hold);
	t_hold_rule(rig.hold, &short_read);
	t_rig_expect(&rig, 0, 16384, 'A');
	nr = t_hold_log(rig.hold, log, 16);
	CHECK_GE(nr, 2);
	CHECK_MSG(log[1].pos == 0 || log[1].pos == 512, "a read that was 1000 short is continued at %llu",
		  (unsigned long long)log[1].pos);
	/* and where the rest fails, so does the whole */
	t_hold_heal(rig.hold);
	t_rig_write(&rig, 0, 16384, 'B');
	t_hold_rule(rig.hold, &short_write);
	t_hold_rule(rig.hold, &second);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, 16384, 'B');
	t_rig_down(&rig);
}

/* C51 */
static void a_device_that_takes_fewer_gets_the_rest_later(void)
{
	static const unsigned accept[] = { 3, 2 };
	struct t_hold_count count;
	struct t_call sync;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8 * MIB, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	for (unsigned i = 0; i < 8; i++)
		t_rig_write(&rig, i * MIB, 4096, 'N');
	t_rig_reset(&rig);
	t_hold_log_clear(rig.hold);
	t_hold_accept(rig.hold, accept, 2);
	t_call_fsync(&sync, rig.file);
	CHECK(T_WAIT(t_call_done(&sync), 5000));
	CHECK_EQ(t_call_wait(&sync), 0);
	CHECK_EQ(t_rig_io(&rig).write_ios, 8);
	t_hold_counts(rig.hold, &count);
	CHECK_EQ(count.submitted, count.reads + count.writes);
	for (unsigned i = 0; i < 8; i++)
		t_rig_expect_stored(&rig, i * MIB, 4096, 'N');
	t_call_free(&sync);
	t_rig_down(&rig);
}

/* C52: first a device with a queue that is full for three times though nothing of ours is in it */
static void a_full_queue_is_no_error(void)
{
	static const unsigned none[] = { 0, 0, 0 };
	struct t_call sync;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	t_hold_accept(rig.hold, none, 3);
	t_call_fsync(&sync, rig.file);
	CHECK_MSG(T_WAIT(t_call_done(&sync), 5000), "nobody offers the request again");
	CHECK_EQ(t_call_wait(&sync), 0);
	CHECK_EQ(t_rig_io(&rig).io_errors, 0);
	t_rig_expect_stored(&rig, 0, 4096, 'A');
	t_call_free(&sync);
	t_rig_down(&rig);
}

/* C52, second part: by the queue depth of the cache, then by that of the device */
static void no_more_is_in_flight_than_the_queue_is_deep(void)
{
	for (unsigned device_side = 0; device_side < 2; device_side++) {
		struct t_hold_count count;
		struct t_rig rig;

		t_rig_init(&rig);
		if (device_side)
			rig.device_params.queue_depth = 4;
		else
			rig.params.queue_depth = 4;
		rig.device_params.jitter_ns = 100000;
		t_rig_up(&rig);
		CHECK_EQ(iomap_ftruncate(rig.file, 64 * 65536), 0);
		for (unsigned i = 0; i < 64; i++)
			t_rig_write(&rig, i * 65536, 4096, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_hold_counts(rig.hold, &count);
		CHECK_GE(count.writes, 64);
		CHECK_LE(count.inflight_peak, 4);
		for (unsigned i = 0; i < 64; i++)
			t_rig_expect_stored(&rig, i * 65536, 4096, 'A');
		t_rig_down(&rig);
	}
}

/* C54 */
static void destroy_with_a_read_in_flight_frees_nothing_under_it(void)
{
	struct t_call read;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	fsync_and_drop(&rig);
	t_hold_park(rig.hold, T_HOLD_READ, 0, 4096);
	t_call_read(&read, rig.file, 4096, 0);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	CHECK_EQ(iomap_cache_destroy(rig.cache), -EBUSY);
	CHECK(!t_call_done(&read));
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&read), 4096);
	CHECK_BYTES(read.buf, 4096, 'A');
	t_call_free(&read);
	t_rig_down(&rig);
}

/* C55 */
static void a_block_read_by_several_requests_is_valid_once_all_are_done(void)
{
	struct t_hold_rule fifth = { .ops = T_HOLD_READ, .pos = 2048, .len = 512, .action = T_HOLD_FAIL, .value = EIO,
				     .times = 1 };
	struct t_call read;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	rig.device_params.max_bytes = 512;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	fsync_and_drop(&rig);
	t_rig_expect_stored(&rig, 0, 4096, 'A');
	t_rig_reset(&rig);
	t_hold_park(rig.hold, T_HOLD_READ, 0, 0);
	t_call_read(&read, rig.file, 4096, 0);
	CHECK(t_hold_wait_parked(rig.hold, 8));
	CHECK(!t_call_done(&read));
	t_hold_release_reverse(rig.hold);
	CHECK_EQ(t_call_wait(&read), 4096);
	CHECK_BYTES(read.buf, 4096, 'A');
	CHECK_EQ(t_rig_io(&rig).read_ios, 8);
	t_call_free(&read);
	CHECK(t_drops_all(rig.cache));
	t_hold_rule(rig.hold, &fifth);
	t_call_read(&read, rig.file, 4096, 0);
	CHECK_EQ(t_call_wait(&read), -EIO);
	t_call_free(&read);
	t_rig_expect(&rig, 0, 4096, 'A');
	t_rig_down(&rig);
}

/* C56 */
static void all_who_wait_for_a_failing_read_get_its_error(void)
{
	struct t_hold_rule twice = { .ops = T_HOLD_READ, .action = T_HOLD_FAIL, .value = EIO, .times = 2 };
	struct t_call t1, t2;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	fsync_and_drop(&rig);
	t_rig_reset(&rig);
	t_hold_park(rig.hold, T_HOLD_READ, 0, 4096);
	t_call_read(&t1, rig.file, 4096, 0);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	t_call_read(&t2, rig.file, 4096, 0);
	t_hold_rule(rig.hold, &twice);
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&t1), -EIO);
	CHECK_EQ(t_call_wait(&t2), -EIO);
	t_call_free(&t1);
	t_call_free(&t2);
	t_rig_expect(&rig, 0, 4096, 'A');
	CHECK_LE(t_rig_io(&rig).read_ios, 3);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN(a_negative_completion_is_an_error_number),
	T_RUN(a_short_completion_is_continued),
	T_RUN(a_device_that_takes_fewer_gets_the_rest_later),
	T_RUN(a_full_queue_is_no_error),
	T_RUN(no_more_is_in_flight_than_the_queue_is_deep),
	T_RUN(destroy_with_a_read_in_flight_frees_nothing_under_it),
	T_RUN(a_block_read_by_several_requests_is_valid_once_all_are_done),
	T_RUN(all_who_wait_for_a_failing_read_get_its_error),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
