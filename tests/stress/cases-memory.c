/*
 * cases-memory.c - bugs that others reported, as short sequences with the exact right result: when memory is short
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "cache.h"
#include "call.h"
#include "rig.h"

static _Atomic bool starving;

static void *alloc_unless_starving(void *priv, size_t size, size_t align)
{
	void *p;

	(void)priv;
	if (starving)
		return NULL;
	return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size) == 0 ? p : NULL;
}

static void free_memory(void *priv, void *p, size_t size)
{
	(void)priv;
	(void)size;
	free(p);
}

static const struct iomap_allocator allocator = { alloc_unless_starving, free_memory, NULL };

#define CACHE_BYTES (4 * MIB)

/* Dirties the whole cache but for the few frames that reclaim keeps free; returns how much that is. */
static uint64_t dirty_all(struct iomap_cache *cache, struct iomap_file *file)
{
	static unsigned char buf[16384];
	struct iomap_cache_stat st;
	uint64_t pos = 0;

	do {
		memset(buf, (int)(1 + pos / sizeof(buf) % 200), sizeof(buf));
		CHECK_EQ(iomap_pwrite(file, buf, sizeof(buf), (off_t)pos), (ssize_t)sizeof(buf));
		pos += sizeof(buf);
		CHECK_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	} while (st.free_bytes > CACHE_BYTES / 16);
	CHECK_EQ(st.dirty_bytes, pos);
	CHECK_EQ(st.cached_bytes, pos);
	return pos;
}

static void expect_all(struct iomap_file *file, uint64_t bytes)
{
	static unsigned char buf[16384];

	for (uint64_t pos = 0; pos < bytes; pos += sizeof(buf)) {
		CHECK_EQ(iomap_pread(file, buf, sizeof(buf), (off_t)pos), (ssize_t)sizeof(buf));
		CHECK_BYTES(buf, sizeof(buf), (int)(1 + pos / sizeof(buf) % 200));
	}
}

static int64_t fsync_file(void *file)
{
	return iomap_fsync(file);
}

/* C78; by folios of one page and large ones, into holes and over what is stored; on a device of the test's and on a kernel file */
static void flushing_needs_no_new_memory(void)
{
	for (unsigned variant = 0; variant < 8; variant++) {
		bool large = variant & 1, stored = variant & 2, kernel_file = variant & 4;
		struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
		struct t_hold *hold = NULL;
		struct iomap_cache_stat st;
		unsigned char block[4096];
		struct iomap_cache *cache;
		struct iomap_file *file;
		char path[PATH_MAX];
		struct t_call call;
		struct t_rig rig;
		uint64_t bytes;
		ssize_t n;

		if (kernel_file && !t_direct_io())
			break;
		t_rig_init(&rig);
		rig.params.memory_bytes = CACHE_BYTES;
		rig.params.max_folio_bytes = large ? 65536 : 4096;
		rig.params.allocator = &allocator;
		CHECK_EQ(iomap_cache_create(&cache, &rig.params), 0);
		t_run_path(path, sizeof(path), "file");
		if (!kernel_file) {
			hold = t_hold_create(NULL);
			params.device = t_hold_device(hold);
		}
		CHECK_EQ(iomap_open_with(cache, kernel_file ? path : NULL, O_RDWR | O_CREAT | O_TRUNC, 0600, &params, &file), 0);
		if (stored) {
			for (uint64_t pos = 0; pos < 8 * MIB; pos += sizeof(block))
				CHECK_EQ(iomap_pwrite(file, memset(block, 'A', sizeof(block)), sizeof(block), (off_t)pos), 4096);
			CHECK_EQ(iomap_fsync(file), 0);
			CHECK(t_drops_all(cache));
		}
		bytes = dirty_all(cache, file);
		starving = true;
		t_call_fn(&call, fsync_file, file);
		CHECK(T_WAIT(t_call_done(&call), 5000));
		CHECK_EQ(t_call_wait(&call), 0);
		CHECK_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
		CHECK_EQ(st.dirty_bytes, 0);
		CHECK_EQ(st.writeback_bytes, 0);
		n = iomap_pwrite(file, memset(block, 'N', sizeof(block)), sizeof(block), 7 * MIB);
		CHECK_MSG(n == 4096 || n == -ENOMEM, "write without memory: %zd", n);
		starving = false;
		t_call_free(&call);
		expect_all(file, bytes);
		CHECK_EQ(iomap_fsync(file), 0);
		CHECK(t_drops_all(cache));
		expect_all(file, bytes);
		if (n == 4096 || stored) {
			CHECK_EQ(iomap_pread(file, block, sizeof(block), 7 * MIB), 4096);
			CHECK_BYTES(block, sizeof(block), n == 4096 ? 'N' : 'A');
		}
		CHECK_EQ(iomap_cache_check(cache, NULL, 0), 0);
		CHECK_EQ(iomap_close(file), 0);
		CHECK_EQ(iomap_cache_destroy(cache), 0);
		if (hold) {
			CHECK_EQ(iomap_device_close(params.device), 0);
			t_hold_free(hold);
		}
	}
}

/* Takes all frames and gives every second one back: from now on no run of two is free. */
static unsigned take_every_second(struct arena *arena, struct iomap_folio **taken, unsigned most)
{
	struct iomap_folio *f;
	unsigned nr = 0, kept = 0;

	while (nr < most && arena_alloc(arena, 0, &f) == 0)
		taken[nr++] = f;
	CHECK(nr < most);
	for (unsigned i = 0; i < nr; i++) {
		if (frame_number(arena, taken[i]) % 2)
			arena_free(arena, taken[i], 0);
		else
			taken[kept++] = taken[i];
	}
	CHECK_EQ(arena_alloc(arena, 1, &f), -ENOMEM);
	return kept;
}

/* C82, the part of large folios; the other part is one_failing_allocation_in_three_shows_no_wrong_byte */
static void without_a_large_folio_smaller_ones_do(void)
{
	static struct iomap_folio *taken[4096];
	struct iomap_cache_stat st;
	struct arena *arena;
	struct t_rig rig;
	unsigned kept;

	t_rig_init(&rig);
	rig.params.memory_bytes = 8 * MIB;
	t_rig_up(&rig);
	arena = &rig.cache->zone.arena;
	kept = take_every_second(arena, taken, 4096);
	t_rig_write(&rig, 0, MIB, 'A');
	CHECK_EQ(t_rig_stat(&rig).folios[0], 256);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK(t_drops_all(rig.cache));
	CHECK_EQ(t_rig_stat(&rig).cached_bytes, 0);
	t_rig_expect(&rig, 0, MIB, 'A');
	st = t_rig_stat(&rig);
	CHECK_EQ(st.cached_bytes, MIB);
	CHECK_EQ(st.folios[0], 256);
	t_rig_expect_stored(&rig, 0, MIB, 'A');
	for (unsigned i = 0; i < kept; i++)
		arena_free(arena, taken[i], 0);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN_FOR(flushing_needs_no_new_memory, 60),
	T_RUN(without_a_large_folio_smaller_ones_do),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
