/*
 * cases-accounting.c - bugs that others reported, as short sequences with the exact right result: what is counted, and who is slowed down
 */
#define _GNU_SOURCE
#include "cases.h"

/* C30 */
static void truncating_dirty_data_gives_its_count_back(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	t_rig_up(&rig);
	for (unsigned i = 0; i < rounds(100, 1000); i++) {
		t_rig_write(&rig, 0, MIB, 'A');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, MIB);
		CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
		CHECK_EQ(t_rig_stat(&rig).cached_bytes, 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, 0);
	}
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).writeback_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).pinned_bytes, 0);
	t_rig_down(&rig);
}

/* C31 */
static void a_dirty_count_with_partly_covered_blocks(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 65536);
	CHECK_EQ(punch(rig.file, 6000, 20000), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 49152);
	CHECK_EQ(iomap_ftruncate(rig.file, 30001), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 16384);
	t_rig_reset(&rig);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	/* Linux, and the case, count whole blocks: here the last one is written at its exact length. */
	CHECK_EQ(t_rig_io(&rig).written_bytes, 12288 + 30001 % 4096);
	CHECK(t_drops_all(rig.cache));
	CHECK_EQ(iomap_size(rig.file), 30001);
	t_rig_expect(&rig, 0, 6000, 'A');
	t_rig_expect(&rig, 6000, 20000, 0);
	t_rig_expect(&rig, 26000, 4001, 'A');
	t_rig_down(&rig);
}

/* C39; in both sizes of folios */
static void a_folio_with_nothing_left_to_write_is_not_dirty(void)
{
	for (unsigned order = 0; order <= 4; order += 4) {
		struct iomap_cache_stat st;
		struct t_rig rig;
		uint64_t written;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 4096U << order;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 65536, 'B');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_stat(&rig).folios[order], 16 >> order);
		t_rig_write(&rig, 4096, 4096, 'A');
		CHECK_EQ(punch(rig.file, 4096, 4096), 0);
		CHECK_EQ(iomap_sync_range(rig.file, 0, 0, WRITE_AND_WAIT), 0);
		st = t_rig_stat(&rig);
		CHECK_EQ(st.dirty_bytes, 0);
		CHECK_EQ(st.pinned_bytes, 0);
		written = t_rig_io(&rig).written_bytes;
		CHECK_EQ(written, 65536);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, (long long)written);
		t_rig_close(&rig);
		t_rig_open(&rig);
		t_rig_down(&rig);
	}
}

/* C35a */
static void below_the_middle_nobody_is_throttled(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_rig_write(&rig, 0, 4 * MIB, 'A');
	t_rig_write(&rig, 4 * MIB, 4096, 'A');
	CHECK_EQ(t_rig_stat(&rig).throttled_ns, 0);
	CHECK_EQ(t_rig_stat(&rig).throttle_pauses, 0);
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}

/* C35b: no pause is longer than 200 ms, also after a rest */
static void pauses_are_bounded_after_an_idle_time(void)
{
	struct iomap_cache_stat st;
	struct t_call call;
	struct t_rig rig;
	uint64_t end;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_rig_write(&rig, 0, 13 * MIB, 'A');
	end = t_run_now_ns() + 1000000000;
	while (t_run_now_ns() < end)            /* the rest is what this is about */
		t_run_nap();
	for (unsigned i = 0; i < 100; i++) {
		uint64_t before = t_rig_stat(&rig).throttled_ns, pauses = t_rig_stat(&rig).throttle_pauses;

		t_call_write(&call, rig.file, 'B', 4096, (off_t)(13 * MIB + i * 4096));
		CHECK_EQ(t_call_wait(&call), 4096);
		t_call_free(&call);
		st = t_rig_stat(&rig);
		CHECK_LE(st.throttled_ns - before, (st.throttle_pauses - pauses) * 250000000 * t_run_slow());
	}
	CHECK_LE(st.dirty_ratelimit, st.write_bandwidth > 100 * MIB ? st.write_bandwidth : 100 * MIB);
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}

/* C35c: the hard limit is put below what is dirty, so that the writer is above it at once */
static void at_the_hard_limit_a_writer_waits_for_the_device(void)
{
	struct t_call call;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_rig_write(&rig, 0, 12 * MIB - 65536, 'A');
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, 4 * MIB), 0);
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DIRTY_BYTES, 8 * MIB), 0);
	/* Not just 4096: the first bytes of a thread are on credit. New blocks: overwriting dirty ones is free. */
	t_call_write(&call, rig.file, 'B', MIB, 12 * MIB);
	T_WAIT(t_call_done(&call), 500);
	CHECK(!t_call_done(&call));
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&call), (int64_t)MIB);
	t_call_free(&call);
	t_rig_expect(&rig, 12 * MIB, MIB, 'B');
	t_rig_down(&rig);
}

static void *overwrite_pieces(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(65536);

	/* piece i of 256 holds the number of the pass that wrote it last, in shared[i] */
	for (uint64_t pass = 1; !atomic_load(loop->stop); pass++) {
		for (unsigned i = 0; i < 256 && !atomic_load(loop->stop); i++) {
			memset(buf, (int)(pass & 0xff), 65536);
			loop->shared[i] = pass & 0xff;
			loop->bad += iomap_pwrite(loop->file, buf, 65536, i * 65536) != 65536;
		}
		loop->turns++;
	}
	free(buf);
	return NULL;
}

/* C36; its second is that of the device: what it may write meanwhile */
static void fsync_ends_although_the_file_is_dirtied_all_the_time(void)
{
	static _Atomic uint64_t holds[256];
	_Atomic bool stop = false;
	struct loop loop = { .stop = &stop, .shared = holds };
	pthread_t thread;
	struct t_call sync;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.dirty_bytes = 40 * MIB;
	rig.params.dirty_background_bytes = 36 * MIB;
	rig.device_params.volatile_cache = false;
	rig.device_params.bytes_per_second = 64 * MIB;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 16 * MIB, 'A');
	loop.file = rig.file;
	CHECK_EQ(pthread_create(&thread, NULL, overwrite_pieces, &loop), 0);
	CHECK(T_WAIT(loop.turns >= 1, 10000));
	t_rig_reset(&rig);
	t_call_fsync(&sync, rig.file);
	CHECK_EQ(t_call_wait(&sync), 0);
	CHECK_LE(t_rig_io(&rig).written_bytes, 64 * MIB);
	CHECK(!stop);
	CHECK_MSG(sync.took_ns <= 3000000000ULL * t_run_slow(), "fsync took %llu ms",
		  (unsigned long long)sync.took_ns / 1000000);
	stop = true;
	pthread_join(thread, NULL);
	CHECK_EQ(loop.bad, 0);
	fsync_and_drop(&rig);
	for (unsigned i = 0; i < 256; i++)
		t_rig_expect(&rig, i * 65536, 65536, (int)holds[i]);
	t_call_free(&sync);
	t_rig_down(&rig);
}

/* C37 */
static void a_write_larger_than_the_cache_and_its_limits_goes_through(void)
{
	static const uint64_t limits[] = { 65536, 4096 };

	for (unsigned i = 0; i < 2; i++) {
		struct sampler s;
		struct t_call call;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.memory_bytes = MIB;
		rig.params.dirty_bytes = limits[i];
		rig.params.dirty_background_bytes = limits[i] / 2;
		t_rig_up(&rig);
		sampler_start(&s, rig.cache);
		t_call_write(&call, rig.file, 'A', MIB, 0);
		CHECK(T_WAIT(t_call_done(&call), 10000));
		CHECK_EQ(t_call_wait(&call), (int64_t)MIB);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		sampler_stop(&s);
		t_rig_expect(&rig, 0, MIB, 'A');
		t_rig_expect_stored(&rig, 0, MIB, 'A');
		CHECK_LE(s.dirty_most, limits[i] + 65536);
		t_call_free(&call);
		t_rig_down(&rig);
	}
}

/* C38 */
static void the_device_is_asked_for_exactly_what_is_needed(void)
{
	for (unsigned read_first = 0; read_first < 2; read_first++) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.volatile_cache = false;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 8 * MIB, 'A');
		fsync_and_drop(&rig);
		t_rig_reset(&rig);
		if (read_first) {
			t_rig_expect(&rig, 0, 8 * MIB, 'A');
			CHECK_EQ(t_rig_io(&rig).read_bytes, 8 * MIB);
		}
		for (unsigned i = 0; i < 2048; i++)
			t_rig_write(&rig, i * 4096, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).read_bytes, read_first ? 8 * MIB : 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, 8 * MIB);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, 8 * MIB);
		t_rig_down(&rig);
	}
}

static const struct t_run_case cases[] = {
	T_RUN(truncating_dirty_data_gives_its_count_back),
	T_RUN(a_dirty_count_with_partly_covered_blocks),
	T_RUN(a_folio_with_nothing_left_to_write_is_not_dirty),
	T_RUN(below_the_middle_nobody_is_throttled),
	T_RUN_FOR(pauses_are_bounded_after_an_idle_time, 60),
	T_RUN(at_the_hard_limit_a_writer_waits_for_the_device),
	T_RUN(fsync_ends_although_the_file_is_dirtied_all_the_time),
	T_RUN(a_write_larger_than_the_cache_and_its_limits_goes_through),
	T_RUN(the_device_is_asked_for_exactly_what_is_needed),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
