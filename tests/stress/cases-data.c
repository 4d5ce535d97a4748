/*
 * cases-data.c - bugs that others reported, as short sequences with the exact right result: what is in the file
 */
#define _GNU_SOURCE
#include "cases.h"

/* C01 */
static void a_punch_that_starts_and_ends_in_mid_block_over_dirty_data(void)
{
	for (uint32_t block = 512; block <= 65536; block *= 2) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.block_size = block;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 12288, 'X');
		t_rig_write(&rig, 2048, 8192, 'Z');
		CHECK_EQ(punch(rig.file, 2048, 8192), 0);
		CHECK_EQ(iomap_size(rig.file), 12288);
		t_rig_expect(&rig, 0, 2048, 'X');
		t_rig_expect(&rig, 2048, 8192, 0);
		t_rig_expect(&rig, 10240, 2048, 'X');
		t_rig_write(&rig, 2048, 8192, 'Y');
		for (unsigned pass = 0; pass < 2; pass++) {
			CHECK_EQ(iomap_size(rig.file), 12288);
			t_rig_expect(&rig, 0, 2048, 'X');
			t_rig_expect(&rig, 2048, 8192, 'Y');
			t_rig_expect(&rig, 10240, 2048, 'X');
			CHECK_EQ(iomap_fsync(rig.file), 0);
			t_rig_remount(&rig);
		}
		t_rig_down(&rig);
	}
}

/* C02; also where the device cannot zero a range */
static void zero_range_over_cached_dirty_halves(void)
{
	for (unsigned cannot = 0; cannot < 2; cannot++) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.no_allocate = cannot;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 12288, 'X');
		t_rig_write(&rig, 2048, 8192, 'Z');
		CHECK_EQ(zero(rig.file, 2048, 8192), 0);
		CHECK_EQ(iomap_size(rig.file), 12288);
		t_rig_expect(&rig, 0, 2048, 'X');
		t_rig_expect(&rig, 2048, 8192, 0);
		t_rig_expect(&rig, 10240, 2048, 'X');
		t_rig_write(&rig, 2048, 8192, 'Y');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_remount(&rig);
		CHECK_EQ(iomap_size(rig.file), 12288);
		t_rig_expect(&rig, 0, 2048, 'X');
		t_rig_expect(&rig, 2048, 8192, 'Y');
		t_rig_expect(&rig, 10240, 2048, 'X');
		t_rig_down(&rig);
	}
}

/* C03 */
static void truncate_down_write_truncate_up_at_odd_offsets(void)
{
	for (uint32_t block = 512; block <= 65536; block *= 2) {
		struct t_rig rig;
		unsigned char buf[8192];

		t_rig_init(&rig);
		rig.block_size = block;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 5121, 'X');
		t_rig_write(&rig, 2047, 3071, 'Z');
		CHECK_EQ(iomap_ftruncate(rig.file, 2047), 0);
		t_rig_write(&rig, 513, 1025, 'W');
		CHECK_EQ(iomap_ftruncate(rig.file, 5121), 0);
		CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 5121);
		t_rig_expect(&rig, 0, 513, 'X');
		t_rig_expect(&rig, 513, 1025, 'W');
		t_rig_expect(&rig, 1538, 509, 'X');
		t_rig_expect(&rig, 2047, 3074, 0);
		t_rig_write(&rig, 2047, 3071, 'Y');
		for (unsigned pass = 0; pass < 2; pass++) {
			CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 5121);
			t_rig_expect(&rig, 0, 513, 'X');
			t_rig_expect(&rig, 513, 1025, 'W');
			t_rig_expect(&rig, 1538, 509, 'X');
			t_rig_expect(&rig, 2047, 3071, 'Y');
			t_rig_expect(&rig, 5118, 3, 0);
			if (pass == 0) {
				CHECK_EQ(iomap_fsync(rig.file), 0);
				t_rig_remount(&rig);
			}
		}
		t_rig_down(&rig);
	}
}

static void *sync_all(void *arg)
{
	struct { struct iomap_cache *cache; _Atomic bool *stop; } *a = arg;

	while (!atomic_load(a->stop))
		if (iomap_cache_sync(a->cache))
			return a;
	return NULL;
}

/* C04 */
static void preallocated_blocks_keep_what_is_written_beside_a_sync(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct { struct iomap_cache *cache; _Atomic bool *stop; } arg;
	_Atomic bool stop = false;
	struct iomap_file *file;
	unsigned char *buf = malloc(MIB);
	char path[PATH_MAX];
	pthread_t thread;
	void *bad;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	params.memory_bytes = 16 * MIB;
	CHECK_EQ(iomap_cache_create(&arg.cache, &params), 0);
	arg.stop = &stop;
	CHECK_EQ(pthread_create(&thread, NULL, sync_all, &arg), 0);
	t_run_path(path, sizeof(path), "file");
	for (unsigned i = 0; i < rounds(10, 100); i++) {
		int ret;

		CHECK_EQ(iomap_open(arg.cache, path, O_RDWR | O_CREAT, 0600, &file), 0);
		for (unsigned k = 0; k < 16; k++)
			CHECK_EQ(iomap_pwrite(file, "A", 1, k * 4096 + 3072), 1);
		ret = prealloc(file, 0, 65536);
		CHECK_MSG(ret == 0 || ret == -EOPNOTSUPP, "fallocate: %d", ret);
		memset(buf, 'C', MIB);
		CHECK_EQ(iomap_pwrite(file, buf, MIB, 0), (ssize_t)MIB);
		CHECK_EQ(iomap_fsync(file), 0);
		CHECK(t_drops_all(arg.cache));
		memset(buf, 0, MIB);
		CHECK_EQ(iomap_pread(file, buf, MIB, 0), (ssize_t)MIB);
		CHECK_BYTES(buf, MIB, 'C');
		CHECK_EQ(iomap_lseek(file, 0, SEEK_HOLE), (off_t)MIB);
		CHECK_EQ(iomap_close(file), 0);
		CHECK_EQ(unlink(path), 0);
	}
	atomic_store(&stop, true);
	pthread_join(thread, &bad);
	CHECK(!bad);
	CHECK_EQ(iomap_cache_destroy(arg.cache), 0);
	free(buf);
}

/* C06: a flusher that never rests in the second part */
static void holes_of_a_file_whose_data_is_only_dirty(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 131072, 'A');
	CHECK_EQ(iomap_ftruncate(rig.file, 1048576), 0);
	t_rig_write(&rig, 524288, 4096, 'B');
	for (unsigned pass = 0; pass < 2; pass++) {
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 0);
		CHECK_EQ(iomap_lseek(rig.file, 100, SEEK_DATA), 100);
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_HOLE), 131072);
		CHECK_EQ(iomap_lseek(rig.file, 65536, SEEK_HOLE), 131072);
		CHECK_EQ(iomap_lseek(rig.file, 131072, SEEK_DATA), 524288);
		CHECK_EQ(iomap_lseek(rig.file, 524288, SEEK_HOLE), 528384);
		CHECK_EQ(iomap_lseek(rig.file, 528384, SEEK_DATA), -ENXIO);
		CHECK_EQ(iomap_fsync(rig.file), 0);
	}
	CHECK_EQ(punch(rig.file, 0, 65536), 0);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 65536);
	t_rig_expect(&rig, 0, 65536, 0);                /* reading a hole does not make it data */
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 65536);
	t_rig_down(&rig);

	t_rig_init(&rig);
	rig.params.dirty_writeback_ms = 1;
	rig.params.dirty_expire_ms = 1;
	t_rig_up(&rig);
	for (unsigned i = 0; i < rounds(1000, 10000); i++) {
		CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
		t_rig_write(&rig, 0, 4096, 'A');
		for (unsigned k = 0; k < 20; k++) {
			CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 0);
			CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_HOLE), 4096);
		}
	}
	t_rig_down(&rig);
}

/* C07 */
static void holes_among_preallocated_blocks_with_some_dirty_data(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	CHECK_EQ(prealloc(rig.file, 0, 65536), 0);
	CHECK_EQ(iomap_size(rig.file), 65536);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), -ENXIO);
	t_rig_write(&rig, 16384, 4096, 'A');
	t_rig_write(&rig, 49152, 1, 'B');
	for (unsigned pass = 0; pass < 3; pass++) {
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 16384);
		CHECK_EQ(iomap_lseek(rig.file, 16384, SEEK_HOLE), 20480);
		CHECK_EQ(iomap_lseek(rig.file, 20480, SEEK_DATA), 49152);
		CHECK_EQ(iomap_lseek(rig.file, 49152, SEEK_HOLE), 53248);
		CHECK_EQ(iomap_lseek(rig.file, 53248, SEEK_DATA), -ENXIO);
		if (pass == 0)
			CHECK_EQ(iomap_fsync(rig.file), 0);
		else
			t_rig_expect(&rig, 0, 16384, 0);        /* unlike Linux, reading in between makes no difference */
	}
	t_rig_down(&rig);
}

/* C08 */
static void a_second_write_into_a_half_written_preallocated_block(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	CHECK_EQ(prealloc(rig.file, 0, 131072), 0);
	t_rig_write(&rig, 65536, 2048, 'A');
	fsync_and_drop(&rig);
	t_rig_write(&rig, 67584, 2048, 'B');
	fsync_and_drop(&rig);
	t_rig_expect(&rig, 61440, 4096, 0);
	t_rig_expect(&rig, 65536, 2048, 'A');
	t_rig_expect(&rig, 67584, 2048, 'B');
	t_rig_expect(&rig, 69632, 4096, 0);
	t_rig_down(&rig);
}

/* C09; once with the folios that reading made, once with the large one that writing made */
static void one_dirty_byte_does_not_write_the_large_folio(void)
{
	for (unsigned as_written = 0; as_written < 2; as_written++) {
		struct t_rig rig;

		t_rig_init(&rig);
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 65536, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		if (as_written) {
			CHECK_EQ(t_rig_stat(&rig).folios[4], 1);
		} else {
			CHECK(t_drops_all(rig.cache));
			t_rig_expect(&rig, 0, 65536, 'A');
		}
		t_rig_reset(&rig);
		t_rig_write(&rig, 20487, 1, 'B');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 4096);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, 4096);
		CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_rig_io(&rig).written_bytes, 4096);
		t_rig_expect_stored(&rig, 0, 20487, 'A');
		t_rig_expect_stored(&rig, 20487, 1, 'B');
		t_rig_expect_stored(&rig, 20488, 65536 - 20488, 'A');
		t_rig_down(&rig);
	}
}

/* C10 */
static void block_state_attached_late_forgets_nothing(void)
{
	static const unsigned order[] = { 3, 1, 0, 2 };
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	rig.block_size = 1024;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'Z');
	fsync_and_drop(&rig);
	t_rig_expect(&rig, 0, 4096, 'Z');
	t_rig_reset(&rig);
	for (unsigned i = 0; i < 4; i++)
		t_rig_write(&rig, order[i] * 1024, 1024, (int)('a' + order[i]));
	fsync_and_drop(&rig);
	for (unsigned k = 0; k < 4; k++)
		t_rig_expect(&rig, k * 1024, 1024, (int)('a' + k));
	CHECK_EQ(t_rig_io(&rig).written_bytes, 4096);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	t_rig_down(&rig);
}

/* C11 */
static void a_block_read_late_does_not_overwrite_newer_blocks(void)
{
	struct t_call t1, t2, t3;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	rig.block_size = 1024;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	fsync_and_drop(&rig);
	t_hold_park(rig.hold, T_HOLD_READ, 1024, 1024);
	t_call_read(&t1, rig.file, 1024, 1024);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	t_call_write(&t2, rig.file, 'N', 1024, 0);
	t_call_read(&t3, rig.file, 1024, 2048);
	t_hold_release(rig.hold);
	CHECK(T_WAIT(t_call_done(&t1) && t_call_done(&t2) && t_call_done(&t3), 1000));
	CHECK_EQ(t_call_wait(&t1), 1024);
	CHECK_BYTES(t1.buf, 1024, 'A');
	CHECK_EQ(t_call_wait(&t2), 1024);
	CHECK_EQ(t_call_wait(&t3), 1024);
	CHECK_BYTES(t3.buf, 1024, 'A');
	t_call_free(&t1);
	t_call_free(&t2);
	t_call_free(&t3);
	for (unsigned pass = 0; pass < 2; pass++) {
		t_rig_expect(&rig, 0, 1024, 'N');
		t_rig_expect(&rig, 1024, 3072, 'A');
		fsync_and_drop(&rig);
	}
	t_rig_down(&rig);
}

static int64_t punch_the_middle(void *arg) { return punch(arg, 4096, 8192); }

/* C12 */
static void a_punched_range_leaves_the_cache(void)
{
	for (unsigned held = 0; held < 2; held++) {
		struct t_hold_entry log[16];
		struct t_call call;
		struct t_rig rig;
		bool punched = false;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 4096;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 16384, 'A');
		if (held) {
			CHECK_EQ(iomap_ftruncate(rig.file, 16384), 0);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			t_rig_write(&rig, 0, 16384, 'A');
			t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
			CHECK_EQ(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);
			CHECK(t_hold_wait_parked(rig.hold, 1));
			t_call_fn(&call, punch_the_middle, rig.file);
			T_WAIT(t_call_done(&call), 50);
			CHECK(!t_call_done(&call));     /* what is in flight would come after it */
			t_hold_release(rig.hold);
			CHECK_EQ(t_call_wait(&call), 0);
			t_call_free(&call);
		} else {
			CHECK_EQ(iomap_fsync(rig.file), 0);
			t_rig_expect(&rig, 0, 16384, 'A');
			CHECK_EQ(punch(rig.file, 4096, 8192), 0);
			punched = true;
		}
		t_hold_log_clear(rig.hold);
		if (punched)
			CHECK_EQ(t_rig_stat(&rig).cached_bytes, 8192);
		for (unsigned pass = 0; pass < 2; pass++) {
			CHECK_EQ(iomap_size(rig.file), 16384);
			t_rig_expect(&rig, 0, 4096, 'A');
			t_rig_expect(&rig, 4096, 8192, 0);
			t_rig_expect(&rig, 12288, 4096, 'A');
			fsync_and_drop(&rig);
		}
		for (unsigned i = 0, nr = t_hold_log(rig.hold, log, 16); i < nr; i++)
			CHECK(log[i].op != IOMAP_REQ_WRITE || log[i].pos + log[i].len <= 4096 || log[i].pos >= 12288);
		t_rig_expect_stored(&rig, 4096, 8192, 0);
		CHECK_EQ(t_hold_allocated(rig.hold), 8192);
		t_rig_down(&rig);
	}
}

/* C13 */
static void a_punch_does_not_reach_past_its_end(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 24576, 4096, 'N');
	CHECK_EQ(punch(rig.file, 4096, 20480), 0);
	CHECK_EQ(punch(rig.file, 30000, 10), 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		t_rig_expect(&rig, 0, 4096, 'A');
		t_rig_expect(&rig, 4096, 20480, 0);
		t_rig_expect(&rig, 24576, 4096, 'N');
		t_rig_expect(&rig, 28672, 1328, 'A');
		t_rig_expect(&rig, 30000, 10, 0);
		t_rig_expect(&rig, 30010, 35526, 'A');
		fsync_and_drop(&rig);
	}
	t_rig_down(&rig);
}

/* C14 */
static void a_block_rewritten_under_writeback_is_written_again(void)
{
	struct t_hold_entry log[16];
	struct t_call write;
	struct t_rig rig;
	unsigned nr, last = 0;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 4096);
	start_writeback(&rig);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	t_call_write(&write, rig.file, 'N', 4096, 0);   /* may wait for the release */
	T_WAIT(t_call_done(&write), 100);
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&write), 4096);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).writeback_bytes, 0);
	nr = t_hold_log(rig.hold, log, 16);
	for (unsigned i = 0; i < nr && i < 16; i++)
		if (log[i].op == IOMAP_REQ_WRITE)
			last = i;
	CHECK_EQ(log[last].first_word, 0x4e4e4e4e4e4e4e4eLL);
	t_rig_crash(&rig, 1);
	t_rig_expect(&rig, 0, 4096, 'N');
	t_call_free(&write);
	t_rig_down(&rig);
}

/* A block that tells whether it is whole. */
static void seal(unsigned char *block, size_t len, uint64_t number)
{
	uint64_t sum = 0, word;

	t_fill(block, 0, len - 8, number & 0xffff);
	for (size_t i = 0; i < len - 8; i += 8) {
		memcpy(&word, block + i, 8);
		sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
	}
	memcpy(block + len - 8, &sum, 8);
}

static bool is_sealed(const unsigned char *block, size_t len)
{
	uint64_t sum = 0, word;

	for (size_t i = 0; i < len - 8; i += 8) {
		memcpy(&word, block + i, 8);
		sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
	}
	memcpy(&word, block + len - 8, 8);
	return word == sum;
}

static void *write_sealed(void *arg)
{
	struct loop *loop = arg;
	unsigned char block[4096];

	while (!atomic_load(loop->stop)) {
		seal(block, sizeof(block), loop->seed + 4 * loop->turns);
		loop->bad += iomap_pwrite(loop->file, block, sizeof(block), 0) != (ssize_t)sizeof(block);
		loop->turns++;
	}
	return NULL;
}

static void *read_sealed(void *arg)
{
	struct loop *loop = arg;
	unsigned char block[4096];

	while (!atomic_load(loop->stop)) {
		loop->bad += iomap_pread(loop->file, block, sizeof(block), 0) != (ssize_t)sizeof(block) ||
			     !is_sealed(block, sizeof(block));
		loop->turns++;
	}
	return NULL;
}

static void *sync_loop(void *arg)
{
	struct loop *loop = arg;

	while (!atomic_load(loop->stop)) {
		loop->bad += iomap_sync_range(loop->file, 0, 4096, WRITE_AND_WAIT) != 0;
		loop->turns++;
	}
	return NULL;
}

/* C15; that memory does not change in flight is checked by the device itself */
static void a_buffer_does_not_change_while_it_is_written(void)
{
	struct loop loops[6];
	pthread_t threads[6];
	unsigned char block[4096];
	_Atomic bool stop = false;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.device_params.volatile_cache = false;
	rig.device_params.jitter_ns = 50000;
	t_rig_up(&rig);
	seal(block, sizeof(block), 0);
	CHECK_EQ(iomap_pwrite(rig.file, block, sizeof(block), 0), 4096);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	memset(loops, 0, sizeof(loops));
	for (unsigned i = 0; i < 6; i++) {
		loops[i].file = rig.file;
		loops[i].stop = &stop;
		loops[i].seed = i;
		CHECK_EQ(pthread_create(&threads[i], NULL, i < 4 ? write_sealed : i == 4 ? read_sealed : sync_loop,
					&loops[i]), 0);
	}
	for (unsigned i = 0; i < rounds(1000, 10000); i++) {
		uint64_t seen = loops[5].turns;

		t_hold_peek(rig.hold, block, sizeof(block), 0);
		CHECK(is_sealed(block, sizeof(block)));
		CHECK(T_WAIT(loops[5].turns != seen, 5000));
	}
	stop = true;
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(loops[i].bad, 0);
	}
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN(a_punch_that_starts_and_ends_in_mid_block_over_dirty_data),
	T_RUN(zero_range_over_cached_dirty_halves),
	T_RUN(truncate_down_write_truncate_up_at_odd_offsets),
	T_RUN(preallocated_blocks_keep_what_is_written_beside_a_sync),
	T_RUN(holes_of_a_file_whose_data_is_only_dirty),
	T_RUN(holes_among_preallocated_blocks_with_some_dirty_data),
	T_RUN(a_second_write_into_a_half_written_preallocated_block),
	T_RUN(one_dirty_byte_does_not_write_the_large_folio),
	T_RUN(block_state_attached_late_forgets_nothing),
	T_RUN(a_block_read_late_does_not_overwrite_newer_blocks),
	T_RUN(a_punched_range_leaves_the_cache),
	T_RUN(a_punch_does_not_reach_past_its_end),
	T_RUN(a_block_rewritten_under_writeback_is_written_again),
	T_RUN(a_buffer_does_not_change_while_it_is_written),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
