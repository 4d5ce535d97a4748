/*
 * world.c - one run: files, a cache, threads that use them, and what must be true while and after they do
 *
 * After each operation, whenever no other thread holds a short lock, the library's own checkers run with the scheduler frozen. At
 * the end everything that can fail is healed; then every file must become durable, read as the oracle says, and leave no byte
 * charged, no thread and no memory behind. If the power goes instead, each legal image of each file is held against
 * what was promised.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "atomic.h"
#include "inode.h"
#include "oracle.h"
#include "rcu.h"
#include "workload.h"

#define CALL_LIMIT_NS   UINT64_C(60000000000)   /* virtual: no call takes longer, whatever fails */
#define MAX_STEPS       4000000
#define MAX_STEPS_IDLE  40000000        /* the flusher looks at failed blocks every period, for a minute of virtual time */
#define NS_PER_MS       UINT64_C(1000000)
#define RETRY_LIMIT_NS  UINT64_C(60000000000)   /* failed blocks wait no longer than this before they are tried again */

static struct {
	const struct world_spec *spec;
	struct plan plan;
	struct iomap_cache *cache;
	unsigned ops;
	unsigned appending[WORLD_FILES];        /* threads in an append: nobody else changes the size */
	unsigned clearing[WORLD_FILES];         /* threads in a fallocate, perhaps beyond the size */
	bool lossy[WORLD_FILES];                /* contents may be lost or old: errors under DROP, discarded */
	unsigned pairs[WORLD_FILES];            /* odd: two appends at once are under way */
	struct iomap_file *watch[WORLD_FILES];  /* open all the time: under DROP somebody is told, and no last close writes what the flusher forgot */
	bool told[WORLD_FILES];                 /* some call on it has returned an error */
	bool healed;
	bool ordinary_reads;                    /* that are not the plan's */
	struct extfs *fs;                       /* where an engine maps some of the files */
	struct iomap_device *device;            /* its device, file number nr_files of the disk */
	struct extfs_file *inode[WORLD_FILES], *copy[WORLD_FILES];
} w;

#define SKEW_MOST 4096
static _Alignas(4096) unsigned char buffer[WORLD_THREADS][OP_BYTES + SKEW_MOST];
static unsigned char image[ORACLE_MOST];

static const char *path_of(unsigned f)
{
	static const char *const paths[WORLD_FILES] = { "/f0", "/f1", "/f2" };

	return paths[f];
}

static bool may_fail(void) { return w.plan.faults && !w.healed; }

/* Errors that may come out of a call where things may fail. */
static bool excused(int64_t ret)
{
	return may_fail() && (ret == -EIO || ret == -ENOSPC || ret == -ENOMEM || ret == -EAGAIN);
}

static void had_error(unsigned f)
{
	oracle_had_errors(f);
	w.told[f] = true;
}

static void unexpected(const struct op *op, int64_t ret)
{
	char text[128];

	op_describe(op, text, sizeof(text));
	sim_fail("%s: returned %lld", text, (long long)ret);
}

/* --- operations ------------------------------------------------------------------------------------------- */

static int iovecs(const struct op *op, void *buf, uint64_t len, struct iovec iov[3])
{
	uint64_t a = op->pieces ? len / 3 : len, b = op->pieces ? (len - a) / 2 : 0;

	iov[0] = (struct iovec){ buf, a };
	iov[1] = (struct iovec){ (char *)buf + a, b };
	iov[2] = (struct iovec){ (char *)buf + a + b, len - a - b };
	return op->pieces ? 3 : 1;
}

static void look_at_size(struct iomap_file *file, unsigned f)
{
	off_t size;

	if (oracle_busy(f) || (w.pairs[f] & 1))
		return;
	sim_freeze();
	size = iomap_size(file);
	oracle_check_size(f, (uint64_t)size);
	sim_thaw();
}

/*
 * A call has promised that [pos, end) outlives the process (@stable: a power cut) from now on. Looked at at once: it may take a crash at the
 * next step to show it otherwise.
 */
static void check_promise(unsigned f, uint64_t pos, uint64_t end, bool stable)
{
	const char *why;
	uint64_t size;

	if (w.inode[f] || w.lossy[f] || (w.pairs[f] & 1))
		return;
	size = stable ? disk_image(f, DISK_POWER_OLDEST, NULL, image, end) : disk_size(f);
	pos = pos / SIM_SECTOR * SIM_SECTOR;
	end = end < size ? end : size;
	if (pos >= end)
		return;
	if (!stable)
		disk_peek(f, pos, image + pos, end - pos);
	why = oracle_check_bytes(f, image + pos, pos, end, !stable, w.plan.faults);
	if (why)
		sim_fail("%s", why);
}

/* Writes what the oracle has been told of as @id, for @pos. */
static void write_as(const struct op *op, struct iomap_file *file, unsigned char *buf, unsigned id, uint64_t pos, int flags)
{
	struct iovec iov[3];
	unsigned f = op->file;
	ssize_t ret;
	int nr;

	buf += op->skew;
	oracle_pattern(id, pos, buf, op->len);
	nr = iovecs(op, buf, op->len, iov);
	ret = iomap_pwritev2(file, iov, nr, (off_t)(flags & IOMAP_RWF_APPEND ? 0 : pos), flags);
	sim_trace("write %u returned %lld", id, (long long)ret);
	/* What was copied, and then could not be written out, stays in the cache and counts for the size. */
	if (ret != (ssize_t)op->len && (op->flags & (IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH)))
		oracle_size_is_vague(f);
	oracle_write_end(f, id, ret);
	if (ret == (ssize_t)op->len) {
		if (op->flags & (IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH))
			check_promise(f, pos, pos + op->len, false);
		if (op->flags & IOMAP_RWF_DSYNC)
			check_promise(f, pos, pos + op->len, true);
		return;
	}
	if (ret == -EAGAIN && (op->flags & IOMAP_RWF_NOWAIT))
		return;
	if (ret >= 0 && (op->flags & IOMAP_RWF_NOWAIT))
		return;
	had_error(f);
	if (!excused(ret) && !(ret > 0 && w.plan.faults))
		unexpected(op, ret);
}

/* What holds once it has returned. */
static unsigned promise(const struct op *op)
{
	return (op->flags & IOMAP_RWF_DSYNC ? ORACLE_DURABLE : 0) | (op->flags & IOMAP_RWF_DIRECT ? ORACLE_DIRECT : 0) |
	       (op->flags & (IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH) ? ORACLE_STORED : 0);
}

static void do_write(const struct op *op, struct iomap_file *file, unsigned char *buf)
{
	unsigned f = op->file, id;
	uint64_t size;

	if (w.appending[f] && (!oracle_size_is_settled(f, &size) || op->pos + op->len > size))
		return;
	id = oracle_write_begin(f, op->pos, op->len, promise(op));
	if (id != ORACLE_FULL)
		write_as(op, file, buf, id, op->pos, op->flags);
}

static void do_append(const struct op *op, struct iomap_file *file, unsigned char *buf)
{
	unsigned f = op->file, id;
	uint64_t size;

	look_at_size(file, f);
	if (w.appending[f] || !oracle_size_is_settled(f, &size) || size + op->len > ORACLE_MOST)
		return;
	w.appending[f]++;
	id = oracle_write_begin(f, size, op->len, promise(op));
	if (id != ORACLE_FULL)
		write_as(op, file, buf, id, size, op->flags | IOMAP_RWF_APPEND);
	w.appending[f]--;
}

/* --- two appends at once: whole, one behind the other, in either order -------------------------------------- */

static struct append { struct iomap_file *file; int flags; unsigned id; uint64_t made_for, len; unsigned char buf[2 * OP_BYTES]; bool done; } pair[2];
static unsigned char pair_read[4 * OP_BYTES];
static struct sim_queue pair_end;
static bool pair_taken;

static void append_one(struct append *a)
{
	struct iovec iov = { a->buf, a->len };
	ssize_t ret = iomap_pwritev2(a->file, &iov, 1, 0, IOMAP_RWF_APPEND | a->flags);

	if (ret != (ssize_t)a->len)
		sim_fail("an append of %llu bytes beside another returned %zd", (unsigned long long)a->len, ret);
	a->done = true;
	sim_wake_all(&pair_end);
}

static void append_thread(void *arg) { append_one(arg); }

static bool reads_as(const struct append *first, const struct append *second)
{
	return !memcmp(pair_read, first->buf, first->len) && !memcmp(pair_read + first->len, second->buf, second->len);
}

static void do_append_pair(const struct op *op, struct iomap_file *file)
{
	const struct append *first = &pair[0], *second = &pair[1];
	unsigned f = op->file;
	uint64_t size, begun, both;

	look_at_size(file, f);
	if (pair_taken || w.appending[f] || w.clearing[f] || !oracle_size_is_settled(f, &size) || !oracle_has_room(f) || size + 4 * OP_BYTES > ORACLE_MOST)
		return;
	pair_taken = true;
	w.appending[f]++;
	w.pairs[f]++;
	w.ordinary_reads = true;
	begun = oracle_read_begin(f);
	for (unsigned i = 0; i < 2; i++) {
		struct append *a = &pair[i];

		a->file = file;
		a->flags = op->flags & IOMAP_RWF_DONTCACHE;
		if (!i)
			a->flags |= op->flags & (IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH);
		a->id = oracle_new_id();
		a->len = 1 + (op->pos * (i + 3) + op->len) % (2 * OP_BYTES);
		a->made_for = i ? size + pair[0].len : size;
		a->done = false;
		oracle_pattern(a->id, a->made_for, a->buf, a->len);
	}
	if (!sim_spawn("append", append_thread, &pair[1], true))
		sim_fail("no room for one more thread");
	append_one(&pair[0]);
	while (!pair[1].done)
		sim_wait(&pair_end, "the other append", &pair[1]);
	both = pair[0].len + pair[1].len;
	if (iomap_pread(file, pair_read, both, (off_t)size) != (ssize_t)both)
		sim_fail("what two appends wrote cannot be read");
	if (!reads_as(first, second)) {
		first = &pair[1];
		second = &pair[0];
		if (!reads_as(first, second))
			sim_fail("two appends of file %u, %llu and %llu bytes at %llu, are not one behind the other", f,
				 (unsigned long long)pair[0].len, (unsigned long long)pair[1].len, (unsigned long long)size);
	}
	oracle_appended(f, begun, first->id, first->made_for, size, first->len);
	oracle_appended(f, begun, second->id, second->made_for, size + first->len, second->len);
	w.pairs[f]++;
	w.appending[f]--;
	pair_taken = false;
}

static void do_read(const struct op *op, struct iomap_file *file, unsigned char *buf)
{
	uint64_t since = oracle_read_begin(op->file);
	unsigned pairs = w.pairs[op->file];
	struct iovec iov[3];
	int nr = iovecs(op, buf += op->skew, op->len, iov);
	ssize_t ret = iomap_preadv2(file, iov, nr, (off_t)op->pos, op->flags);

	if (ret < 0) {
		if (!(ret == -EAGAIN && (op->flags & IOMAP_RWF_NOWAIT)) && !excused(ret))
			unexpected(op, ret);
		return;
	}
	if (w.lossy[op->file] || (pairs & 1) || w.pairs[op->file] != pairs)
		return;
	/* What a block's bytes in one buffer show is of one moment; another buffer may show another. */
	for (uint64_t pos = op->pos, left = (uint64_t)ret; nr; pos += iov->iov_len, nr--, memmove(iov, iov + 1, sizeof(*iov) * 2)) {
		uint64_t n = left < iov->iov_len ? left : iov->iov_len;

		if (iov->iov_len)
			oracle_read_end(op->file, since, pos, iov->iov_len, iov->iov_base, n,
					(op->flags & IOMAP_RWF_NOWAIT) || may_fail() || n < iov->iov_len);
		left -= n;
	}
	if ((uint64_t)ret < op->len)
		oracle_read_end(op->file, since, op->pos + (uint64_t)ret, op->len - (uint64_t)ret, buf + ret, 0,
				(op->flags & IOMAP_RWF_NOWAIT) || may_fail());
}

static void do_truncate(const struct op *op, struct iomap_file *file)
{
	unsigned id;
	int ret;

	if (w.appending[op->file])
		return;
	id = oracle_truncate_begin(op->file, op->pos);
	if (id == ORACLE_FULL)
		return;
	ret = iomap_ftruncate(file, (off_t)op->pos);
	oracle_truncate_end(op->file, id, ret);
	if (ret) {
		had_error(op->file);
		if (!excused(ret))
			unexpected(op, ret);
	}
}

static void do_sync(const struct op *op, struct iomap_file *file)
{
	uint64_t since = oracle_sync_begin();
	int ret;

	if (op->kind == OP_SYNC)
		ret = iomap_cache_sync(w.cache);
	else if (op->kind == OP_RESOLVE)
		ret = iomap_resolve(file, 0, 0, IOMAP_RESOLVE_RETRY);
	else
		ret = op->kind == OP_FSYNC ? iomap_fsync(file) : iomap_fdatasync(file);
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		if (op->kind != OP_SYNC && f != op->file)
			continue;
		if (!ret) {
			oracle_sync_end(f, since);
			check_promise(f, 0, ORACLE_MOST, true);
		} else {
			had_error(f);
		}
	}
	if (ret && !excused(ret))
		unexpected(op, ret);
}

static void do_fallocate(const struct op *op, struct iomap_file *file)
{
	int mode = op->kind == OP_PUNCH ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : op->keep_size ? FALLOC_FL_KEEP_SIZE : 0;
	bool grows = !(mode & FALLOC_FL_KEEP_SIZE);
	unsigned f = op->file, nr;
	uint64_t size;
	int ret;

	if (op->kind == OP_ZERO)
		mode |= FALLOC_FL_ZERO_RANGE;
	if (w.appending[f] && (!oracle_size_is_settled(f, &size) || op->pos + op->len > size))
		return;
	nr = oracle_clear_begin(f, op->pos, op->len, op->kind != OP_ALLOCATE, grows);
	if (nr == ORACLE_FULL)
		return;
	w.clearing[f]++;
	ret = iomap_fallocate(file, mode, (off_t)op->pos, (off_t)op->len);
	w.clearing[f]--;
	oracle_clear_end(f, nr, ret);
	if (!ret || (ret == -EOPNOTSUPP && !w.plan.disk.can_allocate && op->kind != OP_ZERO))
		return;
	had_error(f);
	if (!excused(ret))
		unexpected(op, ret);
}

static void do_seek(const struct op *op, struct iomap_file *file)
{
	uint64_t since = oracle_read_begin(op->file), least = oracle_least_size(op->file);
	unsigned pairs = w.pairs[op->file], f = op->file;
	uint32_t block = w.plan.file[f].block;
	off_t ret = iomap_lseek(file, (off_t)op->pos, op->kind == OP_SEEK_DATA ? SEEK_DATA : SEEK_HOLE);

	if (oracle_least_size(f) < least)
		least = oracle_least_size(f);
	if (ret < 0 && ret != -ENXIO)
		unexpected(op, ret);
	if (ret >= 0 && (uint64_t)ret < op->pos)
		unexpected(op, ret);
	if (w.lossy[f] || (pairs & 1) || w.pairs[f] != pairs)
		return;
	if (op->kind == OP_SEEK_DATA) {
		oracle_no_data(f, since, op->pos, ret >= 0 && (uint64_t)ret < least ? (uint64_t)ret : least);
	} else if (ret == -ENXIO) {
		if (op->pos < least)
			unexpected(op, ret);
	} else if ((uint64_t)ret < least) {
		uint64_t end = ((uint64_t)ret / block + 1) * block;

		oracle_no_data(f, since, (uint64_t)ret, end < least ? end : least);
	}
}

static void do_sync_range(const struct op *op, struct iomap_file *file)
{
	uint64_t since = oracle_sync_begin();
	int ret = iomap_sync_range(file, (off_t)op->pos, (off_t)op->len, (unsigned)op->flags);

	if (!ret && op->flags == IOMAP_SYNC_DURABLE)
		oracle_sync_range_end(op->file, since, op->pos, op->pos + op->len);
	if (!ret && op->flags == IOMAP_SYNC_DURABLE)
		check_promise(op->file, op->pos, op->pos + op->len, true);
	if (ret) {
		had_error(op->file);
		if (!excused(ret))
			unexpected(op, ret);
	}
}

static struct iomap_file *open_file(unsigned f)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file = NULL;
	int ret;

	params.block_size = w.plan.file[f].block;
	params.flags = w.plan.file[f].unstable ? IOMAP_OPEN_UNSTABLE : 0;
	for (;;) {
		if (w.inode[f]) {
			params.device = w.device;
			params.ops = &extfs_ops;
			params.writeback_ops = &extfs_writeback_ops;
			params.ops_priv = w.inode[f];
			params.size = extfs_open_size(w.inode[f]);
		}
		ret = iomap_open_with(w.cache, path_of(f), O_RDWR, 0, &params, &file);
		if (!ret)
			return file;
		if (!excused(ret))
			sim_fail("open of file %u: %d", f, ret);
		if (!w.spec->script && ret == -ENOMEM)
			sim_yield();
	}
}

static void close_file(unsigned f, struct iomap_file *file)
{
	int ret = iomap_close(file);

	if (ret)
		had_error(f);
	if (ret && !w.plan.faults)
		sim_fail("close of file %u: %d", f, ret);
}

static void do_limit(const struct op *op)
{
	static const struct { enum iomap_tunable which; uint64_t value[3]; } to[] = {
		{ IOMAP_TUNE_DIRTY_BYTES, { 32768, 300000, 900000 } },
		{ IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, { 0, 10000, 200000 } },
		{ IOMAP_TUNE_MAX_FOLIO_BYTES, { 4096, 16384, 65536 } },
		{ IOMAP_TUNE_READAHEAD_BYTES, { 4096, 32768, 131072 } },
		{ IOMAP_TUNE_DIRTY_WRITEBACK_MS, { 10, 100, 1000 } },
	};
	unsigned i = (unsigned)(op->pos % 5);
	int ret = iomap_cache_set(w.cache, to[i].which, to[i].value[op->len % 3]);

	if (ret)
		unexpected(op, ret);
}

/* --- files that an engine maps ------------------------------------------------------------------------------ */

static void engine_poke(void *priv, uint64_t addr, const void *buf, uint64_t len)
{
	(void)priv;
	disk_poke(w.plan.nr_files, addr, buf, len);
}

static void engine_peek(void *priv, uint64_t addr, void *buf, uint64_t len)
{
	(void)priv;
	disk_peek(w.plan.nr_files, addr, buf, len);
}

/* @quiet: nothing is under way. */
static void check_engine(const char *when, bool quiet)
{
	char why[320] = "";

	if (w.fs && !extfs_check(w.fs, quiet, why, sizeof(why)))
		sim_fail("%s: %s", when, why);
}

static struct extfs_file *engine_file(const char *name)
{
	struct extfs_file *file;

	while (!(file = extfs_add(w.fs, name)))
		if (!may_fail())
			sim_fail("no memory for a file of the engine's");
	return file;
}

static void engine_start(void)
{
	static const char *const copies[WORLD_FILES] = { "copy 0", "copy 1", "copy 2" };
	struct extfs_params params = w.plan.extfs;
	int ret;

	if (disk_create("/engine", NULL, params.size) != w.plan.nr_files)
		sim_fail("the engine's device is not the last file");
	params.poke = engine_poke;
	params.peek = engine_peek;
	while (!(w.fs = extfs_create(&params)))
		if (!may_fail())
			sim_fail("no memory for the engine");
	do
		ret = iomap_device_open_aio("/engine", O_RDWR, 0, &w.device);
	while (excused(ret));
	if (ret)
		sim_fail("open of the engine's device: %d", ret);
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		uint64_t size = w.plan.file[f].size;

		if (!w.plan.on_engine[f])
			continue;
		w.inode[f] = engine_file(path_of(f));
		disk_peek(f, 0, image, size);
		if (extfs_poke(w.inode[f], image, size, 0))
			sim_fail("no room for file %u", f);
		if (w.plan.cloned) {
			w.copy[f] = engine_file(copies[f]);
			if (extfs_clone(w.inode[f], w.copy[f]))
				sim_fail("file %u cannot be cloned", f);
		}
	}
	for (unsigned i = 0; i < EXTFS_POINTS; i++)
		extfs_fail(w.fs, i, w.plan.engine_fault[i].error, w.plan.engine_fault[i].from, w.plan.engine_fault[i].to,
			   w.plan.engine_fault[i].skip, w.plan.engine_fault[i].times);
}

static void engine_heal(void)
{
	for (unsigned i = 0; w.fs && i < EXTFS_POINTS; i++)
		extfs_fail(w.fs, i, 0, 0, 0, 0, 0);
}

/* The cache is gone. What nobody wrote to is as it was. */
static void engine_end(void)
{
	int ret;

	if (!w.fs)
		return;
	check_engine("after everything", true);
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		uint64_t size = w.plan.file[f].size;

		if (!w.copy[f])
			continue;
		extfs_peek(w.copy[f], image, size, 0);
		disk_peek(f, 0, image + size, size);            /* where it comes from */
		if (extfs_size(w.copy[f]) != size || memcmp(image, image + size, size))
			sim_fail("the copy of file %u has changed", f);
	}
	extfs_free(w.fs);
	ret = iomap_device_close(w.device);
	if (ret)
		sim_fail("close of the engine's device: %d", ret);
}

/* @frozen: a thread stopped in the middle of a write has not counted its bytes yet (D9). */
static void check_cache(const char *when, bool frozen)
{
	char why[256] = "";
	int ret = iomap_cache_check(w.cache, why, sizeof(why));

	if (ret && !(frozen && ret == -EUCLEAN && !strncmp(why, "D9", 2)))
		sim_fail("%s: %s (%d)", when, why, ret);
}

static void check_frozen(const struct op *op)
{
	if (sim_others_hold_short_locks())
		return;
	sim_freeze();
	char text[160] = "after ";

	op_describe(op, text + 6, sizeof(text) - 6);
	check_cache(text, true);
	check_engine(text, false);
	sim_thaw();
}

static void do_op(const struct op *op, struct iomap_file **handles, unsigned char *buf)
{
	struct iomap_file *file = handles[op->file], *second;
	uint64_t began = sim_now();
	char text[128];
	struct stat st;
	int ret;

	if (sim_tracing()) {
		op_describe(op, text, sizeof(text));
		sim_trace("begin %s", text);
	}
	switch (op->kind) {
	case OP_WRITE: do_write(op, file, buf); break;
	case OP_READ: do_read(op, file, buf); break;
	case OP_APPEND:
		if (op->pieces && !w.plan.faults && !w.plan.power_off_at)
			do_append_pair(op, file);
		else
			do_append(op, file, buf);
		break;
	case OP_TRUNCATE: do_truncate(op, file); break;
	case OP_FSYNC: case OP_FDATASYNC: case OP_SYNC: case OP_RESOLVE: do_sync(op, file); break;
	case OP_DONTNEED: case OP_WILLNEED:
		ret = iomap_fadvise(file, (off_t)(op->pos / 2), (off_t)op->len * 4,
				    op->kind == OP_DONTNEED ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED);
		if (ret && !excused(ret))
			unexpected(op, ret);
		break;
	case OP_DROP:
		ret = iomap_cache_drop(w.cache);
		if (ret < 0 && !excused(ret))
			unexpected(op, ret);
		break;
	case OP_LIMIT: do_limit(op); break;
	case OP_CHECK: check_cache("check", false); break;
	case OP_REOPEN:
		close_file(op->file, file);
		handles[op->file] = open_file(op->file);
		break;
	case OP_SECOND_OPEN:
		second = open_file(op->file);
		close_file(op->file, second);
		break;
	case OP_SLEEP: sim_sleep(op->len * 20000); break;
	case OP_STAT:
		ret = iomap_fstat(file, &st);
		if (ret && !excused(ret))
			unexpected(op, ret);
		break;
	case OP_ADVISE: {
		static const int advice[] = { POSIX_FADV_NORMAL, POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM, POSIX_FADV_NOREUSE,
					      POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED };

		ret = iomap_fadvise(file, (off_t)op->pos, op->len % 5 ? (off_t)op->len : 0, advice[op->len % 6]);
		if (ret && !excused(ret))
			unexpected(op, ret);
		break;
	}
	case OP_POLICY:
		ret = iomap_cache_set(w.cache, IOMAP_TUNE_DONTCACHE, op->len % 3);
		if (ret)
			unexpected(op, ret);
		break;
	case OP_PUNCH: case OP_ZERO: case OP_ALLOCATE: do_fallocate(op, file); break;
	case OP_SEEK_DATA: case OP_SEEK_HOLE: do_seek(op, file); break;
	case OP_SYNC_RANGE: do_sync_range(op, file); break;
	case OP_KINDS: break;
	}
	if (op->kind != OP_SLEEP && sim_now() - began > CALL_LIMIT_NS) {
		op_describe(op, text, sizeof(text));
		sim_fail("%s took %.3f s", text, (double)(sim_now() - began) / 1e9);
	}
	look_at_size(handles[op->file], op->file);
	check_frozen(op);
	w.ops++;
	sim_trace("end");
}

static void work(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	struct iomap_file *handles[WORLD_FILES];

	for (unsigned f = 0; f < w.plan.nr_files; f++)
		handles[f] = open_file(f);
	for (unsigned i = 0; i < w.plan.nr_ops; i++)
		if (w.plan.op[i].thread == me && !(w.spec->left_out && w.spec->left_out[i]))
			do_op(&w.plan.op[i], handles, buffer[me]);
	for (unsigned f = 0; f < w.plan.nr_files; f++)
		close_file(f, handles[f]);
}

/* Called by the disk: nobody may die now and leave a file over a hole that nobody made. */
static void grown(unsigned f, uint64_t from, uint64_t to)
{
	const char *why;

	if (f >= w.plan.nr_files || w.plan.faults || w.lossy[f])
		return;
	disk_peek(f, from, image + from, to - from);
	why = oracle_check_growth(f, image, from, to);
	if (why)
		sim_fail("%s", why);
}

/* --- the end ---------------------------------------------------------------------------------------------- */

static void make_durable(unsigned f, struct iomap_file *file)
{
	uint64_t since = oracle_sync_begin();
	int ret = iomap_fsync(file);

	if (ret && w.plan.faults) {     /* an error from before */
		had_error(f);
		since = oracle_sync_begin();
		ret = iomap_resolve(file, 0, 0, IOMAP_RESOLVE_RETRY);
		if (ret == -EIO) {      /* what a flush lost was no longer cached */
			w.lossy[f] = true;
			ret = iomap_resolve(file, 0, 0, IOMAP_RESOLVE_DISCARD);
		}
		if (!ret) {
			since = oracle_sync_begin();
			ret = iomap_fsync(file);
		}
	}
	if (ret)
		sim_fail("file %u cannot be made durable on a disk that works: %d", f, ret);
	oracle_sync_end(f, since);
}

static void read_all(unsigned f, struct iomap_file *file, unsigned char *buf)
{
	uint64_t size = (uint64_t)iomap_size(file);

	for (uint64_t pos = 0; pos < size; pos += OP_BYTES) {
		struct op op = { .kind = OP_READ, .file = f, .pos = pos, .len = OP_BYTES };

		do_read(&op, file, buf);
	}
}

static void check_disk(unsigned f, struct iomap_file *file)
{
	uint64_t size = w.inode[f] ? extfs_size(w.inode[f]) : disk_size(f);
	const char *why;

	if (size != (uint64_t)iomap_size(file) && !(w.inode[f] && w.lossy[f]))  /* an engine does not hear of what was given up */
		sim_fail("after fsync file %u has size %llu on the disk, %lld in the cache", f, (unsigned long long)size,
			 (long long)iomap_size(file));
	if (w.inode[f])
		extfs_peek(w.inode[f], image, size, 0);
	else
		disk_peek(f, 0, image, size);
	if (!w.lossy[f] && (why = oracle_check_image(f, image, size, false, w.plan.faults)))
		sim_fail("on the disk at the end: %s", why);
	if (!w.plan.faults || w.lossy[f] || w.inode[f])
		return;
	if (disk_image(f, DISK_POWER_OLDEST, NULL, image, size) != size)
		sim_fail("after fsync file %u has another size on stable media", f);
	if ((why = oracle_check_image(f, image, size, false, true)))
		sim_fail("on stable media at the end: %s", why);
}

static void check_nothing_dirty(void)
{
	struct iomap_cache_stat st;
	int ret = iomap_cache_stat(w.cache, &st, sizeof(st));

	if (ret)
		sim_fail("iomap_cache_stat: %d", ret);
	if (st.dirty_bytes || st.writeback_bytes || st.pinned_bytes || st.dontcache_dirty_bytes)
		sim_fail("all is synced, but %llu bytes are dirty, %llu in flight, %llu pinned, %llu dirty by DONTCACHE",
			 (unsigned long long)st.dirty_bytes, (unsigned long long)st.writeback_bytes,
			 (unsigned long long)st.pinned_bytes, (unsigned long long)st.dontcache_dirty_bytes);
	if (st.dirtied_bytes + st.redirtied_bytes != st.written_bytes + st.write_failed_bytes + st.cancelled_bytes)
		sim_fail("dirtied %llu + redirtied %llu is not written %llu + failed %llu + cancelled %llu",
			 (unsigned long long)st.dirtied_bytes, (unsigned long long)st.redirtied_bytes,
			 (unsigned long long)st.written_bytes, (unsigned long long)st.write_failed_bytes,
			 (unsigned long long)st.cancelled_bytes);
}

/* What turned dirty is written in time, though nobody asks for it. */
static void wait_for_the_flusher(void)
{
	const struct iomap_cache_params *c = &w.plan.cache;
	uint64_t period_ms = c->dirty_writeback_ms > 1000 ? c->dirty_writeback_ms : 1000;       /* the most of do_limit(), too */
	uint64_t start = sim_now(), most = 3 * NS_PER_MS * (c->dirty_expire_ms + period_ms) + RETRY_LIMIT_NS;
	struct iomap_cache_stat st;

	for (;;) {
		int ret = iomap_cache_stat(w.cache, &st, sizeof(st));

		if (ret)
			sim_fail("iomap_cache_stat: %d", ret);
		if (!st.dirty_bytes && !st.writeback_bytes)
			return;
		if (sim_now() - start > most)
			sim_fail("%llu bytes are dirty and %llu in flight for %.3f s, and nobody writes them",
				 (unsigned long long)st.dirty_bytes, (unsigned long long)st.writeback_bytes, (double)most / 1e9);
		sim_sleep(most / 16);
	}
}

/* A folio that a DONTCACHE operation made and nobody else used; but for what was read ahead and not used, it goes when it is clean. */
static struct iomap_folio *left_behind(struct inode *inode)
{
	pgoff_t at = 0;
	struct iomap_folio *f;

	while ((f = mapping_next(&inode->mapping, &at, UINT64_MAX >> PAGE_SHIFT))) {
		pgoff_t next = at + folio_pages(f);
		bool left = folio_is_droppable(f) && !(folio_flags(f) & FOLIO_UNUSED);

		folio_put(inode->mapping.zone, f);
		if (left)
			return f;
		at = next;
	}
	return NULL;
}

static void check_nothing_is_left_behind(void)
{
	struct inode *inode = NULL;

	while ((inode = inode_next(w.cache, inode))) {
		struct iomap_folio *f;
		char text[200];

		for (unsigned looks = 0; (f = left_behind(inode)); looks++) {
			if (looks == 40) {
				folio_describe(f, text, sizeof(text));
				sim_fail("a DONTCACHE folio is clean for two seconds and still there: %s", text);
			}
			sim_sleep(50 * NS_PER_MS);
		}
	}
}

static void finish(void)
{
	struct iomap_file *file[WORLD_FILES];
	int ret;

	disk_heal();
	engine_heal();
	sim_no_more_faults();
	w.healed = true;
	for (unsigned f = 0; f < w.plan.nr_files; f++)
		file[f] = open_file(f);
	if (w.plan.idle_end)
		wait_for_the_flusher();
	if (w.plan.nothing_behind && !w.plan.faults && !w.ordinary_reads)
		check_nothing_is_left_behind();
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		look_at_size(file[f], f);
		read_all(f, file[f], buffer[0]);
		make_durable(f, file[f]);
		/* Under DROP what was lost has been told to somebody; without a word nothing may be. */
		if (w.watch[f]) {
			close_file(f, w.watch[f]);
			w.lossy[f] &= w.told[f];
		}
	}
	check_cache("at the end", false);
	check_nothing_dirty();
	ret = iomap_cache_drop(w.cache);
	if (ret < 0)
		sim_fail("iomap_cache_drop: %d", ret);
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		check_disk(f, file[f]);
		read_all(f, file[f], buffer[0]);
		close_file(f, file[f]);
	}
	check_cache("after the last close", false);
	ret = iomap_cache_destroy(w.cache);
	if (ret)
		sim_fail("iomap_cache_destroy: %d", ret);
	engine_end();
}

/* --- a run ------------------------------------------------------------------------------------------------ */

static struct { struct sim_queue queue; unsigned running; } workers;

static void work_and_tell(void *arg)
{
	work(arg);
	workers.running--;
	sim_wake_all(&workers.queue);
}

static void world_main(void *unused)
{
	int ret;

	(void)unused;
	platform_sim_start();
	rcu_sim_start();
	w.plan.disk.grown = grown;
	disk_start(&w.plan.disk, w.spec->schedule ? w.spec->schedule : w.spec->seed);
	for (unsigned f = 0; f < w.plan.nr_files; f++) {
		uint64_t size = w.plan.file[f].size;

		oracle_pattern(oracle_create(f, w.plan.file[f].block, size, w.plan.file[f].unstable), 0, image, size);
		disk_create(path_of(f), image, size);
	}
	if (w.plan.engine)
		engine_start();
	do
		ret = iomap_cache_create(&w.cache, &w.plan.cache);
	while (excused(ret));
	if (ret)
		sim_fail("iomap_cache_create: %d", ret);
	for (unsigned f = 0; f < w.plan.nr_files; f++)
		if (w.plan.idle_end || (w.plan.faults && w.plan.cache.error_policy == IOMAP_ERROR_DROP))
			w.watch[f] = open_file(f);
	memset(&workers, 0, sizeof(workers));
	workers.running = w.plan.nr_threads;
	for (unsigned t = 0; t < w.plan.nr_threads; t++)
		sim_spawn("work", work_and_tell, (void *)(uintptr_t)t, true);
	while (workers.running)
		sim_wait(&workers.queue, "the threads that work", NULL);
	finish();
}

static void make_plan(const struct world_spec *spec, struct plan *p)
{
	if (spec->script)
		plan_make_script(p);
	else
		plan_make(spec, p);
}

unsigned world_ops(const struct world_spec *spec)
{
	static struct plan p;

	make_plan(spec, &p);
	return p.nr_ops;
}

void world_describe(const struct world_spec *spec, unsigned op, char *buf, size_t len)
{
	static struct plan p;

	make_plan(spec, &p);
	op_describe(&p.op[op], buf, len);
}

/* Holds images of every file against the promises. */
static void check_crash(struct world_result *out)
{
	static const enum disk_crash how[] = { DISK_KILL, DISK_POWER_OLDEST, DISK_POWER_NEWEST, DISK_POWER_RANDOM, DISK_POWER_RANDOM };
	struct sim_rng r;

	sim_rng_seed(&r, w.spec->seed, 300);
	out->crashes++;
	for (unsigned f = 0; f < w.plan.nr_files && !out->failed; f++) {
		for (unsigned i = 0; i < sizeof(how) / sizeof(how[0]) && !out->failed; i++) {
			uint64_t size = disk_image(f, how[i], &r, image, sizeof(image));
			const char *why = w.lossy[f] ? NULL : oracle_check_image(f, image, size, how[i] == DISK_KILL,
										   w.plan.faults);

			out->images++;
			if (why) {
				snprintf(out->sim.report, sizeof(out->sim.report), "%s", why);
				out->failed = true;
			}
		}
	}
}

void world_run(const struct world_spec *spec, struct world_result *out)
{
	struct sim_run run = { .seed = spec->schedule ? spec->schedule : spec->seed, .trace = spec->trace };

	memset(out, 0, offsetof(struct world_result, sim));
	memset(&w, 0, sizeof(w));
	w.spec = spec;
	make_plan(spec, &w.plan);
	if (spec->power_off_at)
		w.plan.power_off_at = spec->power_off_at;
	run.power_off_at = w.plan.power_off_at;
	run.max_steps = w.plan.idle_end || w.plan.faults ? MAX_STEPS_IDLE : MAX_STEPS;
	for (unsigned i = 0; i < SIM_FAULTS; i++) {
		run.fail_nth[i] = spec->fail_nth[i];
		run.fail_chance[i] = w.plan.fail_chance[i];
		w.plan.faults |= spec->fail_nth[i] != 0;
	}
	for (unsigned f = 0; f < WORLD_FILES; f++)      /* a failed write may be given up before anybody hears of it */
		w.lossy[f] = w.plan.faults && w.plan.cache.error_policy == IOMAP_ERROR_DROP;
	pair_taken = false;
	pair_end = (struct sim_queue){ NULL, NULL };
	oracle_start();
	sim_run(&run, world_main, NULL, &out->sim);
	out->ops = w.ops;
	out->threads = w.plan.nr_threads;
	out->crashes = out->images = 0;
	out->failed = out->sim.end == SIM_FAILED;
	out->faults = out->sim.faults;
	if (out->sim.end != SIM_FAILED && w.cache) {
		struct sim_disk_stats st;

		disk_stats(&st);
		out->faults += st.faults;
	}
	if (out->sim.end == SIM_POWER_OFF && w.cache)
		check_crash(out);
}
