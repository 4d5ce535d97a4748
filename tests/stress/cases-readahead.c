/*
 * cases-readahead.c - bugs that others reported, as short sequences with the exact right result: reading ahead
 */
#define _GNU_SOURCE
#include "cases.h"

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

static const struct t_run_case cases[] = {
	T_RUN(readahead_gives_up_early_on_a_dead_device),
	T_RUN(a_bad_sector_that_only_readahead_touches_hurts_nobody),
	T_RUN(without_readahead_only_what_is_asked_for_is_read),
	T_RUN(readahead_larger_than_the_cache_reads_nothing_twice),
	T_RUN(sequential_reads_of_odd_size_use_large_requests),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
