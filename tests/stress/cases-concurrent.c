/*
 * cases-concurrent.c - bugs that others reported, as short sequences with the exact right result: several threads at once
 */
#define _GNU_SOURCE
#include "cases.h"

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

static void *overwrite_and_sync(void *arg)
{
	struct loop *loop = arg;
	unsigned char *buf = malloc(65536);

	for (unsigned i = 0; i < loop->len; i++) {
		memset(buf, (int)(i & 0xff), 65536);
		loop->bad += iomap_pwrite(loop->file, buf, 65536, 0) != 65536;
		loop->bad += iomap_fsync(loop->file) != 0;
	}
	atomic_store(loop->stop, true);
	free(buf);
	return NULL;
}

/* C63, its first half */
static void an_overwritten_file_keeps_its_blocks(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	_Atomic bool stop = false;
	struct loop loop = { .stop = &stop, .len = rounds(200, 2000) };
	struct iomap_cache *cache;
	char path[PATH_MAX];
	pthread_t thread;
	struct stat st;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	t_run_path(path, sizeof(path), "file");
	params.memory_bytes = 4 * MIB;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	CHECK_EQ(iomap_open(cache, path, O_RDWR | O_CREAT, 0600, &loop.file), 0);
	{
		static unsigned char buf[65536];

		memset(buf, 'A', sizeof(buf));
		CHECK_EQ(iomap_pwrite(loop.file, buf, sizeof(buf), 0), 65536);
	}
	CHECK_EQ(iomap_fsync(loop.file), 0);
	CHECK_EQ(pthread_create(&thread, NULL, overwrite_and_sync, &loop), 0);
	do {
		CHECK_EQ(iomap_fstat(loop.file, &st), 0);
		CHECK_GE(st.st_blocks * 512, 65536);
		CHECK_EQ(st.st_size, 65536);
	} while (!atomic_load(&stop));
	pthread_join(thread, NULL);
	CHECK_EQ(loop.bad, 0);
	CHECK_EQ(iomap_close(loop.file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
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

static const struct t_run_case cases[] = {
	T_RUN(a_punch_beside_reads_and_readahead),
	T_RUN(a_write_beside_a_truncate_leaves_nothing_dirty),
	T_RUN(appends_of_many_threads_are_whole_and_in_order),
	T_RUN_FOR(reclaim_beside_deletion_and_close_is_clean, 60),
	T_RUN_FOR(an_overwritten_file_keeps_its_blocks, 60),
	T_RUN(the_tail_of_an_unaligned_write_inside_the_file_stays),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
