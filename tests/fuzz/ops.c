/*
 * ops.c - bytes -> operations on a file in a cache, against a byte array
 *
 * The first bytes choose the cache: block size, what a dirty block charges, memory, folio size, limits, flushers. The
 * file is on a device in memory. After each operation the file's size and the bytes around what was touched are those
 * of the array, and iomap_cache_check() finds nothing; now and then, and at the end, all bytes are compared. At the
 * end everything is written back: nothing is charged then, and what came in went out. Now and then, and once more at
 * the very end, another cache takes over and must find on the device what the array says.
 *
 * The flushers run beside the operations, so an input is not one course of events but the same question each time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <iomap/iomap.h>
#include "fuzz.h"
#include "test.h"

enum {
	STEPS = 120,
	FILE_MAX = 3 << 20,     /* more than the smallest cache holds */
	LEN_MAX = 400 << 10,
	AROUND = 40,            /* looked at before and behind what was touched */
};

static unsigned char bytes[FILE_MAX];   /* zeros past size */
static uint64_t size;
static unsigned char buf[FILE_MAX];

static struct iomap_cache_params params;
static unsigned block;
static struct iomap_device *device;
static struct iomap_cache *cache;
static struct iomap_file *file;
static bool appends;                    /* the handle has O_APPEND */
static bool unstable;                   /* contents may change in flight */

/* --- checking --------------------------------------------------------------------------------------------- */

static uint64_t readable(uint64_t pos, uint64_t len)
{
	return pos >= size ? 0 : len < size - pos ? len : size - pos;
}

static void check_bytes(uint64_t pos, uint64_t n)
{
	if (memcmp(buf, bytes + pos, n) == 0)
		return;
	for (uint64_t i = 0; i < n; i++)
		FUZZ_CHECK(buf[i] == bytes[pos + i], "byte %llu of %llu is %02x, not %02x",
			   (unsigned long long)(pos + i), (unsigned long long)size, buf[i], bytes[pos + i]);
}

static void read_and_check(uint64_t pos, uint64_t len)
{
	ssize_t n = iomap_pread(file, buf, len, (off_t)pos);

	FUZZ_EQ(n, readable(pos, len));
	check_bytes(pos, (uint64_t)n);
}

static void look_around(uint64_t pos, uint64_t len)
{
	uint64_t from = pos > AROUND ? pos - AROUND : 0;
	uint64_t to = pos + len + AROUND < FILE_MAX ? pos + len + AROUND : FILE_MAX;

	if (to > from)
		read_and_check(from, to - from);
}

static void check_all(void)
{
	char why[400] = "";
	int ret = iomap_cache_check(cache, why, sizeof(why));

	FUZZ_CHECK(ret == 0, "%d, %s", ret, why);
	FUZZ_EQ(iomap_size(file), size);
}

/* After a sync with nobody writing. */
static void check_nothing_is_charged(void)
{
	struct iomap_cache_stat st;

	FUZZ_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	FUZZ_EQ(st.dirty_bytes, 0);
	FUZZ_EQ(st.writeback_bytes, 0);
	FUZZ_EQ(st.pinned_bytes, 0);
	FUZZ_EQ(st.failed_bytes, 0);
	FUZZ_EQ(st.write_failed_bytes, 0);
	FUZZ_EQ(st.dirtied_bytes + st.redirtied_bytes, st.written_bytes + st.cancelled_bytes);
	FUZZ_EQ(st.submitted_bytes, st.written_bytes);
	FUZZ_EQ(st.pin_acquired_bytes, st.pin_released_bytes + st.pin_dropped_bytes);
}

/* --- the cache -------------------------------------------------------------------------------------------- */

static uint64_t pick_setting(enum iomap_tunable which, struct fuzz_in *in)
{
	uint8_t n = fuzz_byte(in);

	switch (which) {
	case IOMAP_TUNE_DIRTY_BYTES: return n & 7 ? (128ULL << 10) << n % 3 : 0;
	case IOMAP_TUNE_DIRTY_BACKGROUND_BYTES: return n & 7 ? (16ULL << 10) << n % 5 : 0;
	case IOMAP_TUNE_DIRTY_EXPIRE_MS: return n % 50;
	case IOMAP_TUNE_DIRTY_WRITEBACK_MS: return n & 1 ? IOMAP_NEVER : n / 2U;
	case IOMAP_TUNE_READAHEAD_BYTES: return n & 3 ? 4096U << n % 8 : IOMAP_READAHEAD_OFF;
	default: return 4096ULL << n % 10;
	}
}

static void pick_params(struct fuzz_in *in)
{
	static const unsigned blocks[] = { 4096, 512, 1024, 16384, 65536 };
	uint8_t how = fuzz_byte(in), limits = fuzz_byte(in);

	params = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	block = blocks[how % 5];
	params.accounting = how / 5 % 3;
	params.memory_bytes = 1048576ULL << how / 15 % 2;
	params.error_policy = how / 30 % 2 ? IOMAP_ERROR_DROP : IOMAP_ERROR_KEEP_DIRTY;
	params.writeback_threads = how / 60 % 3;
	params.dirty_writeback_ms = IOMAP_NEVER;
	params.max_folio_bytes = pick_setting(IOMAP_TUNE_MAX_FOLIO_BYTES, in);
	if (limits & 1)
		params.dirty_bytes = pick_setting(IOMAP_TUNE_DIRTY_BYTES, in);
	if (limits & 2)
		params.dirty_background_bytes = pick_setting(IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, in);
	if (limits & 4)
		params.readahead_bytes = (unsigned)pick_setting(IOMAP_TUNE_READAHEAD_BYTES, in);
	if (limits & 8)
		params.dirty_writeback_ms = 1 + limits / 16;
	params.queue_depth = limits & 16 ? 1 + limits / 32 : 0;
	params.dontcache = how / 64 % 3;
	unstable = how / 128;
}

static void open_file(int oflags)
{
	struct iomap_file_params how = IOMAP_FILE_PARAMS_INIT;

	how.block_size = block;
	how.device = device;
	how.flags = unstable ? IOMAP_OPEN_UNSTABLE : 0;
	FUZZ_EQ(iomap_open_with(cache, NULL, O_RDWR | O_CREAT | oflags, 0600, &how, &file), 0);
	appends = oflags & O_APPEND;
	if (oflags & O_TRUNC) {
		memset(bytes, 0, size);
		size = 0;
	}
}

static void close_file(void)
{
	FUZZ_EQ(iomap_close(file), 0);
	file = NULL;
}

static void start(int oflags)
{
	FUZZ_EQ(iomap_cache_create(&cache, &params), 0);
	open_file(oflags);
}

static void stop(void)
{
	struct iomap_device_info info;

	close_file();
	FUZZ_EQ(iomap_cache_destroy(cache), 0);
	cache = NULL;
	FUZZ_EQ(iomap_device_info(device, &info), 0);
	FUZZ_EQ(info.size, size);
}

static void compare_whole_file(void)
{
	read_and_check(0, FILE_MAX);
	FUZZ_EQ(iomap_lseek(file, 0, SEEK_END), size);
}

/* --- operations ------------------------------------------------------------------------------------------- */

static uint64_t pick_pos(struct fuzz_in *in)
{
	static const unsigned grains[] = { 512, 4096, 16384, 65536 };
	uint8_t how = fuzz_byte(in);
	uint64_t pos = fuzz_below(in, FILE_MAX), grain = grains[how / 8 % 4];

	switch (how % 8) {
	case 0: return pos % 65536;             /* one small region, again and again */
	case 1: return size + pos % 3 < FILE_MAX ? size + pos % 3 : 0;
	case 2: return size > pos % 5000 ? size - pos % 5000 : 0;
	case 3: case 4: return pos / grain * grain;
	case 5: return pos / grain * grain + grain - 1 < FILE_MAX ? pos / grain * grain + grain - 1 : 0;
	default: return pos;
	}
}

static uint64_t pick_len(struct fuzz_in *in)
{
	uint8_t how = fuzz_byte(in);

	switch (how % 4) {
	case 0: return how / 4;
	case 1: return block * (uint64_t)(1 + how / 4 % 4) % LEN_MAX;
	case 2: return 4096ULL * (how / 4 % 16);
	default: return fuzz_below(in, LEN_MAX);
	}
}

/* @buf in up to four pieces, some of them empty. */
static int cut_up(struct iovec *iov, uint64_t len, struct fuzz_in *in)
{
	int n = 1 + fuzz_byte(in) % 4;
	uint64_t done = 0;

	for (int i = 0; i < n; i++) {
		uint64_t part = i == n - 1 ? len - done : (len - done) * fuzz_byte(in) / 255;

		iov[i] = (struct iovec){ buf + done, part };
		done += part;
	}
	return n;
}

static void write_file(struct fuzz_in *in, unsigned seed, int flags, bool vector)
{
	uint64_t pos = pick_pos(in), len = pick_len(in);
	struct iovec iov[4];
	ssize_t n;

	if (appends || flags & IOMAP_RWF_APPEND)
		pos = size;
	if (len > FILE_MAX - pos)
		len = FILE_MAX - pos;
	t_fill(buf, pos, len, seed);
	n = vector || flags ? iomap_pwritev2(file, iov, cut_up(iov, len, in), (off_t)pos, flags) :
	    iomap_pwrite(file, buf, len, (off_t)pos);
	if (flags & IOMAP_RWF_NOWAIT && (n == -EAGAIN || (n >= 0 && n < (ssize_t)len)))
		len = n < 0 ? 0 : (uint64_t)n;
	else
		FUZZ_EQ(n, len);
	t_fill(bytes + pos, pos, len, seed);
	if (len && pos + len > size)
		size = pos + len;
	look_around(pos, len);
}

/* Around the cache, through it, or without staying in it: bits 6 and 7 of the operation. */
static int how_written(uint8_t op)
{
	static const int flags[] = { 0, IOMAP_RWF_DONTCACHE, IOMAP_RWF_DIRECT, IOMAP_RWF_WRITETHROUGH };

	return flags[op / 64];
}

static void read_file(struct fuzz_in *in, int flags)
{
	uint64_t pos = pick_pos(in), len = pick_len(in);
	struct iovec iov[4];
	ssize_t n = iomap_preadv2(file, iov, cut_up(iov, len, in), (off_t)pos, flags);

	if (flags & IOMAP_RWF_NOWAIT && (n == -EAGAIN || (n > 0 && n < (ssize_t)readable(pos, len))))
		len = n < 0 ? 0 : (uint64_t)n;
	else
		FUZZ_EQ(n, readable(pos, len));
	check_bytes(pos, readable(pos, len));
}

static void truncate_file(struct fuzz_in *in)
{
	uint64_t to = pick_pos(in);

	FUZZ_EQ(iomap_ftruncate(file, (off_t)to), 0);
	if (to < size)
		memset(bytes + to, 0, size - to);
	size = to;
	look_around(to > 4096 ? to - 4096 : 0, 4096);
}

static void allocate(struct fuzz_in *in)
{
	static const int modes[] = {
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
		0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
	};
	int mode = modes[fuzz_byte(in) % 6];
	uint64_t pos = pick_pos(in), len = pick_len(in), end;

	if (len > FILE_MAX - pos)
		len = FILE_MAX - pos;
	if (!len || mode == FALLOC_FL_PUNCH_HOLE) {
		FUZZ_EQ(iomap_fallocate(file, mode, (off_t)pos, (off_t)len), !len ? -EINVAL : -EOPNOTSUPP);
		return;
	}
	end = pos + len;
	FUZZ_EQ(iomap_fallocate(file, mode, (off_t)pos, (off_t)len), 0);
	if (!(mode & FALLOC_FL_KEEP_SIZE) && end > size)
		size = end;
	if (mode & ~FALLOC_FL_KEEP_SIZE && pos < size)
		memset(bytes + pos, 0, (end < size ? end : size) - pos);
	look_around(pos, len);
}

/* What is said to be a hole must read as zeros; of data there is nothing to say. */
static void seek(struct fuzz_in *in)
{
	uint64_t from = pick_pos(in), to;
	off_t hole = iomap_lseek(file, (off_t)from, SEEK_HOLE), data;

	if (from >= size) {
		FUZZ_EQ(hole, -ENXIO);
		FUZZ_EQ(iomap_lseek(file, (off_t)from, SEEK_DATA), -ENXIO);
		return;
	}
	FUZZ_CHECK(hole >= (off_t)from && hole <= (off_t)size, "a hole at %lld, from %llu", (long long)hole, (unsigned long long)from);
	data = iomap_lseek(file, hole, SEEK_DATA);
	FUZZ_CHECK(data == -ENXIO || (data > hole && data < (off_t)size), "data at %lld, from %lld", (long long)data, (long long)hole);
	to = data < 0 ? size : (uint64_t)data;
	for (uint64_t i = (uint64_t)hole; i < to; i++)
		FUZZ_CHECK(!bytes[i], "byte %llu of a hole is %02x", (unsigned long long)i, bytes[i]);
}

static void sync_range(struct fuzz_in *in)
{
	unsigned flags = fuzz_byte(in) % 16;
	uint64_t pos = pick_pos(in), len = pick_len(in);
	unsigned known = IOMAP_SYNC_WAIT_BEFORE | IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER | IOMAP_SYNC_DURABLE;

	FUZZ_EQ(iomap_sync_range(file, (off_t)pos, (off_t)len, flags), flags & ~known ? -EINVAL : 0);
}

static void set_limit(struct fuzz_in *in)
{
	static const enum iomap_tunable which[] = {
		IOMAP_TUNE_DIRTY_BYTES, IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, IOMAP_TUNE_DIRTY_EXPIRE_MS,
		IOMAP_TUNE_DIRTY_WRITEBACK_MS, IOMAP_TUNE_READAHEAD_BYTES, IOMAP_TUNE_MAX_FOLIO_BYTES,
	};
	enum iomap_tunable tunable = which[fuzz_byte(in) % 6];

	FUZZ_EQ(iomap_cache_set(cache, tunable, pick_setting(tunable, in)), 0);
}

static void fadvise(struct fuzz_in *in)
{
	int advice = fuzz_byte(in) % 6;
	uint64_t pos = pick_pos(in);

	FUZZ_EQ(iomap_fadvise(file, (off_t)pos, (off_t)pick_len(in), advice), 0);
}

static void reopen(uint8_t how)
{
	int oflags = (how & 3 ? 0 : O_APPEND) | (how & 12 ? 0 : O_TRUNC);

	if (how & 16) {
		close_file();
		open_file(oflags);
	} else {
		stop();
		start(oflags);
	}
}

static void step(struct fuzz_in *in, unsigned nr)
{
	uint8_t op = fuzz_byte(in);

	switch (op % 32) {
	case 16: case 17: write_file(in, nr, IOMAP_RWF_APPEND, true); break;
	case 18: write_file(in, nr, op & 32 ? IOMAP_RWF_DSYNC : IOMAP_RWF_SYNC, true); break;
	case 19: write_file(in, nr, IOMAP_RWF_NOWAIT, true); break;
	case 10: case 11: case 12: case 13: read_file(in, how_written(op) & ~IOMAP_RWF_WRITETHROUGH); break;
	case 14: read_file(in, IOMAP_RWF_NOWAIT); break;
	case 15: compare_whole_file(); break;
	case 20: case 21: case 22: (op & 64 ? allocate : truncate_file)(in); break;
	case 23:
		if (op & 64)
			sync_range(in);
		else
			FUZZ_EQ((op & 32 ? iomap_fsync : iomap_fdatasync)(file), 0);
		break;
	case 24:
		FUZZ_EQ(iomap_cache_sync(cache), 0);
		check_nothing_is_charged();
		break;
	case 25: case 26: (op & 64 ? seek : fadvise)(in); break;
	case 27: case 28: FUZZ_EQ(iomap_cache_drop(cache), 0); break;
	case 29: set_limit(in); break;
	case 30: reopen(fuzz_byte(in)); break;
	default: write_file(in, nr, how_written(op), op & 32);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_size)
{
	struct fuzz_in in = fuzz_begin(data, data_size);

	memset(bytes, 0, size);         /* of the last input */
	size = 0;
	pick_params(&in);
	FUZZ_EQ(iomap_device_open_mem(NULL, &device), 0);
	start(0);
	for (unsigned i = 1; i <= STEPS && fuzz_more(&in); i++) {
		step(&in, i);
		check_all();
	}
	compare_whole_file();
	FUZZ_EQ(iomap_cache_sync(cache), 0);
	check_all();
	check_nothing_is_charged();
	stop();
	start(0);
	compare_whole_file();
	stop();
	FUZZ_EQ(iomap_device_close(device), 0);
	return 0;
}
