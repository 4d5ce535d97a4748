/*
 * concurrent.c - many threads on one file in a small cache
 *
 * Writers write whole blocks; all 8-byte words of a block are the same, made of the block's number and a count that
 * grows with each write of that block. Readers read blocks and runs of blocks beside them, while others truncate, sync,
 * drop, advise and reopen. A reader never sees a mix of two writes in a block, never a block out of its place, and never
 * an older write of a block after a newer one, except where the file was cut in between.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "rig.h"

enum { BLOCKS_MAX = 4096, RUN_MAX = 24 };

enum backend { ON_MEM, ON_HOLD, ON_AIO };

struct shared {
	struct iomap_cache *cache;
	struct iomap_device *device;
	char path[PATH_MAX];
	uint32_t block;
	unsigned nr_blocks;             /* of the file at most */
	bool cuts;
	_Atomic bool stop;
	_Atomic unsigned wrong;
	char text[300];                 /* what was wrong first */
	_Atomic uint64_t written[BLOCKS_MAX];   /* count of the last write of each block that has returned */
	_Atomic uint64_t turns[8];      /* by role */
};

struct worker {
	struct shared *s;
	void (*turn)(struct worker *);
	unsigned role, nr, of;          /* worker nr of so many in this role */
	uint64_t random;
	struct iomap_file *file;
	unsigned char *buf;
	uint64_t seen[BLOCKS_MAX];      /* newest count seen of each block */
};

__attribute__((format(printf, 2, 3)))
static void complain(struct shared *s, const char *format, ...)
{
	va_list ap;

	if (atomic_fetch_add(&s->wrong, 1) == 0) {
		va_start(ap, format);
		vsnprintf(s->text, sizeof(s->text), format, ap);
		va_end(ap);
	}
	s->stop = true;
}

static uint64_t word_of(uint64_t block, uint64_t count)
{
	return (block + 1) << 40 | count;
}

static struct iomap_file *open_file(struct shared *s, int oflags)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file = NULL;
	int ret;

	params.block_size = s->block;
	params.device = s->device;
	ret = iomap_open_with(s->cache, s->device ? NULL : s->path, O_RDWR | O_CREAT | oflags, 0600, &params, &file);
	if (ret)
		complain(s, "open: %d", ret);
	return file;
}

/* Writer nr owns the blocks whose number is nr modulo of, so that counts of a block come in order. */
static void write_turn(struct worker *w)
{
	struct shared *s = w->s;
	unsigned run = 1 + (unsigned)(t_random_below(&w->random, 4) ? 0 : t_random_below(&w->random, 3));
	uint64_t first = t_random_below(&w->random, s->nr_blocks);

	first = first / w->of * w->of + w->nr;
	for (unsigned i = 0; i < run; i++) {
		uint64_t block = first + i * w->of, count, word;
		ssize_t n;

		if (block >= s->nr_blocks)
			break;
		count = s->written[block] + 1;
		word = word_of(block, count);
		for (uint32_t at = 0; at < s->block; at += 8)
			memcpy(w->buf + at, &word, 8);
		n = iomap_pwrite(w->file, w->buf, s->block, (off_t)(block * s->block));
		if (n != (ssize_t)s->block) {
			complain(s, "write of block %llu: %zd", (unsigned long long)block, n);
			return;
		}
		s->written[block] = count;
	}
}

/* Overwrites a run of blocks in one call, where there is one writer only. */
static void write_run_turn(struct worker *w)
{
	struct shared *s = w->s;
	unsigned run = 1 + (unsigned)t_random_below(&w->random, RUN_MAX);
	uint64_t first = t_random_below(&w->random, s->nr_blocks);
	ssize_t n;

	if (first + run > s->nr_blocks)
		run = (unsigned)(s->nr_blocks - first);
	for (unsigned i = 0; i < run; i++) {
		uint64_t word = word_of(first + i, s->written[first + i] + 1);

		for (uint32_t at = 0; at < s->block; at += 8)
			memcpy(w->buf + i * s->block + at, &word, 8);
	}
	n = iomap_pwrite(w->file, w->buf, run * s->block, (off_t)(first * s->block));
	if (n != (ssize_t)(run * s->block)) {
		complain(s, "write of %u blocks at %llu: %zd", run, (unsigned long long)first, n);
		return;
	}
	for (unsigned i = 0; i < run; i++)
		s->written[first + i]++;
}

static void check_block(struct worker *w, uint64_t block, const unsigned char *data, size_t len, uint64_t least, bool was_cut)
{
	struct shared *s = w->s;
	uint64_t word, other, count;

	memcpy(&word, data, 8);
	for (size_t at = 8; at + 8 <= len; at += 8) {
		memcpy(&other, data + at, 8);
		if (other != word) {
			complain(s, "block %llu is torn: %llx at 0, %llx at %zu", (unsigned long long)block,
				 (unsigned long long)word, (unsigned long long)other, at);
			return;
		}
	}
	if (word && word >> 40 != block + 1) {
		complain(s, "block %llu holds block %lld", (unsigned long long)block, (long long)(word >> 40) - 1);
		return;
	}
	count = word & ((1ULL << 40) - 1);
	/* zeros are right before the first write, and where the file was cut and grew again */
	if (count < least && !(count == 0 && was_cut))
		complain(s, "block %llu: write %llu was seen, though write %llu had returned", (unsigned long long)block,
			 (unsigned long long)count, (unsigned long long)least);
	if (count < w->seen[block] && !(count == 0 && was_cut))
		complain(s, "block %llu: write %llu was seen after write %llu", (unsigned long long)block,
			 (unsigned long long)count, (unsigned long long)w->seen[block]);
	if (count > w->seen[block])
		w->seen[block] = count;
}

static void read_turn(struct worker *w)
{
	struct shared *s = w->s;
	unsigned run = t_random_below(&w->random, 3) ? 1 : 1 + (unsigned)t_random_below(&w->random, RUN_MAX);
	uint64_t first = t_random_below(&w->random, s->nr_blocks), least[RUN_MAX];
	ssize_t n;

	if (first + run > s->nr_blocks)
		run = (unsigned)(s->nr_blocks - first);
	for (unsigned i = 0; i < run; i++)
		least[i] = s->written[first + i];
	n = iomap_pread(w->file, w->buf, run * s->block, (off_t)(first * s->block));
	if (n < 0 || n > (ssize_t)(run * s->block) || n % s->block || (!s->cuts && n != (ssize_t)(run * s->block))) {
		complain(s, "read of %u blocks at %llu: %zd", run, (unsigned long long)first, n);
		return;
	}
	for (unsigned i = 0; i < n / s->block; i++)
		check_block(w, first + i, w->buf + i * s->block, s->block, least[i], s->cuts);
}

static void truncate_turn(struct worker *w)
{
	struct shared *s = w->s;
	uint64_t blocks = t_random_below(&w->random, s->nr_blocks + 1);
	int ret = iomap_ftruncate(w->file, (off_t)(blocks * s->block));

	if (ret)
		complain(s, "ftruncate: %d", ret);
	t_run_nap();
}

static void sync_turn(struct worker *w)
{
	int ret = t_random_below(&w->random, 4) ? iomap_fdatasync(w->file) : t_random_below(&w->random, 2) ?
		  iomap_fsync(w->file) : iomap_cache_sync(w->s->cache);

	if (ret)
		complain(w->s, "sync: %d", ret);
}

static void drop_turn(struct worker *w)
{
	struct shared *s = w->s;
	uint64_t len = (uint64_t)s->nr_blocks * s->block;
	static const int advice[] = { POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED, POSIX_FADV_RANDOM, POSIX_FADV_NORMAL };
	char why[300] = "";
	int ret;

	switch (t_random_below(&w->random, 4)) {
	case 0:
		ret = iomap_cache_drop(s->cache);
		break;
	case 1:
		ret = iomap_cache_check(s->cache, why, sizeof(why));
		break;
	default:
		ret = iomap_fadvise(w->file, (off_t)t_random_below(&w->random, len), (off_t)t_random_below(&w->random, len),
				    advice[t_random_below(&w->random, 4)]);
	}
	if (ret)
		complain(s, "drop, check or advice: %d %s", ret, why);
	t_run_nap();
}

static void reopen_turn(struct worker *w)
{
	int ret = iomap_close(w->file);

	if (ret)
		complain(w->s, "close: %d", ret);
	w->file = open_file(w->s, 0);
	if (w->file)
		read_turn(w);
}

static void *work(void *arg)
{
	struct worker *w = arg;

	while (!w->s->stop && w->file) {
		w->turn(w);
		w->s->turns[w->role]++;
	}
	return NULL;
}

static const struct role {
	const char *name;
	void (*turn)(struct worker *);
} roles[] = {
	{ "writes", write_turn }, { "reads", read_turn }, { "syncs", sync_turn }, { "drops", drop_turn },
	{ "reopens", reopen_turn }, { "cuts", truncate_turn }, { "runs", write_run_turn },
};
enum { WRITES, READS, SYNCS, DROPS, REOPENS, CUTS, RUNS, NR_ROLES };

struct setup {
	enum backend backend;
	uint32_t block;
	enum iomap_accounting accounting;
	uint64_t memory, max_folio;
	unsigned threads[NR_ROLES];
};

static void check_end(struct shared *s)
{
	struct iomap_cache_stat st;
	char why[300] = "";
	int ret;

	CHECK_EQ(iomap_cache_sync(s->cache), 0);
	ret = iomap_cache_check(s->cache, why, sizeof(why));
	CHECK_MSG(ret == 0, "iomap_cache_check: %s", why);
	CHECK_EQ(iomap_cache_stat(s->cache, &st, sizeof(st)), 0);
	CHECK_EQ(st.dirty_bytes, 0);
	CHECK_EQ(st.writeback_bytes, 0);
	CHECK_EQ(st.pinned_bytes, 0);
	CHECK_EQ(st.dirtied_bytes + st.redirtied_bytes, st.written_bytes + st.write_failed_bytes + st.cancelled_bytes);
}

static void check_contents(struct shared *s, struct iomap_file *file)
{
	struct worker *w = calloc(1, sizeof(*w));
	unsigned char *buf = malloc(s->block);
	uint64_t blocks = (uint64_t)iomap_size(file) / s->block;

	CHECK(w && buf);
	w->s = s;
	CHECK_EQ(iomap_size(file) % s->block, 0);
	if (!s->cuts)
		CHECK_EQ(blocks, s->nr_blocks);
	CHECK_EQ(iomap_cache_drop(s->cache), 0);
	for (uint64_t i = 0; i < blocks; i++) {
		CHECK_EQ(iomap_pread(file, buf, s->block, (off_t)(i * s->block)), (ssize_t)s->block);
		check_block(w, i, buf, s->block, s->written[i], s->cuts);
		CHECK_MSG(!s->wrong, "at the end: %s", s->text);
	}
	free(buf);
	free(w);
}

static void run(const struct setup *setup)
{
	struct t_hold_params hold_params = { .shuffle = true, .jitter_ns = 200000 };
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct shared *s = calloc(1, sizeof(*s));
	struct worker *workers[32];
	pthread_t threads[32];
	struct t_hold *hold = NULL;
	struct iomap_file *file;
	unsigned nr = 0;
	uint64_t end;

	CHECK(s);
	if (setup->backend == ON_AIO && !t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
	params.memory_bytes = setup->memory;
	params.max_folio_bytes = setup->max_folio;
	params.accounting = setup->accounting;
	params.dirty_writeback_ms = 20;
	params.dirty_expire_ms = 20;
	CHECK_EQ(iomap_cache_create(&s->cache, &params), 0);
	s->block = setup->block;
	s->nr_blocks = (unsigned)(2 * setup->memory / setup->block);
	if (s->nr_blocks > BLOCKS_MAX)
		s->nr_blocks = BLOCKS_MAX;
	s->cuts = setup->threads[CUTS];
	if (setup->backend == ON_MEM) {
		CHECK_EQ(iomap_device_open_mem(NULL, &s->device), 0);
	} else if (setup->backend == ON_HOLD) {
		hold = t_hold_create(&hold_params);
		s->device = t_hold_device(hold);
	} else {
		t_run_path(s->path, sizeof(s->path), "file");
	}
	file = open_file(s, 0);
	CHECK_MSG(file, "%s", s->text);
	if (!s->cuts)
		CHECK_EQ(iomap_ftruncate(file, (off_t)s->nr_blocks * s->block), 0);
	for (unsigned role = 0; role < NR_ROLES; role++) {
		for (unsigned i = 0; i < setup->threads[role]; i++) {
			struct worker *w = workers[nr] = calloc(1, sizeof(*w));

			CHECK(w);
			*w = (struct worker) { .s = s, .turn = roles[role].turn, .role = role, .nr = i,
					       .of = setup->threads[role], .random = 1000 * role + i };
			w->buf = malloc((size_t)RUN_MAX * s->block);
			w->file = open_file(s, 0);
			CHECK_EQ(pthread_create(&threads[nr++], NULL, work, w), 0);
		}
	}
	end = t_run_now_ns() + (t_run_is_long() ? 60 : 1) * 1000000000ULL;
	while (t_run_now_ns() < end && !s->stop)
		t_run_nap();
	for (unsigned role = 0; role < NR_ROLES && !s->wrong; role++)   /* at least one turn of each */
		if (setup->threads[role])
			CHECK_MSG(T_WAIT(s->turns[role] || s->stop, 10000), "%s do not come to an end", roles[role].name);
	s->stop = true;
	for (unsigned i = 0; i < nr; i++) {
		int ret;

		pthread_join(threads[i], NULL);
		ret = workers[i]->file ? iomap_close(workers[i]->file) : 0;
		CHECK_MSG(s->wrong || ret == 0, "close: %d", ret);
		free(workers[i]->buf);
		free(workers[i]);
	}
	CHECK_MSG(!s->wrong, "%s", s->text);
	check_end(s);
	check_contents(s, file);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(s->cache), 0);
	if (s->device)
		CHECK_EQ(iomap_device_close(s->device), 0);
	if (hold) {
		CHECK(T_WAIT(t_hold_devices(hold) == 0, 5000));
		CHECK_MSG(!t_hold_bad(hold), "the device says: %s", t_hold_bad(hold));
		t_hold_free(hold);
	}
	free(s);
}

#define BUSY { [WRITES] = 2, [READS] = 2, [SYNCS] = 1, [DROPS] = 1, [REOPENS] = 1 }
#define CUTTING { [WRITES] = 2, [READS] = 2, [SYNCS] = 1, [DROPS] = 1, [REOPENS] = 1, [CUTS] = 1 }
#define ONE_WRITER { [RUNS] = 1, [READS] = 3, [DROPS] = 1 }

static void blocks_are_whole_in_memory_of_few_folios(void)
{
	static const struct setup setup = { ON_MEM, 4096, IOMAP_ACCT_BLOCK, 1 * MIB, 65536, BUSY };

	run(&setup);
}

static void blocks_are_whole_where_requests_end_in_any_order(void)
{
	static const struct setup setup = { ON_HOLD, 4096, IOMAP_ACCT_PAGE, 1 * MIB, 65536, BUSY };

	run(&setup);
}

static void small_blocks_are_whole_where_requests_end_in_any_order(void)
{
	static const struct setup setup = { ON_HOLD, 512, IOMAP_ACCT_BLOCK, 1 * MIB, 16384, BUSY };

	run(&setup);
}

static void blocks_are_whole_on_a_file(void)
{
	static const struct setup setup = { ON_AIO, 4096, IOMAP_ACCT_BLOCK, 1 * MIB, 65536, BUSY };

	run(&setup);
}

static void large_blocks_are_whole_beside_truncate(void)
{
	static const struct setup setup = { ON_HOLD, 16384, IOMAP_ACCT_FOLIO, 2 * MIB, 131072, CUTTING };

	run(&setup);
}

static void blocks_are_whole_beside_truncate(void)
{
	static const struct setup setup = { ON_HOLD, 4096, IOMAP_ACCT_BLOCK, 1 * MIB, 65536, CUTTING };

	run(&setup);
}

static void small_blocks_are_whole_beside_truncate(void)
{
	static const struct setup setup = { ON_MEM, 1024, IOMAP_ACCT_PAGE, 1 * MIB, 65536, CUTTING };

	run(&setup);
}

static void blocks_are_whole_beside_truncate_of_a_file(void)
{
	static const struct setup setup = { ON_AIO, 4096, IOMAP_ACCT_FOLIO, 1 * MIB, 65536, CUTTING };

	run(&setup);
}

static void readers_beside_one_writer_of_runs_see_whole_blocks(void)
{
	static const struct setup setup = { ON_MEM, 8192, IOMAP_ACCT_BLOCK, 32 * MIB, 2 * MIB, ONE_WRITER };

	run(&setup);
}

static void readers_beside_one_writer_of_runs_see_whole_blocks_of_512(void)
{
	static const struct setup setup = { ON_HOLD, 512, IOMAP_ACCT_BLOCK, 1 * MIB, 65536, ONE_WRITER };

	run(&setup);
}

enum { LARGE = 300000, LARGE_AT = 100 };       /* a write that neither begins nor ends at a block */

/* The same byte all over, another each time; every other time in pieces of odd lengths. */
static void write_large(struct worker *w, int flags)
{
	uint64_t turn = w->s->turns[w->role];
	struct iovec iov[7];
	unsigned nr = turn % 2 ? 7 : 1;
	size_t piece = LARGE / nr - 77, done = 0;
	ssize_t n;

	memset(w->buf, (int)(1 + turn % 255), LARGE);
	for (unsigned i = 0; i < nr; i++) {
		iov[i].iov_base = w->buf + done;
		iov[i].iov_len = i == nr - 1 ? LARGE - done : piece;
		done += iov[i].iov_len;
	}
	n = iomap_pwritev2(w->file, iov, (int)nr, LARGE_AT, flags);
	if (n != LARGE)
		complain(w->s, "write: %zd", n);
}

static void write_large_turn(struct worker *w)
{
	write_large(w, 0);
}

static void read_inside_turn(struct worker *w)
{
	uint64_t block = 1 + t_random_below(&w->random, (LARGE + LARGE_AT) / w->s->block - 1);
	ssize_t n = iomap_pread(w->file, w->buf, w->s->block, (off_t)(block * w->s->block));

	if (n != (ssize_t)w->s->block)
		complain(w->s, "read: %zd", n);
	else if (t_run_bytes_differ(w->buf, w->s->block, w->buf[0]) >= 0)
		complain(w->s, "block %llu is torn: %02x at 0, %02x at %zd", (unsigned long long)block, w->buf[0],
			 w->buf[t_run_bytes_differ(w->buf, w->s->block, w->buf[0])],
			 t_run_bytes_differ(w->buf, w->s->block, w->buf[0]));
}

/* Cuts the file off, so that each large write lets it grow again: its size is never inside a block but at the end. */
static void grow_turn(struct worker *w)
{
	int ret = iomap_ftruncate(w->file, 0);

	if (ret)
		complain(w->s, "ftruncate: %d", ret);
	ret = iomap_ftruncate(w->file, LARGE_AT);
	if (ret)
		complain(w->s, "ftruncate: %d", ret);
	write_large(w, IOMAP_RWF_APPEND);
}

static void size_turn(struct worker *w)
{
	off_t size = iomap_size(w->file);

	if (size != LARGE + LARGE_AT && size != LARGE_AT && size % w->s->block)
		complain(w->s, "the size is %lld in the middle of a write", (long long)size);
}

static void run_large(uint32_t block, void (*writes)(struct worker *), void (*looks)(struct worker *))
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct shared *s = calloc(1, sizeof(*s));
	struct worker *workers = calloc(3, sizeof(*workers));
	pthread_t threads[3];
	uint64_t end;

	CHECK(s && workers);
	params.memory_bytes = 2 * MIB;
	params.dirty_bytes = 512 * KIB;         /* so that it is written in several steps */
	params.dirty_background_bytes = 128 * KIB;
	CHECK_EQ(iomap_cache_create(&s->cache, &params), 0);
	CHECK_EQ(iomap_device_open_mem(NULL, &s->device), 0);
	s->block = block;
	for (unsigned i = 0; i < 3; i++) {
		struct worker *w = &workers[i];

		*w = (struct worker) { .s = s, .turn = i ? looks : writes, .role = i, .random = i };
		w->buf = malloc(LARGE);
		w->file = open_file(s, 0);
		CHECK(w->buf && w->file);
	}
	write_large_turn(&workers[0]);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	end = t_run_now_ns() + (t_run_is_long() ? 60 : 1) * 1000000000ULL;
	while (t_run_now_ns() < end && !s->stop)
		t_run_nap();
	CHECK(T_WAIT((s->turns[0] && s->turns[1] && s->turns[2]) || s->stop, 10000));
	s->stop = true;
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(iomap_close(workers[i].file), 0);
		free(workers[i].buf);
	}
	CHECK_MSG(!s->wrong, "%s", s->text);
	check_end(s);
	CHECK_EQ(iomap_cache_destroy(s->cache), 0);
	CHECK_EQ(iomap_device_close(s->device), 0);
	free(workers);
	free(s);
}

static void a_large_unaligned_write_is_seen_by_whole_blocks(void)
{
	run_large(4096, write_large_turn, read_inside_turn);
	run_large(16384, write_large_turn, read_inside_turn);
}

static void a_large_unaligned_write_grows_the_file_by_whole_blocks(void)
{
	run_large(512, grow_turn, size_turn);
	run_large(4096, grow_turn, size_turn);
}

static const struct t_run_case cases[] = {
	T_RUN(blocks_are_whole_in_memory_of_few_folios),
	T_RUN(blocks_are_whole_where_requests_end_in_any_order),
	T_RUN(small_blocks_are_whole_where_requests_end_in_any_order),
	T_RUN(blocks_are_whole_on_a_file),
	T_RUN(large_blocks_are_whole_beside_truncate),
	T_RUN(blocks_are_whole_beside_truncate),
	T_RUN(small_blocks_are_whole_beside_truncate),
	T_RUN(blocks_are_whole_beside_truncate_of_a_file),
	T_RUN(readers_beside_one_writer_of_runs_see_whole_blocks),
	T_RUN(readers_beside_one_writer_of_runs_see_whole_blocks_of_512),
	T_RUN(a_large_unaligned_write_is_seen_by_whole_blocks),
	T_RUN(a_large_unaligned_write_grows_the_file_by_whole_blocks),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
