/*
 * cases-direct.c - bugs that others reported, as short sequences with the exact right result: around the cache
 *
 * An asynchronous direct call is a synchronous one from a thread of its own. More of these are in direct.c.
 */
#define _GNU_SOURCE
#include "cases.h"

/* One direct write by a thread of its own. */
struct direct_write {
	struct iomap_file *file;
	uint64_t pos;
	size_t len;
	int byte, flags;
};

static int64_t direct_write(void *arg)
{
	const struct direct_write *w = arg;
	struct iovec iov = { aligned_alloc(4096, (w->len + 4095) / 4096 * 4096), w->len };
	ssize_t n;

	memset(iov.iov_base, w->byte, w->len);
	n = iomap_pwritev2(w->file, &iov, 1, (off_t)w->pos, w->flags | IOMAP_RWF_DIRECT);
	free(iov.iov_base);
	return n;
}

/* C27 */
static void direct_writes_of_parts_of_the_block_behind_the_end_add_up(void)
{
	for (unsigned round = 0; round < rounds(20, 500); round++) {
		struct direct_write writes[4];
		struct t_call calls[4];
		unsigned char buf[8192];
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.shuffle = true;
		rig.device_params.jitter_ns = 200000;
		rig.device_params.seed = round;
		t_rig_up(&rig);
		for (unsigned k = 0; k < 4; k++) {
			unsigned part = round % 2 ? 3 - k : k;

			writes[k] = (struct direct_write) { rig.file, part * 1024, 1024, 'P', 0 };
			t_call_fn(&calls[k], direct_write, &writes[k]);
		}
		for (unsigned k = 0; k < 4; k++) {
			CHECK_EQ(t_call_wait(&calls[k]), 1024);
			t_call_free(&calls[k]);
		}
		fsync_and_drop(&rig);
		CHECK_EQ(fstat_size(rig.file), 4096);
		CHECK_EQ(iomap_pread(rig.file, buf, 8192, 0), 4096);
		CHECK_BYTES(buf, 4096, 'P');
		CHECK_EQ(t_hold_size(rig.hold), 4096);
		t_rig_expect_stored(&rig, 0, 4096, 'P');
		t_rig_down(&rig);
	}
}

/* C48; what is not there reads as zeros, whatever the place held before */
static void a_failed_direct_write_leaves_preallocated_space_zero(void)
{
	struct direct_write write;
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	CHECK_EQ(prealloc(rig.file, 0, 4 * MIB), 0);
	t_rig_write(&rig, MIB, 1, 0x63);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	for (uint64_t pos = 0; pos < 4 * MIB; pos += 65536) {
		write = (struct direct_write) { rig.file, pos, 65536, 0x63, 0 };
		CHECK_EQ(direct_write(&write), -EIO);
	}
	t_hold_heal(rig.hold);
	t_rig_remount(&rig);
	CHECK_EQ(iomap_size(rig.file), (off_t)(4 * MIB));
	t_rig_expect(&rig, 0, MIB, 0);
	t_rig_expect(&rig, MIB, 1, 0x63);
	t_rig_expect(&rig, MIB + 1, 3 * MIB - 1, 0);
	t_rig_down(&rig);
}

/* C61; the second waits until the first has its place */
static void two_direct_appends_in_flight_do_not_share_a_place(void)
{
	struct direct_write first, second;
	struct t_call t1, t2;
	unsigned char buf[12288];
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	first = (struct direct_write) { rig.file, 0, 4096, 'A', IOMAP_RWF_APPEND };
	t_call_fn(&t1, direct_write, &first);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	second = (struct direct_write) { rig.file, 0, 4096, 'N', IOMAP_RWF_APPEND };
	t_call_fn(&t2, direct_write, &second);
	T_WAIT(t_call_done(&t2), 30);
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&t1), 4096);
	CHECK_EQ(t_call_wait(&t2), 4096);
	t_call_free(&t1);
	t_call_free(&t2);
	CHECK_EQ(iomap_size(rig.file), 8192);
	CHECK_EQ(iomap_pread(rig.file, buf, sizeof(buf), 0), 8192);
	CHECK_BYTES(buf, 4096, 'A');
	CHECK_BYTES(buf + 4096, 4096, 'N');
	t_rig_down(&rig);
}

/* Its own region of 16 KiB at pos, beside others: what it wrote direct it reads through the cache. */
static void *write_direct_read_buffered(void *arg)
{
	static const size_t sizes[] = { 512, 1024, 2048, 4096, 8192 };
	struct loop *loop = arg;
	unsigned char buf[8192];

	for (unsigned k = 1; k <= loop->seed; k++) {
		struct direct_write write = { loop->file, (uint64_t)loop->pos, sizes[k % 5], (int)(k & 0xff), 0 };

		loop->bad += iomap_pread(loop->file, buf, 4096, loop->pos) != 4096;
		loop->bad += direct_write(&write) != (int64_t)write.len;
		loop->bad += iomap_pread(loop->file, buf, write.len, loop->pos) != (ssize_t)write.len ||
			     t_run_bytes_differ(buf, write.len, write.byte) >= 0;
	}
	return NULL;
}

static void *read_next_to_it(void *arg)
{
	struct loop *loop = arg;
	unsigned char buf[4096];

	while (!atomic_load(loop->stop))
		loop->bad += iomap_pread(loop->file, buf, 4096, loop->pos) != 4096;
	return NULL;
}

/* C64, with a reader of the same folio, and eight threads at once */
static void buffered_reads_see_direct_writes_that_returned(void)
{
	for (unsigned start = 0; start < 3; start++) {
		struct loop loops[8], reader;
		_Atomic bool stop = false;
		pthread_t thread;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.volatile_cache = false;
		t_rig_up(&rig);
		if (start == 0)
			CHECK_EQ(iomap_ftruncate(rig.file, 131072), 0);
		else if (start == 1)
			CHECK_EQ(prealloc(rig.file, 0, 131072), 0);
		else
			t_rig_write(&rig, 0, 131072, 'Z');
		memset(loops, 0, sizeof(loops));
		memset(&reader, 0, sizeof(reader));
		reader = (struct loop) { .file = rig.file, .stop = &stop, .pos = 8192 };
		CHECK_EQ(pthread_create(&thread, NULL, read_next_to_it, &reader), 0);
		for (unsigned i = 0; i < 8; i++)
			loops[i] = (struct loop) { .file = rig.file, .seed = rounds(50, 200), .pos = (off_t)i * 16384 };
		t_call_all(write_direct_read_buffered, loops, sizeof(loops[0]), 1);
		t_call_all(write_direct_read_buffered, loops, sizeof(loops[0]), 8);
		stop = true;
		pthread_join(thread, NULL);
		CHECK_EQ(reader.bad, 0);
		for (unsigned i = 0; i < 8; i++)
			CHECK_EQ(loops[i].bad, 0);
		t_rig_down(&rig);
	}
}

enum { SHARED_BYTES = 655360 };

static void *read_shared(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(SHARED_BYTES);

	while (!atomic_load(loop->stop)) {
		loop->bad += iomap_pread(loop->file, buf, SHARED_BYTES, 0) != SHARED_BYTES;
		loop->turns++;
	}
	free(buf);
	return NULL;
}

/* C65; that readers see no half of a block is no_block_is_torn_whoever_reads_and_writes_it */
static void a_direct_write_beside_many_readers_is_what_is_read_next(void)
{
	struct loop loops[4];
	pthread_t threads[4];
	_Atomic bool stop = false;
	struct direct_write write;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.device_params.volatile_cache = false;
	t_rig_up(&rig);
	write = (struct direct_write) { rig.file, 0, SHARED_BYTES, 1, 0 };
	CHECK_EQ(direct_write(&write), SHARED_BYTES);
	memset(loops, 0, sizeof(loops));
	for (unsigned i = 0; i < 4; i++) {
		loops[i].file = rig.file;
		loops[i].stop = &stop;
		CHECK_EQ(pthread_create(&threads[i], NULL, read_shared, &loops[i]), 0);
	}
	for (unsigned k = 1; k <= rounds(200, 20000); k++) {
		write.byte = (int)(1 + k % 255);
		CHECK_EQ(direct_write(&write), SHARED_BYTES);
		t_rig_expect(&rig, 0, SHARED_BYTES, write.byte);
	}
	stop = true;
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(loops[i].bad, 0);
		CHECK_GE(loops[i].turns, 1);
	}
	t_rig_down(&rig);
}

static int64_t overwrite_direct(void *arg)
{
	struct direct_write write = { arg, 0, 65536, 'D', 0 };
	unsigned bad = 0;

	for (unsigned i = 0; i < rounds(200, 2000); i++)
		bad += direct_write(&write) != 65536;
	return bad;
}

/* C63, its second half; the first is an_overwritten_file_keeps_its_blocks */
static void a_file_overwritten_direct_keeps_its_blocks(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file;
	char path[PATH_MAX];
	struct direct_write write;
	struct t_call call;
	struct stat st;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	t_run_path(path, sizeof(path), "file");
	CHECK_EQ(iomap_cache_create(&cache, NULL), 0);
	CHECK_EQ(iomap_open(cache, path, O_RDWR | O_CREAT, 0600, &file), 0);
	write = (struct direct_write) { file, 0, 65536, 'A', 0 };
	CHECK_EQ(direct_write(&write), 65536);
	CHECK_EQ(iomap_fsync(file), 0);
	t_call_fn(&call, overwrite_direct, file);
	do {
		CHECK_EQ(iomap_fstat(file, &st), 0);
		CHECK_GE(st.st_blocks * 512, 65536);
	} while (!t_call_done(&call));
	CHECK_EQ(t_call_wait(&call), 0);
	t_call_free(&call);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

/* C91, its direct write */
static void a_direct_write_above_4_gib_is_there(void)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct direct_write write;
	struct iomap_cache *cache;
	struct iomap_file *file;
	unsigned char buf[4096];

	CHECK_EQ(iomap_cache_create(&cache, NULL), 0);
	CHECK_EQ(iomap_device_open_mem(NULL, &params.device), 0);
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	CHECK_EQ(iomap_ftruncate(file, 8589934592), 0);
	write = (struct direct_write) { file, 4294971392, 4096, 'N', 0 };
	CHECK_EQ(direct_write(&write), 4096);
	CHECK_EQ(iomap_pwrite(file, "M", 1, 6442450944 + 5), 1);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK(t_drops_all(cache));
	CHECK_EQ(iomap_pread(file, buf, 4096, 4096), 4096);
	CHECK_BYTES(buf, 4096, 0);
	CHECK_EQ(iomap_pread(file, buf, 4096, 4294971392), 4096);
	CHECK_BYTES(buf, 4096, 'N');
	CHECK_EQ(iomap_pread(file, buf, 10, 6442450944), 10);
	CHECK(!memcmp(buf, "\0\0\0\0\0M\0\0\0\0", 10));
	CHECK_EQ(iomap_size(file), 8589934592);
	CHECK_EQ(iomap_lseek(file, 0, SEEK_DATA), 4294971392);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
}

/* C85, the direct calls of it */
static void a_null_buffer_is_efault_around_the_cache_too(void)
{
	struct iovec null = { NULL, 4096 };
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_reset(&rig);
	CHECK_EQ(iomap_preadv2(rig.file, &null, 1, 0, IOMAP_RWF_DIRECT), -EFAULT);
	CHECK_EQ(iomap_pwritev2(rig.file, &null, 1, 0, IOMAP_RWF_DIRECT), -EFAULT);
	CHECK_EQ(t_rig_io(&rig).read_ios + t_rig_io(&rig).write_ios, 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(iomap_size(rig.file), 8192);
	t_rig_expect(&rig, 0, 8192, 'A');
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN(direct_writes_of_parts_of_the_block_behind_the_end_add_up),
	T_RUN(a_failed_direct_write_leaves_preallocated_space_zero),
	T_RUN(two_direct_appends_in_flight_do_not_share_a_place),
	T_RUN(buffered_reads_see_direct_writes_that_returned),
	T_RUN_FOR(a_direct_write_beside_many_readers_is_what_is_read_next, 60),
	T_RUN_FOR(a_file_overwritten_direct_keeps_its_blocks, 60),
	T_RUN(a_direct_write_above_4_gib_is_there),
	T_RUN(a_null_buffer_is_efault_around_the_cache_too),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
