/*
 * edges.c - offsets of 32 and of 63 bits, and ranges that are none
 *
 * Everything is done twice: on a device in memory, which is as large as off_t can say, and on a sparse file, which ends where its file
 * system says. A range that is wrong gets its errno and changes nothing: size, contents and counters are compared.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "run.h"

#define MIB     (1ULL << 20)
#define FAR     INT64_MAX

/* Where 32-bit arithmetic goes wrong: bytes, pages and blocks, signed and not. */
static const int64_t edges[] = {
	1LL << 31, 1LL << 32, (1LL << 32) + 4096, 1LL << 33, 1LL << 40, 1LL << 41, 1LL << 43, (1LL << 44) - 65536, 1LL << 44,
	1LL << 47, 1LL << 52, 1LL << 55, 1LL << 62,
};

static const unsigned block_sizes[] = { 512, 4096, 65536 };

static struct iomap_cache *cache;
static struct iomap_device *device;     /* NULL: a file at path */
static struct iomap_file *file;
static unsigned block;
static int64_t limit;                   /* the largest size */
static char path[4096];

static unsigned char out[128 << 10], in[128 << 10];

/* --- putting up and taking down --------------------------------------------------------------------------------------- */

static void open_file(int oflags, struct iomap_file **handle)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;

	params.block_size = block;
	params.device = device;
	CHECK_EQ(iomap_open_with(cache, device ? NULL : path, oflags, 0600, &params, handle), 0);
}

/* The longest a file of this file system can be: where ftruncate(2) begins to fail. */
static int64_t largest_size(void)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int64_t good = 0, bad = FAR;

	CHECK(fd >= 0);
	if (!ftruncate(fd, FAR))
		good = FAR;
	while (good < bad - 1) {
		int64_t mid = good + (bad - good) / 2;

		if (ftruncate(fd, mid))
			bad = mid;
		else
			good = mid;
	}
	CHECK_EQ(ftruncate(fd, 0), 0);
	close(fd);
	return good;
}

static void up(bool in_memory, unsigned block_size)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;

	params.memory_bytes = 8 * MIB;
	params.dirty_writeback_ms = IOMAP_NEVER;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	block = block_size;
	device = NULL;
	if (in_memory) {
		CHECK_EQ(iomap_device_open_mem(NULL, &device), 0);
		limit = FAR;
	} else {
		t_run_path(path, sizeof(path), "edges");
		limit = largest_size();
	}
	open_file(O_RDWR, &file);
}

static void down(void)
{
	char why[512] = "";
	int ret = iomap_cache_check(cache, why, sizeof(why));

	CHECK_MSG(ret == 0, "iomap_cache_check: %d, %s", ret, why);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	if (device)
		CHECK_EQ(iomap_device_close(device), 0);
	else
		CHECK_EQ(unlink(path), 0);
}

/* Calls @fn on the device in memory, and on a file where files can be opened. */
static void on_both(void (*fn)(void), unsigned block_size)
{
	up(true, block_size);
	fn();
	down();
	if (!t_direct_io()) {
		printf("no O_DIRECT: not on a file\n");
		return;
	}
	if (block_size < 4096) {                /* only where the file system takes such blocks */
		struct iomap_device *probe;
		struct iomap_device_info info;
		char name[4096];

		t_run_path(name, sizeof(name), "probe");
		CHECK_EQ(iomap_device_open_aio(name, O_RDWR | O_CREAT, 0600, &probe), 0);
		CHECK_EQ(iomap_device_info(probe, &info), 0);
		CHECK_EQ(iomap_device_close(probe), 0);
		if (info.block > block_size)
			return;
	}
	up(false, block_size);
	fn();
	down();
}

static void on_both_at_all_blocks(void (*fn)(void))
{
	for (unsigned i = 0; i < sizeof(block_sizes) / sizeof(block_sizes[0]); i++)
		on_both(fn, block_sizes[i]);
}

/* --- nothing has changed ---------------------------------------------------------------------------------------------- */

struct state {
	int64_t size;
	struct iomap_cache_stat cache;
	struct iomap_file_stat file;
	struct iomap_device_stat device;
	struct stat st;
};

static void take(struct state *s)
{
	memset(s, 0, sizeof(*s));
	s->size = iomap_size(file);
	CHECK_EQ(iomap_cache_stat(cache, &s->cache, sizeof(s->cache)), 0);
	CHECK_EQ(iomap_file_stat(file, &s->file, sizeof(s->file)), 0);
	if (device)
		CHECK_EQ(iomap_device_stat(device, &s->device, sizeof(s->device)), 0);
	else
		CHECK_EQ(stat(path, &s->st), 0);
}

#define SAME(a, b, field) CHECK_MSG((a)->field == (b)->field, "%s: %s was %lld, is %lld", what, #field,	\
				    (long long)(a)->field, (long long)(b)->field)

static void check_same(const char *what, const struct state *was)
{
	struct state is;

	take(&is);
	SAME(was, &is, size);
	SAME(was, &is, cache.dirty_bytes);
	SAME(was, &is, cache.writeback_bytes);
	SAME(was, &is, cache.pinned_bytes);
	SAME(was, &is, cache.failed_bytes);
	SAME(was, &is, cache.cached_bytes);
	SAME(was, &is, cache.free_bytes);
	SAME(was, &is, cache.dirtied_bytes);
	SAME(was, &is, cache.submitted_bytes);
	SAME(was, &is, cache.written_bytes);
	SAME(was, &is, cache.cancelled_bytes);
	SAME(was, &is, cache.hits);
	SAME(was, &is, cache.misses);
	SAME(was, &is, cache.readahead_bytes);
	SAME(was, &is, cache.evicted_bytes);
	SAME(was, &is, cache.splits);
	SAME(was, &is, cache.throttle_pauses);
	SAME(was, &is, file.size_bytes);
	SAME(was, &is, file.cached_bytes);
	SAME(was, &is, file.dirty_bytes);
	SAME(was, &is, file.misses);
	SAME(was, &is, device.read_ios);
	SAME(was, &is, device.write_ios);
	SAME(was, &is, device.flushes);
	SAME(was, &is, device.read_bytes);
	SAME(was, &is, device.written_bytes);
	SAME(was, &is, st.st_size);
	SAME(was, &is, st.st_blocks);
	SAME(was, &is, st.st_mtim.tv_nsec);
}

/* 8192 bytes, of which 4096 are dirty. */
static void put_content(void)
{
	t_fill(out, 0, 8192, 1);
	CHECK_EQ(iomap_pwrite(file, out, 8192, 0), 8192);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_pwrite(file, out, 4096, 0), 4096);
}

static void check_content(void)
{
	CHECK_EQ(iomap_pread(file, in, sizeof(in), 0), 8192);
	CHECK(t_check_fill(in, 0, 8192, 1));
}

/* The call gives @want, and changes nothing. */
#define REFUSED(call, want) do {								\
	struct state was_;									\
	long long got_;										\
	take(&was_);										\
	got_ = (long long)(call);								\
	CHECK_MSG(got_ == (want), "%s: %lld, should be %lld (pos %lld, len %lld)", #call, got_,	\
		  (long long)(want), (long long)pos, (long long)len);				\
	check_same(#call, &was_);								\
} while (0)

/* --- ranges that are none ------------------------------------------------------------------------------------------------ */

static const struct { int64_t pos, len; } no_ranges[] = {
	{ -1, 1 }, { -1, 0 }, { -4096, 4096 }, { -4096, 8192 }, { INT64_MIN, 1 }, { INT64_MIN, 0 }, { INT64_MIN, FAR },
	{ FAR, 1 }, { FAR, FAR }, { FAR - 10, 11 }, { FAR - 4095, 4096 }, { 1, FAR }, { 4096, FAR - 4095 }, { 1LL << 62, 1LL << 62 },
};

static void each_bad_range_is_refused(void)
{
	static const int flags[] = {
		0, IOMAP_RWF_NOWAIT, IOMAP_RWF_DSYNC, IOMAP_RWF_SYNC,
		IOMAP_RWF_DONTCACHE,
		IOMAP_RWF_DIRECT, IOMAP_RWF_WRITETHROUGH,
	};

	put_content();
	for (unsigned i = 0; i < sizeof(no_ranges) / sizeof(no_ranges[0]); i++) {
		int64_t pos = no_ranges[i].pos, len = no_ranges[i].len;
		struct iovec iov = { in, (size_t)len }, halves[2] = { { in, (size_t)len / 2 }, { in, (size_t)(len - len / 2) } };

		REFUSED(iomap_pread(file, in, (size_t)len, pos), -EINVAL);
		REFUSED(iomap_pwrite(file, in, (size_t)len, pos), -EINVAL);
		for (unsigned f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
			REFUSED(iomap_preadv2(file, &iov, 1, pos, flags[f]), -EINVAL);
			REFUSED(iomap_pwritev2(file, &iov, 1, pos, flags[f]), -EINVAL);
			REFUSED(iomap_preadv2(file, halves, 2, pos, flags[f]), -EINVAL);
			REFUSED(iomap_pwritev2(file, halves, 2, pos, flags[f]), -EINVAL);
		}
		for (int advice = POSIX_FADV_NORMAL; advice <= POSIX_FADV_NOREUSE; advice++)
			REFUSED(iomap_fadvise(file, pos, len, advice), -EINVAL);
		REFUSED(iomap_resolve(file, pos, len, IOMAP_RESOLVE_RETRY), -EINVAL);
		REFUSED(iomap_resolve(file, pos, len, IOMAP_RESOLVE_DISCARD), -EINVAL);
		for (unsigned f = 0; f <= IOMAP_SYNC_DURABLE; f++)
			REFUSED(iomap_sync_range(file, pos, len, f), -EINVAL);
		REFUSED(iomap_fallocate(file, 0, pos, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_KEEP_SIZE, pos, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pos, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, pos, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, pos, len), -EINVAL);
	}
	check_content();
}

static void ranges_that_are_none_are_einval(void)
{
	on_both_at_all_blocks(each_bad_range_is_refused);
}

/* Lengths of size_t that are no off_t, negative lengths, sums of lengths that overflow. */
static void each_bad_length_is_refused(void)
{
	static const size_t lengths[] = { (size_t)FAR + 1, SIZE_MAX, SIZE_MAX - 4095, (size_t)FAR + 4096 };
	static const int64_t negative[] = { -1, -4096, -FAR, INT64_MIN };
	int64_t pos = 0, len = 0;

	put_content();
	for (unsigned i = 0; i < 4; i++) {
		struct iovec one = { in, lengths[i] }, two[2] = { { in, 1 }, { in, lengths[i] } };
		struct iovec sum[3] = { { in, FAR }, { in, 1 + lengths[i] % 2 }, { in, lengths[i] / 2 } };

		for (unsigned p = 0; p < 2; p++) {
			pos = p ? 4096 : 0;
			len = (int64_t)lengths[i];
			REFUSED(iomap_pread(file, in, lengths[i], pos), -EINVAL);
			REFUSED(iomap_pwrite(file, in, lengths[i], pos), -EINVAL);
			REFUSED(iomap_preadv2(file, &one, 1, pos, 0), -EINVAL);
			REFUSED(iomap_pwritev2(file, &one, 1, pos, 0), -EINVAL);
			REFUSED(iomap_preadv2(file, two, 2, pos, 0), -EINVAL);
			REFUSED(iomap_pwritev2(file, two, 2, pos, 0), -EINVAL);
			REFUSED(iomap_preadv2(file, sum, 3, pos, 0), -EINVAL);
			REFUSED(iomap_pwritev2(file, sum, 3, pos, 0), -EINVAL);
			REFUSED(iomap_pwritev2(file, sum, 3, pos, IOMAP_RWF_APPEND), -EINVAL);
		}
	}
	for (unsigned i = 0; i < 4; i++) {
		pos = 0;
		len = negative[i];
		REFUSED(iomap_fadvise(file, 0, len, POSIX_FADV_DONTNEED), -EINVAL);
		REFUSED(iomap_resolve(file, 0, len, IOMAP_RESOLVE_DISCARD), -EINVAL);
		REFUSED(iomap_ftruncate(file, len), -EINVAL);
		REFUSED(iomap_sync_range(file, 0, len, IOMAP_SYNC_DURABLE), -EINVAL);
		REFUSED(iomap_fallocate(file, 0, 0, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, len), -EINVAL);
		REFUSED(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, 4096, len), -EINVAL);
	}
	REFUSED(iomap_fallocate(file, 0, 0, 0), -EINVAL);
	REFUSED(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, FAR, 0), -EINVAL);
	check_content();
}

static void lengths_that_are_none_are_einval(void)
{
	on_both(each_bad_length_is_refused, 4096);
}

static void each_bad_seek_is_refused(void)
{
	int64_t pos = 0, len = 0;

	put_content();
	REFUSED(iomap_lseek(file, -8193, SEEK_END), -EINVAL);
	REFUSED(iomap_lseek(file, INT64_MIN, SEEK_END), -EINVAL);
	REFUSED(iomap_lseek(file, FAR, SEEK_END), -EOVERFLOW);
	REFUSED(iomap_lseek(file, FAR - 8191, SEEK_END), -EOVERFLOW);
	REFUSED(iomap_lseek(file, FAR - 8192, SEEK_END), FAR);
	REFUSED(iomap_lseek(file, -8192, SEEK_END), 0);
	REFUSED(iomap_lseek(file, 0, 99), -EINVAL);
	REFUSED(iomap_lseek(file, -1, -1), -EINVAL);
	static const int64_t outside[] = { -1, INT64_MIN, 8192, 8193, 1LL << 32, 1LL << 40, FAR };

	for (unsigned i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		pos = outside[i];
		REFUSED(iomap_lseek(file, pos, SEEK_DATA), -ENXIO);
		REFUSED(iomap_lseek(file, pos, SEEK_HOLE), -ENXIO);
	}
	check_content();
}

static void seeks_out_of_range_change_nothing(void)
{
	on_both(each_bad_seek_is_refused, 4096);
}

/* Past the end of the file: nothing to read, nothing to do. */
static void nothing_is_found_far_out(void)
{
	int64_t pos = 0, len = 0;

	put_content();
	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		pos = edges[i];
		REFUSED(iomap_pread(file, in, 100, pos), 0);
		REFUSED(iomap_pread(file, in, 0, pos), 0);
		REFUSED(iomap_pwrite(file, in, 0, pos), 0);
		REFUSED(iomap_fadvise(file, pos, 4096, POSIX_FADV_WILLNEED), 0);
		REFUSED(iomap_fadvise(file, pos, 0, POSIX_FADV_DONTNEED), 0);
	}
	REFUSED(iomap_pread(file, in, 1, FAR - 1), 0);
	REFUSED(iomap_pread(file, in, 0, FAR), 0);
	REFUSED(iomap_pwrite(file, in, 0, FAR), 0);
	CHECK_EQ(iomap_pread(file, in, sizeof(in), 8191), 1);
	check_content();
}

static void reads_past_the_end_change_nothing(void)
{
	on_both_at_all_blocks(nothing_is_found_far_out);
}

/* --- far out ---------------------------------------------------------------------------------------------------------- */

enum { SPAN = 20000 };

static void check_zeros(int64_t pos, int64_t len)
{
	CHECK_EQ(iomap_pread(file, in, (size_t)len, pos), len);
	CHECK_BYTES(in, (size_t)len, 0);
}

static void check_span(int64_t pos, uint64_t seed)
{
	memset(in, 0xee, SPAN);
	CHECK_EQ(iomap_pread(file, in, SPAN, pos), SPAN);
	CHECK(t_check_fill(in, (uint64_t)pos, SPAN, seed));
}

/* What a 32-bit slip would have hit instead: the same offset without its upper bits, and half of them. */
static void check_not_at(int64_t pos)
{
	static const unsigned bits[] = { 31, 32, 40, 43, 44 };

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		int64_t slip = pos & ((1LL << bits[i]) - 1);

		if (slip + SPAN <= pos)
			check_zeros(slip, SPAN);
	}
}

static void bytes_lie_where_they_were_put(void)
{
	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		int64_t pos = edges[i] - SPAN / 2 - 1, size = pos + SPAN;

		if (size + 65536 > limit)
			continue;
		t_fill(out, (uint64_t)pos, SPAN, i + 1);
		CHECK_EQ(iomap_pwrite(file, out, SPAN, pos), SPAN);
		CHECK_EQ(iomap_size(file), size);
		CHECK_EQ(iomap_lseek(file, 0, SEEK_END), size);
		check_span(pos, i + 1);
		check_not_at(pos);
		CHECK_EQ(iomap_fsync(file), 0);
		CHECK_EQ(iomap_cache_drop(cache), 0);
		check_span(pos, i + 1);
		check_not_at(pos);
		check_zeros(pos - 1000, 1000);

		/* appended, cut inside, grown again */
		t_fill(out, (uint64_t)size, 100, 77);
		CHECK_EQ(iomap_pwritev2(file, &(struct iovec){ out, 100 }, 1, 0, IOMAP_RWF_APPEND), 100);
		CHECK_EQ(iomap_pread(file, in, 200, size), 100);
		CHECK(t_check_fill(in, (uint64_t)size, 100, 77));
		CHECK_EQ(iomap_ftruncate(file, edges[i] + 1), 0);
		CHECK_EQ(iomap_size(file), edges[i] + 1);
		CHECK_EQ(iomap_pread(file, in, SPAN, pos), SPAN / 2 + 2);
		CHECK_EQ(iomap_ftruncate(file, size), 0);
		CHECK_EQ(iomap_pread(file, in, SPAN, pos), SPAN);
		CHECK(t_check_fill(in, (uint64_t)pos, SPAN / 2 + 2, i + 1));
		CHECK_BYTES(in + SPAN / 2 + 2, SPAN / 2 - 2, 0);
		CHECK_EQ(iomap_fadvise(file, pos, SPAN, POSIX_FADV_WILLNEED), 0);
		CHECK_EQ(iomap_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
		CHECK_EQ(iomap_fdatasync(file), 0);

		/* read by somebody else */
		if (!device) {
			int fd = open(path, O_RDONLY | O_CLOEXEC);

			CHECK(fd >= 0);
			CHECK_EQ(lseek(fd, 0, SEEK_END), size);
			CHECK_EQ(pread(fd, in, SPAN, pos), SPAN);
			CHECK(t_check_fill(in, (uint64_t)pos, SPAN / 2 + 2, i + 1));
			CHECK_BYTES(in + SPAN / 2 + 2, SPAN / 2 - 2, 0);
			close(fd);
		}
		CHECK_EQ(iomap_ftruncate(file, 0), 0);
		CHECK_EQ(iomap_pread(file, in, SPAN, pos), 0);
	}
}

static void far_offsets_hold_their_bytes(void)
{
	on_both_at_all_blocks(bytes_lie_where_they_were_put);
}

static void direct_bytes_lie_where_they_were_put(void)
{
	static _Alignas(4096) unsigned char buf[16384];

	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		int64_t pos = edges[i] - 8192;
		struct iovec iov = { buf, sizeof(buf) };

		if (edges[i] + 65536 > limit)
			continue;
		t_fill(buf, (uint64_t)pos, sizeof(buf), i + 1);
		CHECK_EQ(iomap_pwritev2(file, &iov, 1, pos, IOMAP_RWF_DIRECT), sizeof(buf));
		CHECK_EQ(iomap_size(file), pos + (int64_t)sizeof(buf));
		CHECK_EQ(iomap_pread(file, in, sizeof(in), pos), sizeof(buf));
		CHECK(t_check_fill(in, (uint64_t)pos, sizeof(buf), i + 1));
		check_not_at(pos);
		memset(buf, 0, sizeof(buf));
		CHECK_EQ(iomap_preadv2(file, &iov, 1, pos, IOMAP_RWF_DIRECT), sizeof(buf));
		CHECK(t_check_fill(buf, (uint64_t)pos, sizeof(buf), i + 1));
		CHECK_EQ(iomap_ftruncate(file, 0), 0);
	}
}

static void direct_far_offsets_hold_their_bytes(void)
{
	on_both_at_all_blocks(direct_bytes_lie_where_they_were_put);
}

static void holes_lie_where_they_were_put(void)
{
	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
		int64_t pos = edges[i] - 65536, size = edges[i] + 65536;

		if (size > limit || pos % block)
			continue;
		CHECK_EQ(iomap_ftruncate(file, size), 0);
		CHECK_EQ(iomap_lseek(file, 0, SEEK_DATA), -ENXIO);
		CHECK_EQ(iomap_lseek(file, 0, SEEK_HOLE), 0);
		CHECK_EQ(iomap_lseek(file, size - 1, SEEK_HOLE), size - 1);
		t_fill(out, (uint64_t)pos, sizeof(out), i + 1);
		CHECK_EQ(iomap_pwrite(file, out, sizeof(out), pos), sizeof(out));
		for (unsigned pass = 0; pass < 2; pass++) {
			CHECK_EQ(iomap_lseek(file, 0, SEEK_DATA), pos);
			CHECK_EQ(iomap_lseek(file, pos, SEEK_HOLE), size);
			CHECK_EQ(iomap_sync_range(file, pos, size - pos, IOMAP_SYNC_DURABLE), 0);
		}
		CHECK_EQ(iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, edges[i] - 100, 200), 0);
		CHECK_EQ(iomap_pread(file, in, sizeof(in), pos), sizeof(in));
		memset(out + 65536 - 100, 0, 200);
		CHECK_EQ(memcmp(in, out, sizeof(in)), 0);
		CHECK_EQ(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, edges[i] - 300, 65536 + 600), 0);
		CHECK_EQ(iomap_size(file), size + 300);
		CHECK_EQ(iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, pos, size - pos), 0);
		CHECK_EQ(iomap_pread(file, in, sizeof(in), pos), sizeof(in));
		CHECK_BYTES(in, sizeof(in), 0);
		CHECK_EQ(iomap_ftruncate(file, 0), 0);
	}
}

static void far_holes_are_where_they_were_put(void)
{
	on_both_at_all_blocks(holes_lie_where_they_were_put);
}

/* --- the last byte ---------------------------------------------------------------------------------------------------- */

/* With a largest size below INT64_MAX a write stops there, and then -EFBIG; at INT64_MAX the range itself is wrong. */
static void the_end_of_all_files(void)
{
	const int past = limit == FAR ? -EINVAL : -EFBIG;
	int64_t pos = limit, len = 0;
	struct iovec iov = { out, 1 };

	/*
	 * The kernel takes no direct request that reaches past the largest size, so nothing can be written to (-EFBIG) or read
	 * from (-EINVAL) a block that does.
	 */
	if (limit % block && limit < FAR) {
		printf("largest size %lld: inside a block of %u, not tried\n", (long long)limit, block);
		return;
	}
	t_fill(out, 0, 8192, 3);
	CHECK_EQ(iomap_pwrite(file, out, 1, limit - 1), 1);
	CHECK_EQ(iomap_size(file), limit);
	CHECK_EQ(iomap_pread(file, in, 1, limit - 1), 1);
	CHECK_EQ(in[0], out[0]);
	REFUSED(iomap_pwrite(file, out, 1, limit), past);
	REFUSED(iomap_pwritev2(file, &iov, 1, limit, IOMAP_RWF_DSYNC), past);
	REFUSED(iomap_pwritev2(file, &iov, 1, 0, IOMAP_RWF_APPEND), -EFBIG);    /* the caller named no range */
	if (limit < FAR) {
		CHECK_EQ(iomap_fsync(file), 0);         /* the device is asked, and before it grows the file's end is written */
		REFUSED(iomap_pwrite(file, out, 4096, limit + 1), -EFBIG);
		REFUSED(iomap_pwrite(file, out, 4096, FAR - 4096), -EFBIG);
		REFUSED(iomap_ftruncate(file, limit + 1), -EFBIG);
		REFUSED(iomap_ftruncate(file, FAR), -EFBIG);
		REFUSED(iomap_pread(file, in, 1, limit), 0);
		REFUSED(iomap_fallocate(file, 0, limit, 1), -EFBIG);
		REFUSED(iomap_fallocate(file, FALLOC_FL_ZERO_RANGE, limit - 1, 2), -EFBIG);
		CHECK_EQ(iomap_pwrite(file, out + 100, 4096, limit - 1), 1);
		CHECK_EQ(iomap_pread(file, in, 10, limit - 1), 1);
		CHECK_EQ(in[0], out[100]);
		CHECK_EQ(iomap_pwrite(file, out, 8192, limit - 4096), 4096);
		CHECK_EQ(iomap_pread(file, in, 4096, limit - 4096), 4096);
		CHECK_EQ(memcmp(in, out, 4096), 0);
	} else {
		REFUSED(iomap_pwrite(file, out, 2, limit - 1), -EINVAL);
		REFUSED(iomap_pread(file, in, 10, limit - 1), -EINVAL);
		REFUSED(iomap_pread(file, in, 1, limit), -EINVAL);
		CHECK_EQ(iomap_pwrite(file, out, 4096, limit - 4096), 4096);
	}
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_cache_drop(cache), 0);
	CHECK_EQ(iomap_pread(file, in, 4096, limit - 4096), 4096);
	CHECK_EQ(memcmp(in, out, 4096), 0);
	check_zeros(limit - 8192, 4096);
	CHECK_EQ(iomap_fadvise(file, limit - 65536, 65536, POSIX_FADV_WILLNEED), 0);
	CHECK_EQ(iomap_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(iomap_ftruncate(file, limit - 1), 0);
	CHECK_EQ(iomap_ftruncate(file, limit), 0);
	check_zeros(limit - 1, 1);
	CHECK_EQ(iomap_lseek(file, limit - 1, SEEK_HOLE), limit - 1 - (iomap_lseek(file, limit - 1, SEEK_DATA) < 0 ? 0 : -1));
	CHECK_EQ(iomap_sync_range(file, limit - 4096, 4096, IOMAP_SYNC_DURABLE), 0);
	CHECK_EQ(iomap_ftruncate(file, 0), 0);
	CHECK_EQ(iomap_pread(file, in, 1, limit - 1), 0);
}

static void a_file_ends_at_the_largest_size(void)
{
	on_both_at_all_blocks(the_end_of_all_files);
}

/* Nothing and everything: one transfer as long as the range of offsets is refused or ends with the file, in no time. */
static void all_of_a_sparse_file_is_handled_at_once(void)
{
	for (unsigned in_memory = 0; in_memory < 2; in_memory++) {
		if (!in_memory && !t_direct_io())
			continue;
		up(in_memory, 4096);
		CHECK_EQ(iomap_ftruncate(file, limit), 0);
		CHECK_EQ(iomap_size(file), limit);
		CHECK_EQ(iomap_fadvise(file, 0, limit, POSIX_FADV_DONTNEED), 0);
		CHECK_EQ(iomap_fadvise(file, 0, limit, POSIX_FADV_SEQUENTIAL), 0);
		CHECK_EQ(iomap_resolve(file, 0, limit, IOMAP_RESOLVE_RETRY), 0);
		CHECK_EQ(iomap_resolve(file, 0, limit, IOMAP_RESOLVE_DISCARD), 0);
		CHECK_EQ(iomap_sync_range(file, 0, limit, IOMAP_SYNC_DURABLE), 0);
		CHECK_EQ(iomap_lseek(file, 0, SEEK_DATA), -ENXIO);
		CHECK_EQ(iomap_lseek(file, 0, SEEK_HOLE), 0);
		CHECK_EQ(iomap_lseek(file, limit - 1, SEEK_HOLE), limit - 1);
		CHECK_EQ(iomap_pwrite(file, out, 10, limit / 2), 10);
		CHECK_EQ(iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, limit), 0);
		check_zeros(limit / 2, 10);
		CHECK_EQ(iomap_fsync(file), 0);
		CHECK_EQ(iomap_ftruncate(file, 0), 0);
		down();
	}
}

int main(int argc, char **argv)
{
	static const struct t_run_case cases[] = {
		T_RUN(ranges_that_are_none_are_einval),
		T_RUN(lengths_that_are_none_are_einval),
		T_RUN(seeks_out_of_range_change_nothing),
		T_RUN(reads_past_the_end_change_nothing),
		T_RUN(far_offsets_hold_their_bytes),
		T_RUN(direct_far_offsets_hold_their_bytes),
		T_RUN(far_holes_are_where_they_were_put),
		T_RUN(a_file_ends_at_the_largest_size),
		T_RUN(all_of_a_sparse_file_is_handled_at_once),
	};

	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
