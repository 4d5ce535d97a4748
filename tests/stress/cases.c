/*
 * cases.c - bugs that others reported, as short sequences with the exact right result
 *
 * The comment above each test names its case. Where a case depends on the rule for failed writes, it runs under both:
 * K, IOMAP_ERROR_KEEP_DIRTY, and L, IOMAP_ERROR_DROP. What starts writeback without waiting for it is DONTNEED advice.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "call.h"
#include "rig.h"

#define BOTH_RULES(policy) \
	for (enum iomap_error_policy policy = IOMAP_ERROR_KEEP_DIRTY; policy <= IOMAP_ERROR_DROP; policy++)

static void start_writeback(struct t_rig *rig)
{
	CHECK_EQ(iomap_fadvise(rig->file, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static bool nothing_in_flight(struct t_rig *rig)
{
	return t_rig_stat(rig).writeback_bytes == 0;
}

static void fsync_and_drop(struct t_rig *rig)
{
	CHECK_EQ(iomap_fsync(rig->file), 0);
	CHECK_EQ(iomap_cache_drop(rig->cache), 0);
}

static off_t fstat_size(struct iomap_file *file)
{
	struct stat st;

	CHECK_EQ(iomap_fstat(file, &st), 0);
	return st.st_size;
}

static unsigned rounds(unsigned in_check, unsigned in_check_long)
{
	return t_run_is_long() ? in_check_long : in_check;
}

/* End of a loop that is to run for so long. */
static uint64_t until(unsigned ms_in_check, unsigned ms_in_check_long)
{
	return t_run_now_ns() + 1000000ULL * rounds(ms_in_check, ms_in_check_long);
}

static int punch(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)pos, (off_t)len);
}

static int zero(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, (off_t)pos, (off_t)len);
}

static int prealloc(struct iomap_file *file, uint64_t pos, uint64_t len)
{
	return iomap_fallocate(file, 0, (off_t)pos, (off_t)len);
}

#define WRITE_AND_WAIT (IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER)

/* --- data integrity ---------------------------------------------------------------------------------------------- */

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
		CHECK_EQ(iomap_cache_drop(arg.cache), 0);
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
			CHECK_EQ(iomap_cache_drop(rig.cache), 0);
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

struct loop {
	struct iomap_file *file;
	struct iomap_cache *cache;
	_Atomic bool *stop;
	uint64_t seed;
	_Atomic uint64_t turns;
	_Atomic uint64_t bad;
	off_t pos;
	size_t len;
	_Atomic uint64_t *shared;
};

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
		loop->bad += iomap_fdatasync(loop->file) != 0;
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
	for (unsigned i = 0; i < rounds(300, 10000); i++) {
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

/* --- size and end of file ---------------------------------------------------------------------------------------- */

/* C17: a device that hands out blocks with old contents is the file system's; here all there may be is what was written, and zeros */
static void a_crash_after_an_allocation_change_shows_nothing_old(void)
{
	static const int modes[] = {
		FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
	};

	for (unsigned i = 0; i < rounds(60, 1000); i++) {
		unsigned char *buf = malloc(65536);
		struct t_rig rig;
		off_t size;

		t_rig_init(&rig);
		rig.device_params.volatile_cache = true;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 65536, 1);
		CHECK_EQ(iomap_fallocate(rig.file, modes[i % 3], 61440, 4096), 0);
		if (i % 2)
			CHECK_EQ(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);
		t_rig_crash(&rig, i);
		size = iomap_size(rig.file);
		CHECK(size >= 0 && size <= 65536);
		CHECK_EQ(iomap_pread(rig.file, buf, 65536, 0), size);
		for (off_t k = 0; k < size; k++)
			CHECK(buf[k] <= 1);
		t_rig_down(&rig);
		free(buf);
	}
}

/* C18: the device fills the memory of a read past its end with 0xAA */
static void garbage_behind_the_end_never_shows(void)
{
	static const off_t sizes[] = { 8192, 9001, 12288 };

	for (unsigned variant = 0; variant < 3; variant++) {
		off_t size = sizes[variant];
		struct t_rig rig;

		t_rig_init(&rig);
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 5000, 'A');
		t_rig_remount(&rig);
		t_rig_expect(&rig, 4096, 904, 'A');
		if (variant == 0)
			CHECK_EQ(iomap_ftruncate(rig.file, 8192), 0);
		else if (variant == 1)
			t_rig_write(&rig, 9000, 1, 'N');
		else
			CHECK_EQ(prealloc(rig.file, 0, 12288), 0);
		for (unsigned pass = 0; pass < 2; pass++) {
			CHECK_EQ(iomap_size(rig.file), size);
			t_rig_expect(&rig, 4096, 904, 'A');
			t_rig_expect(&rig, 5000, 3192, 0);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			CHECK_EQ(t_hold_size(rig.hold), (uint64_t)size);
			if (pass == 0)
				t_rig_crash(&rig, variant);
		}
		t_rig_down(&rig);
	}
}

/* C19 */
static void a_cut_in_a_dirty_block_over_unwritten_space_then_a_punch_behind(void)
{
	for (unsigned synced = 0; synced < 2; synced++) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.volatile_cache = true;
		t_rig_up(&rig);
		CHECK_EQ(iomap_fallocate(rig.file, FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
		t_rig_write(&rig, 0, 4096, 'W');
		if (synced)
			CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_ftruncate(rig.file, 16), 0);
		CHECK_EQ(punch(rig.file, 16, 16), 0);
		CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		CHECK_EQ(iomap_size(rig.file), 16);
		t_rig_expect(&rig, 0, 16, 'W');
		CHECK_EQ(iomap_ftruncate(rig.file, 4096), 0);
		for (unsigned pass = 0; pass < 2; pass++) {
			t_rig_expect(&rig, 0, 16, 'W');
			t_rig_expect(&rig, 16, 4080, 0);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			t_rig_crash(&rig, 0);
		}
		t_rig_down(&rig);

		t_rig_init(&rig);
		t_rig_up(&rig);
		CHECK_EQ(iomap_fallocate(rig.file, FALLOC_FL_KEEP_SIZE, 0x35870, 0xa790), 0);
		t_rig_write(&rig, 0x2aa50, 0xc37f, 'W');
		if (synced)
			CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_ftruncate(rig.file, 0x36dcd), 0);
		CHECK_EQ(zero(rig.file, 0x35849, 0x1584), 0);
		CHECK_EQ(iomap_size(rig.file), 0x36dcd);
		t_rig_expect(&rig, 0x2aa50, 0x35849 - 0x2aa50, 'W');
		t_rig_expect(&rig, 0x361c8, 0xc05, 0);
		t_rig_down(&rig);
	}
}

struct appender {
	struct iomap_file *file;
	_Atomic uint64_t written, synced;       /* records */
	_Atomic bool stop, bad;
};

static void *append_records(void *arg)
{
	struct appender *a = arg;

	for (uint64_t n = 1; n <= 500 && !atomic_load(&a->stop); n++) {
		uint64_t record = n * 0x0101010101010101ULL;

		a->written = n;
		if (iomap_pwrite(a->file, &record, 8, 0) != 8 || iomap_fdatasync(a->file) != 0)
			a->bad = true;
		a->synced = n;
	}
	return NULL;
}

/* C20 */
static void fdatasync_after_a_small_append_saves_the_size(void)
{
	struct appender a = { 0 };
	unsigned images = 0;
	pthread_t thread;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	a.file = t_rig_handle(&rig, O_RDWR | O_APPEND);
	CHECK_EQ(pthread_create(&thread, NULL, append_records, &a), 0);
	while (a.synced < 500) {
		uint64_t before = a.synced, after, size, record;
		struct t_hold *image = t_hold_crash(rig.hold, images++);

		after = a.written;
		size = t_hold_size(image);
		CHECK_MSG(size >= 8 * before && size <= 8 * after, "size %llu, %llu records synced, %llu written",
			  (unsigned long long)size, (unsigned long long)before, (unsigned long long)after);
		for (uint64_t n = 1; n <= before; n++) {
			t_hold_peek(image, &record, 8, 8 * (n - 1));
			CHECK_EQ(record, n * 0x0101010101010101ULL);
		}
		t_hold_free(image);
		CHECK(T_WAIT(a.synced != before, 10000));
	}
	pthread_join(thread, NULL);
	CHECK(!a.bad);
	CHECK_EQ(iomap_close(a.file), 0);
	t_rig_down(&rig);
}

static void *append_pattern(void *arg)
{
	struct appender *a = arg;
	unsigned char *buf = malloc(200000);
	uint64_t random = 20, pos = 0;

	for (unsigned n = 1; pos < 24 * MIB && !atomic_load(&a->stop); n++) {
		size_t len = 1 + t_random_below(&random, n % 8 ? 9000 : 200000);

		t_fill(buf, pos, len, 21);
		a->written = pos + len;
		if (iomap_pwrite(a->file, buf, len, 0) != (ssize_t)len)
			a->bad = true;
		pos += len;
		if (n % 16 == 0) {
			if (iomap_fdatasync(a->file) != 0)
				a->bad = true;
			a->synced = pos;
		}
	}
	a->stop = true;
	free(buf);
	return NULL;
}

/* As C20, with records of all sizes, a flusher that runs ahead of the syncs, and a device that ends requests in any order */
static void a_file_that_grows_has_no_hole_after_a_crash(void)
{
	for (unsigned variant = 0; variant < 4; variant++) {
		struct appender a = { 0 };
		unsigned images = 0;
		unsigned char *buf = malloc(65536);
		pthread_t thread;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.accounting = (enum iomap_accounting)(variant % 3);
		rig.params.dirty_background_bytes = 65536;
		rig.block_size = variant % 2 ? 512 : 4096;
		rig.device_params.shuffle = true;
		rig.device_params.jitter_ns = 500000;
		rig.device_params.max_bytes = variant < 2 ? 0 : 65536;
		t_rig_up(&rig);
		a.file = t_rig_handle(&rig, O_RDWR | O_APPEND);
		CHECK_EQ(pthread_create(&thread, NULL, append_pattern, &a), 0);
		while (!atomic_load(&a.stop) && images < rounds(60, 2000)) {
			uint64_t before = a.synced, size;
			struct t_hold *image = t_hold_crash(rig.hold, images++);

			size = t_hold_size(image);
			CHECK_MSG(size >= before && size <= a.written, "size %llu, %llu synced, %llu written",
				  (unsigned long long)size, (unsigned long long)before, (unsigned long long)a.written);
			for (uint64_t pos = 0; pos < size; pos += 65536) {
				size_t n = size - pos < 65536 ? size - pos : 65536;

				t_hold_peek(image, buf, n, pos);
				CHECK_MSG(t_check_fill(buf, pos, n, 21), "variant %u: size %llu, %llu synced, %llu written",
					  variant, (unsigned long long)size, (unsigned long long)before,
					  (unsigned long long)a.written);
			}
			t_hold_free(image);
			t_run_nap();
		}
		CHECK_GE(images, 10);
		a.stop = true;
		pthread_join(thread, NULL);
		CHECK(!a.bad);
		CHECK_EQ(iomap_close(a.file), 0);
		free(buf);
		t_rig_down(&rig);
	}
}

/* Found by the model: the file's last block, dirty and longer than on the device, was left out */
static void a_dsync_write_beside_a_dirty_end_is_durable(void)
{
	for (enum iomap_accounting mode = IOMAP_ACCT_BLOCK; mode <= IOMAP_ACCT_FOLIO; mode++) {
		unsigned char buf[1024];
		struct iovec iov = { buf, sizeof(buf) };
		struct t_hold *image;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.accounting = mode;
		rig.block_size = 1024;
		t_rig_up(&rig);
		t_rig_write(&rig, 50000, 2048, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, 52048, 14, 'B');
		memset(buf, 'C', sizeof(buf));
		CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, 50900, IOMAP_RWF_DSYNC), 1024);
		image = t_hold_crash_strict(rig.hold);
		t_hold_peek(image, buf, 1024, 50900);
		CHECK_BYTES(buf, 1024, 'C');
		t_hold_free(image);
		t_rig_down(&rig);
	}
}

static void *append_100_bytes(void *arg)
{
	struct loop *loop = arg;
	unsigned char record[100];
	struct iovec iov = { record, sizeof(record) };

	memset(record, 'R', sizeof(record));
	for (unsigned i = 0; i < loop->seed; i++)
		loop->bad += iomap_pwritev2(loop->file, &iov, 1, 0, IOMAP_RWF_APPEND) != 100;
	atomic_store(loop->stop, true);
	return NULL;
}

/* C25 */
static void a_reader_that_cached_the_last_block_sees_the_file_grow(void)
{
	struct iomap_file *other;
	unsigned char *buf = malloc(2 << 20);
	_Atomic bool stop = false;
	struct loop loop = { .stop = &stop };
	pthread_t thread;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 100, 'A');
	fsync_and_drop(&rig);
	CHECK_EQ(iomap_pread(rig.file, buf, 4096, 0), 100);
	other = t_rig_handle(&rig, O_RDWR);
	memset(buf, 'N', 100);
	CHECK_EQ(iomap_pwrite(other, buf, 100, 100), 100);
	CHECK_EQ(iomap_pread(rig.file, buf, 4096, 0), 200);
	CHECK_BYTES(buf, 100, 'A');
	CHECK_BYTES(buf + 100, 100, 'N');
	loop.file = other;
	loop.seed = rounds(3000, 10000);
	CHECK_EQ(pthread_create(&thread, NULL, append_100_bytes, &loop), 0);
	while (!atomic_load(&stop)) {
		ssize_t n = iomap_pread(rig.file, buf, 2 << 20, 0);

		CHECK_GE(n, 200);
		CHECK_MSG(!memchr(buf, 0, (size_t)n), "a zero byte in %zd", n);
	}
	pthread_join(thread, NULL);
	CHECK_EQ(loop.bad, 0);
	CHECK_EQ(iomap_size(rig.file), (off_t)(200 + 100 * loop.seed));
	CHECK_EQ(iomap_close(other), 0);
	free(buf);
	t_rig_down(&rig);
}

static void *read_all_A(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(65536);

	while (!atomic_load(loop->stop)) {
		ssize_t n = iomap_pread(loop->file, buf, 65536, 0);

		if (n < 0 || n > 65536 || t_run_bytes_differ(buf, (size_t)n, 'A') >= 0)
			loop->bad++;
		loop->turns++;
	}
	free(buf);
	return NULL;
}

/* C26 */
static void a_read_beside_truncate_to_zero_sees_only_what_was_written(void)
{
	struct loop loops[3];
	pthread_t threads[3];
	_Atomic bool stop = false;
	struct t_rig rig;
	uint64_t end;

	t_rig_init(&rig);
	rig.device_params.volatile_cache = false;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	memset(loops, 0, sizeof(loops));
	for (unsigned i = 0; i < 3; i++) {
		loops[i].file = rig.file;
		loops[i].stop = &stop;
		CHECK_EQ(pthread_create(&threads[i], NULL, read_all_A, &loops[i]), 0);
	}
	for (end = until(1000, 10000); t_run_now_ns() < end; ) {
		CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
		t_rig_write(&rig, 0, 65536, 'A');
	}
	stop = true;
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(loops[i].bad, 0);
	}
	t_rig_down(&rig);
}

/* C28 */
static void a_partial_last_block_does_not_lengthen_the_device(void)
{
	unsigned char buf[8192];
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4100, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(fstat_size(rig.file), 4100);
	CHECK_EQ(t_hold_size(rig.hold), 4100);
	t_rig_crash(&rig, 7);
	CHECK_EQ(fstat_size(rig.file), 4100);
	CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 4100);
	CHECK_BYTES(buf, 4100, 'A');
	t_rig_write(&rig, 4100, 10, 'N');
	t_rig_remount(&rig);
	CHECK_EQ(t_hold_size(rig.hold), 4110);
	CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 4110);
	CHECK_BYTES(buf, 4100, 'A');
	CHECK_BYTES(buf + 4100, 10, 'N');
	t_rig_down(&rig);
}

/* C29 */
static void a_truncate_is_not_undone_by_writeback_that_ends_later(void)
{
	struct t_hold_rule slow = { .ops = T_HOLD_WRITE, .action = T_HOLD_DELAY, .value = 5000000 };
	unsigned char buf[8192];
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	for (unsigned i = 0; i < rounds(20, 200); i++) {
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
		t_rig_write(&rig, 0, MIB, 'A');
		t_hold_rule(rig.hold, &slow);
		start_writeback(&rig);
		CHECK_EQ(iomap_ftruncate(rig.file, 4096), 0);
		CHECK(T_WAIT(nothing_in_flight(&rig), 5000));
		t_rig_close(&rig);
		CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		t_rig_open(&rig);
		CHECK_EQ(fstat_size(rig.file), 4096);
		CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 4096);
		CHECK_BYTES(buf, 4096, 'A');
		CHECK_EQ(iomap_ftruncate(rig.file, 8192), 0);
		t_rig_expect(&rig, 4096, 4096, 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_hold_size(rig.hold), 8192);
		t_rig_expect_stored(&rig, 0, 4096, 'A');
		t_rig_expect_stored(&rig, 4096, 4096, 0);
	}
	t_rig_down(&rig);
}

/*
 * Found by the model: while the file grows its end is written at its exact length, on its own way; what is written over
 * that place later is newer.
 */
static void an_old_end_of_a_file_is_not_written_over_newer_bytes(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	unsigned char *buf = malloc(MIB), *model = malloc(MIB);
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct iovec iov = { buf, 0 };
	char path[PATH_MAX];
	int fd;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	t_run_path(path, sizeof(path), "file");
	params.memory_bytes = 2 * MIB;
	params.dirty_background_bytes = 32768;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	CHECK_EQ(iomap_open(cache, path, O_RDWR | O_CREAT, 0600, &file), 0);
	fd = open(path, O_RDONLY);
	for (unsigned i = 0; i < rounds(30, 3000); i++) {
		uint64_t size = 77824 + 63450;

		CHECK_EQ(iomap_ftruncate(file, 0), 0);
		memset(model, 0, MIB);
		t_fill(model, 0, 77824, 4 * i);
		CHECK_EQ(iomap_pwrite(file, model, 77824, 0), 77824);
		t_fill(buf, 77824, 63450, 4 * i + 1);
		iov.iov_len = 63450;
		CHECK_EQ(iomap_pwritev2(file, &iov, 1, 0, IOMAP_RWF_APPEND), 63450);
		memcpy(model + 77824, buf, 63450);
		for (uint64_t pos = 81920; pos < size; pos += 4096) {
			uint64_t len = size - pos < 4096 ? size - pos : 4096;

			t_fill(model + pos, pos, len, 4 * i + 2);
			CHECK_EQ(iomap_pwrite(file, model + pos, len, (off_t)pos), (ssize_t)len);
		}
		CHECK_EQ(iomap_fsync(file), 0);
		CHECK_EQ(pread(fd, buf, MIB, 0), (ssize_t)size);
		for (uint64_t pos = 0; pos < size; pos++)
			CHECK_MSG(buf[pos] == model[pos], "round %u: byte %llu as read(2) sees it is wrong", i,
				  (unsigned long long)pos);
	}
	close(fd);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	free(buf);
	free(model);
}

/* --- accounting and throttling ----------------------------------------------------------------------------------- */

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
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
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

/* C36 */
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
	t_call_fsync(&sync, rig.file);
	CHECK_EQ(t_call_wait(&sync), 0);
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

/* Looks at a cache all the time. */
struct sampler {
	struct iomap_cache *cache;
	_Atomic bool stop;
	uint64_t samples, dirty_most, cached_most;
	pthread_t thread;
};

static void *sample(void *arg)
{
	struct sampler *s = arg;

	while (!atomic_load(&s->stop)) {
		struct iomap_cache_stat st;

		if (iomap_cache_stat(s->cache, &st, sizeof(st)) != 0)
			break;
		if (st.dirty_bytes + st.writeback_bytes > s->dirty_most)
			s->dirty_most = st.dirty_bytes + st.writeback_bytes;
		if (st.cached_bytes > s->cached_most)
			s->cached_most = st.cached_bytes;
		s->samples++;
		t_run_nap();
	}
	return NULL;
}

static void sampler_start(struct sampler *s, struct iomap_cache *cache)
{
	memset(s, 0, sizeof(*s));
	s->cache = cache;
	CHECK_EQ(pthread_create(&s->thread, NULL, sample, s), 0);
}

static void sampler_stop(struct sampler *s)
{
	atomic_store(&s->stop, true);
	pthread_join(s->thread, NULL);
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

/* --- errors and fsync -------------------------------------------------------------------------------------------- */

static void fsync_all(struct iomap_file **handles, int wanted, const char *phase)
{
	for (unsigned i = 0; i < 10; i++) {
		int ret = iomap_fsync(handles[i]);

		CHECK_MSG(ret == wanted, "%s: fsync of handle %u: %d, expected %d", phase, i, ret, wanted);
	}
}

/* C40 */
static void every_handle_sees_a_write_error(void)
{
	BOTH_RULES(policy) {
		struct iomap_file *handles[10];
		unsigned char *buf = malloc(66560);
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		memset(buf, 'A', 66560);
		for (unsigned i = 0; i < 10; i++) {
			handles[i] = t_rig_handle(&rig, O_RDWR);
			CHECK_EQ(iomap_pwrite(handles[i], buf, 66560, i * 66560), 66560);
		}
		fsync_all(handles, 0, "F1");
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		memset(buf, 'B', 66560);
		for (unsigned i = 0; i < 10; i++)
			CHECK_EQ(iomap_pwrite(handles[i], buf, 66560, i * 66560), 66560);
		fsync_all(handles, -EIO, "F2");
		fsync_all(handles, policy == IOMAP_ERROR_KEEP_DIRTY ? -EIO : 0, "F3");
		t_hold_heal(rig.hold);
		fsync_all(handles, 0, "F4");
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 665600, 'B');
		for (unsigned i = 0; i < 10; i++) {
			CHECK_EQ(iomap_close(handles[i]), 0);
			handles[i] = t_rig_handle(&rig, O_RDWR);
			CHECK_EQ(iomap_fsync(handles[i]), 0);
		}
		for (unsigned i = 0; i < 10; i++)
			CHECK_EQ(iomap_close(handles[i]), 0);
		CHECK_EQ(iomap_fsync(rig.file), policy == IOMAP_ERROR_KEEP_DIRTY ? 0 : -EIO);  /* it has not asked yet */
		CHECK_EQ(iomap_fsync(rig.file), 0);
		free(buf);
		t_rig_down(&rig);
	}
}

static bool a_write_failed(struct t_rig *rig)
{
	struct iomap_cache_stat st = t_rig_stat(rig);

	return st.write_failed_bytes > 0 && st.writeback_bytes == 0;
}

/* C41 */
static void an_error_before_the_open_is_reported_once_it_is_asked_for(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct iomap_file *h2, *h3;
		struct t_rig rig;
		int e4;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 4096, 'A');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		start_writeback(&rig);
		CHECK(T_WAIT(a_write_failed(&rig), 5000));
		h2 = t_rig_handle(&rig, O_RDWR);
		CHECK_EQ(iomap_fsync(h2), -EIO);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(h2), 0);
		if (keep)
			t_rig_expect_stored(&rig, 0, 4096, 'A');
		h3 = t_rig_handle(&rig, O_RDWR);
		CHECK_EQ(iomap_fsync(h3), 0);
		e4 = iomap_fsync(rig.file);
		CHECK_MSG(e4 == -EIO || (keep && e4 == 0), "fsync of the first handle: %d", e4);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_close(h2), 0);
		CHECK_EQ(iomap_close(h3), 0);
		t_rig_down(&rig);
	}
}

/* C42 */
static void only_fsync_takes_the_error_away(void)
{
	BOTH_RULES(policy) {
		unsigned char buf[4096];
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 8192, 'A');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 4096, EIO);
		CHECK_EQ(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);    /* not DONTNEED: under rule L that might take the folio */
		CHECK(T_WAIT(a_write_failed(&rig), 5000));
		CHECK_EQ(fstat_size(rig.file), 8192);
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_END), 8192);
		CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 0);
		CHECK_EQ(iomap_pread(rig.file, buf, 4096, 4096), 4096);
		CHECK_EQ(iomap_ftruncate(rig.file, 16384), 0);
		CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_WILLNEED), 0);
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(t_hold_size(rig.hold), 16384);
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 8192, 'A');
		t_rig_down(&rig);
	}
}

/* C43 */
static void fsync_again_after_eio_tells_the_truth(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 4096, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 4096, EIO);
		t_rig_write(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_rig_expect(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), keep ? -EIO : 0);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, keep ? 4096 : 0);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_expect_stored(&rig, 0, 4096, keep ? 'N' : 'A');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
		CHECK_GE(t_rig_io(&rig).io_errors, 1);
		t_rig_write(&rig, 0, 4096, 'N');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_crash(&rig, 3);
		t_rig_expect(&rig, 0, 4096, 'N');
		t_rig_down(&rig);
	}
}

/* C44 */
static void sync_of_the_cache_reports_errors_of_any_file(void)
{
	BOTH_RULES(policy) {
		bool keep = policy == IOMAP_ERROR_KEEP_DIRTY;
		struct iomap_file_params second = IOMAP_FILE_PARAMS_INIT;
		struct t_hold *hold2 = t_hold_create(NULL);
		struct iomap_file *f2;
		unsigned char buf[4096];
		struct t_rig rig;
		int e3;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		t_rig_up(&rig);
		second.device = t_hold_device(hold2);
		CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &second, &f2), 0);
		t_rig_write(&rig, 0, 4096, 'A');
		memset(buf, 'B', sizeof(buf));
		CHECK_EQ(iomap_pwrite(f2, buf, 4096, 0), 4096);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		start_writeback(&rig);
		CHECK(T_WAIT(t_rig_stat(&rig).write_failed_bytes > 0, 5000));
		CHECK_EQ(iomap_cache_sync(rig.cache), -EIO);
		t_hold_peek(hold2, buf, 4096, 0);
		CHECK_BYTES(buf, 4096, 'B');
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_cache_sync(rig.cache), 0);
		if (keep)
			t_rig_expect_stored(&rig, 0, 4096, 'A');
		e3 = iomap_fsync(rig.file);
		CHECK_MSG(e3 == -EIO || (keep && e3 == 0), "fsync of the file that failed: %d", e3);
		CHECK_EQ(iomap_fsync(f2), 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_close(f2), 0);
		CHECK_EQ(iomap_device_close(second.device), 0);
		t_rig_down(&rig);
		t_hold_free(hold2);
	}
}

/* C45: requests of at most 64 KiB, so that the good half is one of its own */
static void failed_writeback_keeps_the_bytes_and_writes_the_rest(void)
{
	BOTH_RULES(policy) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = policy;
		rig.device_params.max_bytes = 65536;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 131072, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, 0, 131072, 'N');
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 65536, EIO);
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		t_rig_reset(&rig);
		t_rig_expect(&rig, 0, 131072, 'N');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
		t_rig_expect_stored(&rig, 65536, 65536, 'N');
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, policy == IOMAP_ERROR_KEEP_DIRTY ? 65536 : 0);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		if (policy == IOMAP_ERROR_KEEP_DIRTY)
			t_rig_expect_stored(&rig, 0, 131072, 'N');
		t_rig_down(&rig);
	}
}

/* C46 */
static void a_write_behind_the_end_that_fails_keeps_good_data(void)
{
	for (enum iomap_accounting mode = IOMAP_ACCT_BLOCK; mode <= IOMAP_ACCT_FOLIO; mode++) {
		unsigned char buf[4096];
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 4096;
		rig.params.accounting = mode;
		rig.block_size = 1024;
		t_rig_up(&rig);
		t_hold_set_space(rig.hold, 1024);
		t_rig_write(&rig, 0, 1024, 'A');
		memset(buf, 'N', sizeof(buf));
		CHECK_EQ(iomap_pwrite(rig.file, buf, 2048, 1024), -ENOSPC);
		CHECK_EQ(fstat_size(rig.file), 1024);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, mode == IOMAP_ACCT_BLOCK ? 1024 : 4096);
		t_hold_set_space(rig.hold, UINT64_MAX);
		fsync_and_drop(&rig);
		CHECK_EQ(iomap_pread(rig.file, buf, 4096, 0), 1024);
		CHECK_BYTES(buf, 1024, 'A');
		t_rig_down(&rig);
	}
}

/* C47 */
static void a_full_device_is_enospc_never_zero(void)
{
	unsigned char buf[4096];
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_set_space(rig.hold, 0);
	memset(buf, 'A', sizeof(buf));
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 0), -ENOSPC);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 0), -ENOSPC);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 0, 0), 0);
	CHECK_EQ(fstat_size(rig.file), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	t_rig_down(&rig);
}

/* --- asynchronous I/O -------------------------------------------------------------------------------------------- */

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
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
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
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
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

/* --- concurrency ------------------------------------------------------------------------------------------------- */

static void *write_at_65536(void *arg)
{
	struct loop *loop = arg;
	unsigned char buf[4096];

	memset(buf, 'N', sizeof(buf));
	while (!atomic_load(loop->stop)) {
		loop->bad += iomap_pwrite(loop->file, buf, 4096, 65536) != 4096;
		loop->turns++;
	}
	return NULL;
}

static void *truncate_to_4096(void *arg)
{
	struct loop *loop = arg;

	while (!atomic_load(loop->stop)) {
		loop->bad += iomap_ftruncate(loop->file, 4096) != 0;
		loop->turns++;
	}
	return NULL;
}

struct puncher { struct iomap_file *file; _Atomic bool stop; };

static void *read_anywhere(void *arg)
{
	struct puncher *p = arg;
	unsigned char *buf = malloc(65536);
	uint64_t random = (uint64_t)(uintptr_t)buf;
	void *bad = NULL;

	while (!atomic_load(&p->stop) && !bad) {
		uint64_t pos = t_random_below(&random, MIB - 65536);

		if (iomap_pread(p->file, buf, 65536, (off_t)pos) != 65536)
			bad = p;
		for (unsigned i = 0; i < 65536 && !bad; i++)
			if (buf[i] != 'A' && !(buf[i] == 0 && pos + i >= 262144 && pos + i < 524288))
				bad = p;
	}
	free(buf);
	return bad;
}

static void *want_all(void *arg)
{
	struct puncher *p = arg;

	while (!atomic_load(&p->stop))
		iomap_fadvise(p->file, 0, MIB, POSIX_FADV_WILLNEED);
	return NULL;
}

/* C58 */
static void a_punch_beside_reads_and_readahead(void)
{
	for (unsigned i = 0; i < rounds(6, 100); i++) {
		pthread_t threads[3];
		struct puncher p;
		struct t_rig rig;
		uint64_t end;
		void *bad;

		t_rig_init(&rig);
		rig.device_params.latency_ns = 20000;
		rig.device_params.jitter_ns = 200000;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, MIB, 'A');
		fsync_and_drop(&rig);
		p.file = rig.file;
		atomic_init(&p.stop, false);
		for (unsigned t = 0; t < 3; t++)
			CHECK_EQ(pthread_create(&threads[t], NULL, t < 2 ? read_anywhere : want_all, &p), 0);
		end = until(10, 50);
		while (t_run_now_ns() < end)
			t_run_nap();
		CHECK_EQ(punch(rig.file, 262144, 262144), 0);
		end = until(100, 2000);
		while (t_run_now_ns() < end)
			t_rig_expect(&rig, 262144, 262144, 0);
		atomic_store(&p.stop, true);
		for (unsigned t = 0; t < 3; t++) {
			pthread_join(threads[t], &bad);
			CHECK(!bad);
		}
		for (unsigned pass = 0; pass < 2; pass++) {
			t_rig_expect(&rig, 0, 262144, 'A');
			t_rig_expect(&rig, 262144, 262144, 0);
			t_rig_expect(&rig, 524288, 524288, 'A');
			CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		}
		t_rig_down(&rig);
	}
}

/* C59 */
static void a_write_beside_a_truncate_leaves_nothing_dirty(void)
{
	_Atomic bool stop = false;
	struct loop writer = { .stop = &stop }, cutter = { .stop = &stop };
	pthread_t threads[2];
	struct t_rig rig;
	uint64_t end;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	writer.file = cutter.file = rig.file;
	CHECK_EQ(pthread_create(&threads[0], NULL, write_at_65536, &writer), 0);
	CHECK_EQ(pthread_create(&threads[1], NULL, truncate_to_4096, &cutter), 0);
	for (end = until(1000, 10000); t_run_now_ns() < end; )
		t_run_nap();
	stop = true;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	CHECK_EQ(writer.bad, 0);
	CHECK_EQ(cutter.bad, 0);
	CHECK_EQ(iomap_ftruncate(rig.file, 4096), 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).writeback_bytes, 0);
	CHECK_LE(t_rig_stat(&rig).cached_bytes, 4096);
	CHECK_EQ(iomap_size(rig.file), 4096);
	CHECK_EQ(iomap_ftruncate(rig.file, MIB), 0);
	CHECK_EQ(iomap_size(rig.file), (off_t)MIB);
	t_rig_expect(&rig, 65536, 4096, 0);
	t_rig_down(&rig);
}

struct recorder {
	struct iomap_file *file;
	unsigned thread;
	unsigned bad;
};

static void *append_named_records(void *arg)
{
	struct recorder *r = arg;

	for (unsigned i = 0; i < 1000; i++) {
		char record[101];

		snprintf(record, sizeof(record), "%02u:%05u%92s", r->thread, i, "");
		r->bad += iomap_pwrite(r->file, record, 100, 0) != 100;
	}
	return NULL;
}

/* C60 */
static void appends_of_many_threads_are_whole_and_in_order(void)
{
	struct recorder recorders[8] = { { 0 } };
	unsigned next[8] = { 0 };
	char *all = malloc(800001);
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	for (unsigned i = 0; i < 8; i++) {
		recorders[i].thread = i;
		recorders[i].file = t_rig_handle(&rig, O_RDWR | O_APPEND);
	}
	t_call_all(append_named_records, recorders, sizeof(recorders[0]), 8);
	CHECK_EQ(iomap_size(rig.file), 800000);
	CHECK_EQ(iomap_pread(rig.file, all, 800001, 0), 800000);
	for (unsigned i = 0; i < 8000; i++) {
		char record[101], wanted[101];
		unsigned thread;

		memcpy(record, all + i * 100, 100);
		record[100] = 0;
		CHECK_MSG(sscanf(record, "%2u:", &thread) == 1 && thread < 8, "record %u is \"%s\"", i, record);
		snprintf(wanted, sizeof(wanted), "%02u:%05u%92s", thread, next[thread]++, "");
		CHECK_MSG(strcmp(record, wanted) == 0, "record %u is \"%.10s\", expected \"%.10s\"", i, record, wanted);
	}
	for (unsigned i = 0; i < 8; i++) {
		CHECK_EQ(recorders[i].bad, 0);
		CHECK_EQ(next[i], 1000);
		CHECK_EQ(iomap_close(recorders[i].file), 0);
	}
	free(all);
	t_rig_down(&rig);
}

static void *make_and_unlink(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(524288), *back = malloc(524288);
	char path[PATH_MAX];

	while (!atomic_load(loop->stop)) {
		struct iomap_file *file;

		snprintf(path, sizeof(path), "%s/new-%u", t_run_dir(), (unsigned)loop->seed);
		memset(buf, (int)(1 + loop->turns % 255), 524288);
		if (iomap_open(loop->cache, path, O_RDWR | O_CREAT, 0600, &file) != 0) {
			loop->bad++;
			break;
		}
		loop->bad += iomap_pwrite(file, buf, 524288, 0) != 524288;
		loop->bad += iomap_pread(file, back, 524288, 0) != 524288;
		loop->bad += memcmp(buf, back, 524288) != 0;
		unlink(path);
		loop->bad += iomap_close(file) != 0;
		loop->turns++;
	}
	free(buf);
	free(back);
	return NULL;
}

static void *read_over_and_over(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(loop->len);

	for (uint64_t pos = 0; !atomic_load(loop->stop); pos += loop->len) {
		if (pos >= 16 * MIB)
			pos = 0;
		loop->bad += iomap_pread(loop->file, buf, loop->len, (off_t)pos) != (ssize_t)loop->len ||
			     t_run_bytes_differ(buf, loop->len, 'R') >= 0;
		loop->turns++;
	}
	free(buf);
	return NULL;
}

/* C62 */
static void reclaim_beside_deletion_and_close_is_clean(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache_stat st;
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct loop loops[6];
	pthread_t threads[6];
	_Atomic bool stop = false;
	char path[PATH_MAX];
	unsigned char *buf = malloc(MIB);
	uint64_t end;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	params.memory_bytes = MIB;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	t_run_path(path, sizeof(path), "read");
	CHECK_EQ(iomap_open(cache, path, O_RDWR | O_CREAT, 0600, &file), 0);
	memset(buf, 'R', MIB);
	for (unsigned i = 0; i < 16; i++)
		CHECK_EQ(iomap_pwrite(file, buf, MIB, (off_t)(i * MIB)), (ssize_t)MIB);
	memset(loops, 0, sizeof(loops));
	for (unsigned i = 0; i < 6; i++) {
		loops[i] = (struct loop) { .cache = cache, .file = file, .stop = &stop, .seed = i, .len = 65536 };
		CHECK_EQ(pthread_create(&threads[i], NULL, i < 4 ? make_and_unlink : read_over_and_over, &loops[i]), 0);
	}
	for (end = until(2000, 30000); t_run_now_ns() < end; )
		t_run_nap();
	stop = true;
	for (unsigned i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(loops[i].bad, 0);
		CHECK_GE(loops[i].turns, 1);
	}
	CHECK_EQ(iomap_cache_check(cache, NULL, 0), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK(T_WAIT((iomap_cache_stat(cache, &st, sizeof(st)), st.dirty_bytes == 0 && st.cached_bytes == 0), 10000));
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	free(buf);
}

/* C70 */
static void the_tail_of_an_unaligned_write_inside_the_file_stays(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'Z');
	fsync_and_drop(&rig);
	t_rig_write(&rig, 8192, 6000, 'Q');
	fsync_and_drop(&rig);
	t_rig_expect(&rig, 0, 8192, 'Z');
	t_rig_expect(&rig, 8192, 6000, 'Q');
	t_rig_expect(&rig, 14192, 65536 - 14192, 'Z');
	t_rig_expect(&rig, 12288, 1904, 'Q');
	t_rig_down(&rig);
}

/* --- readahead --------------------------------------------------------------------------------------------------- */

static void fill_store(struct t_hold *hold, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len);

	memset(buf, byte, len);
	t_hold_poke(hold, buf, len, 0);
	free(buf);
}

/* A rig whose device holds len bytes, nothing of them cached. */
static void up_with_store(struct t_rig *rig, uint64_t len, int byte)
{
	rig->device_params.volatile_cache = false;
	rig->hold = t_hold_create(&rig->device_params);
	fill_store(rig->hold, len, byte);
	CHECK_EQ(iomap_cache_create(&rig->cache, &rig->params), 0);
	rig->device = t_hold_device(rig->hold);
	t_rig_open(rig);
	t_rig_reset(rig);
	CHECK_EQ(iomap_size(rig->file), (off_t)len);
}

/* C72 */
static void readahead_gives_up_early_on_a_dead_device(void)
{
	struct t_call read;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = 4 * MIB;
	up_with_store(&rig, 64 * MIB, 'A');
	t_hold_fail(rig.hold, T_HOLD_READ, 0, 0, EIO);
	for (unsigned i = 0; i < 2; i++) {
		t_call_read(&read, rig.file, 4096, 0);
		CHECK_EQ(t_call_wait(&read), -EIO);
		CHECK_LE(read.took_ns, 1000000000ULL * t_run_slow());
		t_call_free(&read);
	}
	CHECK_LE(t_rig_io(&rig).read_ios, 130);
	t_hold_heal(rig.hold);
	t_rig_expect(&rig, 0, 4096, 'A');
	t_rig_down(&rig);
}

/* C73 */
static void a_bad_sector_that_only_readahead_touches_hurts_nobody(void)
{
	unsigned char buf[8192];
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = 65536;
	up_with_store(&rig, 131072, 'A');
	t_hold_fail(rig.hold, T_HOLD_READ, 40960, 4096, EIO);
	t_rig_expect(&rig, 0, 4096, 'A');
	t_rig_expect(&rig, 32768, 8192, 'A');
	CHECK_EQ(iomap_pread(rig.file, buf, 8192, 36864), 4096);
	CHECK_BYTES(buf, 4096, 'A');
	CHECK_EQ(iomap_pread(rig.file, buf, 4096, 40960), -EIO);
	t_rig_expect(&rig, 45056, 4096, 'A');
	t_hold_heal(rig.hold);
	t_rig_expect(&rig, 40960, 4096, 'A');
	t_rig_expect(&rig, 0, 131072, 'A');
	t_rig_down(&rig);
}

/* C74 */
static void without_readahead_only_what_is_asked_for_is_read(void)
{
	for (unsigned by_advice = 0; by_advice < 2; by_advice++) {
		struct t_rig rig;

		t_rig_init(&rig);
		if (!by_advice)
			rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
		up_with_store(&rig, MIB, 'A');
		if (by_advice)
			CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_RANDOM), 0);
		t_rig_expect(&rig, 0, 4096, 'A');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 4096);
		t_rig_expect(&rig, 100000, 10, 'A');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 8192);
		t_rig_expect(&rig, 4095, 2, 'A');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 12288);
		t_rig_down(&rig);
	}
}

static void *read_through(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(65536);

	for (uint64_t pos = 0; pos < 16 * MIB; pos += 65536)
		loop->bad += iomap_pread(loop->file, buf, 65536, (off_t)pos) != 65536 || t_run_bytes_differ(buf, 65536, 'A') >= 0;
	free(buf);
	return NULL;
}

/* C75 */
static void readahead_larger_than_the_cache_reads_nothing_twice(void)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct loop loops[4];
	struct t_hold *holds[4];
	struct iomap_device *devices[4];
	struct sampler s;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.memory_bytes = MIB;
	rig.params.dirty_bytes = rig.params.dirty_background_bytes = 0;
	rig.params.readahead_bytes = 4 * MIB;
	up_with_store(&rig, 16 * MIB, 'A');
	memset(loops, 0, sizeof(loops));
	loops[0].file = rig.file;
	sampler_start(&s, rig.cache);
	read_through(&loops[0]);
	sampler_stop(&s);
	CHECK_EQ(loops[0].bad, 0);
	CHECK_LE(s.cached_most, MIB + 65536);
	CHECK_LE(t_rig_io(&rig).read_bytes, 17 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		holds[i] = t_hold_create(NULL);
		fill_store(holds[i], 16 * MIB, 'A');
		devices[i] = params.device = t_hold_device(holds[i]);
		CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &params, &loops[i].file), 0);
	}
	sampler_start(&s, rig.cache);
	t_call_all(read_through, loops, sizeof(loops[0]), 4);
	sampler_stop(&s);
	CHECK_LE(s.cached_most, MIB + 4 * 65536);
	for (unsigned i = 0; i < 4; i++) {
		struct iomap_device_stat st;

		CHECK_EQ(loops[i].bad, 0);
		CHECK_EQ(iomap_device_stat(devices[i], &st, sizeof(st)), 0);
		CHECK_LE(st.read_bytes, 32 * MIB);
		CHECK_EQ(iomap_close(loops[i].file), 0);
		CHECK_EQ(iomap_device_close(devices[i]), 0);
	}
	t_rig_down(&rig);
	for (unsigned i = 0; i < 4; i++)
		t_hold_free(holds[i]);
}

/* C76 */
static void sequential_reads_of_odd_size_use_large_requests(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = 131072;
	up_with_store(&rig, 3145728, 'A');
	for (uint64_t pos = 0; pos < 3145728; pos += 12288)
		t_rig_expect(&rig, pos, 12288, 'A');
	CHECK_EQ(t_rig_io(&rig).read_bytes, 3145728);
	CHECK_LE(t_rig_io(&rig).read_ios, 96);
	t_rig_down(&rig);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

struct piecewise {
	struct iomap_file *file;
	uint64_t from, to;
	unsigned bad;
};

static void *write_pieces(void *arg)
{
	struct piecewise *p = arg;
	unsigned char buf[4000];

	for (uint64_t pos = p->from; pos < p->to; pos += sizeof(buf)) {
		size_t n = p->to - pos < sizeof(buf) ? p->to - pos : sizeof(buf);

		t_fill(buf, pos, n, 77);
		p->bad += iomap_pwrite(p->file, buf, n, (off_t)pos) != (ssize_t)n;
	}
	return NULL;
}

/* C77 */
static void a_write_cache_stays_inside_its_memory(void)
{
	static const unsigned nr_threads[] = { 1, 31 };

	for (unsigned i = 0; i < 2; i++) {
		unsigned n = nr_threads[i];
		uint64_t total = t_run_slow() > 1 && !t_run_is_long() ? 16 * MIB : 64 * MIB;
		struct piecewise pieces[31] = { { 0 } };
		unsigned char *buf = malloc(65536);
		struct sampler s;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.memory_bytes = 4 * MIB;
		rig.params.dirty_bytes = rig.params.dirty_background_bytes = 0;
		rig.device_params.volatile_cache = false;
		t_rig_up(&rig);
		for (unsigned k = 0; k < n; k++)
			pieces[k] = (struct piecewise) { rig.file, total / n * k, k == n - 1 ? total : total / n * (k + 1), 0 };
		sampler_start(&s, rig.cache);
		t_call_all(write_pieces, pieces, sizeof(pieces[0]), n);
		sampler_stop(&s);
		for (unsigned k = 0; k < n; k++)
			CHECK_EQ(pieces[k].bad, 0);
		CHECK_LE(s.cached_most, 4 * MIB + 65536 * n);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_size(rig.file), (off_t)total);
		for (uint64_t pos = 0; pos < total; pos += 65536) {
			CHECK_EQ(iomap_pread(rig.file, buf, 65536, (off_t)pos), 65536);
			CHECK(t_check_fill(buf, pos, 65536, 77));
			t_hold_peek(rig.hold, buf, 65536, pos);
			CHECK(t_check_fill(buf, pos, 65536, 77));
		}
		free(buf);
		t_rig_down(&rig);
	}
}

static uint64_t cached(struct t_rig *rig)
{
	return t_rig_stat(rig).cached_bytes;
}

/* C79 */
static void dontneed_keeps_pages_that_are_partly_in_the_range(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 20000, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(cached(&rig), 20480);
	CHECK_EQ(iomap_fadvise(rig.file, 100, 8000, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 20480);
	CHECK_EQ(iomap_fadvise(rig.file, 4096, 4096, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 16384);
	CHECK_EQ(iomap_fadvise(rig.file, 16384, 3616, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 12288);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 0);
	t_rig_expect(&rig, 0, 20000, 'A');
	t_rig_down(&rig);
}

/* C80 */
static void dontneed_never_loses_dirty_data(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	t_rig_expect(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 0);
	t_rig_reset(&rig);
	t_rig_expect(&rig, 0, 65536, 'A');
	CHECK_EQ(t_rig_io(&rig).read_bytes, 65536);
	t_rig_down(&rig);
}

static _Atomic bool starving;
static _Atomic uint64_t starve_state;

static void *alloc_two_of_three(void *priv, size_t size, size_t align)
{
	void *p;

	(void)priv;
	if (starving) {
		uint64_t state = starve_state++;

		if (t_random_below(&state, 3) == 0)
			return NULL;
	}
	return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size) == 0 ? p : NULL;
}

static void free_memory(void *priv, void *p, size_t size)
{
	(void)priv;
	(void)size;
	free(p);
}

/* C82, the allocator's part */
static void one_failing_allocation_in_three_shows_no_wrong_byte(void)
{
	static const struct iomap_allocator allocator = { alloc_two_of_three, free_memory, NULL };
	unsigned char *buf = malloc(MIB), *model = calloc(1, 2 * MIB);
	uint64_t random = 82, size = 0;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.memory_bytes = 4 * MIB;
	rig.params.dirty_bytes = rig.params.dirty_background_bytes = 0;
	rig.params.allocator = &allocator;
	rig.block_size = 1024;
	t_rig_up(&rig);
	starving = true;
	for (unsigned i = 0; i < rounds(1000, 100000); i++) {
		uint64_t pos = t_random_below(&random, MIB), len = 1 + t_random_below(&random, i % 8 ? 20000 : 300000);
		ssize_t n;

		if (i % 3) {
			t_fill(buf, pos, len, i & 0xffff);
			n = iomap_pwrite(rig.file, buf, len, (off_t)pos);
			CHECK_MSG(n == -ENOMEM || (n > 0 && n <= (ssize_t)len), "write: %zd of %llu", n,
				  (unsigned long long)len);
			if (n > 0) {
				memcpy(model + pos, buf, (size_t)n);
				size = pos + (uint64_t)n > size ? pos + (uint64_t)n : size;
			}
		} else {
			uint64_t most = pos >= size ? 0 : len < size - pos ? len : size - pos;

			n = iomap_pread(rig.file, buf, len, (off_t)pos);
			CHECK_MSG(n == -ENOMEM || (n >= (most != 0) && n <= (ssize_t)most), "read: %zd of %llu", n,
				  (unsigned long long)most);
			if (n > 0)
				CHECK(memcmp(buf, model + pos, (size_t)n) == 0);
		}
		CHECK_EQ(iomap_size(rig.file), (off_t)size);
		if (i % 100 == 0)
			t_rig_check(&rig);
	}
	starving = false;
	CHECK_EQ(iomap_fsync(rig.file), 0);
	for (uint64_t pos = 0; pos < size; pos += MIB) {
		size_t n = size - pos < MIB ? size - pos : MIB;

		CHECK_EQ(iomap_pread(rig.file, buf, n, (off_t)pos), (ssize_t)n);
		CHECK(memcmp(buf, model + pos, n) == 0);
		t_hold_peek(rig.hold, buf, n, pos);
		CHECK(memcmp(buf, model + pos, n) == 0);
	}
	t_rig_down(&rig);
	free(buf);
	free(model);
}

/* --- large offsets, on the memory device, which is sparse -------------------------------------------------------- */

struct sparse {
	struct iomap_cache *cache;
	struct iomap_device *device;
	struct iomap_file *file;
};

static void sparse_up(struct sparse *s)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_file_params file_params = IOMAP_FILE_PARAMS_INIT;

	params.memory_bytes = 4 * MIB;
	params.dirty_writeback_ms = IOMAP_NEVER;
	CHECK_EQ(iomap_cache_create(&s->cache, &params), 0);
	CHECK_EQ(iomap_device_open_mem(NULL, &s->device), 0);
	file_params.device = s->device;
	CHECK_EQ(iomap_open_with(s->cache, NULL, O_RDWR, 0, &file_params, &s->file), 0);
}

static void sparse_down(struct sparse *s)
{
	CHECK_EQ(iomap_cache_check(s->cache, NULL, 0), 0);
	CHECK_EQ(iomap_close(s->file), 0);
	CHECK_EQ(iomap_cache_destroy(s->cache), 0);
	CHECK_EQ(iomap_device_close(s->device), 0);
}

static void sparse_write(struct sparse *s, uint64_t pos, size_t len, int byte)
{
	unsigned char buf[4096];

	memset(buf, byte, sizeof(buf));
	CHECK_EQ(iomap_pwrite(s->file, buf, len, (off_t)pos), (ssize_t)len);
}

static void sparse_expect(struct sparse *s, uint64_t pos, size_t ask, ssize_t len, int byte)
{
	unsigned char buf[4096];

	CHECK_EQ(iomap_pread(s->file, buf, ask, (off_t)pos), len);
	CHECK_BYTES(buf, (size_t)len, byte);
}

/* C89 */
static void the_last_byte_of_the_largest_file(void)
{
	const uint64_t most = INT64_MAX;
	unsigned char buf[16] = { 'b', 'b' };
	struct sparse s;
	struct t_call cut;

	sparse_up(&s);
	sparse_write(&s, most - 1, 1, 'a');
	CHECK_EQ(iomap_size(s.file), (off_t)most);
	sparse_expect(&s, most - 1, 1, 1, 'a');
	CHECK_EQ(iomap_pwrite(s.file, buf, 2, (off_t)most - 1), -EINVAL);
	CHECK_EQ(iomap_pwrite(s.file, buf, 1, (off_t)most), -EINVAL);
	CHECK_EQ(iomap_pread(s.file, buf, 10, (off_t)most - 1), -EINVAL);
	CHECK_EQ(iomap_fsync(s.file), 0);
	CHECK_EQ(iomap_cache_drop(s.cache), 0);
	sparse_expect(&s, most - 1, 1, 1, 'a');
	t_call_truncate(&cut, s.file, 0);
	CHECK_EQ(t_call_wait(&cut), 0);
	CHECK_LE(cut.took_ns, 1000000000ULL * t_run_slow());
	CHECK_EQ(iomap_size(s.file), 0);
	t_call_free(&cut);
	sparse_down(&s);
}

/* C83 */
static void seeking_outside_the_file(void)
{
	static const off_t outside[] = { -1, INT64_MIN, 8192, 8193, INT64_MAX };
	struct t_rig rig;
	struct sparse s;
	uint64_t began;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	for (unsigned i = 0; i < 5; i++) {
		CHECK_EQ(iomap_lseek(rig.file, outside[i], SEEK_DATA), -ENXIO);
		CHECK_EQ(iomap_lseek(rig.file, outside[i], SEEK_HOLE), -ENXIO);
	}
	CHECK_EQ(iomap_lseek(rig.file, 8191, SEEK_HOLE), 8192);
	CHECK_EQ(iomap_lseek(rig.file, 0, 99), -EINVAL);
	t_rig_down(&rig);

	sparse_up(&s);
	CHECK_EQ(iomap_ftruncate(s.file, INT64_MAX), 0);
	began = t_run_now_ns();
	CHECK_EQ(iomap_lseek(s.file, 0, SEEK_DATA), -ENXIO);
	CHECK_EQ(iomap_lseek(s.file, 0, SEEK_HOLE), 0);
	CHECK_EQ(iomap_lseek(s.file, INT64_MAX - 1, SEEK_HOLE), INT64_MAX - 1);
	CHECK_EQ(iomap_lseek(s.file, INT64_MAX, SEEK_DATA), -ENXIO);
	CHECK_LE(t_run_now_ns() - began, 40000000ULL * t_run_slow());
	sparse_down(&s);
}

/* C84 */
static void sync_range_checks_its_arguments_and_flushes_nothing(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.device_params.volatile_cache = true;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	CHECK_EQ(iomap_sync_range(rig.file, 0, 0, 0), 0);
	CHECK_EQ(iomap_sync_range(rig.file, 0, 0, 1U << 4), -EINVAL);   /* 8 is ours: DURABLE */
	CHECK_EQ(iomap_sync_range(rig.file, -1, 0, IOMAP_SYNC_WRITE), -EINVAL);
	CHECK_EQ(iomap_sync_range(rig.file, 0, -1, IOMAP_SYNC_WRITE), -EINVAL);
	CHECK_EQ(iomap_sync_range(rig.file, INT64_MAX, 1, IOMAP_SYNC_WRITE), -EINVAL);
	CHECK_EQ(t_rig_io(&rig).write_ios, 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 8192);
	CHECK_EQ(iomap_sync_range(rig.file, 0, 0, WRITE_AND_WAIT), 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).writeback_bytes, 0);
	CHECK_EQ(t_rig_io(&rig).written_bytes, 8192);
	CHECK_EQ(t_rig_io(&rig).flushes, 0);
	CHECK_EQ(t_hold_durable_size(rig.hold), 0);
	CHECK_EQ(iomap_sync_range(rig.file, 0, 4096, IOMAP_SYNC_DURABLE), 0);
	CHECK_EQ(t_rig_io(&rig).flushes, 1);
	CHECK_EQ(t_hold_durable_size(rig.hold), 8192);
	t_rig_down(&rig);
}

/* C88 */
static void fallocate_checks_its_arguments(void)
{
	const uint64_t most = INT64_MAX;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4194304, 'A');
	CHECK_EQ(punch(rig.file, 0, 0), -EINVAL);
	CHECK_EQ(punch(rig.file, (uint64_t)-1, 10), -EINVAL);
	CHECK_EQ(punch(rig.file, 0, (uint64_t)-1), -EINVAL);
	CHECK_EQ(zero(rig.file, 0, 0), -EINVAL);
	CHECK_EQ(prealloc(rig.file, 1, most), -EINVAL);
	CHECK_EQ(zero(rig.file, most, 1), -EINVAL);
	for (unsigned bit = 0; bit < 31; bit++) {
		int mode = (int)(1U << bit);

		if (mode != FALLOC_FL_KEEP_SIZE && mode != FALLOC_FL_ZERO_RANGE)
			CHECK_EQ(iomap_fallocate(rig.file, mode, 0, 4096), -EOPNOTSUPP);
		if (mode != FALLOC_FL_KEEP_SIZE && mode != FALLOC_FL_ZERO_RANGE && mode != FALLOC_FL_PUNCH_HOLE)
			CHECK_EQ(iomap_fallocate(rig.file, mode | FALLOC_FL_KEEP_SIZE, 0, 4096), -EOPNOTSUPP);
	}
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 4194304);
	t_rig_expect(&rig, 0, 65536, 'A');
	CHECK_EQ(punch(rig.file, 3145728, 4194304), 0);
	CHECK_EQ(iomap_size(rig.file), 4194304);
	t_rig_expect(&rig, 3145727, 1, 'A');
	t_rig_expect(&rig, 3145728, 65536, 0);
	CHECK_EQ(punch(rig.file, 0, most), 0);
	CHECK_EQ(iomap_size(rig.file), 4194304);
	for (uint64_t pos = 0; pos < 4194304; pos += 65536)
		t_rig_expect(&rig, pos, 65536, 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	t_rig_down(&rig);
}

/* The same calls above 4 GiB, at 2^40, and at the largest size */
static void holes_zeros_and_syncs_at_large_offsets(void)
{
	static const uint64_t at[] = { UINT64_C(1) << 32, UINT64_C(1) << 40, INT64_MAX - 65535 };

	for (unsigned i = 0; i < 3; i++) {
		uint64_t base = at[i], end = base + 65535;
		struct sparse s;

		sparse_up(&s);
		for (uint64_t pos = base - 4096; pos < end; pos += 4096)
			sparse_write(&s, pos, pos + 4096 > end ? end - pos : 4096, 'A');
		CHECK_EQ(iomap_size(s.file), (off_t)end);
		CHECK_EQ(punch(s.file, base + 100, 10000), 0);
		CHECK_EQ(zero(s.file, base + 20000, 20000), 0);
		CHECK_EQ(prealloc(s.file, base, 65535), 0);
		CHECK_EQ(punch(s.file, base + 61440, (uint64_t)INT64_MAX - (base + 61440)), 0);
		CHECK_EQ(iomap_size(s.file), (off_t)end);
		for (unsigned pass = 0; pass < 3; pass++) {
			sparse_expect(&s, base + 99, 1, 1, 'A');
			sparse_expect(&s, base + 100, 4096, 4096, 0);
			sparse_expect(&s, base + 100 + 9999, 1, 1, 0);
			sparse_expect(&s, base + 100 + 10000, 1, 1, 'A');
			sparse_expect(&s, base + 19999, 1, 1, 'A');
			sparse_expect(&s, base + 20000, 4096, 4096, 0);
			sparse_expect(&s, base + 39999, 1, 1, 0);
			sparse_expect(&s, base + 40000, 4096, 4096, 'A');
			sparse_expect(&s, base + 61440, 4095, 4095, 0);
			CHECK_EQ(iomap_lseek(s.file, 0, SEEK_DATA), (off_t)base - 4096);
			CHECK_EQ(iomap_lseek(s.file, (off_t)base + 100, SEEK_HOLE), (off_t)base + 4096);
			if (pass == 0)
				CHECK_EQ(iomap_sync_range(s.file, (off_t)base, 65535, IOMAP_SYNC_DURABLE), 0);
			else
				CHECK_EQ(iomap_cache_drop(s.cache), 0);
		}
		CHECK_EQ(iomap_sync_range(s.file, (off_t)end, INT64_MAX - (off_t)end, IOMAP_SYNC_WRITE), 0);
		CHECK_EQ(iomap_sync_range(s.file, (off_t)end, INT64_MAX, IOMAP_SYNC_WRITE), -EINVAL);
		CHECK_EQ(prealloc(s.file, (uint64_t)INT64_MAX - 1, 1), 0);
		CHECK_EQ(iomap_size(s.file), INT64_MAX);
		if (end < INT64_MAX)
			sparse_expect(&s, end, 1, 1, 0);
		sparse_down(&s);
	}
}

/* C90 */
static void a_write_into_the_last_page_of_the_offsets(void)
{
	const uint64_t page = 9223372036854771712ULL;
	struct sparse s;

	sparse_up(&s);
	sparse_write(&s, page, 512, 'A');
	CHECK_EQ(iomap_size(s.file), 9223372036854772224LL);
	CHECK_EQ(iomap_fsync(s.file), 0);
	CHECK_EQ(iomap_cache_drop(s.cache), 0);
	sparse_expect(&s, page, 4095, 512, 'A');
	sparse_down(&s);
}

/* C91 */
static void offsets_above_4_gib_in_a_sparse_file(void)
{
	struct sparse s;

	sparse_up(&s);
	CHECK_EQ(iomap_ftruncate(s.file, 8589934592), 0);
	sparse_write(&s, 4294971392, 4096, 'N');
	sparse_write(&s, 6442450944 + 5, 1, 'M');
	CHECK_EQ(iomap_fsync(s.file), 0);
	CHECK_EQ(iomap_cache_drop(s.cache), 0);
	sparse_expect(&s, 4096, 4096, 4096, 0);
	sparse_expect(&s, 4294971392, 4096, 4096, 'N');
	sparse_expect(&s, 6442450944, 5, 5, 0);
	sparse_expect(&s, 6442450944 + 5, 1, 1, 'M');
	sparse_expect(&s, 6442450944 + 6, 4, 4, 0);
	CHECK_EQ(iomap_size(s.file), 8589934592);
	CHECK_EQ(iomap_lseek(s.file, 0, SEEK_DATA), 4294971392);
	sparse_down(&s);
}

/* C92 */
static void block_numbers_around_2_to_the_32(void)
{
	static const uint64_t at[] = { 17592186036224ULL, 17592186040320ULL, 17592186044416ULL };
	struct iomap_device_stat io;
	struct iomap_cache_stat st;
	struct sparse s;

	sparse_up(&s);
	for (unsigned i = 0; i < 3; i++)
		sparse_write(&s, at[i], 4096, "ANM"[i]);
	CHECK_EQ(iomap_fsync(s.file), 0);
	CHECK_EQ(iomap_cache_drop(s.cache), 0);
	for (unsigned i = 0; i < 3; i++)
		sparse_expect(&s, at[i], 4096, 4096, "ANM"[i]);
	sparse_expect(&s, 0, 4096, 4096, 0);
	CHECK_EQ(iomap_size(s.file), 17592186048512LL);
	CHECK_EQ(iomap_lseek(s.file, 0, SEEK_DATA), 17592186036224LL);
	CHECK_EQ(iomap_device_stat(s.device, &io, sizeof(io)), 0);
	CHECK_EQ(io.written_bytes, 12288);
	CHECK_EQ(iomap_cache_stat(s.cache, &st, sizeof(st)), 0);
	CHECK_EQ(st.dirty_bytes, 0);
	sparse_down(&s);
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
	T_RUN(a_crash_after_an_allocation_change_shows_nothing_old),
	T_RUN(garbage_behind_the_end_never_shows),
	T_RUN(a_cut_in_a_dirty_block_over_unwritten_space_then_a_punch_behind),
	T_RUN(fdatasync_after_a_small_append_saves_the_size),
	T_RUN_FOR(a_file_that_grows_has_no_hole_after_a_crash, 60),
	T_RUN(a_dsync_write_beside_a_dirty_end_is_durable),
	T_RUN(a_reader_that_cached_the_last_block_sees_the_file_grow),
	T_RUN(a_read_beside_truncate_to_zero_sees_only_what_was_written),
	T_RUN(a_partial_last_block_does_not_lengthen_the_device),
	T_RUN(a_truncate_is_not_undone_by_writeback_that_ends_later),
	T_RUN_FOR(an_old_end_of_a_file_is_not_written_over_newer_bytes, 60),
	T_RUN(truncating_dirty_data_gives_its_count_back),
	T_RUN(a_dirty_count_with_partly_covered_blocks),
	T_RUN(a_folio_with_nothing_left_to_write_is_not_dirty),
	T_RUN(below_the_middle_nobody_is_throttled),
	T_RUN_FOR(pauses_are_bounded_after_an_idle_time, 60),
	T_RUN(at_the_hard_limit_a_writer_waits_for_the_device),
	T_RUN(fsync_ends_although_the_file_is_dirtied_all_the_time),
	T_RUN(a_write_larger_than_the_cache_and_its_limits_goes_through),
	T_RUN(the_device_is_asked_for_exactly_what_is_needed),
	T_RUN(every_handle_sees_a_write_error),
	T_RUN(an_error_before_the_open_is_reported_once_it_is_asked_for),
	T_RUN(only_fsync_takes_the_error_away),
	T_RUN(fsync_again_after_eio_tells_the_truth),
	T_RUN(sync_of_the_cache_reports_errors_of_any_file),
	T_RUN(failed_writeback_keeps_the_bytes_and_writes_the_rest),
	T_RUN(a_write_behind_the_end_that_fails_keeps_good_data),
	T_RUN(a_full_device_is_enospc_never_zero),
	T_RUN(a_negative_completion_is_an_error_number),
	T_RUN(a_short_completion_is_continued),
	T_RUN(a_device_that_takes_fewer_gets_the_rest_later),
	T_RUN(a_full_queue_is_no_error),
	T_RUN(no_more_is_in_flight_than_the_queue_is_deep),
	T_RUN(destroy_with_a_read_in_flight_frees_nothing_under_it),
	T_RUN(a_block_read_by_several_requests_is_valid_once_all_are_done),
	T_RUN(all_who_wait_for_a_failing_read_get_its_error),
	T_RUN(a_punch_beside_reads_and_readahead),
	T_RUN(a_write_beside_a_truncate_leaves_nothing_dirty),
	T_RUN(appends_of_many_threads_are_whole_and_in_order),
	T_RUN_FOR(reclaim_beside_deletion_and_close_is_clean, 60),
	T_RUN(the_tail_of_an_unaligned_write_inside_the_file_stays),
	T_RUN(readahead_gives_up_early_on_a_dead_device),
	T_RUN(a_bad_sector_that_only_readahead_touches_hurts_nobody),
	T_RUN(without_readahead_only_what_is_asked_for_is_read),
	T_RUN(readahead_larger_than_the_cache_reads_nothing_twice),
	T_RUN(sequential_reads_of_odd_size_use_large_requests),
	T_RUN(a_write_cache_stays_inside_its_memory),
	T_RUN(dontneed_keeps_pages_that_are_partly_in_the_range),
	T_RUN(dontneed_never_loses_dirty_data),
	T_RUN(one_failing_allocation_in_three_shows_no_wrong_byte),
	T_RUN(the_last_byte_of_the_largest_file),
	T_RUN(seeking_outside_the_file),
	T_RUN(sync_range_checks_its_arguments_and_flushes_nothing),
	T_RUN(fallocate_checks_its_arguments),
	T_RUN(holes_zeros_and_syncs_at_large_offsets),
	T_RUN(a_write_into_the_last_page_of_the_offsets),
	T_RUN(offsets_above_4_gib_in_a_sparse_file),
	T_RUN(block_numbers_around_2_to_the_32),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
