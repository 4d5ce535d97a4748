/*
 * cases-offsets.c - bugs that others reported, as short sequences with the exact right result: holes, arguments and large offsets
 */
#define _GNU_SOURCE
#include "cases.h"

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
	CHECK(t_drops_all(s.cache));
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
				CHECK(t_drops_all(s.cache));
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
	CHECK(t_drops_all(s.cache));
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
	CHECK(t_drops_all(s.cache));
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
	CHECK(t_drops_all(s.cache));
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
