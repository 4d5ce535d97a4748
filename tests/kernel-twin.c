/*
 * kernel-twin.c - one list of random operations through libiomap and through the kernel
 *
 * Two files lie in one directory. Each operation is done to the one by this library and to the other by buffered system calls;
 * what the two return must be the same, bytes or errno, and now and then and at the end the two files must hold the same
 * bytes and have the same size, read through the library and by read(2). Among the operations are callers' mistakes: bad
 * offsets, lengths, flags, pointers. Where the library answers otherwise on purpose exceptions[] says so, and why; each use
 * of an exception is counted and shown at the end.
 *
 *   kernel-twin [--seed N] [--seeds N] [--ops N] [--dir PATH] [--verbose]
 *
 * --ops operations for each of --seeds seeds, the block sizes taking turns. Files go to --dir, else to TMPDIR. Exit code 77:
 * there is no O_DIRECT. `make check-kernel` runs it there, and on ext4 and XFS where it may mount them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "test.h"

enum {
	SPAN = 1 << 20,                 /* operations that succeed stay below */
	LEN_MAX = 160 << 10,
	NR_LOGGED = 50,
	COMPARE_EVERY = 200,            /* operations */
	IOV_USED = 8,
};

/* What is done to both files. */
enum kind {
	OP_PREAD, OP_PREADV, OP_PWRITE, OP_PWRITEV, OP_TRUNCATE, OP_FALLOCATE, OP_SEEK, OP_FADVISE, OP_SYNC_RANGE,
	OP_FSYNC, OP_FDATASYNC, OP_REOPEN, OP_OWN, NR_KINDS
};

static const struct {
	const char *name;
	unsigned weight;
} kinds[NR_KINDS] = {
	[OP_PREAD] = { "pread", 120 }, [OP_PREADV] = { "preadv2", 80 }, [OP_PWRITE] = { "pwrite", 160 },
	[OP_PWRITEV] = { "pwritev2", 120 }, [OP_TRUNCATE] = { "ftruncate", 50 },
	[OP_FALLOCATE] = { "fallocate", 60 }, [OP_SYNC_RANGE] = { "sync_range", 4 },
	[OP_SEEK] = { "lseek", 40 }, [OP_FADVISE] = { "fadvise", 20 },
	[OP_FSYNC] = { "fsync", 1 }, [OP_FDATASYNC] = { "fdatasync", 1 }, [OP_REOPEN] = { "reopen", 4 },
	[OP_OWN] = { "cache", 4 },
};

struct op {
	enum kind kind;
	int64_t pos, len;
	int flags;                      /* RWF_* of ours, mode, whence, advice, SYNC_FILE_RANGE_*, O_*: as the kind needs it */
	int iovcnt;                     /* what is said; pieces that are there: IOV_USED */
	bool null;                      /* no memory */
	int handle;                     /* 0: for both, 1: read-only, 2: write-only, 3: append */
};

static const int ways[] = { O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND };
enum { NR_HANDLES = sizeof(ways) / sizeof(ways[0]) };

static struct twin {
	uint64_t seed, rng, nr_ops, nr;
	unsigned block;
	bool verbose;
	char ours[4096], theirs[4096];
	struct iomap_cache *cache;
	struct iomap_file *file[NR_HANDLES];
	int fd[NR_HANDLES];
	unsigned char *data, *got_ours, *got_theirs;
	int64_t size, limit;            /* limit: no file is longer here */
	char log[NR_LOGGED][200];
} twin;

/* --- where the library differs on purpose --------------------------------------------------------------------------- */

static bool overflows(const struct op *op)
{
	return op->pos >= 0 && op->len >= 0 && op->pos > INT64_MAX - op->len;
}

static bool is_rw(const struct op *op)
{
	return op->kind <= OP_PWRITEV;
}

static bool is_read(const struct op *op)
{
	return op->kind == OP_PREAD || op->kind == OP_PREADV;
}

static bool null_memory(const struct op *op, int64_t ours, int64_t theirs)
{
	return is_rw(op) && op->null && ours == -EFAULT && theirs >= 0;
}

static bool range_overflows(const struct op *op, int64_t ours, int64_t theirs)
{
	(void)theirs;
	return overflows(op) && ours == -EINVAL;
}

static bool file_position(const struct op *op, int64_t ours, int64_t theirs)
{
	(void)theirs;
	return op->kind == OP_PREADV && op->pos == -1 && ours == -EINVAL;
}

static bool unknown_flag(const struct op *op, int64_t ours, int64_t theirs)
{
	return is_rw(op) && ours == -EOPNOTSUPP && (theirs == 0 || theirs == -EBADF || theirs == -EFAULT || theirs == -EINVAL);
}

static bool advice_checked(const struct op *op, int64_t ours, int64_t theirs)
{
	return op->kind == OP_FADVISE && op->pos < 0 && ours == -EINVAL && theirs == 0;
}

static bool end_overflows(const struct op *op, int64_t ours, int64_t theirs)
{
	return op->kind == OP_SEEK && op->flags == SEEK_END && op->pos > 0 && ours == -EOVERFLOW && theirs == -EINVAL;
}

static bool end_past_limit(const struct op *op, int64_t ours, int64_t theirs)
{
	return op->kind == OP_SEEK && op->flags == SEEK_END && op->pos > twin.limit - twin.size && ours >= 0 && theirs == -EINVAL;
}

static bool punch_past_limit(const struct op *op, int64_t ours, int64_t theirs)
{
	return op->kind == OP_FALLOCATE && (op->flags & FALLOC_FL_PUNCH_HOLE) && op->pos + op->len > twin.limit && ours == 0 &&
	       theirs == -EFBIG;
}

/* Not a result but what is left behind: the kernel's file is cut back. */
static bool grown_by_failed_write(const struct op *op, int64_t ours, int64_t theirs)
{
	struct stat st;

	return is_rw(op) && !is_read(op) && op->null && ours < 0 && ours == theirs && !fstat(twin.fd[0], &st) &&
	       st.st_size != twin.size && !ftruncate(twin.fd[0], twin.size);
}

/* Who says more is data, or other bytes: right for both, if what lies between are zeros. */
static bool what_is_a_hole(const struct op *op, int64_t ours, int64_t theirs)
{
	int64_t from, to;

	if (op->kind != OP_SEEK || (op->flags != SEEK_DATA && op->flags != SEEK_HOLE) || op->pos < 0 || op->pos >= twin.size)
		return false;
	if (ours == -ENXIO && op->flags == SEEK_DATA)
		ours = twin.size;
	if (theirs == -ENXIO && op->flags == SEEK_DATA)
		theirs = twin.size;
	if (ours < op->pos || theirs < op->pos || ours > twin.size || theirs > twin.size)
		return false;
	from = ours < theirs ? ours : theirs;
	to = ours < theirs ? theirs : ours;
	if (op->flags == SEEK_HOLE)     /* one of them is data still: of the other's hole the first block */
		to = to < (from | 511) + 1 ? to : (from | 511) + 1;
	if (pread(twin.fd[0], twin.got_theirs, (size_t)(to - from), from) != to - from)
		return false;
	for (int64_t i = 0; i < to - from; i++)
		if (twin.got_theirs[i])
			return false;
	return true;
}

static struct exception {
	const char *what;
	bool (*is_it)(const struct op *op, int64_t ours, int64_t theirs);
	const char *reason;
	uint64_t used;
} exceptions[] = {
	{ "no memory: -EFAULT also where nothing would be copied", null_memory,
	  "checked before anything else, so that a mistake shows at once", 0 },
	{ "pos + len past INT64_MAX: -EINVAL", range_overflows,
	  "one rule for every call; the kernel cuts lengths to 2 GiB, or says EFBIG, EOVERFLOW or nothing", 0 },
	{ "pos -1 with preadv2: -EINVAL", file_position, "a handle has no file position", 0 },
	{ "an unknown flag: -EOPNOTSUPP also where there is nothing to do", unknown_flag,
	  "checked before anything else", 0 },
	{ "fadvise with pos < 0: -EINVAL", advice_checked, "a mistake, which the kernel lets pass", 0 },
	{ "SEEK_END overflows: -EOVERFLOW", end_overflows, "as lseek(2) documents it; the kernel says EINVAL", 0 },
	{ "SEEK_END past the largest size: allowed", end_past_limit, "no position is set, so no limit applies", 0 },
	{ "a hole punched past the largest size: 0", punch_past_limit, "what is there reads as zeros already", 0 },
	{ "a write that fails with -EFAULT changes nothing", grown_by_failed_write,
	  "a mistake changes nothing; the kernel may leave the file as long as the write's start", 0 },
	{ "SEEK_DATA, SEEK_HOLE", what_is_a_hole,
	  "blocks of block_size, not pages; clean cache over unwritten space is no data; zeros at a cut may or may not be stored", 0 },
};

enum { NR_EXCEPTIONS = sizeof(exceptions) / sizeof(exceptions[0]) };

/* --- saying what happened ------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2)))
static _Noreturn void fail(const char *format, ...)
{
	uint64_t from = twin.nr > NR_LOGGED ? twin.nr - NR_LOGGED + 1 : 1;
	va_list args;

	for (uint64_t nr = from; nr <= twin.nr; nr++)
		printf("  %8llu %s\n", (unsigned long long)nr, twin.log[nr % NR_LOGGED]);
	printf("seed %llu, block %u, operation %llu\nFAILED: ", (unsigned long long)twin.seed, twin.block,
	       (unsigned long long)twin.nr);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\nrepeat: kernel-twin --seed %llu --seeds 1 --ops %llu\n0 passed, 1 failed\n", (unsigned long long)twin.seed,
	       (unsigned long long)twin.nr_ops);
	fflush(stdout);
	_exit(1);
}

static void describe(const struct op *op)
{
	static const char *const handles[NR_HANDLES] = { "", " read-only", " write-only", " append" };

	snprintf(twin.log[twin.nr % NR_LOGGED], sizeof(twin.log[0]), "%s%s pos %lld len %lld flags %#x iovcnt %d%s",
		 kinds[op->kind].name, handles[op->handle], (long long)op->pos, (long long)op->len, (unsigned)op->flags,
		 op->iovcnt, op->null ? " NULL" : "");
}

/* --- both sides ----------------------------------------------------------------------------------------------------- */

/* Pieces of [buf, buf + len), the same for both sides. */
static void cut(struct iovec *iov, unsigned char *buf, const struct op *op)
{
	uint64_t chance = twin.nr, left = (uint64_t)op->len;

	for (int i = 0; i < IOV_USED; i++) {
		uint64_t part = i == op->iovcnt - 1 ? left : t_random_below(&chance, left / 2 + 1);

		iov[i] = (struct iovec){ op->null ? NULL : buf, part };
		buf += op->null ? 0 : part;
		left -= part;
	}
}

static int64_t do_ours(const struct op *op)
{
	struct iomap_file *file = twin.file[op->handle];
	unsigned char *buf = op->null ? NULL : is_read(op) ? twin.got_ours : twin.data;
	struct iovec iov[IOV_USED];

	cut(iov, is_read(op) ? twin.got_ours : twin.data, op);
	switch (op->kind) {
	case OP_PREAD: return iomap_pread(file, buf, (size_t)op->len, op->pos);
	case OP_PWRITE: return iomap_pwrite(file, buf, (size_t)op->len, op->pos);
	case OP_PREADV: return iomap_preadv2(file, iov, op->iovcnt, op->pos, op->flags);
	case OP_PWRITEV: return iomap_pwritev2(file, iov, op->iovcnt, op->pos, op->flags);
	case OP_TRUNCATE: return iomap_ftruncate(file, op->pos);
	case OP_FADVISE: return iomap_fadvise(file, op->pos, op->len, op->flags);
	case OP_SEEK: return iomap_lseek(file, op->pos, op->flags);
	case OP_FSYNC: return iomap_fsync(file);
	case OP_FDATASYNC: return iomap_fdatasync(file);
	case OP_FALLOCATE: return iomap_fallocate(file, op->flags, op->pos, op->len);
	case OP_SYNC_RANGE: return iomap_sync_range(file, op->pos, op->len, (unsigned)op->flags);
	default: return 0;
	}
}

/* The kernel's file is written through its cache: DIRECT, DONTCACHE and WRITETHROUGH change no result. */
static int kernel_flags(int flags)
{
	int out = 0, known = IOMAP_RWF_APPEND | IOMAP_RWF_DSYNC | IOMAP_RWF_SYNC | IOMAP_RWF_DONTCACHE;

	out |= flags & IOMAP_RWF_APPEND ? RWF_APPEND : 0;
	out |= flags & IOMAP_RWF_DSYNC ? RWF_DSYNC : 0;
	out |= flags & IOMAP_RWF_SYNC ? RWF_SYNC : 0;
	known |= IOMAP_RWF_DIRECT | IOMAP_RWF_WRITETHROUGH;
	return flags & ~known ? out | 1 << 30 : out;
}

static int64_t result(int64_t ret)
{
	return ret < 0 ? -errno : ret;
}

static int64_t do_theirs(const struct op *op)
{
	int fd = twin.fd[op->handle];
	unsigned char *buf = op->null ? NULL : is_read(op) ? twin.got_theirs : twin.data;
	struct iovec iov[IOV_USED];

	cut(iov, is_read(op) ? twin.got_theirs : twin.data, op);
	switch (op->kind) {
	case OP_PREAD: return result(pread(fd, buf, (size_t)op->len, op->pos));
	case OP_PWRITE: return result(pwrite(fd, buf, (size_t)op->len, op->pos));
	case OP_PREADV: return result(preadv2(fd, iov, op->iovcnt, op->pos, kernel_flags(op->flags)));
	case OP_PWRITEV: return result(pwritev2(fd, iov, op->iovcnt, op->pos, kernel_flags(op->flags)));
	case OP_TRUNCATE: return result(ftruncate(fd, op->pos));
	case OP_FADVISE: return -posix_fadvise(fd, op->pos, op->len, op->flags);
	case OP_SEEK: return result(lseek(fd, op->pos, op->flags));
	case OP_FSYNC: return result(fsync(fd));
	case OP_FDATASYNC: return result(fdatasync(fd));
	case OP_FALLOCATE: return result(fallocate(fd, op->flags, op->pos, op->len));
	case OP_SYNC_RANGE: return result(sync_file_range(fd, op->pos, op->len, (unsigned)op->flags));
	default: return 0;
	}
}

/* --- a list of operations -------------------------------------------------------------------------------------------- */

static uint64_t below(uint64_t n)
{
	return t_random_below(&twin.rng, n);
}

static bool one_in(unsigned n)
{
	return below(n) == 0;
}

static int64_t any_pos(void)
{
	int64_t pos = (int64_t)below(one_in(4) ? SPAN : SPAN / 8), unit = (int64_t[]){ 512, 4096, 16384, 65536 }[below(4)];

	switch (below(6)) {
	case 0: return twin.size < SPAN ? twin.size : SPAN - 1;
	case 1: return pos - pos % unit;
	case 2: return twin.size - (int64_t)below((uint64_t)(twin.size < unit ? twin.size : unit) + 1);
	default: return pos;
	}
}

static int64_t any_len(void)
{
	switch (below(6)) {
	case 0: return (int64_t)below(8);
	case 1: return 512 * (1 + (int64_t)below(16));
	case 2: return 4096 * (1 + (int64_t)below(16));
	case 3: return (int64_t)below(LEN_MAX);
	default: return (int64_t)below(2 * twin.block);
	}
}

/* A caller's mistake, or a number at the edge of what there is. */
static void spoil(struct op *op)
{
	const int64_t edges[] = { -1, -4096, INT64_MIN, INT64_MAX, INT64_MAX - 1, INT64_MAX - 4095, twin.limit,
				  twin.limit < INT64_MAX ? twin.limit + 1 : INT64_MIN + 1 };

	switch (below(5)) {
	case 0: op->pos = edges[below(8)]; break;
	case 1: op->null = is_rw(op); break;
	case 2: op->handle = (int)below(NR_HANDLES); break;
	case 3:
		if (op->kind == OP_PREADV || op->kind == OP_PWRITEV)
			op->iovcnt = (int[]){ -1, 0, 1025, INT_MAX, INT_MIN }[below(5)];
		else if (!is_rw(op))
			op->len = edges[below(6)];
		break;
	case 4:
		if (op->kind == OP_PREADV || op->kind == OP_PWRITEV)
			op->flags |= 1 << (16 + below(14));
		else if (op->kind == OP_FADVISE)
			op->flags = (int[]){ -1, 6, 99 }[below(3)];
		else if (op->kind == OP_SEEK)
			op->flags = (int[]){ 99, -1 }[below(2)];
		else if (op->kind == OP_FALLOCATE)
			op->flags = (int[]){ 0x1000, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE, -1 }[below(4)];
		else if (op->kind == OP_SYNC_RANGE)
			op->flags = 16;
		break;
	}
}

static struct op draw(void)
{
	static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
				     FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE };
	struct op op = { .pos = any_pos(), .len = any_len(), .iovcnt = 1 + (int)below(IOV_USED) };
	unsigned total = 0, n, kind;

	for (kind = 0; kind < NR_KINDS; kind++)
		total += kinds[kind].weight;
	n = (unsigned)below(total);
	for (kind = 0; n >= kinds[kind].weight; kind++)
		n -= kinds[kind].weight;
	op.kind = (enum kind)kind;
	if (op.pos + op.len > SPAN)
		op.len = SPAN - op.pos > 0 ? SPAN - op.pos : 0;
	if (op.kind == OP_PWRITE && twin.size < SPAN - LEN_MAX && one_in(8))
		op.handle = 3;
	if (op.kind == OP_PWRITEV) {
		op.flags |= twin.size < SPAN - LEN_MAX && one_in(6) ? IOMAP_RWF_APPEND : 0;
		op.flags |= one_in(200) ? IOMAP_RWF_DSYNC : one_in(400) ? IOMAP_RWF_SYNC : 0;
		op.flags |= one_in(20) ? IOMAP_RWF_WRITETHROUGH : 0;
	}
	if (op.kind == OP_PREADV || op.kind == OP_PWRITEV)
		op.flags |= !(op.flags & IOMAP_RWF_WRITETHROUGH) && one_in(6) ? IOMAP_RWF_DONTCACHE : 0;
	if ((op.kind == OP_PREADV || op.kind == OP_PWRITEV) && one_in(8)) {
		op.flags = IOMAP_RWF_DIRECT;
		op.iovcnt = 1;
		op.pos &= ~4095LL;
		op.len &= ~4095LL;
	}
	switch (op.kind) {
	case OP_TRUNCATE: op.pos = one_in(8) ? 0 : op.pos; op.len = 0; break;
	case OP_FADVISE: op.flags = (int)below(6); break;
	case OP_FALLOCATE: op.flags = modes[below(5)]; break;
	case OP_SYNC_RANGE: op.flags = (int)below(8); break;
	case OP_SEEK: op.flags = (int[]){ SEEK_DATA, SEEK_HOLE, SEEK_END }[below(3)]; op.len = 0; break;
	case OP_REOPEN: op.flags = one_in(8) ? O_TRUNC : 0; break;
	default: break;
	}
	if (op.kind < OP_FSYNC && one_in(12))
		spoil(&op);
	/* no write that is meant to fail may succeed, and grow the file to where it cannot be compared */
	if (op.pos > SPAN && op.pos <= twin.limit && op.kind != OP_SEEK && op.kind != OP_FADVISE && !is_read(&op))
		op.pos = -2;
	/* nor may space be asked for that is hardly there; a punch past the limit is tried where there is nothing to lose */
	if (op.kind == OP_FALLOCATE && op.len > SPAN && op.pos >= 0) {
		if (op.flags & FALLOC_FL_PUNCH_HOLE)
			op.pos = twin.size;
		else if (op.pos <= twin.limit - op.len)
			op.len = -1;
	}
	/*
	 * Two differences in what is written, so they cannot be let pass afterwards: an append ignores the position here (the
	 * kernel refuses a bad one all the same), and -1 is the file position there.
	 */
	if (op.handle == 3 || (op.kind == OP_PWRITEV && (op.flags & IOMAP_RWF_APPEND)))
		op.pos = is_rw(&op) ? 0 : op.pos;
	if (op.kind == OP_PWRITEV && op.pos == -1)
		op.pos = -2;
	if ((op.flags & IOMAP_RWF_APPEND || op.handle == 3) && is_rw(&op) && !is_read(&op) && twin.size > SPAN - LEN_MAX)
		op.handle = 1;
	return op;
}

/* --- opening, comparing ----------------------------------------------------------------------------------------------- */

static void open_both(int extra)
{
	for (int i = 0; i < NR_HANDLES; i++) {
		struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
		int flags = ways[i] | O_CLOEXEC | (i ? 0 : extra | O_CREAT), ret;

		params.block_size = twin.block;
		ret = iomap_open_with(twin.cache, twin.ours, flags, 0600, &params, &twin.file[i]);
		if (ret)
			fail("iomap_open_with(%#x): %d", (unsigned)flags, ret);
		twin.fd[i] = open(twin.theirs, flags, 0600);
		if (twin.fd[i] < 0)
			fail("open(%#x): %s", (unsigned)flags, strerror(errno));
	}
}

static void close_both(void)
{
	for (int i = 0; i < NR_HANDLES; i++) {
		int ret = iomap_close(twin.file[i]);

		if (ret)
			fail("iomap_close: %d", ret);
		close(twin.fd[i]);
	}
}

static void same(const char *what, const unsigned char *a, const unsigned char *b, int64_t pos, int64_t len)
{
	for (int64_t i = 0; i < len; i++)
		if (a[i] != b[i])
			fail("%s: byte %lld is %02x here and %02x in the kernel's file, size %lld", what, (long long)(pos + i), a[i],
			     b[i], (long long)twin.size);
}

static void compare_files(void)
{
	int64_t ours = iomap_pread(twin.file[0], twin.got_ours, SPAN + LEN_MAX, 0);
	int64_t theirs = pread(twin.fd[0], twin.got_theirs, SPAN + LEN_MAX, 0);
	char why[512] = "";
	int ret = iomap_cache_check(twin.cache, why, sizeof(why));

	if (ours != theirs)
		fail("reading all: %lld here, %lld in the kernel's file", (long long)ours, (long long)theirs);
	same("reading all", twin.got_ours, twin.got_theirs, 0, theirs);
	if (ret)
		fail("iomap_cache_check: %d, %s", ret, why);
}

/* The files as somebody else sees them; all has been written. */
static void compare_from_outside(void)
{
	int a = open(twin.ours, O_RDONLY | O_CLOEXEC), b = open(twin.theirs, O_RDONLY | O_CLOEXEC);
	struct stat st_a, st_b;

	if (a < 0 || b < 0 || fstat(a, &st_a) || fstat(b, &st_b))
		fail("open: %s", strerror(errno));
	if (st_a.st_size != st_b.st_size)
		fail("fstat(2): %lld, %lld", (long long)st_a.st_size, (long long)st_b.st_size);
	if (pread(a, twin.got_ours, SPAN + LEN_MAX, 0) != st_a.st_size || pread(b, twin.got_theirs, SPAN + LEN_MAX, 0) != st_a.st_size)
		fail("pread(2): a short count");
	same("read from outside", twin.got_ours, twin.got_theirs, 0, st_a.st_size);
	close(a);
	close(b);
}

static void reopen(int extra)
{
	bool written = one_in(2);

	close_both();
	if (written) {
		int ret = iomap_cache_sync(twin.cache);

		if (ret)
			fail("iomap_cache_sync: %d", ret);
		compare_from_outside();
	}
	open_both(extra);
}

/* What changes no result, and that the kernel has no call for. */
static void own(void)
{
	int ret = one_in(2) ? iomap_cache_drop(twin.cache)
			    : iomap_cache_set(twin.cache, IOMAP_TUNE_MAX_FOLIO_BYTES, 4096ULL << below(6));

	if (ret)
		fail("iomap_cache_drop, or _set: %d", ret);
}

static void step(void)
{
	struct op op = draw();
	unsigned i = 0;
	int64_t ours, theirs, size;
	struct stat st;

	describe(&op);
	if (twin.verbose)
		printf("%llu %s\n", (unsigned long long)twin.nr, twin.log[twin.nr % NR_LOGGED]);
	if (op.kind == OP_REOPEN)
		reopen(op.flags);
	if (op.kind == OP_OWN)
		own();
	if (!is_read(&op))
		t_fill(twin.data, (uint64_t)op.pos, LEN_MAX, twin.nr & 0xffff);
	ours = do_ours(&op);
	theirs = do_theirs(&op);
	while (i < NR_EXCEPTIONS && (ours != theirs || ours == -EFAULT) && !exceptions[i].is_it(&op, ours, theirs))
		i++;
	if (ours != theirs || ours == -EFAULT) {
		if (i < NR_EXCEPTIONS)
			exceptions[i].used++;
		else if (ours != theirs)
			fail("%lld here, %lld in the kernel", (long long)ours, (long long)theirs);
	} else if (is_read(&op) && ours > 0) {
		same("the read", twin.got_ours, twin.got_theirs, op.pos, ours);
	}
	size = iomap_size(twin.file[0]);
	if (fstat(twin.fd[0], &st))
		fail("fstat: %s", strerror(errno));
	if (size != st.st_size)
		fail("the size is %lld here, %lld in the kernel", (long long)size, (long long)st.st_size);
	twin.size = size;
	if (twin.nr % COMPARE_EVERY == 0)
		compare_files();
}

/* --- a run ---------------------------------------------------------------------------------------------------------- */

/* The longest a file can be here: where ftruncate(2) begins to fail. */
static int64_t largest_size(void)
{
	int fd = open(twin.theirs, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int64_t good = 0, bad = INT64_MAX;

	if (fd < 0)
		fail("open %s: %s", twin.theirs, strerror(errno));
	if (!ftruncate(fd, INT64_MAX))
		good = bad;
	while (good < bad - 1) {
		int64_t mid = good + (bad - good) / 2;

		if (ftruncate(fd, mid))
			bad = mid;
		else
			good = mid;
	}
	if (ftruncate(fd, 0))
		fail("ftruncate: %s", strerror(errno));
	close(fd);
	return good;
}

static void one_run(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	int ret;

	twin.rng = twin.seed;
	twin.size = 0;
	unlink(twin.ours);
	unlink(twin.theirs);
	twin.limit = largest_size();
	params.memory_bytes = (2ULL << 20) << below(3);
	params.max_folio_bytes = 4096ULL << below(6);
	params.accounting = (enum iomap_accounting)below(3);
	params.dirty_writeback_ms = 1 + (unsigned)below(20);
	params.dirty_expire_ms = 1 + (unsigned)below(50);
	ret = iomap_cache_create(&twin.cache, &params);
	if (ret)
		fail("iomap_cache_create: %d", ret);
	open_both(0);
	for (twin.nr = 1; twin.nr <= twin.nr_ops; twin.nr++)
		step();
	twin.nr = twin.nr_ops;
	compare_files();
	close_both();
	ret = iomap_cache_destroy(twin.cache);
	if (ret)
		fail("iomap_cache_destroy: %d", ret);
	compare_from_outside();
	unlink(twin.ours);
	unlink(twin.theirs);
}

static const char *file_system(const char *dir)
{
	static char number[32];
	struct statfs st;

	if (statfs(dir, &st))
		return "?";
	snprintf(number, sizeof(number), "type %#lx", (unsigned long)st.f_type);
	return st.f_type == 0xef53 ? "ext4" : st.f_type == 0x58465342 ? "XFS" : st.f_type == 0x9123683e ? "btrfs" :
	       st.f_type == 0x01021994 ? "tmpfs" : number;
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: kernel-twin [--seed N] [--seeds N] [--ops N] [--dir PATH] [--verbose]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const unsigned blocks[] = { 4096, 512, 16384, 1024, 65536 };
	const char *dir = getenv("TMPDIR");
	uint64_t seeds = 10, seed = 1;
	int fd;

	twin.nr_ops = 5000;
	dir = dir && *dir ? dir : "/tmp";
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (!strcmp(argv[i], "--verbose")) {
			twin.verbose = true;
			continue;
		}
		if (!value)
			usage();
		if (!strcmp(argv[i], "--seed"))
			seed = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "--seeds"))
			seeds = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "--ops"))
			twin.nr_ops = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "--dir"))
			dir = value;
		else
			usage();
		i++;
	}
	snprintf(twin.ours, sizeof(twin.ours), "%s/twin-%ld-ours", dir, (long)getpid());
	snprintf(twin.theirs, sizeof(twin.theirs), "%s/twin-%ld-theirs", dir, (long)getpid());
	fd = open(twin.ours, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0) {
		printf("%s (%s) has no O_DIRECT: %s; set TMPDIR to a directory on a disk\n", dir, file_system(dir), strerror(errno));
		return 77;
	}
	close(fd);
	unlink(twin.ours);
	twin.data = aligned_alloc(4096, SPAN + LEN_MAX);
	twin.got_ours = aligned_alloc(4096, SPAN + LEN_MAX);
	twin.got_theirs = aligned_alloc(4096, SPAN + LEN_MAX);
	if (!twin.data || !twin.got_ours || !twin.got_theirs)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (uint64_t i = 0; i < seeds; i++) {
		twin.seed = seed + i;
		twin.block = blocks[twin.seed % (sizeof(blocks) / sizeof(blocks[0]))];
		one_run();
	}
	printf("%s (%s): %llu operations, seeds %llu to %llu, the same results\n", dir, file_system(dir),
	       (unsigned long long)(seeds * twin.nr_ops), (unsigned long long)seed, (unsigned long long)(seed + seeds - 1));
	for (unsigned i = 0; i < NR_EXCEPTIONS; i++)
		printf("  %8llu times: %s (%s)\n", (unsigned long long)exceptions[i].used, exceptions[i].what, exceptions[i].reason);
	printf("%llu passed, 0 failed\n", (unsigned long long)seeds);
	return 0;
}
