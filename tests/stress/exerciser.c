/*
 * exerciser.c - random operations on one file, and a copy of it in memory
 *
 * A run is a seed and a block size: one thread carries out a list of operations on a file of at most 256 KiB and on an array
 * of bytes, and compares whatever an operation returns. After each close, once the bytes are written, the file is read by
 * read(2) and compared, its size included. The cache is made anew now and then, in another shape; it is small, its flusher
 * is always awake, and a second file takes its memory away. For a while at a time some operations are left out, so
 * that what they would have undone piles up.
 *
 * operations[] is the list: a line there and a function add one.
 *
 *   --block N     only blocks of N bytes (else 512, 4096 and 16384, each in a process of its own)
 *   --seed N      (else drawn from the clock; printed)
 *   --ops N       operations for each block size: 20,000, or 1,000,000 with --long
 *   --dir PATH    where the files go
 *   --verbose     print each operation
 *
 * A run that fails prints its seed, the number of the operation, the last 50 and the first byte that differs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "run.h"

enum {
	FILE_MAX = 256 << 10,
	OTHER_MAX = 2 << 20,            /* more than half of the smallest cache */
	NR_LOGGED = 50,
	IOV_MAX_USED = 9,
	CHECK_EVERY = 100,
};

static const uint64_t OTHER_SEED = 7;

/* A handle on the file, and how it was opened. */
struct handle {
	struct iomap_file *file;        /* NULL: not open */
	int oflags;
};

static struct run {
	uint64_t seed, rng, nr_ops, nr; /* nr: the operation that is being carried out, from 1 on */
	unsigned block, align;          /* align: of direct I/O */
	bool verbose;
	char path[4096], other_path[4096];

	struct iomap_cache *cache;
	struct handle first, second;
	struct iomap_file *other;       /* only there to need memory */
	uint64_t left_out;              /* 1 << index into operations[] */

	unsigned char *shadow;          /* FILE_MAX bytes; zeros past size */
	uint64_t size;
	unsigned char *buf;             /* FILE_MAX bytes, aligned */
	char log[NR_LOGGED][200];
	bool failing;
} run;

/* --- saying what happened ------------------------------------------------------------------------------------------ */

static void print_log(void)
{
	uint64_t from = run.nr > NR_LOGGED ? run.nr - NR_LOGGED + 1 : 1;

	for (uint64_t nr = from; nr <= run.nr; nr++)
		printf("  %8llu %s\n", (unsigned long long)nr, run.log[nr % NR_LOGGED]);
	printf("seed %llu, operation %llu, file %s\n"
	       "repeat: exerciser --seed %llu --block %u --ops %llu\n", (unsigned long long)run.seed,
	       (unsigned long long)run.nr, run.path, (unsigned long long)run.seed, run.block, (unsigned long long)run.nr_ops);
	fflush(stdout);
}

__attribute__((format(printf, 1, 2)))
static _Noreturn void fail(const char *format, ...)
{
	va_list args;

	run.failing = true;
	print_log();
	va_start(args, format);
	printf("FAILED: ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
	_exit(1);
}

/* A crash of the library, or an operation that does not end. */
static void on_signal(int sig)
{
	if (!run.failing) {
		run.failing = true;
		print_log();
		printf("FAILED: %s\n", sig == SIGALRM ? "an operation does not end" : strsignal(sig));
		fflush(stdout);
	}
	signal(sig, SIG_DFL);
	raise(sig == SIGALRM ? SIGKILL : sig);
}

__attribute__((format(printf, 1, 2)))
static void note(const char *format, ...)
{
	char *line = run.log[run.nr % NR_LOGGED];
	size_t used = strlen(line);
	va_list args;

	va_start(args, format);
	vsnprintf(line + used, sizeof(run.log[0]) - used, format, args);
	va_end(args);
}

#define EXPECT(what, got, want) do {							\
	long long got_ = (long long)(got), want_ = (long long)(want);			\
	if (got_ != want_)								\
		fail("%s: %lld, should be %lld", what, got_, want_);			\
} while (0)

/* --- the copy in memory -------------------------------------------------------------------------------------------- */

static void shadow_resize(uint64_t size)
{
	if (size < run.size)
		memset(run.shadow + size, 0, run.size - size);
	run.size = size;
}

static void shadow_write(uint64_t pos, const void *buf, uint64_t len)
{
	memcpy(run.shadow + pos, buf, len);
	if (len && pos + len > run.size)
		run.size = pos + len;
}

/* What is at @buf should be the file's bytes from @pos on. */
static void compare(const char *what, const unsigned char *buf, uint64_t pos, uint64_t len)
{
	uint64_t first = 0, nr = 0;

	if (!memcmp(buf, run.shadow + pos, len))
		return;
	for (uint64_t i = len; i-- > 0; ) {
		if (buf[i] != run.shadow[pos + i]) {
			first = i;
			nr++;
		}
	}
	fail("%s: byte %llu is %02x, should be %02x; %llu of %llu bytes from %llu on differ, the size is %llu", what,
	     (unsigned long long)(pos + first), buf[first], run.shadow[pos + first], (unsigned long long)nr,
	     (unsigned long long)len, (unsigned long long)pos, (unsigned long long)run.size);
}

static void compare_all(void)
{
	EXPECT("iomap_size", iomap_size(run.first.file), run.size);
	EXPECT("reading all", iomap_pread(run.first.file, run.buf, FILE_MAX, 0), run.size);
	compare("iomap_pread", run.buf, 0, run.size);
}

/* What is to be seen from outside, by read(2). */
enum seen {
	SEEN_ALL,               /* the bytes, and the file's size */
	SEEN_BYTES,             /* the bytes, and a size that covers them */
	SEEN_WRITTEN,           /* the bytes, but for zeros at the end */
};

static void compare_by_kernel(uint64_t pos, uint64_t len, enum seen seen)
{
	int fd = open(run.path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint64_t done = 0;

	if (fd < 0 || fstat(fd, &st))
		fail("open %s: %s", run.path, strerror(errno));
	if (seen == SEEN_ALL)
		EXPECT("size by fstat(2)", st.st_size, run.size);
	if (pos + len > run.size)
		len = pos < run.size ? run.size - pos : 0;
	lseek(fd, (off_t)pos, SEEK_SET);
	while (done < len) {
		ssize_t n = read(fd, run.buf + done, len - done);

		if (n == 0 && seen == SEEN_WRITTEN) {
			memset(run.buf + done, 0, len - done);
			break;
		}
		if (n <= 0)
			fail("read(2) at %llu: %zd", (unsigned long long)(pos + done), n);
		done += (uint64_t)n;
	}
	close(fd);
	compare("read(2)", run.buf, pos, len);
}

static void check_cache(void)
{
	char why[512] = "";
	int ret = iomap_cache_check(run.cache, why, sizeof(why));

	if (ret)
		fail("iomap_cache_check: %d, %s", ret, why);
}

/* --- chance -------------------------------------------------------------------------------------------------------- */

static uint64_t below(uint64_t n)
{
	return t_random_below(&run.rng, n);
}

static bool one_in(unsigned n)
{
	return below(n) == 0;
}

/* Anywhere in a file of FILE_MAX bytes, often at an edge of something. */
static uint64_t any_pos(uint64_t end)
{
	uint64_t pos = below(end), unit = (uint64_t[]){ 512, 4096, 16384, 65536 }[below(4)];

	switch (below(8)) {
	case 0: pos = run.size; break;
	case 1: pos = run.size - below(run.size < unit ? run.size + 1 : unit); break;
	case 2: case 3: pos -= pos % unit; break;
	case 4: pos -= pos % unit; pos += below(3); pos -= pos > 0; break;
	}
	return pos < end ? pos : end - 1;
}

static uint64_t any_len(uint64_t pos, uint64_t end)
{
	uint64_t len;

	switch (below(8)) {
	case 0: len = below(16); break;
	case 1: case 2: len = below(run.block) + 1; break;
	case 3: len = 512 * (below(16) + 1); break;
	case 4: len = 4096 * (below(16) + 1); break;
	case 5: len = below(128 << 10); break;
	default: len = below(16 << 10); break;
	}
	return len < end - pos ? len : end - pos;
}

/* One of the open handles, any or the one that may do everything. */
static struct handle *any_handle(void)
{
	return run.second.file && one_in(2) ? &run.second : &run.first;
}

static bool can_read(const struct handle *h)
{
	return (h->oflags & O_ACCMODE) != O_WRONLY;
}

static bool can_write(const struct handle *h)
{
	return (h->oflags & O_ACCMODE) != O_RDONLY;
}

static const char *name_of(const struct handle *h)
{
	return h == &run.first ? "" : can_write(h) ? h->oflags & O_APPEND ? " (2nd, append)" : " (2nd)" : " (2nd, read-only)";
}

/* Cuts [buf, buf + len) into pieces, a few of them empty. */
static int cut(struct iovec *iov, unsigned char *buf, uint64_t len, uint64_t unit)
{
	int nr = 1 + (int)below(IOV_MAX_USED - 1), i;

	for (i = 0; i < nr; i++) {
		uint64_t part = i == nr - 1 ? len : below(len + 1);

		part -= i == nr - 1 ? 0 : part % unit;
		iov[i] = (struct iovec){ buf, part };
		buf += part;
		len -= part;
	}
	return nr;
}

/* --- reading and writing --------------------------------------------------------------------------------------------- */

/* How a flag of a read or a write shows in the log, how often it is there, and where it is allowed. */
static const struct {
	int flag;
	const char *name;
	unsigned one_in_reads, one_in_writes;   /* 0 = never */
} rwf[] = {
	{ IOMAP_RWF_NOWAIT, " NOWAIT", 6, 8 },
	{ IOMAP_RWF_APPEND, " APPEND", 16, 6 },
	{ IOMAP_RWF_DSYNC, " DSYNC", 16, 40 },
	{ IOMAP_RWF_SYNC, " SYNC", 16, 80 },
	{ IOMAP_RWF_DONTCACHE, " DONTCACHE", 4, 4 },
	{ IOMAP_RWF_DIRECT, " DIRECT", 12, 12 },
	{ IOMAP_RWF_WRITETHROUGH, " WRITETHROUGH", 16, 12 },
};

/* A write cannot be on its way to the device, and not wait or pass the cache by. */
static bool contradictory(int flags)
{
	return (flags & IOMAP_RWF_WRITETHROUGH) && (flags & (IOMAP_RWF_NOWAIT | IOMAP_RWF_DIRECT | IOMAP_RWF_DONTCACHE));
}

static int any_flags(bool write)
{
	int flags = 0;

	for (unsigned i = 0; i < sizeof(rwf) / sizeof(rwf[0]); i++) {
		unsigned n = write ? rwf[i].one_in_writes : rwf[i].one_in_reads;

		if (n && one_in(n)) {
			flags |= rwf[i].flag;
			note("%s", rwf[i].name);
		}
	}
	return flags;
}

/* What a read of @len bytes at @pos returned, in run.buf. */
static void after_read(const struct handle *h, ssize_t ret, uint64_t pos, uint64_t len, int flags)
{
	uint64_t want = pos < run.size ? run.size - pos : 0;

	note(" = %zd", ret);
	if (want > len)
		want = len;
	if (!can_read(h)) {
		EXPECT("reading through a write-only handle", ret, -EBADF);
		return;
	}
	if (flags & IOMAP_RWF_NOWAIT) {
		if (ret == -EAGAIN && want)
			return;
		if (ret < 0 || (uint64_t)ret > want || (!ret && want))
			fail("a NOWAIT read returned %zd, of %llu", ret, (unsigned long long)want);
	} else {
		EXPECT("the read", ret, want);
	}
	compare("the read", run.buf, pos, (uint64_t)ret);
}

static bool appends(const struct handle *h, int flags)
{
	return (h->oflags & O_APPEND) || (flags & IOMAP_RWF_APPEND);
}

/* What a write of @len bytes of run.buf at @pos (or at the end) returned. */
static void after_write(const struct handle *h, ssize_t ret, uint64_t pos, uint64_t len, int flags)
{
	bool durable = (h->oflags & O_DSYNC) || (flags & (IOMAP_RWF_DSYNC | IOMAP_RWF_SYNC));

	note(" = %zd", ret);
	if (!can_write(h)) {
		if (ret != -EINVAL || !contradictory(flags))
			EXPECT("writing through a read-only handle", ret, -EBADF);
		return;
	}
	if (contradictory(flags)) {
		EXPECT("contradictory flags", ret, -EINVAL);
		return;
	}
	if (flags & IOMAP_RWF_NOWAIT) {
		if (ret == -EAGAIN && len)
			return;
		if (ret < 0 || (uint64_t)ret > len || (!ret && len))
			fail("a NOWAIT write returned %zd, of %llu", ret, (unsigned long long)len);
	} else {
		EXPECT("the write", ret, len);
	}
	if (appends(h, flags))
		pos = run.size;
	shadow_write(pos, run.buf, (uint64_t)ret);
	EXPECT("the size after it", iomap_size(h->file), run.size);
	if (durable && one_in(2))
		compare_by_kernel(pos, (uint64_t)ret, SEEN_BYTES);
}

/* The bytes of a write tell their position and the operation that wrote them. */
static void fill(uint64_t pos, uint64_t len)
{
	t_fill(run.buf, pos, len, run.nr & 0xffff);
}

static void do_pread(void)
{
	struct handle *h = any_handle();
	uint64_t pos = any_pos(FILE_MAX), len = any_len(pos, FILE_MAX);

	note("%s %llu+%llu", name_of(h), (unsigned long long)pos, (unsigned long long)len);
	after_read(h, iomap_pread(h->file, run.buf, len, (off_t)pos), pos, len, 0);
}

static void do_preadv(void)
{
	struct handle *h = any_handle();
	uint64_t pos = any_pos(FILE_MAX), len = any_len(pos, FILE_MAX);
	struct iovec iov[IOV_MAX_USED];
	int nr = cut(iov, run.buf, len, 1), flags;

	note("%s %llu+%llu in %d", name_of(h), (unsigned long long)pos, (unsigned long long)len, nr);
	flags = any_flags(false);
	after_read(h, iomap_preadv2(h->file, iov, nr, (off_t)pos, flags), pos, len, flags);
}

/* Where an append would make the file too long, something else is written. */
static bool too_long(const struct handle *h, int flags, uint64_t len)
{
	return appends(h, flags) && len > FILE_MAX - run.size;
}

static void do_pwrite(void)
{
	struct handle *h = any_handle();
	uint64_t pos = any_pos(FILE_MAX), len = any_len(pos, FILE_MAX);

	if (too_long(h, 0, len))
		len = FILE_MAX - run.size;
	note("%s %llu+%llu", name_of(h), (unsigned long long)pos, (unsigned long long)len);
	fill(pos, len);
	after_write(h, iomap_pwrite(h->file, run.buf, len, (off_t)pos), pos, len, 0);
}

static void do_pwritev(void)
{
	struct handle *h = any_handle();
	uint64_t pos = any_pos(FILE_MAX), len = any_len(pos, FILE_MAX);
	struct iovec iov[IOV_MAX_USED];
	int nr, flags;

	note("%s %llu+%llu", name_of(h), (unsigned long long)pos, (unsigned long long)len);
	flags = any_flags(true);
	if (too_long(h, flags, len)) {
		len = FILE_MAX - run.size;
		note(" cut to %llu", (unsigned long long)len);
	}
	nr = cut(iov, run.buf, len, 1);
	note(" in %d", nr);
	fill(pos, len);
	after_write(h, iomap_pwritev2(h->file, iov, nr, (off_t)pos, flags), pos, len, flags);
}

/* Several bytes here and there: blocks dirty in part, and more ranges than fit one request. */
static void do_scatter(void)
{
	unsigned nr = 2 + (unsigned)below(12);
	uint64_t step = (uint64_t[]){ 512, 1024, 4096, 8192 }[below(4)], pos = below(FILE_MAX - 12 * 8192 - 64);

	note(" %u, each %llu from %llu on", nr, (unsigned long long)step, (unsigned long long)pos);
	for (unsigned i = 0; i < nr; i++, pos += step) {
		fill(pos, 8);
		EXPECT("the write", iomap_pwrite(run.first.file, run.buf, 8, (off_t)pos), 8);
		shadow_write(pos, run.buf, 8);
	}
}

static uint64_t aligned(uint64_t n)
{
	return n - n % run.align;
}

static void do_direct_read(void)
{
	struct handle *h = any_handle();
	uint64_t pos = aligned(any_pos(FILE_MAX)), len = aligned(any_len(pos, FILE_MAX) + run.align - 1);
	struct iovec iov[IOV_MAX_USED];
	int nr = cut(iov, run.buf, len, run.align);

	note("%s %llu+%llu in %d", name_of(h), (unsigned long long)pos, (unsigned long long)len, nr);
	after_read(h, iomap_preadv2(h->file, iov, nr, (off_t)pos, IOMAP_RWF_DIRECT), pos, len, 0);
}

static void do_direct_write(void)
{
	struct handle *h = any_handle();
	uint64_t pos = aligned(any_pos(FILE_MAX)), len = aligned(any_len(pos, FILE_MAX) + run.align - 1);
	int flags = IOMAP_RWF_DIRECT | (one_in(6) ? IOMAP_RWF_DSYNC : 0);
	struct iovec iov[IOV_MAX_USED];
	int nr;

	if (h->oflags & O_APPEND)
		h = &run.first;
	nr = cut(iov, run.buf, len, run.align);
	note("%s %llu+%llu in %d%s", name_of(h), (unsigned long long)pos, (unsigned long long)len, nr,
	     flags & IOMAP_RWF_DSYNC ? " DSYNC" : "");
	fill(pos, len);
	after_write(h, iomap_pwritev2(h->file, iov, nr, (off_t)pos, flags), pos, len, flags);
}

/* --- everything else a file can be asked -------------------------------------------------------------------------------- */

static void do_truncate(void)
{
	struct handle *h = any_handle();
	uint64_t size = one_in(16) ? 0 : any_pos(FILE_MAX + 1);
	int ret;

	note("%s %llu -> %llu", name_of(h), (unsigned long long)run.size, (unsigned long long)size);
	ret = iomap_ftruncate(h->file, (off_t)size);
	if (!can_write(h)) {
		EXPECT("iomap_ftruncate, read-only", ret, -EINVAL);
		return;
	}
	EXPECT("iomap_ftruncate", ret, 0);
	shadow_resize(size);
	EXPECT("the size after it", iomap_size(run.first.file), size);
}

static void do_fsync(void)
{
	struct handle *h = any_handle();

	note("%s", name_of(h));
	EXPECT("iomap_fsync", iomap_fsync(h->file), 0);
	if (one_in(2))
		compare_by_kernel(0, FILE_MAX, SEEN_ALL);
}

static void do_fdatasync(void)
{
	struct handle *h = any_handle();

	note("%s", name_of(h));
	EXPECT("iomap_fdatasync", iomap_fdatasync(h->file), 0);
	if (one_in(2))
		compare_by_kernel(0, FILE_MAX, SEEN_ALL);
}

static void do_cache_sync(void)
{
	EXPECT("iomap_cache_sync", iomap_cache_sync(run.cache), 0);
	compare_by_kernel(0, FILE_MAX, SEEN_ALL);
}

static void do_fadvise(void)
{
	static const int advices[] = { POSIX_FADV_NORMAL, POSIX_FADV_SEQUENTIAL, POSIX_FADV_RANDOM, POSIX_FADV_WILLNEED,
				       POSIX_FADV_DONTNEED, POSIX_FADV_NOREUSE, POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED };
	struct handle *h = any_handle();
	int advice = advices[below(8)];
	uint64_t pos = any_pos(FILE_MAX), len = one_in(4) ? 0 : any_len(pos, FILE_MAX);

	note("%s %d, %llu+%llu", name_of(h), advice, (unsigned long long)pos, (unsigned long long)len);
	EXPECT("iomap_fadvise", iomap_fadvise(h->file, (off_t)pos, (off_t)len, advice), 0);
}

static void do_drop(void)
{
	EXPECT("iomap_cache_drop", iomap_cache_drop(run.cache), 0);
}

/* The other file wants memory: what is cached of this one goes. */
static void do_pressure(void)
{
	uint64_t pos = below(4) * (OTHER_MAX / 4), len = OTHER_MAX / 8;
	bool write = one_in(3);

	note(" %s %llu+%llu of another file", write ? "write" : "read", (unsigned long long)pos, (unsigned long long)len);
	for (unsigned i = 0; i < 4; i++, pos = (pos + len) % OTHER_MAX) {
		if (write) {
			t_fill(run.buf, pos, len / 4, OTHER_SEED);
			EXPECT("writing the other file", iomap_pwrite(run.other, run.buf, len / 4, (off_t)pos), len / 4);
			continue;
		}
		EXPECT("reading the other file", iomap_pread(run.other, run.buf, len, (off_t)pos), len);
		if (!t_check_fill(run.buf, pos, len, OTHER_SEED))
			fail("the other file has something else");
	}
}

static void do_stat(void)
{
	struct handle *h = any_handle();
	struct stat st;

	EXPECT("iomap_fstat", iomap_fstat(h->file, &st), 0);
	EXPECT("its st_size", st.st_size, run.size);
	EXPECT("iomap_stat", iomap_stat(run.cache, run.path, &st), 0);
	EXPECT("its st_size", st.st_size, run.size);
	EXPECT("SEEK_END", iomap_lseek(h->file, 0, SEEK_END), run.size);
	EXPECT("iomap_failed_ranges", iomap_failed_ranges(h->file, NULL, 0), 0);
}

static void do_verify(void)
{
	compare_all();
}

static void do_set(void)
{
	static const struct { enum iomap_tunable which; const char *name; uint64_t values[4]; } tunables[] = {
		{ IOMAP_TUNE_DIRTY_BYTES, "dirty", { 0, 65536, 262144, 1048576 } },
		{ IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, "background", { 0, 4096, 65536, 524288 } },
		{ IOMAP_TUNE_DIRTY_EXPIRE_MS, "expire", { 0, 1, 10, 1000 } },
		{ IOMAP_TUNE_DIRTY_WRITEBACK_MS, "writeback", { 0, 1, 10, IOMAP_NEVER } },
		{ IOMAP_TUNE_READAHEAD_BYTES, "readahead", { 0, 16384, 262144, IOMAP_READAHEAD_OFF } },
		{ IOMAP_TUNE_MAX_FOLIO_BYTES, "folio", { 4096, 16384, 65536, 0 } },
		{ IOMAP_TUNE_DONTCACHE, "dontcache", { IOMAP_DONTCACHE_KICK, IOMAP_DONTCACHE_NAIVE, IOMAP_DONTCACHE_RATELIMIT, 0 } },
	};
	unsigned i = (unsigned)below(sizeof(tunables) / sizeof(tunables[0]));
	uint64_t value = tunables[i].values[below(4)];
	int ret = iomap_cache_set(run.cache, tunables[i].which, value);

	note(" %s %llu", tunables[i].name, (unsigned long long)value);
	EXPECT("iomap_cache_set", ret, 0);
}

static void do_fallocate(void)
{
	static const struct { int mode; const char *name; } modes[] = {
		{ 0, "allocate" }, { FALLOC_FL_KEEP_SIZE, "keep-size" },
		{ FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, "punch" }, { FALLOC_FL_ZERO_RANGE, "zero" },
		{ FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, "zero keep-size" },
	};
	struct handle *h = any_handle();
	unsigned i = (unsigned)below(5);
	uint64_t pos = any_pos(FILE_MAX), len = any_len(pos, FILE_MAX), end;
	int ret;

	note("%s %s %llu+%llu", name_of(h), modes[i].name, (unsigned long long)pos, (unsigned long long)len);
	ret = iomap_fallocate(h->file, modes[i].mode, (off_t)pos, (off_t)len);
	if (!len || !can_write(h)) {
		EXPECT("iomap_fallocate", ret, len ? -EBADF : -EINVAL);
		return;
	}
	EXPECT("iomap_fallocate", ret, 0);
	end = pos + len;
	if (!(modes[i].mode & FALLOC_FL_KEEP_SIZE) && end > run.size)
		shadow_resize(end);
	if (end > run.size)
		end = run.size;
	if ((modes[i].mode & ~FALLOC_FL_KEEP_SIZE) && pos < end)
		memset(run.shadow + pos, 0, end - pos);
	EXPECT("the size after it", iomap_size(run.first.file), run.size);
}

static bool zeros(uint64_t pos, uint64_t end)
{
	while (pos < end && !run.shadow[pos])
		pos++;
	return pos >= end;
}

/* What is passed over as a hole must read as zeros; where a byte is set there is data. */
static void do_seek(void)
{
	struct handle *h = any_handle();
	uint64_t pos = any_pos(FILE_MAX);
	off_t data = iomap_lseek(h->file, (off_t)pos, SEEK_DATA), hole = iomap_lseek(h->file, (off_t)pos, SEEK_HOLE);

	note("%s %llu: data %lld, hole %lld", name_of(h), (unsigned long long)pos, (long long)data, (long long)hole);
	if (pos >= run.size) {
		EXPECT("SEEK_DATA past the end", data, -ENXIO);
		EXPECT("SEEK_HOLE past the end", hole, -ENXIO);
		return;
	}
	if (data != -ENXIO && (data < (off_t)pos || data >= (off_t)run.size))
		fail("SEEK_DATA: %lld", (long long)data);
	if (hole < (off_t)pos || hole > (off_t)run.size)
		fail("SEEK_HOLE: %lld", (long long)hole);
	if (!zeros(pos, data == -ENXIO ? run.size : (uint64_t)data))
		fail("SEEK_DATA passes over data");
	/* a hole is whole blocks, or parts of them that the device calls holes */
	if ((uint64_t)hole < run.size && run.shadow[hole])
		fail("SEEK_HOLE ends at data");
	if (run.shadow[pos])
		EXPECT("SEEK_DATA at a byte that is set", data, pos);
}

static void do_sync_range(void)
{
	struct handle *h = any_handle();
	unsigned flags = one_in(6) ? IOMAP_SYNC_DURABLE : (unsigned)below(8);
	uint64_t pos = any_pos(FILE_MAX), len = one_in(8) ? 0 : any_len(pos, FILE_MAX);

	note("%s %llu+%llu flags %u", name_of(h), (unsigned long long)pos, (unsigned long long)len, flags);
	EXPECT("iomap_sync_range", iomap_sync_range(h->file, (off_t)pos, (off_t)len, flags), 0);
	if (flags == IOMAP_SYNC_DURABLE)
		compare_by_kernel(pos, len ? len : FILE_MAX - pos, SEEN_BYTES);
	else if ((flags & IOMAP_SYNC_WRITE) && (flags & IOMAP_SYNC_WAIT_AFTER))
		compare_by_kernel(pos, len ? len : FILE_MAX - pos, SEEN_WRITTEN);
}

/* --- opening and closing --------------------------------------------------------------------------------------------- */

static void open_handle(struct handle *h, int oflags)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	int ret;

	params.block_size = one_in(2) || h == &run.first ? run.block : 0;
	ret = iomap_open_with(run.cache, run.path, oflags, 0600, &params, &h->file);
	if (ret)
		fail("iomap_open_with(%#x): %d", oflags, ret);
	h->oflags = oflags;
}

static void close_handle(struct handle *h)
{
	if (h->file)
		EXPECT("iomap_close", iomap_close(h->file), 0);
	h->file = NULL;
}

static void open_second(void)
{
	static const int ways[] = { O_RDWR, O_RDWR | O_APPEND, O_RDONLY, O_WRONLY };

	open_handle(&run.second, one_in(16) ? O_RDWR | O_DSYNC : ways[below(4)]);
}

static void do_second(void)
{
	if (run.second.file) {
		note(" close");
		close_handle(&run.second);
		return;
	}
	open_second();
	note(" open %#x", (unsigned)run.second.oflags);
}

/* Every way there is to close a file and to have it written. */
static void do_reopen(void)
{
	unsigned how = (unsigned)below(5);
	int oflags = O_RDWR;

	note(" %s", (const char *[]){ "after fsync", "then sync", "at once", "at once, O_TRUNC", "second keeps it open" }[how]);
	if (how == 0)
		EXPECT("iomap_fsync", iomap_fsync(run.first.file), 0);
	if (how == 4 && !run.second.file)
		open_second();
	if (how != 4)
		close_handle(&run.second);
	close_handle(&run.first);
	if (how == 1 || how == 4)
		EXPECT("iomap_cache_sync", iomap_cache_sync(run.cache), 0);
	if (how == 0 || how == 1 || how == 4)
		compare_by_kernel(0, FILE_MAX, SEEN_ALL);
	if (how == 3) {
		oflags |= O_TRUNC;
		shadow_resize(0);
	}
	open_handle(&run.first, oflags);
	if (how == 2)
		compare_all();
}

static void up(void)
{
	static const unsigned expire[] = { 1, 5, 50, 30000 }, ahead[] = { 4096, 32768, 131072, IOMAP_READAHEAD_OFF };
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	int ret;

	params.memory_bytes = (1ULL << 20) << below(3);
	params.max_folio_bytes = 4096ULL << below(6);
	params.accounting = (enum iomap_accounting)below(3);
	params.dontcache = (enum iomap_dontcache)below(3);
	params.dirty_bytes = one_in(2) ? 0 : 65536ULL << below(4);
	params.dirty_expire_ms = expire[below(4)];
	params.dirty_writeback_ms = one_in(4) ? IOMAP_NEVER : 1 + (unsigned)below(20);
	params.writeback_threads = 1 + (unsigned)below(3);
	params.queue_depth = 1U << below(8);
	params.readahead_bytes = ahead[below(4)];
	ret = iomap_cache_create(&run.cache, &params);
	EXPECT("iomap_cache_create", ret, 0);
	EXPECT("opening the other file", iomap_open(run.cache, run.other_path, O_RDWR, 0, &run.other), 0);
	open_handle(&run.first, O_RDWR);
	note(": %llu bytes, folios to %llu, accounting %d, dirty %llu", (unsigned long long)params.memory_bytes,
	     (unsigned long long)params.max_folio_bytes, params.accounting, (unsigned long long)params.dirty_bytes);
	run.left_out = one_in(2) ? 0 : t_random(&run.rng) & t_random(&run.rng);
}

static void down(void)
{
	close_handle(&run.second);
	close_handle(&run.first);
	EXPECT("closing the other file", iomap_close(run.other), 0);
	if (one_in(2)) {
		EXPECT("iomap_cache_sync", iomap_cache_sync(run.cache), 0);
		check_cache();
	}
	EXPECT("iomap_cache_destroy", iomap_cache_destroy(run.cache), 0);
	compare_by_kernel(0, FILE_MAX, SEEN_ALL);
}

static void do_new_cache(void)
{
	down();
	up();
}

/* --- the list of them ------------------------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	unsigned weight;                /* how often, among the others */
	void (*fn)(void);               /* draws its arguments, notes them, does it, compares */
} operations[] = {
	{ "pread", 180, do_pread },
	{ "preadv2", 100, do_preadv },
	{ "pwrite", 200, do_pwrite },
	{ "pwritev2", 160, do_pwritev },
	{ "scatter", 20, do_scatter },
	{ "direct-read", 40, do_direct_read },
	{ "direct-write", 40, do_direct_write },
	{ "ftruncate", 60, do_truncate },
	{ "fallocate", 80, do_fallocate },
	{ "lseek", 40, do_seek },
	{ "sync-range", 16, do_sync_range },
	{ "fsync", 4, do_fsync },
	{ "fdatasync", 4, do_fdatasync },
	{ "cache-sync", 2, do_cache_sync },
	{ "fadvise", 50, do_fadvise },
	{ "cache-drop", 20, do_drop },
	{ "pressure", 5, do_pressure },
	{ "stat", 10, do_stat },
	{ "verify", 10, do_verify },
	{ "cache-set", 6, do_set },
	{ "second", 6, do_second },
	{ "reopen", 6, do_reopen },
	{ "new-cache", 1, do_new_cache },
};

enum { NR_OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

static unsigned any_operation(void)
{
	unsigned total = 0, draw, i;

	for (i = 0; i < NR_OPERATIONS; i++)
		total += operations[i].weight;
	do {
		draw = (unsigned)below(total);
		for (i = 0; draw >= operations[i].weight; i++)
			draw -= operations[i].weight;
	} while ((run.left_out >> i & 1) && operations[i].fn != do_new_cache);
	return i;
}

static void step(void)
{
	unsigned i = any_operation();

	snprintf(run.log[run.nr % NR_LOGGED], sizeof(run.log[0]), "%s", operations[i].name);
	operations[i].fn();
	if (run.verbose)
		printf("%llu %s\n", (unsigned long long)run.nr, run.log[run.nr % NR_LOGGED]);
	if (run.nr % CHECK_EVERY == 0) {
		check_cache();
		alarm(120 * t_run_slow());
	}
}

/* --- a run ------------------------------------------------------------------------------------------------------------- */

static void make_files(const char *dir)
{
	unsigned char *content = malloc(OTHER_MAX);
	struct statx stx;
	int fd;

	if (dir) {
		snprintf(run.path, sizeof(run.path), "%s/exerciser-%u-%ld", dir, run.block, (long)getpid());
		snprintf(run.other_path, sizeof(run.other_path), "%s/exerciser-other-%u-%ld", dir, run.block, (long)getpid());
	} else {
		snprintf(run.path, sizeof(run.path), "%s", t_tmpfile());
		snprintf(run.other_path, sizeof(run.other_path), "%s", t_tmpfile());
	}
	fd = open(run.other_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	t_fill(content, 0, OTHER_MAX, OTHER_SEED);
	if (fd < 0 || write(fd, content, OTHER_MAX) != OTHER_MAX || fsync(fd))
		fail("%s: %s", run.other_path, strerror(errno));
	close(fd);
	free(content);
	fd = open(run.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		fail("%s: %s", run.path, strerror(errno));
	close(fd);
	run.align = 512;
#ifdef STATX_DIOALIGN
	if (!statx(AT_FDCWD, run.path, 0, STATX_DIOALIGN, &stx) && (stx.stx_mask & STATX_DIOALIGN) && stx.stx_dio_offset_align) {
		run.align = stx.stx_dio_offset_align;
		if (stx.stx_dio_mem_align > run.align)
			run.align = stx.stx_dio_mem_align;
	}
#endif
}

static int one_run(const char *dir)
{
	static const int deadly[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM };

	for (unsigned i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		signal(deadly[i], on_signal);
	alarm(120 * t_run_slow());
	run.rng = run.seed * 1000003 + run.block;
	run.shadow = calloc(1, FILE_MAX + 1);
	run.buf = aligned_alloc(4096, FILE_MAX + 4096);
	if (!run.shadow || !run.buf)
		fail("no memory");
	make_files(dir);
	if (run.block < run.align) {
		printf("block %u: skipped, the device's is %u\n", run.block, run.align);
		unlink(run.path);
		unlink(run.other_path);
		return 77;
	}
	up();
	for (run.nr = 1; run.nr <= run.nr_ops; run.nr++)
		step();
	run.nr = run.nr_ops;
	down();
	alarm(0);
	unlink(run.path);
	unlink(run.other_path);
	free(run.shadow);
	free(run.buf);
	printf("block %u: %llu operations\n", run.block, (unsigned long long)run.nr_ops);
	return 0;
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: exerciser [--long] [--seed N] [--ops N] [--block N] [--dir PATH] [--verbose]\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const unsigned blocks[] = { 512, 4096, 16384 };
	unsigned passed = 0, failed = 0, skipped = 0, only = 0;
	const char *dir = NULL;
	unsigned nr;
	pid_t pids[3];

	t_run_options(&argc, argv);
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (!strcmp(argv[i], "--verbose")) {
			run.verbose = true;
			continue;
		}
		if (!value)
			usage();
		if (!strcmp(argv[i], "--seed"))
			run.seed = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "--ops"))
			run.nr_ops = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "--block"))
			only = (unsigned)strtoul(value, NULL, 0);
		else if (!strcmp(argv[i], "--dir"))
			dir = value;
		else
			usage();
		i++;
	}
	if (!run.seed)
		run.seed = t_run_now_ns() / 1000 % 1000000007;
	if (!run.nr_ops)
		run.nr_ops = t_run_is_long() ? 1000000 : t_run_slow() > 1 ? 5000 : 20000;
	if (!t_direct_io()) {
		printf("no O_DIRECT in the directory for temporary files\n");
		return 77;
	}
	nr = only ? 1 : sizeof(blocks) / sizeof(blocks[0]);
	printf("seed %llu\n", (unsigned long long)run.seed);
	for (unsigned i = 0; i < nr; i++) {
		run.block = only ? only : blocks[i];
		fflush(stdout);
		pids[i] = fork();
		if (!pids[i])
			exit(one_run(dir));
	}
	for (unsigned i = 0; i < nr; i++) {
		int status = 0;

		if (pids[i] < 0 || waitpid(pids[i], &status, 0) != pids[i])
			return 2;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			passed++;
		else if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			skipped++;
		else
			failed++;
	}
	printf(skipped ? "%u passed, %u failed, %u skipped\n" : "%u passed, %u failed\n", passed, failed, skipped);
	return failed != 0;
}
