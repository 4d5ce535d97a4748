/*
 * cases-reclaim.c - bugs that others reported, as short sequences with the exact right result: memory and advice
 */
#define _GNU_SOURCE
#include "cases.h"

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

static const struct t_run_case cases[] = {
	T_RUN(a_write_cache_stays_inside_its_memory),
	T_RUN(dontneed_keeps_pages_that_are_partly_in_the_range),
	T_RUN(dontneed_never_loses_dirty_data),
	T_RUN(one_failing_allocation_in_three_shows_no_wrong_byte),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
