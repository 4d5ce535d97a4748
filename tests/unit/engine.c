/*
 * engine.c - an engine that maps blocks itself, as small as one can be: what the cache asks of it, and in what order
 *
 * Each file has a table of blocks: a hole, set aside, unwritten, or stored somewhere. The engine counts begins and ends, can be told
 * to fail, and keeps contents where nobody would look for them: logical block n of a file is never at device block n.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "rig.h"
#include "test.h"
#include "util.h"

Suite *suite_engine(void);

#define BS      4096u
#define BLOCKS  256u
#define DEVICE_BLOCKS 1024u

struct engine {
	pthread_mutex_t lock;
	uint8_t type[BLOCKS];                   /* enum iomap_type */
	uint32_t at[BLOCKS];                    /* device block */
	uint32_t source[BLOCKS];                /* 0, or where a shared block's bytes are now */
	uint32_t next;                          /* free device block */
	unsigned begins, ends, submits, end_ios, commits, valid_asks;
	int begin_error, map_error_at, submit_error, end_io_error, space_error;
	int stale_once;
	uint64_t size, durable_size;
	char inline_data[BS];
	uint64_t inline_len;                    /* 0: not inline */
	unsigned converted, remapped;
};

static struct engine e;
static struct iomap_cache *cache;
static struct iomap_device *device;
static struct iomap_file *file;

static int begin(void *priv, uint64_t pos, uint64_t len, unsigned flags, struct iomap *map, struct iomap *src)
{
	struct engine *g = priv;
	unsigned b = (unsigned)(pos / BS), n = 1;
	int ret = 0;

	(void)len;
	pthread_mutex_lock(&g->lock);
	if (g->begin_error) {
		ret = g->begin_error;
		goto out;
	}
	if (g->inline_len && pos < g->inline_len && (!(flags & IOMAP_WRITE) || pos + len <= g->inline_len)) {
		*map = (struct iomap){ .type = IOMAP_INLINE, .addr = IOMAP_NULL_ADDR, .length = g->inline_len,
				       .inline_data = g->inline_data };
		g->begins++;
		goto out;
	}
	if (b >= BLOCKS) {
		ret = -ENOSPC;
		goto out;
	}
	if ((flags & IOMAP_WRITE) && g->type[b] == IOMAP_HOLE)
		g->type[b] = IOMAP_DELALLOC;
	*map = (struct iomap){ .type = g->type[b], .offset = (uint64_t)b * BS, .addr = IOMAP_NULL_ADDR };
	if (g->type[b] == IOMAP_MAPPED || g->type[b] == IOMAP_UNWRITTEN)
		map->addr = (uint64_t)g->at[b] * BS;
	if ((flags & IOMAP_WRITE) && g->source[b]) {
		*src = (struct iomap){ .type = IOMAP_MAPPED, .offset = (uint64_t)b * BS, .length = BS, .addr = (uint64_t)g->source[b] * BS };
		map->flags = IOMAP_F_SHARED;
	} else if (g->source[b]) {
		map->type = IOMAP_MAPPED;
		map->addr = (uint64_t)g->source[b] * BS;
	}
	while (b + n < BLOCKS && !g->source[b] && !g->source[b + n] && g->type[b + n] == g->type[b] &&
	       (map->addr == IOMAP_NULL_ADDR || g->at[b + n] == g->at[b] + n))
		n++;
	map->length = (uint64_t)n * BS;
	g->begins++;
out:
	pthread_mutex_unlock(&g->lock);
	return ret;
}

static int end(void *priv, uint64_t pos, uint64_t len, int64_t written, unsigned flags, struct iomap *map)
{
	struct engine *g = priv;

	(void)flags;
	pthread_mutex_lock(&g->lock);
	ck_assert(written >= 0 && (uint64_t)written <= len);
	g->ends++;
	if ((map->flags & IOMAP_F_SIZE_CHANGED) && pos + (uint64_t)written > g->size)
		g->size = pos + (uint64_t)written;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

static bool valid(void *priv, const struct iomap *map)
{
	struct engine *g = priv;
	bool stale;

	(void)map;
	pthread_mutex_lock(&g->lock);
	g->valid_asks++;
	stale = g->stale_once && g->stale_once--;
	pthread_mutex_unlock(&g->lock);
	return !stale;
}

static int set_size(void *priv, uint64_t size)
{
	struct engine *g = priv;

	pthread_mutex_lock(&g->lock);
	for (unsigned b = (unsigned)div_round_up(size, BS); b < BLOCKS; b++)
		g->type[b] = IOMAP_HOLE;
	g->size = g->durable_size = size;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

static int change_space(void *priv, int mode, uint64_t pos, uint64_t len)
{
	struct engine *g = priv;
	int ret = 0;

	pthread_mutex_lock(&g->lock);
	ck_assert(!(pos % BS) && !(len % BS) && len);
	ck_assert(mode == FALLOC_FL_KEEP_SIZE || mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE));
	if (g->space_error)
		ret = g->space_error;
	for (uint64_t b = pos / BS; !ret && b < (pos + len) / BS && b < BLOCKS; b++) {
		if (mode & FALLOC_FL_PUNCH_HOLE) {
			g->type[b] = IOMAP_HOLE;
			g->source[b] = 0;
		} else if (g->type[b] == IOMAP_HOLE || g->type[b] == IOMAP_DELALLOC) {
			g->type[b] = IOMAP_UNWRITTEN;
			g->at[b] = g->next++;
		}
	}
	pthread_mutex_unlock(&g->lock);
	return ret;
}

static int commit(void *priv, bool datasync)
{
	struct engine *g = priv;

	(void)datasync;
	pthread_mutex_lock(&g->lock);
	g->commits++;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

static ssize_t place(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t len, uint64_t end_pos)
{
	struct engine *g = wpc->ops_priv;
	unsigned b = (unsigned)(pos / BS);

	pthread_mutex_lock(&g->lock);
	if (g->map_error_at == (int)b) {
		pthread_mutex_unlock(&g->lock);
		return -ENOSPC;
	}
	if (g->type[b] == IOMAP_DELALLOC) {
		g->type[b] = IOMAP_UNWRITTEN;
		g->at[b] = g->next++;
	}
	wpc->iomap = (struct iomap){ .type = g->type[b], .offset = (uint64_t)b * BS, .length = BS, .addr = (uint64_t)g->at[b] * BS,
				     .flags = g->source[b] ? IOMAP_F_SHARED : 0 };
	pthread_mutex_unlock(&g->lock);
	return iomap_add_to_ioend(wpc, folio, pos, end_pos, len);
}

static int let_go(struct iomap_writepage_ctx *wpc, struct iomap_ioend *io)
{
	struct engine *g = wpc->ops_priv;
	int ret;

	ck_assert_uint_gt(io->size, 0);
	pthread_mutex_lock(&g->lock);
	g->submits++;
	ret = g->submit_error;
	pthread_mutex_unlock(&g->lock);
	return ret;
}

static int ended(struct iomap_ioend *io)
{
	struct engine *g = io->ops_priv;
	int ret;

	pthread_mutex_lock(&g->lock);
	g->end_ios++;
	for (uint64_t at = io->offset; !io->error && at < io->offset + io->size; at += BS) {
		unsigned b = (unsigned)(at / BS);

		if (io->flags & IOMAP_IOEND_UNWRITTEN) {
			ck_assert_int_eq(g->type[b], IOMAP_UNWRITTEN);
			g->type[b] = IOMAP_MAPPED;
			g->converted++;
		}
		if (io->flags & IOMAP_IOEND_SHARED) {
			g->source[b] = 0;
			g->remapped++;
		}
	}
	if (!io->error)
		g->durable_size = max_u64(g->durable_size, io->offset + io->size);
	ret = g->end_io_error;
	pthread_mutex_unlock(&g->lock);
	return ret;
}

static const struct iomap_ops ops = { begin, end, valid, set_size, change_space, commit };
static const struct iomap_writeback_ops wb_ops = { place, let_go, ended };

static void open_it(void)
{
	struct iomap_file_params p = IOMAP_FILE_PARAMS_INIT;

	p.block_size = BS;
	p.device = device;
	p.ops = &ops;
	p.writeback_ops = &wb_ops;
	p.ops_priv = &e;
	p.size = e.size;
	ck_assert_int_eq(iomap_open_with(cache, "a", O_RDWR, 0, &p, &file), 0);
}

static void up(void)
{
	struct iomap_cache_params c = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_mem_params m = IOMAP_MEM_PARAMS_INIT;

	memset(&e, 0, sizeof(e));
	pthread_mutex_init(&e.lock, NULL);
	e.next = 300;
	e.map_error_at = -1;
	c.memory_bytes = 4 << 20;
	c.max_folio_bytes = 65536;
	c.dirty_writeback_ms = IOMAP_NEVER;
	m.size = DEVICE_BLOCKS * BS;
	ck_assert_int_eq(iomap_cache_create(&cache, &c), 0);
	ck_assert_int_eq(iomap_device_open_mem(&m, &device), 0);
	open_it();
}

static void check(void)
{
	char why[256] = "";

	ck_assert_msg(!iomap_cache_check(cache, why, sizeof(why)), "%s", why);
	ck_assert_uint_eq(e.begins, e.ends);
}

static void down(void)
{
	check();
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
	iomap_device_close(device);
}

static void fill(uint64_t pos, uint64_t len, int byte)
{
	static char buf[BLOCKS * BS];

	memset(buf, byte, len);
	ck_assert_int_eq(iomap_pwrite(file, buf, len, (off_t)pos), (ssize_t)len);
}

static void expect(uint64_t pos, uint64_t len, int byte)
{
	static char buf[BLOCKS * BS];

	memset(buf, ~byte, len);
	ck_assert_int_eq(iomap_pread(file, buf, len, (off_t)pos), (ssize_t)len);
	for (uint64_t i = 0; i < len; i++)
		ck_assert_msg(buf[i] == (char)byte, "byte %llu is %d, not %d", (unsigned long long)(pos + i), buf[i], byte);
}

static void drop(void)
{
	ck_assert(t_drops_all(cache));
}

START_TEST(delayed_blocks_get_their_place_at_writeback_and_are_converted_before_it_ends)
{
	up();
	fill(0, 10 * BS, 'a');
	fill(20 * BS + 100, 50, 'b');
	ck_assert_uint_eq(e.next, 300);
	ck_assert_int_eq(e.type[20], IOMAP_DELALLOC);
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_uint_eq(e.next, 311);
	ck_assert_uint_eq(e.converted, 11);
	ck_assert_uint_eq(e.commits, 1);
	ck_assert_uint_eq(e.durable_size, 20 * BS + 150);
	drop();
	expect(0, 10 * BS, 'a');
	expect(10 * BS, 10 * BS + 100, 0);
	expect(20 * BS + 100, 50, 'b');
	ck_assert_int_eq(iomap_size(file), 20 * BS + 150);
	down();
}
END_TEST

START_TEST(neighbours_on_the_device_share_a_request_others_do_not)
{
	up();
	fill(0, 8 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_uint_eq(e.submits, 1);
	e.at[3] = 600;          /* block 3 is elsewhere from now on */
	fill(0, 8 * BS, 'b');
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_uint_eq(e.submits, 1 + 3);
	drop();
	expect(0, 8 * BS, 'b');
	down();
}
END_TEST

START_TEST(only_the_block_that_cannot_be_placed_fails)
{
	up();
	e.map_error_at = 5;
	fill(0, 10 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), -ENOSPC);
	for (unsigned b = 0; b < 10; b++)
		ck_assert_int_eq(e.type[b], b == 5 ? IOMAP_DELALLOC : IOMAP_MAPPED);
	check();
	e.map_error_at = -1;
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	expect(0, 10 * BS, 'a');
	down();
}
END_TEST

static ssize_t write_flags(uint64_t pos, uint64_t len, int byte, int flags)
{
	static _Alignas(4096) char buf[BLOCKS * BS];
	struct iovec iov = { buf, len };

	memset(buf, byte, len);
	return iomap_pwritev2(file, &iov, 1, (off_t)pos, flags);
}

static void expect_direct(uint64_t pos, uint64_t len, int byte)
{
	static _Alignas(4096) char buf[BLOCKS * BS];
	struct iovec iov = { buf, len };

	memset(buf, ~byte, len);
	ck_assert_int_eq(iomap_preadv2(file, &iov, 1, (off_t)pos, IOMAP_RWF_DIRECT), (ssize_t)len);
	for (uint64_t i = 0; i < len; i++)
		ck_assert_msg(buf[i] == (char)byte, "byte %llu is %d, not %d", (unsigned long long)(pos + i), buf[i], byte);
}

START_TEST(a_direct_read_goes_where_the_engine_says)
{
	up();
	fill(0, 8 * BS, 'a');
	fill(8 * BS, 100, 'b');
	expect_direct(0, 8 * BS, 'a');          /* set aside, dirty: placed and written first */
	expect_direct(8 * BS, 100, 'b');
	ck_assert_int_eq(iomap_ftruncate(file, 20 * BS), 0);
	expect_direct(9 * BS, 11 * BS, 0);      /* holes */
	e.type[12] = IOMAP_UNWRITTEN;
	e.at[12] = e.at[0];                     /* what is stored there nobody may see */
	expect_direct(12 * BS, BS, 0);
	e.at[3] = e.at[1];
	fill(BS, BS, 'c');
	ck_assert_int_eq(iomap_fsync(file), 0);
	expect_direct(3 * BS + 7, BS - 7, 'c'); /* not where it was, and not aligned */
	expect_direct(2 * BS, BS, 'a');
	down();
}
END_TEST

START_TEST(a_direct_read_of_inline_data_copies_it)
{
	up();
	ck_assert_int_eq(iomap_close(file), 0);
	e.inline_len = e.size = 300;
	memset(e.inline_data, 'i', 300);
	open_it();
	expect_direct(0, 300, 'i');
	expect_direct(100, 200, 'i');
	down();
}
END_TEST

START_TEST(direct_and_write_through_writes_are_placed_and_converted_before_they_return)
{
	const int flags[] = { IOMAP_RWF_DIRECT, IOMAP_RWF_WRITETHROUGH };

	for (unsigned i = 0; i < 2; i++) {
		up();
		ck_assert_int_eq(write_flags(0, 4 * BS, 'a', flags[i]), 4 * BS);
		ck_assert_uint_eq(e.converted, 4);
		ck_assert_int_eq(write_flags(BS + 100, 100, 'b', flags[i]), 100);
		ck_assert_int_eq(write_flags(4 * BS, 50, 'c', flags[i] | IOMAP_RWF_APPEND), 50);
		ck_assert_uint_eq(e.converted, 5);
		ck_assert_int_eq(iomap_size(file), 4 * BS + 50);
		e.map_error_at = 9;
		ck_assert_int_eq(write_flags(9 * BS, BS, 'd', flags[i]), -ENOSPC);
		e.map_error_at = -1;
		ck_assert_int_eq(iomap_fsync(file), 0);
		drop();
		expect(0, BS + 100, 'a');
		expect(BS + 100, 100, 'b');
		expect_direct(BS + 200, 3 * BS - 200, 'a');
		expect_direct(4 * BS, 50, 'c');
		ck_assert_int_eq(iomap_fsync(file), 0);
		down();
	}
}
END_TEST

START_TEST(a_request_the_engine_refuses_fails_and_is_told_so)
{
	up();
	e.submit_error = -EIO;
	fill(0, 4 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), -EIO);
	ck_assert_uint_eq(e.end_ios, e.submits);
	ck_assert_uint_eq(e.converted, 0);
	e.submit_error = 0;
	ck_assert_int_eq(iomap_fsync(file), 0);
	e.end_io_error = -ENOSPC;
	fill(0, BS, 'b');
	ck_assert_int_eq(iomap_fdatasync(file), -ENOSPC);
	e.end_io_error = 0;
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	expect(0, BS, 'b');
	expect(BS, 3 * BS, 'a');
	down();
}
END_TEST

START_TEST(a_stale_mapping_is_asked_for_again)
{
	up();
	fill(0, 2 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	e.stale_once = 1;
	fill(100, 10, 'b');
	ck_assert_uint_ge(e.valid_asks, 2);
	expect(0, 100, 'a');
	expect(100, 10, 'b');
	expect(110, 2 * BS - 110, 'a');
	down();
}
END_TEST

START_TEST(part_of_a_shared_block_is_completed_from_where_its_bytes_are)
{
	up();
	fill(0, 2 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	e.source[0] = e.at[0];  /* somebody has made a clone */
	e.at[0] = e.next++;
	fill(10, 5, 'b');
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_uint_eq(e.remapped, 1);
	drop();
	expect(0, 10, 'a');
	expect(10, 5, 'b');
	expect(15, 2 * BS - 15, 'a');
	down();
}
END_TEST

START_TEST(an_unwritten_block_reads_as_zeros_whatever_the_device_has_there)
{
	up();
	fill(0, BS, 'x');       /* leaves x in device block 300 */
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_int_eq(iomap_ftruncate(file, 0), 0);
	e.type[0] = IOMAP_UNWRITTEN;
	e.at[0] = 300;
	ck_assert_int_eq(iomap_ftruncate(file, BS), 0);
	e.type[0] = IOMAP_UNWRITTEN;
	expect(0, BS, 0);
	drop();
	fill(50, 10, 'y');
	expect(0, 50, 0);
	expect(60, BS - 60, 0);
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_int_eq(e.type[0], IOMAP_MAPPED);
	drop();
	expect(0, 50, 0);
	expect(50, 10, 'y');
	down();
}
END_TEST

START_TEST(inline_data_is_written_to_the_engine_and_dirties_nothing)
{
	struct iomap_cache_stat st;

	up();
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_sync(cache), 0);
	memset(e.inline_data, 'i', 300);
	e.inline_len = e.size = 300;
	open_it();
	expect(0, 300, 'i');
	fill(100, 20, 'j');
	ck_assert_int_eq(e.inline_data[100], 'j');
	ck_assert_int_eq(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	ck_assert_uint_eq(st.dirty_bytes, 0);
	drop();
	expect(100, 20, 'j');
	expect(120, 180, 'i');
	down();
}
END_TEST

START_TEST(a_cut_goes_through_the_cache_and_growing_again_shows_zeros)
{
	up();
	fill(0, 10 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_int_eq(iomap_ftruncate(file, 3 * BS + 7), 0);
	ck_assert_int_eq(e.type[4], IOMAP_HOLE);
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	ck_assert_int_eq(iomap_ftruncate(file, 6 * BS), 0);
	expect(0, 3 * BS + 7, 'a');
	expect(3 * BS + 7, 3 * BS - 7, 0);
	fill(8 * BS, 10, 'b');
	expect(6 * BS, 2 * BS, 0);
	down();
}
END_TEST

START_TEST(errors_of_begin_are_the_callers_and_change_nothing)
{
	char buf[BS] = { 0 };

	up();
	fill(0, BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	e.begin_error = -EDQUOT;
	ck_assert_int_eq(iomap_pwrite(file, buf, BS, 0), -EDQUOT);
	ck_assert_int_eq(iomap_pread(file, buf, BS, 0), -EDQUOT);
	e.begin_error = 0;
	expect(0, BS, 'a');
	down();
}
END_TEST

START_TEST(several_files_share_a_device_and_second_opens_agree)
{
	struct iomap_file_params p = IOMAP_FILE_PARAMS_INIT;
	static struct engine other;
	struct iomap_file *b, *c;

	up();
	pthread_mutex_init(&other.lock, NULL);
	other.next = 700;
	other.map_error_at = -1;
	p.block_size = BS;
	p.device = device;
	p.ops = &ops;
	ck_assert_int_eq(iomap_open_with(cache, "b", O_RDWR, 0, &p, &b), -EINVAL);      /* no way to write */
	p.writeback_ops = &wb_ops;
	p.ops_priv = &other;
	ck_assert_int_eq(iomap_open_with(cache, "b", O_RDWR, 0, &p, &b), 0);
	ck_assert_int_eq(iomap_open_with(cache, "a", O_RDWR, 0, &p, &c), -EBUSY);       /* another ops_priv */
	fill(0, BS, 'a');
	ck_assert_int_eq(iomap_pwrite(b, "hello", 5, 0), 5);
	ck_assert_int_eq(iomap_cache_sync(cache), 0);
	drop();
	expect(0, BS, 'a');
	p.ops = NULL;
	p.writeback_ops = NULL;
	p.ops_priv = NULL;
	ck_assert_int_eq(iomap_open_with(cache, "c", O_RDWR, 0, &p, &c), -EINVAL);      /* byte n of the file is byte n of what? */
	p.ops = &ops;
	p.device = NULL;
	ck_assert_int_eq(iomap_open_with(cache, "/nowhere", O_RDWR, 0, &p, &c), -EINVAL);
	ck_assert_int_eq(iomap_close(b), 0);
	ck_assert_uint_eq(other.begins, other.ends);
	down();
}
END_TEST

START_TEST(holes_are_the_engines_and_what_is_dirty_is_data)
{
	const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	unsigned begins;

	up();
	ck_assert_int_eq(iomap_ftruncate(file, 100 * BS), 0);
	ck_assert_int_eq(iomap_lseek(file, 0, SEEK_DATA), -ENXIO);
	fill(10 * BS, 10 * BS, 'a');
	ck_assert_int_eq(iomap_fsync(file), 0);
	fill(30 * BS, 10 * BS, 'b');            /* delayed */
	ck_assert_int_eq(iomap_fallocate(file, 0, 50 * BS, 10 * BS + 1), 0);
	ck_assert_int_eq(e.type[60], IOMAP_UNWRITTEN);
	ck_assert_int_eq(e.type[61], IOMAP_HOLE);
	fill(55 * BS, 1, 'c');                  /* dirty over unwritten */
	ck_assert_int_eq(iomap_cache_drop(cache), 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		ck_assert_int_eq(iomap_lseek(file, 0, SEEK_DATA), 10 * BS);
		ck_assert_int_eq(iomap_lseek(file, 10 * BS + 5, SEEK_HOLE), 20 * BS);
		ck_assert_int_eq(iomap_lseek(file, 20 * BS, SEEK_DATA), 30 * BS);
		ck_assert_int_eq(iomap_lseek(file, 30 * BS, SEEK_HOLE), 40 * BS);
		ck_assert_int_eq(iomap_lseek(file, 40 * BS, SEEK_DATA), 55 * BS);
		ck_assert_int_eq(iomap_lseek(file, 55 * BS, SEEK_HOLE), 56 * BS);
		ck_assert_int_eq(iomap_lseek(file, 56 * BS, SEEK_DATA), -ENXIO);
		ck_assert_int_eq(iomap_fsync(file), 0);
	}
	fill(33 * BS, BS, 'd');                 /* dirty where it is punched */
	ck_assert_int_eq(iomap_fallocate(file, punch, 12 * BS + 100, 23 * BS), 0);
	check();
	ck_assert_int_eq(e.type[12], IOMAP_MAPPED);
	ck_assert_int_eq(e.type[13], IOMAP_HOLE);
	ck_assert_int_eq(e.type[34], IOMAP_HOLE);
	ck_assert_int_eq(e.type[35], IOMAP_MAPPED);
	for (unsigned pass = 0; pass < 2; pass++) {
		expect(12 * BS, 100, 'a');
		expect(12 * BS + 100, 23 * BS, 0);
		expect(35 * BS + 100, 5 * BS - 100, 'b');
		ck_assert_int_eq(iomap_fsync(file), 0);
		drop();
	}
	ck_assert_int_eq(iomap_lseek(file, 13 * BS, SEEK_DATA), 35 * BS);
	e.space_error = -EIO;
	fill(36 * BS, BS, 'e');
	ck_assert_int_eq(iomap_fallocate(file, punch, 35 * BS, 5 * BS), -EIO);
	ck_assert_int_eq(iomap_fallocate(file, 0, 0, 200 * BS), -EIO);
	ck_assert_int_eq(iomap_size(file), 100 * BS);
	expect(36 * BS, BS, 'e');
	e.space_error = 0;
	ck_assert_int_eq(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, 36 * BS + 10, 70 * BS), 0);       /* by zeros; holes stay */
	ck_assert_int_eq(iomap_size(file), 106 * BS + 10);
	ck_assert_int_eq(e.type[45], IOMAP_HOLE);
	ck_assert_int_eq(iomap_fsync(file), 0);
	drop();
	expect(36 * BS, 10, 'e');
	expect(36 * BS + 10, 70 * BS, 0);
	begins = e.begins;
	ck_assert_int_eq(iomap_fallocate(file, FALLOC_FL_KEEP_SIZE, 120 * BS, BS), 0);
	ck_assert_uint_eq(e.begins, begins);
	ck_assert_int_eq(e.type[120], IOMAP_UNWRITTEN);
	ck_assert_int_eq(iomap_size(file), 106 * BS + 10);
	down();
}
END_TEST

static unsigned complaints;

static void note_error(void *priv, int level, const char *message)
{
	(void)priv;
	(void)message;
	complaints += level == IOMAP_LOG_ERR;
}

/* The thread of end_io() ends with the cache; it is no request that must be waited for. */
START_TEST(abandoning_a_cache_with_an_engines_file_leaves_nothing_behind)
{
	struct iomap_cache_params c = IOMAP_CACHE_PARAMS_INIT;

	c.memory_bytes = 4 << 20;
	c.log = note_error;
	for (int closed = 0; closed < 2; closed++) {
		up();
		down();         /* the engine's tables are as new; then a cache with a log */
		ck_assert_int_eq(iomap_device_open_mem(NULL, &device), 0);
		ck_assert_int_eq(iomap_cache_create(&cache, &c), 0);
		open_it();
		fill(0, 3 * BS, 'a');
		ck_assert_int_eq(iomap_fsync(file), 0);
		fill(BS, BS, 'b');
		if (closed)
			iomap_close(file);
		iomap_cache_abandon(cache);
		if (!closed)
			iomap_close(file);
		iomap_device_close(device);
		ck_assert_uint_eq(complaints, 0);
	}
}
END_TEST

Suite *suite_engine(void)
{
	Suite *s = suite_create("engine");
	TCase *tc = tcase_create("engine");

	tcase_add_test(tc, delayed_blocks_get_their_place_at_writeback_and_are_converted_before_it_ends);
	tcase_add_test(tc, neighbours_on_the_device_share_a_request_others_do_not);
	tcase_add_test(tc, only_the_block_that_cannot_be_placed_fails);
	tcase_add_test(tc, a_direct_read_goes_where_the_engine_says);
	tcase_add_test(tc, a_direct_read_of_inline_data_copies_it);
	tcase_add_test(tc, direct_and_write_through_writes_are_placed_and_converted_before_they_return);
	tcase_add_test(tc, a_request_the_engine_refuses_fails_and_is_told_so);
	tcase_add_test(tc, a_stale_mapping_is_asked_for_again);
	tcase_add_test(tc, part_of_a_shared_block_is_completed_from_where_its_bytes_are);
	tcase_add_test(tc, an_unwritten_block_reads_as_zeros_whatever_the_device_has_there);
	tcase_add_test(tc, inline_data_is_written_to_the_engine_and_dirties_nothing);
	tcase_add_test(tc, a_cut_goes_through_the_cache_and_growing_again_shows_zeros);
	tcase_add_test(tc, errors_of_begin_are_the_callers_and_change_nothing);
	tcase_add_test(tc, holes_are_the_engines_and_what_is_dirty_is_data);
	tcase_add_test(tc, several_files_share_a_device_and_second_opens_agree);
	tcase_add_test(tc, abandoning_a_cache_with_an_engines_file_leaves_nothing_behind);
	suite_add_tcase(s, tc);
	return s;
}
