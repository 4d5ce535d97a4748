/*
 * cases-size.c - bugs that others reported, as short sequences with the exact right result: sizes, and what lies behind them
 */
#define _GNU_SOURCE
#include "cases.h"

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
		CHECK(t_drops_all(rig.cache));
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

static const struct t_run_case cases[] = {
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
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
