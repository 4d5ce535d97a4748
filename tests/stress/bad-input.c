/*
 * bad-input.c - callers' mistakes, and the corners of a file's life
 *
 * Each gets the errno that the headers name, changes nothing and leaves nothing behind.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rig.h"

static const off_t far = INT64_MAX;
static unsigned char page[4096];

static struct iomap_cache *small_cache(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache *cache = NULL;

	params.memory_bytes = 4 * MIB;
	params.dirty_writeback_ms = IOMAP_NEVER;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	return cache;
}

static void need_direct(void)
{
	if (!t_direct_io())
		t_run_skip("no O_DIRECT in the directory for temporary files");
}

static struct iomap_file *open_path(struct iomap_cache *cache, const char *path, int oflags)
{
	struct iomap_file *file = NULL;
	int ret = iomap_open(cache, path, oflags, 0600, &file);

	CHECK_MSG(ret == 0, "open %s: %d", path, ret);
	return file;
}

static int try_open(struct iomap_cache *cache, const char *path, int oflags)
{
	struct iomap_file *none = (struct iomap_file *)page, *file = none;
	int ret = iomap_open(cache, path, oflags, 0600, &file);

	CHECK_MSG(ret < 0, "open %s with flags %#x is no error", path, oflags);
	CHECK_MSG(file == none, "a failed open changed *out");
	return ret;
}

static int try_block_size(struct iomap_cache *cache, const char *path, struct iomap_device *device, uint32_t block_size)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file = NULL;
	int ret;

	params.block_size = block_size;
	params.device = device;
	ret = iomap_open_with(cache, path, O_RDWR | O_CREAT, 0600, &params, &file);
	if (!ret)
		CHECK_EQ(iomap_close(file), 0);
	return ret;
}

static unsigned open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned nr = 0;

	if (!dir)
		return 0;
	while (readdir(dir))
		nr++;
	closedir(dir);
	return t_run_is_tsan() ? 0 : nr;        /* its runtime opens descriptors of its own, at its own times */
}

static void make_file(const char *path, uint64_t len, int byte)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	unsigned char *buf = malloc(len + 1);

	CHECK(fd >= 0 && buf);
	memset(buf, byte, len);
	CHECK_EQ(write(fd, buf, len), (ssize_t)len);
	close(fd);
	free(buf);
}

/* The rig's file holds 8192 bytes A, clean; bad calls must leave it so. */
static void up_with_content(struct t_rig *rig)
{
	t_rig_init(rig);
	t_rig_up(rig);
	t_rig_write(rig, 0, 8192, 'A');
	CHECK_EQ(iomap_fsync(rig->file), 0);
}

static void check_unchanged(struct t_rig *rig)
{
	CHECK_EQ(iomap_size(rig->file), 8192);
	CHECK_EQ(t_rig_stat(rig).dirty_bytes, 0);
	t_rig_expect(rig, 0, 8192, 'A');
	t_rig_check(rig);
}

/* --- reading and writing ----------------------------------------------------------------------------------------- */

/* C85 */
static void null_buffer_is_efault(void)
{
	struct t_rig rig;
	struct iovec null_base = { NULL, 4096 }, two[2] = { { page, 100 }, { NULL, 100 } }, empty = { NULL, 0 };

	up_with_content(&rig);
	CHECK_EQ(iomap_pread(rig.file, NULL, 4096, 0), -EFAULT);
	CHECK_EQ(iomap_pwrite(rig.file, NULL, 4096, 0), -EFAULT);
	CHECK_EQ(iomap_pread(rig.file, NULL, 0, 0), 0);
	CHECK_EQ(iomap_pwrite(rig.file, NULL, 0, 0), 0);
	CHECK_EQ(iomap_preadv2(rig.file, NULL, 1, 0, 0), -EFAULT);
	CHECK_EQ(iomap_pwritev2(rig.file, NULL, 1, 0, 0), -EFAULT);
	CHECK_EQ(iomap_preadv2(rig.file, NULL, 0, 0, 0), 0);
	CHECK_EQ(iomap_pwritev2(rig.file, NULL, 0, 0, 0), 0);
	CHECK_EQ(iomap_preadv2(rig.file, &null_base, 1, 0, 0), -EFAULT);
	CHECK_EQ(iomap_pwritev2(rig.file, &null_base, 1, 0, 0), -EFAULT);
	CHECK_EQ(iomap_preadv2(rig.file, two, 2, 0, 0), -EFAULT);
	CHECK_EQ(iomap_pwritev2(rig.file, two, 2, 0, 0), -EFAULT);
	CHECK_EQ(iomap_preadv2(rig.file, &empty, 1, 0, 0), 0);
	CHECK_EQ(iomap_pwritev2(rig.file, &empty, 1, 0, 0), 0);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void offsets_out_of_range_are_einval(void)
{
	static const struct { off_t pos; size_t len; } wrong[] = {
		{ -1, 1 }, { -4096, 4096 }, { INT64_MIN, 1 }, { INT64_MAX, 1 }, { INT64_MAX - 10, 11 }, { INT64_MAX, 4096 },
		{ 1, INT64_MAX }, { 0, (size_t)INT64_MAX + 1 }, { 0, SIZE_MAX }, { 4096, SIZE_MAX - 4095 }, { -1, 0 },
	};
	struct t_rig rig;

	up_with_content(&rig);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct iovec iov = { page, wrong[i].len };

		CHECK_MSG(iomap_pread(rig.file, page, wrong[i].len, wrong[i].pos) == -EINVAL, "pread %u", i);
		CHECK_MSG(iomap_pwrite(rig.file, page, wrong[i].len, wrong[i].pos) == -EINVAL, "pwrite %u", i);
		CHECK_MSG(iomap_preadv2(rig.file, &iov, 1, wrong[i].pos, 0) == -EINVAL, "preadv2 %u", i);
		CHECK_MSG(iomap_pwritev2(rig.file, &iov, 1, wrong[i].pos, 0) == -EINVAL, "pwritev2 %u", i);
	}
	CHECK_EQ(iomap_ftruncate(rig.file, -1), -EINVAL);
	CHECK_EQ(iomap_ftruncate(rig.file, INT64_MIN), -EINVAL);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void zero_length_does_nothing(void)
{
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_pwrite(rig.file, page, 0, 100000), 0);
	CHECK_EQ(iomap_pwrite(rig.file, page, 0, 0), 0);
	CHECK_EQ(iomap_pread(rig.file, page, 0, 0), 0);
	CHECK_EQ(iomap_pread(rig.file, page, 0, 100000), 0);
	CHECK_EQ(iomap_pread(rig.file, page, 100, 8192), 0);
	CHECK_EQ(iomap_pread(rig.file, page, 100, 100000), 0);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void vectors_out_of_bounds_are_einval(void)
{
	static struct iovec many[1025];
	struct iovec too_long[2] = { { page, SSIZE_MAX }, { page, SSIZE_MAX } };
	struct t_rig rig;

	for (unsigned i = 0; i < 1025; i++)
		many[i] = (struct iovec) { page, 1 };
	up_with_content(&rig);
	CHECK_EQ(iomap_preadv2(rig.file, many, -1, 0, 0), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, many, -1, 0, 0), -EINVAL);
	CHECK_EQ(iomap_preadv2(rig.file, many, 1025, 0, 0), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, many, 1025, 0, 0), -EINVAL);
	CHECK_EQ(iomap_preadv2(rig.file, many, INT_MAX, 0, 0), -EINVAL);
	CHECK_EQ(iomap_preadv2(rig.file, too_long, 2, 0, 0), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, too_long, 2, 0, 0), -EINVAL);
	CHECK_EQ(iomap_preadv2(rig.file, many, 1024, 0, 0), 1024);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void unknown_flags_are_eopnotsupp(void)
{
	struct iovec iov = { page, 4096 };
	struct t_rig rig;

	up_with_content(&rig);
	memset(page, 'B', sizeof(page));
	for (int bit = 7; bit < 31; bit++) {
		CHECK_EQ(iomap_preadv2(rig.file, &iov, 1, 0, 1 << bit), -EOPNOTSUPP);
		CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, 0, 1 << bit), -EOPNOTSUPP);
		CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, 0, 1 << bit | IOMAP_RWF_DSYNC), -EOPNOTSUPP);
	}
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void flags_that_contradict_each_other_are_einval(void)
{
	const int both[] = { IOMAP_RWF_NOWAIT, IOMAP_RWF_DIRECT, IOMAP_RWF_DONTCACHE, IOMAP_RWF_NOWAIT | IOMAP_RWF_DIRECT, IOMAP_RWF_NOWAIT | IOMAP_RWF_DSYNC };
	struct iovec iov = { page, 4096 };
	struct t_rig rig;

	up_with_content(&rig);
	memset(page, 'B', sizeof(page));
	for (unsigned i = 0; i < sizeof(both) / sizeof(both[0]); i++)
		CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, 0, IOMAP_RWF_WRITETHROUGH | both[i]), -EINVAL);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void direct_calls_check_their_arguments(void)
{
	struct iovec iov = { page, 4096 }, null_base = { NULL, 4096 };
	struct iomap_file *ro, *wo;
	struct t_rig rig;

	up_with_content(&rig);
	ro = t_rig_handle(&rig, O_RDONLY);
	wo = t_rig_handle(&rig, O_WRONLY);
	CHECK_EQ(iomap_pwritev2(ro, &iov, 1, 0, IOMAP_RWF_DIRECT), -EBADF);
	CHECK_EQ(iomap_pwritev2(ro, &iov, 1, 0, IOMAP_RWF_WRITETHROUGH), -EBADF);
	CHECK_EQ(iomap_preadv2(wo, &iov, 1, 0, IOMAP_RWF_DIRECT), -EBADF);
	CHECK_EQ(iomap_preadv2(rig.file, &iov, 1, -1, IOMAP_RWF_DIRECT), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, -1, IOMAP_RWF_DIRECT), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, INT64_MAX - 100, IOMAP_RWF_DIRECT), -EINVAL);
	CHECK_EQ(iomap_pwritev2(rig.file, &null_base, 1, 0, IOMAP_RWF_DIRECT), -EFAULT);
	CHECK_EQ(iomap_preadv2(rig.file, NULL, 1, 0, IOMAP_RWF_DIRECT), -EFAULT);
	CHECK_EQ(iomap_preadv2(rig.file, &iov, 0, 0, IOMAP_RWF_DIRECT), 0);
	CHECK_EQ(iomap_pwritev2(rig.file, &iov, 0, 100000, IOMAP_RWF_DIRECT), 0);
	CHECK_EQ(iomap_close(ro), 0);
	CHECK_EQ(iomap_close(wo), 0);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void a_handle_does_what_its_access_mode_allows(void)
{
	struct iomap_file *ro, *wo;
	struct t_rig rig;

	up_with_content(&rig);
	ro = t_rig_handle(&rig, O_RDONLY);
	wo = t_rig_handle(&rig, O_WRONLY);
	CHECK_EQ(iomap_pwrite(ro, page, 100, 0), -EBADF);
	CHECK_EQ(iomap_pwrite(ro, page, 100, 8192), -EBADF);
	CHECK_EQ(iomap_ftruncate(ro, 0), -EINVAL);
	CHECK_EQ(iomap_resolve(ro, 0, 0, IOMAP_RESOLVE_DISCARD), -EBADF);
	CHECK_EQ(iomap_pread(ro, page, 100, 0), 100);
	CHECK_EQ(iomap_fsync(ro), 0);
	CHECK_EQ(iomap_pread(wo, page, 100, 0), -EBADF);
	CHECK_EQ(iomap_size(wo), 8192);
	check_unchanged(&rig);
	memset(page, 'B', sizeof(page));
	CHECK_EQ(iomap_pwrite(wo, page, 100, 50), 100);         /* part of a block: the rest has to be read */
	t_rig_expect(&rig, 0, 50, 'A');
	t_rig_expect(&rig, 50, 100, 'B');
	t_rig_expect(&rig, 150, 4000, 'A');
	CHECK_EQ(iomap_close(ro), 0);
	CHECK_EQ(iomap_close(wo), 0);
	t_rig_down(&rig);
}

static void advice_out_of_range_is_einval(void)
{
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_fadvise(rig.file, -1, 10, POSIX_FADV_DONTNEED), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, 0, -1, POSIX_FADV_DONTNEED), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, far, 1, POSIX_FADV_WILLNEED), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, 6), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, -1), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, 1000), -EINVAL);
	for (int advice = 0; advice < 6; advice++) {
		CHECK_EQ(iomap_fadvise(rig.file, 1000000, 0, advice), 0);
		CHECK_EQ(iomap_fadvise(rig.file, 0, far, advice), 0);
	}
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void lseek_answers_for_the_end_data_and_holes(void)
{
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_END), 8192);
	CHECK_EQ(iomap_lseek(rig.file, -8192, SEEK_END), 0);
	CHECK_EQ(iomap_lseek(rig.file, 100, SEEK_END), 8292);
	CHECK_EQ(iomap_lseek(rig.file, -8193, SEEK_END), -EINVAL);
	CHECK_EQ(iomap_lseek(rig.file, INT64_MIN, SEEK_END), -EINVAL);
	CHECK_EQ(iomap_lseek(rig.file, far, SEEK_END), -EOVERFLOW);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_SET), -EINVAL);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_CUR), -EINVAL);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_DATA), 0);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_HOLE), 8192);
	CHECK_EQ(iomap_lseek(rig.file, 0, 99), -EINVAL);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void resolve_checks_its_arguments(void)
{
	struct iomap_failed_range range;
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 0);
	CHECK_EQ(iomap_failed_ranges(rig.file, &range, 1), 0);
	CHECK_EQ(iomap_resolve(rig.file, -1, 0, IOMAP_RESOLVE_RETRY), -EINVAL);
	CHECK_EQ(iomap_resolve(rig.file, 0, -1, IOMAP_RESOLVE_RETRY), -EINVAL);
	CHECK_EQ(iomap_resolve(rig.file, far, 1, IOMAP_RESOLVE_RETRY), -EINVAL);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, (enum iomap_resolution)7), -EINVAL);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_DISCARD), 0);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

static void a_file_of_fixed_size_keeps_it(void)
{
	struct t_rig rig;
	ssize_t n;

	t_rig_init(&rig);
	rig.device_params.fixed_size = true;
	rig.device_params.size = 65536;
	t_rig_up(&rig);
	CHECK_EQ(iomap_size(rig.file), 65536);
	CHECK_EQ(iomap_ftruncate(rig.file, 0), -EINVAL);
	CHECK_EQ(iomap_ftruncate(rig.file, 65537), -EINVAL);
	CHECK_EQ(iomap_pwrite(rig.file, page, 4096, 65536 - 1000), 1000);
	n = iomap_pwrite(rig.file, page, 4096, 65536);
	CHECK_MSG(n == -EFBIG || n == -ENOSPC, "write past the end of a device: %zd", n);
	CHECK_EQ(iomap_size(rig.file), 65536);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}

/* C89, where the file system's largest size is smaller */
static void past_the_largest_size_is_efbig(void)
{
	uint64_t lo = 4096, hi = INT64_MAX;             /* lo can be a file's size, hi + 1 can not */
	struct iomap_cache *cache;
	struct iomap_file *file;
	char path[PATH_MAX];
	int fd;

	need_direct();
	t_run_path(path, sizeof(path), "large");
	fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0);
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo + 1) / 2;

		if (ftruncate(fd, (off_t)mid) == 0)
			lo = mid;
		else
			hi = mid - 1;
	}
	CHECK_EQ(ftruncate(fd, 0), 0);
	close(fd);
	if (lo == INT64_MAX)
		t_run_skip("files can be as large as off_t can say");
	cache = small_cache();
	file = open_path(cache, path, O_RDWR);
	memset(page, 'A', sizeof(page));
	CHECK_EQ(iomap_ftruncate(file, (off_t)lo + 1), -EFBIG);
	CHECK_EQ(iomap_size(file), 0);
	CHECK_EQ(iomap_pwrite(file, page, 20, (off_t)lo), -EFBIG);
	CHECK_EQ(iomap_size(file), 0);
	CHECK_EQ(iomap_pwrite(file, page, 20, (off_t)lo - 10), 10);
	CHECK_EQ(iomap_size(file), (off_t)lo);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_pread(file, page, 100, (off_t)lo - 10), 10);
	CHECK_BYTES(page, 10, 'A');
	memset(page, 'b', sizeof(page));
	CHECK_EQ(iomap_pwrite(file, page, 2, (off_t)lo - 1), 1);
	CHECK_EQ(iomap_pwrite(file, page, 1, (off_t)lo), -EFBIG);
	CHECK_EQ(iomap_size(file), (off_t)lo);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_cache_drop(cache), 0);
	CHECK_EQ(iomap_pread(file, page, 10, (off_t)lo - 1), 1);
	CHECK_EQ(page[0], 'b');
	CHECK_EQ(iomap_ftruncate(file, 0), 0);
	CHECK_EQ(iomap_size(file), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void null_is_einval(void)
{
	struct iomap_file_stat fst;
	struct iomap_cache_stat cst;
	struct iomap_device_stat dst;
	struct iomap_device_info info;
	struct iomap_file *file;
	struct stat st;
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_pread(NULL, page, 1, 0), -EINVAL);
	CHECK_EQ(iomap_pwrite(NULL, page, 1, 0), -EINVAL);
	CHECK_EQ(iomap_fsync(NULL), -EINVAL);
	CHECK_EQ(iomap_fdatasync(NULL), -EINVAL);
	CHECK_EQ(iomap_ftruncate(NULL, 0), -EINVAL);
	CHECK_EQ(iomap_fadvise(NULL, 0, 0, 0), -EINVAL);
	CHECK_EQ(iomap_lseek(NULL, 0, SEEK_END), -EINVAL);
	CHECK_EQ(iomap_size(NULL), -EINVAL);
	CHECK_EQ(iomap_fstat(NULL, &st), -EINVAL);
	CHECK_EQ(iomap_fstat(rig.file, NULL), -EINVAL);
	CHECK_EQ(iomap_fd(NULL), -EINVAL);
	CHECK_EQ(iomap_close(NULL), -EINVAL);
	CHECK_EQ(iomap_failed_ranges(NULL, NULL, 0), -EINVAL);
	CHECK_EQ(iomap_resolve(NULL, 0, 0, IOMAP_RESOLVE_RETRY), -EINVAL);
	CHECK_EQ(iomap_open(NULL, "x", O_RDONLY, 0, &file), -EINVAL);
	CHECK_EQ(iomap_open(rig.cache, NULL, O_RDONLY, 0, &file), -EINVAL);
	CHECK_EQ(iomap_open(rig.cache, "x", O_RDONLY, 0, NULL), -EINVAL);
	CHECK_EQ(iomap_stat(NULL, "/", &st), -EINVAL);
	CHECK_EQ(iomap_stat(rig.cache, NULL, &st), -EINVAL);
	CHECK_EQ(iomap_stat(rig.cache, "/", NULL), -EINVAL);
	CHECK_EQ(iomap_cache_create(NULL, NULL), -EINVAL);
	CHECK_EQ(iomap_cache_sync(NULL), -EINVAL);
	CHECK_EQ(iomap_cache_drop(NULL), -EINVAL);
	CHECK_EQ(iomap_cache_set(NULL, IOMAP_TUNE_DIRTY_BYTES, 0), -EINVAL);
	CHECK_EQ(iomap_cache_check(NULL, NULL, 0), -EINVAL);
	CHECK_EQ(iomap_cache_check(rig.cache, NULL, 0), 0);
	CHECK_EQ(iomap_cache_destroy(NULL), 0);
	iomap_cache_abandon(NULL);
	CHECK_EQ(iomap_cache_stat(NULL, &cst, sizeof(cst)), -EINVAL);
	CHECK_EQ(iomap_cache_stat(rig.cache, NULL, sizeof(cst)), -EINVAL);
	CHECK_EQ(iomap_file_stat(NULL, &fst, sizeof(fst)), -EINVAL);
	CHECK_EQ(iomap_device_stat(NULL, &dst, sizeof(dst)), -EINVAL);
	CHECK_EQ(iomap_device_info(NULL, &info), -EINVAL);
	CHECK_EQ(iomap_device_info(rig.device, NULL), -EINVAL);
	CHECK_EQ(iomap_device_close(NULL), -EINVAL);
	CHECK_EQ(iomap_stat_print(NULL, stdout, IOMAP_STAT_TEXT), -EINVAL);
	CHECK_EQ(iomap_stat_print(rig.cache, NULL, IOMAP_STAT_TEXT), -EINVAL);
	CHECK_EQ(iomap_stat_print(rig.cache, stdout, (enum iomap_stat_format)9), -EINVAL);
	check_unchanged(&rig);
	t_rig_down(&rig);
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static void block_size_is_a_power_of_two_in_bounds(void)
{
	static const uint32_t wrong[] = { 1, 2, 256, 511, 513, 1000, 3000, 4095, 4097, 6144, 65535, 65537, 131072, 1U << 31,
					  UINT32_MAX };
	struct t_hold_params large_sectors = { .block = 4096, .mem_align = 4096 };
	struct t_hold *hold = t_hold_create(NULL), *large = t_hold_create(&large_sectors);
	struct iomap_device *device, *large_device;
	struct iomap_cache *cache = small_cache();
	struct iomap_device_info info;

	device = t_hold_device(hold);
	large_device = t_hold_device(large);
	CHECK_EQ(iomap_device_info(large_device, &info), 0);
	CHECK_EQ(info.block, 4096);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK_MSG(try_block_size(cache, NULL, device, wrong[i]) == -EINVAL, "block size %u", wrong[i]);
	for (uint32_t good = 512; good <= 65536; good *= 2)
		CHECK_MSG(try_block_size(cache, NULL, device, good) == 0, "block size %u", good);
	CHECK_EQ(try_block_size(cache, NULL, device, 0), 0);
	CHECK_EQ(try_block_size(cache, NULL, large_device, 512), -EINVAL);
	CHECK_EQ(try_block_size(cache, NULL, large_device, 2048), -EINVAL);
	CHECK_EQ(try_block_size(cache, NULL, large_device, 4096), 0);
	CHECK_EQ(try_block_size(cache, NULL, large_device, 0), 0);
	CHECK_EQ(iomap_cache_check(cache, NULL, 0), 0);
	CHECK_EQ(iomap_device_close(device), 0);
	CHECK_EQ(iomap_device_close(large_device), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	CHECK(T_WAIT(t_hold_devices(hold) == 0, 5000));
	CHECK(T_WAIT(t_hold_devices(large) == 0, 5000));
	t_hold_free(hold);
	t_hold_free(large);
}

static void block_size_below_the_alignment_of_a_file_is_einval(void)
{
	struct iomap_cache *cache;
	char path[PATH_MAX];
	struct iomap_device *device;
	struct iomap_device_info info;

	need_direct();
	t_run_path(path, sizeof(path), "file");
	make_file(path, 8192, 'A');
	CHECK_EQ(iomap_device_open_aio(path, O_RDWR, 0, &device), 0);
	CHECK_EQ(iomap_device_info(device, &info), 0);
	CHECK_EQ(iomap_device_close(device), 0);
	CHECK_GE(info.block, 512);
	CHECK_EQ(info.size, 8192);
	cache = small_cache();
	for (uint32_t block = 512; block <= 65536; block *= 2)
		CHECK_EQ(try_block_size(cache, path, NULL, block), block < info.block ? -EINVAL : 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void what_is_no_file_does_not_open(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct iomap_device *device = NULL;
	struct iomap_cache *cache;
	char path[PATH_MAX];
	unsigned fds;
	int sock;

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "fifo");
	CHECK_EQ(mkfifo(path, 0600), 0);
	fds = open_fds();
	CHECK_EQ(try_open(cache, path, O_RDWR), -ENODEV);
	CHECK_EQ(try_open(cache, path, O_RDONLY), -ENODEV);      /* and does not wait for a writer */
	CHECK_EQ(try_open(cache, path, O_WRONLY), -ENODEV);
	CHECK_EQ(iomap_device_open_aio(path, O_RDWR, 0, &device), -ENODEV);
	CHECK_EQ(try_open(cache, t_run_dir(), O_RDONLY), -EISDIR);
	CHECK_EQ(try_open(cache, t_run_dir(), O_RDWR), -EISDIR);
	CHECK_EQ(iomap_device_open_aio(t_run_dir(), O_RDWR, 0, &device), -EISDIR);
	CHECK_EQ(try_open(cache, "/dev/null", O_RDWR), -ENODEV);
	CHECK_EQ(iomap_device_open_aio("/dev/null", O_RDWR, 0, &device), -ENODEV);
	t_run_path(path, sizeof(path), "missing");
	CHECK_EQ(try_open(cache, path, O_RDWR), -ENOENT);
	CHECK_EQ(try_open(cache, path, O_RDONLY), -ENOENT);
	CHECK_EQ(iomap_device_open_aio(path, O_RDWR, 0, &device), -ENOENT);
	t_run_path(path, sizeof(path), "missing/file");
	CHECK_EQ(try_open(cache, path, O_RDWR | O_CREAT), -ENOENT);
	t_run_path(path, sizeof(path), "fifo/file");
	CHECK_EQ(try_open(cache, path, O_RDWR | O_CREAT), -ENOTDIR);
	CHECK_EQ(try_open(cache, "", O_RDWR), -ENOENT);
	CHECK(device == NULL);
	CHECK_EQ(open_fds(), fds);

	t_run_path(path, sizeof(path), "s");
	if (strlen(path) < sizeof(addr.sun_path)) {
		sock = socket(AF_UNIX, SOCK_STREAM, 0);
		memcpy(addr.sun_path, path, strlen(path) + 1);
		CHECK_EQ(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
		CHECK_EQ(try_open(cache, path, O_RDWR), -ENODEV);
		close(sock);
	}
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void open_flags_mean_what_they_mean_to_open(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file, *other;
	char path[PATH_MAX];
	unsigned fds;

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	fds = open_fds();
	file = open_path(cache, path, O_RDWR | O_CREAT | O_EXCL);
	CHECK_EQ(iomap_pwrite(file, page, 4000, 0), 4000);
	CHECK_EQ(try_open(cache, path, O_RDWR | O_CREAT | O_EXCL), -EEXIST);
	CHECK_EQ(try_open(cache, path, O_ACCMODE), -EINVAL);
	CHECK_EQ(iomap_size(file), 4000);
	other = open_path(cache, path, O_RDWR | O_TRUNC);
	CHECK_EQ(iomap_size(file), 0);
	CHECK_EQ(iomap_size(other), 0);
	CHECK_EQ(iomap_pwrite(other, page, 100, 0), 100);
	CHECK_EQ(iomap_pread(file, page, 4096, 0), 100);
	CHECK_EQ(iomap_close(file), 0);
	file = open_path(cache, path, O_RDWR | O_APPEND);
	CHECK_EQ(iomap_pwrite(file, page, 50, 0), 50);
	CHECK_EQ(iomap_size(other), 150);
	CHECK_EQ(iomap_fsync(other), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_close(other), 0);
	file = open_path(cache, path, O_RDWR | O_DSYNC);
	CHECK_EQ(iomap_pwrite(file, page, 4096, 0), 4096);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	CHECK_LE(open_fds(), fds);
}

static void permissions_are_those_of_the_file(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file;
	char ro[PATH_MAX], wo[PATH_MAX];

	need_direct();
	t_run_path(ro, sizeof(ro), "readonly");
	t_run_path(wo, sizeof(wo), "writeonly");
	make_file(ro, 4096, 'A');
	make_file(wo, 4096, 'A');
	CHECK_EQ(chmod(t_run_dir(), 0777), 0);
	CHECK_EQ(chmod(ro, 0444), 0);
	CHECK_EQ(chmod(wo, 0222), 0);
	if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
		t_run_skip("root may do everything");
	if (access(ro, R_OK) != 0)
		t_run_skip("the directory for temporary files is root's alone");
	cache = small_cache();
	CHECK_EQ(try_open(cache, ro, O_RDWR), -EACCES);
	CHECK_EQ(try_open(cache, ro, O_WRONLY), -EACCES);
	CHECK_EQ(try_open(cache, wo, O_RDONLY), -EACCES);
	CHECK_EQ(try_open(cache, wo, O_WRONLY), -EACCES);       /* parts of blocks have to be read */
	file = open_path(cache, ro, O_RDONLY);
	CHECK_EQ(iomap_pread(file, page, 4096, 0), 4096);
	CHECK_BYTES(page, 4096, 'A');
	CHECK_EQ(iomap_pwrite(file, page, 10, 0), -EBADF);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void a_later_writer_joins_a_reader(void)
{
	struct iomap_cache *cache;
	struct iomap_file *reader, *writer;
	char path[PATH_MAX];

	need_direct();
	t_run_path(path, sizeof(path), "file");
	make_file(path, 10000, 'A');
	cache = small_cache();
	reader = open_path(cache, path, O_RDONLY);
	CHECK_EQ(iomap_pread(reader, page, 100, 0), 100);
	writer = open_path(cache, path, O_WRONLY);
	memset(page, 'B', 100);
	CHECK_EQ(iomap_pwrite(writer, page, 100, 9950), 100);
	CHECK_EQ(iomap_size(reader), 10050);
	CHECK_EQ(iomap_pread(reader, page, 200, 9940), 110);
	CHECK_BYTES(page, 10, 'A');
	CHECK_BYTES(page + 10, 100, 'B');
	CHECK_EQ(iomap_close(reader), 0);
	CHECK_EQ(iomap_fsync(writer), 0);
	CHECK_EQ(iomap_close(writer), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void another_cache_gets_ebusy_unless_shared(void)
{
	struct iomap_file_params shared = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache *one, *two;
	struct iomap_file *file, *other = NULL;
	char path[PATH_MAX];

	need_direct();
	shared.flags = IOMAP_OPEN_SHARED;
	t_run_path(path, sizeof(path), "file");
	one = small_cache();
	two = small_cache();
	file = open_path(one, path, O_RDWR | O_CREAT);
	CHECK_EQ(iomap_pwrite(file, page, 4096, 0), 4096);
	CHECK_EQ(try_open(two, path, O_RDWR), -EBUSY);
	CHECK_EQ(try_open(two, path, O_RDONLY), -EBUSY);
	CHECK_EQ(try_open(two, path, O_RDWR | O_TRUNC), -EBUSY);
	CHECK_EQ(iomap_size(file), 4096);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(iomap_open_with(two, path, O_RDWR, 0, &shared, &other), 0);
	CHECK_EQ(iomap_size(other), 4096);
	CHECK_EQ(iomap_close(other), 0);
	CHECK_EQ(iomap_close(file), 0);
	other = open_path(two, path, O_RDWR);           /* the first has let go of it */
	CHECK_EQ(iomap_close(other), 0);
	CHECK_EQ(iomap_cache_destroy(one), 0);
	CHECK_EQ(iomap_cache_destroy(two), 0);
}

static void a_device_serves_one_cache_and_one_name(void)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache *one = small_cache(), *two = small_cache();
	struct iomap_file *file, *same, *none = NULL;

	CHECK_EQ(iomap_device_open_mem(NULL, &params.device), 0);
	CHECK_EQ(iomap_open_with(one, "name", O_RDWR, 0, &params, &file), 0);
	CHECK_EQ(iomap_open_with(two, "name", O_RDWR, 0, &params, &none), -EBUSY);
	CHECK_EQ(iomap_open_with(one, "other", O_RDWR, 0, &params, &none), -EINVAL);
	CHECK(none == NULL);
	CHECK_EQ(iomap_open_with(one, "name", O_RDWR, 0, &params, &same), 0);
	CHECK_EQ(iomap_pwrite(file, page, 4096, 0), 4096);
	CHECK_EQ(iomap_size(same), 4096);
	CHECK_EQ(iomap_close(same), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	CHECK_EQ(iomap_cache_destroy(one), 0);
	CHECK_EQ(iomap_cache_destroy(two), 0);
}

static void a_second_open_takes_what_is_there_or_gets_ebusy(void)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache *cache;
	struct iomap_file *file, *other = NULL;
	char path[PATH_MAX];

	need_direct();
	t_run_path(path, sizeof(path), "file");
	cache = small_cache();
	params.block_size = 16384;
	CHECK_EQ(iomap_open_with(cache, path, O_RDWR | O_CREAT, 0600, &params, &file), 0);
	CHECK_EQ(try_block_size(cache, path, NULL, 8192), -EBUSY);
	CHECK_EQ(try_block_size(cache, path, NULL, 4096), -EBUSY);
	CHECK_EQ(try_block_size(cache, path, NULL, 16384), 0);
	CHECK_EQ(try_block_size(cache, path, NULL, 0), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);

	cache = small_cache();
	params.block_size = 0;
	CHECK_EQ(iomap_device_open_mem(NULL, &params.device), 0);
	params.block_size = 1024;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	params.block_size = 512;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &other), -EBUSY);
	params.block_size = 0;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &other), 0);
	CHECK_EQ(iomap_close(other), 0);
	params.flags = IOMAP_OPEN_UNSTABLE;             /* the one that is there is stable */
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &other), -EBUSY);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);

	cache = small_cache();
	CHECK_EQ(iomap_device_open_mem(NULL, &params.device), 0);
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &other), 0);
	CHECK_EQ(iomap_close(other), 0);
	params.flags = 0;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &other), 0);
	CHECK_EQ(iomap_close(other), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void names_of_one_inode_are_one_file(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file, *linked, *symlinked;
	char path[PATH_MAX], hard[PATH_MAX], soft[PATH_MAX];

	need_direct();
	t_run_path(path, sizeof(path), "file");
	t_run_path(hard, sizeof(hard), "hard");
	t_run_path(soft, sizeof(soft), "soft");
	make_file(path, 5000, 'A');
	CHECK_EQ(link(path, hard), 0);
	CHECK_EQ(symlink(path, soft), 0);
	cache = small_cache();
	file = open_path(cache, path, O_RDWR);
	linked = open_path(cache, hard, O_RDONLY);
	symlinked = open_path(cache, soft, O_RDWR);
	memset(page, 'B', 100);
	CHECK_EQ(iomap_pwrite(file, page, 100, 5000), 100);
	CHECK_EQ(iomap_size(linked), 5100);
	CHECK_EQ(iomap_pread(linked, page, 4096, 5000), 100);
	CHECK_BYTES(page, 100, 'B');
	CHECK_EQ(iomap_ftruncate(symlinked, 10), 0);
	CHECK_EQ(iomap_size(file), 10);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_close(linked), 0);
	CHECK_EQ(iomap_close(symlinked), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void unknown_params_of_a_file_are_refused(void)
{
	struct { struct iomap_file_params params; uint64_t later[4]; } grown = { .params = IOMAP_FILE_PARAMS_INIT };
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache *cache = small_cache();
	struct iomap_file *file = NULL;
	int ret;

	CHECK_EQ(iomap_device_open_mem(NULL, &params.device), 0);
	params.flags = 1U << 2;
	ret = iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file);
	CHECK_MSG(ret == -EOPNOTSUPP || ret == -EINVAL, "unknown flag: %d", ret);
	params.flags = 0;
	params.struct_size = 4;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), -EINVAL);
	grown.params.struct_size = sizeof(grown);
	grown.params.device = params.device;
	grown.later[3] = 1;
	ret = iomap_open_with(cache, NULL, O_RDWR, 0, &grown.params, &file);
	CHECK_MSG(ret == -EOPNOTSUPP || ret == -EINVAL, "field that this version does not know: %d", ret);
	CHECK(file == NULL);
	params.struct_size = 0;
	CHECK_EQ(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

/* --- the cache --------------------------------------------------------------------------------------------------- */

static void try_params(const struct iomap_cache_params *params, int wanted, const char *what)
{
	struct iomap_cache *none = (struct iomap_cache *)page, *cache = none;
	int ret = iomap_cache_create(&cache, params);

	CHECK_MSG(ret == wanted, "%s: %d, expected %d", what, ret, wanted);
	if (wanted)
		CHECK_MSG(cache == none, "%s: *out has changed", what);
	else
		CHECK_EQ(iomap_cache_destroy(cache), 0);
}

#define TRY(field, value, wanted) do {								\
	struct iomap_cache_params p_ = IOMAP_CACHE_PARAMS_INIT;					\
	p_.memory_bytes = 1 * MIB;								\
	p_.field = (value);									\
	try_params(&p_, wanted, #field " = " #value);						\
} while (0)

static void params_of_later_versions_are_eopnotsupp(void)
{
	struct { struct iomap_cache_params params; uint64_t later[4]; } grown = { .params = IOMAP_CACHE_PARAMS_INIT };
	unsigned fds = open_fds();
	int ret;

	TRY(inflight_bytes, 1 * MIB, -EOPNOTSUPP);
	TRY(pinned_bytes, 1 * MIB, -EOPNOTSUPP);
	TRY(pinned_background_bytes, 1 * MIB, -EOPNOTSUPP);
	TRY(write_policy, IOMAP_WRITE_SPLIT, -EOPNOTSUPP);
	TRY(write_policy, IOMAP_WRITE_EVICT, -EOPNOTSUPP);
	TRY(write_policy, IOMAP_WRITE_KEEP, 0);
	TRY(strict_limit, true, -EOPNOTSUPP);
	TRY(stat_path, "stat", -EOPNOTSUPP);
	grown.params.memory_bytes = 1 * MIB;
	grown.params.struct_size = sizeof(grown);
	grown.later[0] = 1;
	ret = iomap_cache_create(&(struct iomap_cache *){ NULL }, &grown.params);
	CHECK_MSG(ret == -EOPNOTSUPP || ret == -EINVAL, "field that this version does not know: %d", ret);
	CHECK_EQ(open_fds(), fds);
}

static void params_out_of_bounds_are_einval(void)
{
	TRY(struct_size, 0, 0);
	TRY(struct_size, 1, -EINVAL);
	TRY(struct_size, sizeof(size_t), -EINVAL);
	TRY(memory_bytes, 1, -EINVAL);
	TRY(memory_bytes, MIB - 4096, -EINVAL);
	TRY(max_folio_bytes, 4096, 0);
	TRY(max_folio_bytes, 2048, -EINVAL);
	TRY(max_folio_bytes, 5000, -EINVAL);
	TRY(max_folio_bytes, 12288, -EINVAL);
	TRY(max_folio_bytes, 2 * MIB, 0);               /* cut to what the memory allows */
	TRY(accounting, (enum iomap_accounting)3, -EINVAL);
	TRY(error_policy, (enum iomap_error_policy)2, -EINVAL);
	TRY(dontcache, IOMAP_DONTCACHE_NAIVE, 0);
	TRY(dontcache, IOMAP_DONTCACHE_RATELIMIT, 0);
	TRY(dontcache, (enum iomap_dontcache)3, -EINVAL);
	TRY(dirty_bytes, 64 * KIB, 0);
	TRY(dirty_background_bytes, 16 * MIB, 0);       /* counts as half of dirty_bytes */
	TRY(queue_depth, 1, 0);
	TRY(readahead_bytes, IOMAP_READAHEAD_OFF, 0);
	TRY(dirty_writeback_ms, IOMAP_NEVER, 0);
}

static void tunables_out_of_bounds_change_nothing(void)
{
	struct iomap_cache *cache = small_cache();
	struct iomap_cache_stat before, after;

	CHECK_EQ(iomap_cache_stat(cache, &before, sizeof(before)), 0);
	CHECK_EQ(iomap_cache_set(cache, (enum iomap_tunable)0, 1), -EINVAL);
	CHECK_EQ(iomap_cache_set(cache, (enum iomap_tunable)1000, 1), -EINVAL);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_MAX_FOLIO_BYTES, 5000), -EINVAL);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DIRTY_WRITEBACK_MS, 1ULL << 33), -EINVAL);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_READAHEAD_BYTES, 1ULL << 33), -EINVAL);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_INFLIGHT_BYTES, MIB), -EOPNOTSUPP);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_PINNED_BYTES, MIB), -EOPNOTSUPP);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_PINNED_BACKGROUND_BYTES, MIB), -EOPNOTSUPP);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_WRITE_POLICY, IOMAP_WRITE_SPLIT), -EOPNOTSUPP);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DONTCACHE, 3), -EINVAL);
	CHECK_EQ(iomap_cache_stat(cache, &after, sizeof(after)), 0);
	CHECK_EQ(after.dirty_limit_bytes, before.dirty_limit_bytes);
	CHECK_EQ(after.background_limit_bytes, before.background_limit_bytes);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DIRTY_BYTES, 2 * MIB), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, 1 * MIB), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DIRTY_EXPIRE_MS, 100), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DIRTY_WRITEBACK_MS, IOMAP_NEVER), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_READAHEAD_BYTES, IOMAP_READAHEAD_OFF), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_MAX_FOLIO_BYTES, 4096), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DONTCACHE, IOMAP_DONTCACHE_RATELIMIT), 0);
	CHECK_EQ(iomap_cache_set(cache, IOMAP_TUNE_DONTCACHE, 0), 0);
	CHECK_EQ(iomap_cache_stat(cache, &after, sizeof(after)), 0);
	CHECK_EQ(after.dirty_limit_bytes, 2 * MIB);
	CHECK_EQ(after.background_limit_bytes, 1 * MIB);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void params_are_read_from_text(void)
{
	struct iomap_cache_params p = IOMAP_CACHE_PARAMS_INIT;

	CHECK_EQ(iomap_cache_params_parse(&p, ""), 0);
	CHECK_EQ(p.memory_bytes, 0);
	CHECK_EQ(iomap_cache_params_parse(&p, "memory=1g,accounting=block,dirty=200m"), 0);
	CHECK_EQ(p.memory_bytes, 1ULL << 30);
	CHECK_EQ(p.accounting, IOMAP_ACCT_BLOCK);
	CHECK_EQ(p.dirty_bytes, 200ULL << 20);
	CHECK_EQ(iomap_cache_params_parse(&p, "memory_bytes=3G,max_folio=64K,dirty_background_bytes=12345"), 0);
	CHECK_EQ(p.memory_bytes, 3ULL << 30);
	CHECK_EQ(p.max_folio_bytes, 65536);
	CHECK_EQ(p.dirty_background_bytes, 12345);
	CHECK_EQ(p.dirty_bytes, 200ULL << 20);
	CHECK_EQ(iomap_cache_params_parse(&p, "accounting=page"), 0);
	CHECK_EQ(p.accounting, IOMAP_ACCT_PAGE);
	CHECK_EQ(iomap_cache_params_parse(&p, "accounting=folio,error_policy=drop,write_policy=split,dontcache=ratelimit"), 0);
	CHECK_EQ(p.accounting, IOMAP_ACCT_FOLIO);
	CHECK_EQ(p.error_policy, IOMAP_ERROR_DROP);
	CHECK_EQ(p.write_policy, IOMAP_WRITE_SPLIT);
	CHECK_EQ(p.dontcache, IOMAP_DONTCACHE_RATELIMIT);
	CHECK_EQ(iomap_cache_params_parse(&p, "error_policy=keep_dirty,write_policy=evict,dontcache=naive"), 0);
	CHECK_EQ(p.error_policy, IOMAP_ERROR_KEEP_DIRTY);
	CHECK_EQ(p.write_policy, IOMAP_WRITE_EVICT);
	CHECK_EQ(p.dontcache, IOMAP_DONTCACHE_NAIVE);
	CHECK_EQ(iomap_cache_params_parse(&p, "write_policy=keep,dontcache=kick,strict_limit=1"), 0);
	CHECK_EQ(p.write_policy, IOMAP_WRITE_KEEP);
	CHECK_EQ(p.dontcache, IOMAP_DONTCACHE_KICK);
	CHECK_EQ(p.strict_limit, true);
	CHECK_EQ(iomap_cache_params_parse(&p, "dirty_writeback_ms=never,readahead=off,dirty_expire_ms=7,writeback_threads=3"), 0);
	CHECK_EQ(p.dirty_writeback_ms, IOMAP_NEVER);
	CHECK_EQ(p.readahead_bytes, IOMAP_READAHEAD_OFF);
	CHECK_EQ(p.dirty_expire_ms, 7);
	CHECK_EQ(p.writeback_threads, 3);
	CHECK_EQ(iomap_cache_params_parse(&p, "dirty_writeback_ms=100,readahead=1m,queue_depth=9,inflight=1t,pinned=5k"), 0);
	CHECK_EQ(p.dirty_writeback_ms, 100);
	CHECK_EQ(p.readahead_bytes, 1 * MIB);
	CHECK_EQ(p.queue_depth, 9);
	CHECK_EQ(p.inflight_bytes, 1ULL << 40);
	CHECK_EQ(p.pinned_bytes, 5120);
	CHECK_EQ(iomap_cache_params_parse(&p, "pinned_background=6k,strict_limit=0"), 0);
	CHECK_EQ(p.pinned_background_bytes, 6144);
	CHECK_EQ(p.strict_limit, false);
	CHECK_EQ(p.struct_size, sizeof(p));
}

static void text_that_is_wrong_changes_no_params(void)
{
	static const char *const wrong[] = {
		"memory", "memory=", "=1g", "memory=1x", "memory=-1", "memory=1gg", "memory=g", "memory=0x10z", "bogus=1",
		"memory=99999999999999999999", "memory=16777216t", "memory=1g;dirty=1m", "accounting=blocks", "accounting=",
		"accounting=1", "error_policy=keep", "dontcache=no", "write_policy=split2", "queue_depth=4294967296",
		"dirty_expire_ms=-5", "dirty_expire_ms=never2", "strict_limit=2", "readahead=5000000000", "struct_size=8",
		"allocator=0", "stat_path=x", "log=0", "memory=2g,bogus=1", "memory=2g,dirty=", "memory=1 g",
	};
	struct iomap_cache_params p = IOMAP_CACHE_PARAMS_INIT, before;

	p.memory_bytes = 7 * MIB;
	p.dirty_bytes = 1 * MIB;
	p.accounting = IOMAP_ACCT_PAGE;
	before = p;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int ret = iomap_cache_params_parse(&p, wrong[i]);

		CHECK_MSG(ret == -EINVAL, "\"%s\": %d", wrong[i], ret);
		CHECK_MSG(memcmp(&p, &before, sizeof(p)) == 0, "\"%s\" has changed something", wrong[i]);
	}
	CHECK_EQ(iomap_cache_params_parse(NULL, "memory=1g"), -EINVAL);
	CHECK_EQ(iomap_cache_params_parse(&p, NULL), -EINVAL);
}

static void destroy_with_open_files_is_ebusy(void)
{
	struct t_rig rig;

	up_with_content(&rig);
	CHECK_EQ(iomap_cache_destroy(rig.cache), -EBUSY);
	t_rig_write(&rig, 0, 100, 'B');
	t_rig_expect(&rig, 0, 100, 'B');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_cache_destroy(rig.cache), -EBUSY);
	t_rig_expect_stored(&rig, 0, 100, 'B');
	t_rig_down(&rig);
}

static void destroy_writes_what_closed_files_left(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 70000, 'A');
	t_rig_close(&rig);
	CHECK_EQ(iomap_cache_destroy(rig.cache), 0);
	t_rig_expect_stored(&rig, 0, 70000, 'A');
	CHECK_EQ(t_hold_size(rig.hold), 70000);
	CHECK_EQ(iomap_device_close(rig.device), 0);
	CHECK(T_WAIT(t_hold_devices(rig.hold) == 0, 5000));
	t_hold_free(rig.hold);
}

static void after_abandon_handles_are_ebadf(void)
{
	struct iomap_file_stat fst;
	struct iovec iov = { page, 100 };
	struct stat st;
	struct t_rig rig;

	up_with_content(&rig);
	t_rig_write(&rig, 0, 8192, 'B');
	iomap_cache_abandon(rig.cache);
	CHECK_EQ(iomap_pread(rig.file, page, 100, 0), -EBADF);
	CHECK_EQ(iomap_pwrite(rig.file, page, 100, 0), -EBADF);
	CHECK_EQ(iomap_preadv2(rig.file, &iov, 1, 0, 0), -EBADF);
	CHECK_EQ(iomap_pwritev2(rig.file, &iov, 1, 0, IOMAP_RWF_APPEND), -EBADF);
	CHECK_EQ(iomap_fsync(rig.file), -EBADF);
	CHECK_EQ(iomap_fdatasync(rig.file), -EBADF);
	CHECK_EQ(iomap_ftruncate(rig.file, 0), -EBADF);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_NORMAL), -EBADF);
	CHECK_EQ(iomap_lseek(rig.file, 0, SEEK_END), -EBADF);
	CHECK_EQ(iomap_size(rig.file), -EBADF);
	CHECK_EQ(iomap_fstat(rig.file, &st), -EBADF);
	CHECK_EQ(iomap_fd(rig.file), -EBADF);
	CHECK_EQ(iomap_file_stat(rig.file, &fst, sizeof(fst)), -EBADF);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), -EBADF);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), -EBADF);
	CHECK_EQ(iomap_close(rig.file), -EBADF);
	CHECK_EQ(iomap_device_close(rig.device), 0);
	CHECK(T_WAIT(t_hold_devices(rig.hold) == 0, 5000));
	t_rig_expect_stored(&rig, 0, 8192, 'A');        /* written nothing */
	t_hold_free(rig.hold);
}

static void a_short_stat_gets_its_part(void)
{
	struct { struct iomap_cache_stat st; uint64_t later[8]; } grown;
	struct iomap_cache_stat st;
	struct iomap_file_stat fst;
	struct iomap_device_stat dst;
	struct t_rig rig;

	up_with_content(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	CHECK_EQ(iomap_cache_stat(rig.cache, &st, 0), -EINVAL);
	CHECK_EQ(iomap_cache_stat(rig.cache, &st, 4), -EINVAL);
	CHECK_EQ(iomap_cache_stat(rig.cache, &st, sizeof(st) - 1), -EINVAL);
	memset(&st, 0x55, sizeof(st));
	CHECK_EQ(iomap_cache_stat(rig.cache, &st, 16), 0);
	CHECK_EQ(st.dirty_bytes, 4096);
	CHECK_EQ(st.writeback_bytes, 0);
	CHECK_EQ(st.pinned_bytes, 0x5555555555555555LL);
	memset(&grown, 0x55, sizeof(grown));
	CHECK_EQ(iomap_cache_stat(rig.cache, &grown.st, sizeof(grown)), 0);
	CHECK_EQ(grown.st.dirty_bytes, 4096);
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ(grown.later[i], 0);
	CHECK_EQ(iomap_file_stat(rig.file, &fst, 0), -EINVAL);
	CHECK_EQ(iomap_file_stat(rig.file, &fst, 12), -EINVAL);
	CHECK_EQ(iomap_file_stat(rig.file, &fst, sizeof(fst)), 0);
	CHECK_EQ(fst.size_bytes, 8192);
	CHECK_EQ(fst.dirty_bytes, 4096);
	CHECK_EQ(iomap_device_stat(rig.device, &dst, 0), -EINVAL);
	CHECK_EQ(iomap_device_stat(rig.device, &dst, 3), -EINVAL);
	CHECK_EQ(iomap_device_stat(rig.device, &dst, sizeof(dst)), 0);
	CHECK_EQ(dst.written_bytes, 8192);
	t_rig_down(&rig);
}

static int never_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	(void)device;
	(void)reqs;
	(void)n;
	return -EIO;
}

static int never_flush(struct iomap_device *device, struct iomap_request *req)
{
	(void)device;
	(void)req;
	return -EIO;
}

static void devices_check_their_arguments(void)
{
	struct iomap_device_ops ops = { .submit = never_submit, .flush = never_flush }, no_submit = ops, no_flush = ops;
	struct iomap_device_info info = { .block = 512, .mem_align = 512 }, odd = info, small = info, wide = info;
	struct iomap_mem_params mem = IOMAP_MEM_PARAMS_INIT;
	struct iomap_device *device = NULL;
	char path[PATH_MAX];
	int fd;

	no_submit.submit = NULL;
	no_flush.flush = NULL;
	odd.block = 1000;
	small.block = 256;
	wide.mem_align = 3;
	CHECK_EQ(iomap_device_create(NULL, NULL, &info, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&ops, NULL, NULL, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&ops, NULL, &info, NULL), -EINVAL);
	CHECK_EQ(iomap_device_create(&no_submit, NULL, &info, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&no_flush, NULL, &info, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&ops, NULL, &odd, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&ops, NULL, &small, &device), -EINVAL);
	CHECK_EQ(iomap_device_create(&ops, NULL, &wide, &device), -EINVAL);
	mem.block = 1000;
	CHECK_EQ(iomap_device_open_mem(&mem, &device), -EINVAL);
	CHECK_EQ(iomap_device_open_mem(NULL, NULL), -EINVAL);
	mem.block = 0;
	mem.struct_size = 4;
	CHECK_EQ(iomap_device_open_mem(&mem, &device), -EINVAL);
	CHECK_EQ(iomap_device_open_limit(NULL, NULL, &device), -EINVAL);
	CHECK_EQ(iomap_device_open_fd(-1, &device), -EBADF);
	CHECK_EQ(iomap_device_open_fd(100000, &device), -EBADF);
	t_run_path(path, sizeof(path), "file");
	fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK_EQ(iomap_device_open_fd(fd, &device), -EINVAL);   /* without O_DIRECT */
	CHECK_EQ(iomap_device_open_aio(NULL, O_RDWR, 0, &device), -EINVAL);
	CHECK_EQ(iomap_device_open_aio(path, O_RDWR, 0, NULL), -EINVAL);
	CHECK_EQ(iomap_device_open_aio(path, O_RDWR | O_APPEND, 0, &device), -EINVAL);
	CHECK(device == NULL);
	close(fd);
	CHECK_EQ(iomap_device_open_mem(NULL, &device), 0);
	CHECK_EQ(iomap_device_set_limit(device, NULL), -EINVAL);        /* no limit device */
	CHECK_EQ(iomap_device_close(device), 0);
}

/* --- the life of a file ------------------------------------------------------------------------------------------ */

static void a_forked_child_gets_ebadf_and_makes_its_own_cache(void)
{
	struct iomap_cache *cache;
	struct t_rig rig;
	int status;
	pid_t pid;

	up_with_content(&rig);
	t_rig_write(&rig, 0, 4096, 'B');
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct iomap_file *file;
		struct stat st;
		char path[PATH_MAX];

		CHECK_EQ(iomap_pread(rig.file, page, 100, 0), -EBADF);
		CHECK_EQ(iomap_pwrite(rig.file, page, 100, 0), -EBADF);
		CHECK_EQ(iomap_fsync(rig.file), -EBADF);
		CHECK_EQ(iomap_ftruncate(rig.file, 0), -EBADF);
		CHECK_EQ(iomap_size(rig.file), -EBADF);
		CHECK_EQ(iomap_fstat(rig.file, &st), -EBADF);
		CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), -EBADF);
		if (t_run_is_tsan())    /* it starts no threads in a forked child */
			_exit(0);
		cache = small_cache();
		if (t_direct_io()) {
			t_run_path(path, sizeof(path), "child");
			file = open_path(cache, path, O_RDWR | O_CREAT);
			memset(page, 'C', sizeof(page));
			CHECK_EQ(iomap_pwrite(file, page, 4096, 0), 4096);
			CHECK_EQ(iomap_fsync(file), 0);
			CHECK_EQ(iomap_cache_drop(cache), 0);
			CHECK_EQ(iomap_pread(file, page, 4096, 0), 4096);
			CHECK_BYTES(page, 4096, 'C');
			CHECK_EQ(iomap_close(file), 0);
		}
		CHECK_EQ(iomap_cache_check(cache, NULL, 0), 0);
		CHECK_EQ(iomap_cache_destroy(cache), 0);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x", status);
	t_rig_expect(&rig, 0, 4096, 'B');
	t_rig_expect(&rig, 4096, 4096, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, 4096, 'B');
	t_rig_down(&rig);
}

static void last_close_of_an_unlinked_file_cancels_its_dirty_data(void)
{
	struct iomap_cache_stat st;
	struct iomap_cache *cache;
	struct iomap_file *file, *other;
	char path[PATH_MAX];
	unsigned fds;

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "first");
	CHECK_EQ(iomap_close(open_path(cache, path, O_RDWR | O_CREAT)), 0);     /* what the disk itself needs is there now */
	fds = open_fds();
	t_run_path(path, sizeof(path), "file");
	file = open_path(cache, path, O_RDWR | O_CREAT);
	other = open_path(cache, path, O_RDWR);
	for (unsigned i = 0; i < 16; i++)
		CHECK_EQ(iomap_pwrite(file, page, 4096, i * 4096), 4096);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	CHECK_EQ(st.dirty_bytes, 65536);                /* not the last */
	CHECK_EQ(iomap_pread(other, page, 4096, 0), 4096);
	CHECK_EQ(iomap_close(other), 0);
	CHECK(T_WAIT((iomap_cache_stat(cache, &st, sizeof(st)), st.dirty_bytes == 0 && st.writeback_bytes == 0), 5000));
	CHECK_EQ(st.cancelled_bytes, 65536);
	CHECK_EQ(st.written_bytes, 0);
	CHECK(T_WAIT((iomap_cache_stat(cache, &st, sizeof(st)), st.cached_bytes == 0), 5000));
	CHECK(T_WAIT(open_fds() == fds, 5000));
	CHECK_EQ(iomap_cache_sync(cache), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void a_new_open_joins_the_dirty_data_of_a_last_close(void)
{
	struct iomap_cache_stat st;
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct stat ours, kernels;
	char path[PATH_MAX];
	unsigned char buf[10000];
	int fd;

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	file = open_path(cache, path, O_RDWR | O_CREAT);
	t_fill(buf, 0, sizeof(buf), 7);
	CHECK_EQ(iomap_pwrite(file, buf, sizeof(buf), 0), (ssize_t)sizeof(buf));
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	CHECK_EQ(st.dirty_bytes, 12288);
	CHECK_EQ(stat(path, &kernels), 0);
	CHECK_EQ(iomap_stat(cache, path, &ours), 0);
	CHECK_EQ(ours.st_size, (off_t)sizeof(buf));
	CHECK_EQ(ours.st_ino, kernels.st_ino);
	file = open_path(cache, path, O_RDWR);
	CHECK_EQ(iomap_size(file), (off_t)sizeof(buf));
	memset(buf, 0, sizeof(buf));
	CHECK_EQ(iomap_pread(file, buf, sizeof(buf), 0), (ssize_t)sizeof(buf));
	CHECK(t_check_fill(buf, 0, sizeof(buf), 7));
	CHECK_EQ(iomap_fsync(file), 0);
	fd = open(path, O_RDONLY);
	CHECK_EQ(read(fd, buf, sizeof(buf)), (ssize_t)sizeof(buf));
	CHECK(t_check_fill(buf, 0, sizeof(buf), 7));
	close(fd);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void stat_of_a_path_knows_the_cached_size(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct stat st, kernels;
	char path[PATH_MAX], missing[PATH_MAX];

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	t_run_path(missing, sizeof(missing), "missing");
	make_file(path, 1000, 'A');
	CHECK_EQ(iomap_stat(cache, path, &st), 0);
	CHECK_EQ(st.st_size, 1000);
	CHECK_EQ(iomap_stat(cache, missing, &st), -ENOENT);
	CHECK_EQ(iomap_stat(cache, t_run_dir(), &st), 0);
	CHECK(S_ISDIR(st.st_mode));
	CHECK_EQ(iomap_stat(cache, "/dev/null", &st), 0);
	file = open_path(cache, path, O_RDWR);
	CHECK_EQ(iomap_pwrite(file, page, 4096, 50000), 4096);
	CHECK_EQ(iomap_stat(cache, path, &st), 0);
	CHECK_EQ(st.st_size, 54096);
	CHECK_EQ(iomap_fstat(file, &st), 0);
	CHECK_EQ(st.st_size, 54096);
	CHECK_EQ(stat(path, &kernels), 0);
	CHECK_EQ(st.st_ino, kernels.st_ino);
	CHECK_EQ(st.st_dev, kernels.st_dev);
	CHECK_EQ(st.st_mode, kernels.st_mode);
	CHECK_EQ(iomap_ftruncate(file, 7), 0);
	CHECK_EQ(iomap_stat(cache, path, &st), 0);
	CHECK_EQ(st.st_size, 7);
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(stat(path, &kernels), 0);
	CHECK_EQ(kernels.st_size, 7);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void times_move_with_writes(void)
{
	struct timespec before = { 1000000000, 0 }, times[2] = { before, before };
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct stat st;
	char path[PATH_MAX];

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	make_file(path, 1000, 'A');
	CHECK_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
	file = open_path(cache, path, O_RDWR);
	CHECK_EQ(iomap_fstat(file, &st), 0);
	CHECK_EQ(st.st_mtim.tv_sec, before.tv_sec);
	CHECK_EQ(iomap_pwrite(file, page, 10, 0), 10);
	CHECK_EQ(iomap_fstat(file, &st), 0);
	CHECK(st.st_mtim.tv_sec > before.tv_sec);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void fd_is_the_direct_one_of_the_file(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct t_rig rig;
	struct stat st, kernels;
	char path[PATH_MAX];
	int fd;

	up_with_content(&rig);
	CHECK_EQ(iomap_fd(rig.file), -ENOTTY);
	t_rig_down(&rig);
	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	file = open_path(cache, path, O_RDWR | O_CREAT);
	fd = iomap_fd(file);
	CHECK_GE(fd, 0);
	CHECK(fcntl(fd, F_GETFL) & O_DIRECT);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(fstat(fd, &st), 0);
	CHECK_EQ(stat(path, &kernels), 0);
	CHECK_EQ(st.st_ino, kernels.st_ino);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void a_file_that_shrank_outside_is_eio_never_zeros(void)
{
	struct iomap_cache *cache;
	struct iomap_file *file;
	char path[PATH_MAX];

	need_direct();
	cache = small_cache();
	t_run_path(path, sizeof(path), "file");
	make_file(path, 65536, 'A');
	file = open_path(cache, path, O_RDWR);
	CHECK_EQ(truncate(path, 4096), 0);
	CHECK_EQ(iomap_size(file), 65536);
	CHECK_EQ(iomap_pread(file, page, 4096, 32768), -EIO);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static const struct t_run_case cases[] = {
	T_RUN(null_buffer_is_efault),
	T_RUN(offsets_out_of_range_are_einval),
	T_RUN(zero_length_does_nothing),
	T_RUN(vectors_out_of_bounds_are_einval),
	T_RUN(unknown_flags_are_eopnotsupp),
	T_RUN(flags_that_contradict_each_other_are_einval),
	T_RUN(direct_calls_check_their_arguments),
	T_RUN(a_handle_does_what_its_access_mode_allows),
	T_RUN(advice_out_of_range_is_einval),
	T_RUN(lseek_answers_for_the_end_data_and_holes),
	T_RUN(resolve_checks_its_arguments),
	T_RUN(a_file_of_fixed_size_keeps_it),
	T_RUN(past_the_largest_size_is_efbig),
	T_RUN(null_is_einval),
	T_RUN(block_size_is_a_power_of_two_in_bounds),
	T_RUN(block_size_below_the_alignment_of_a_file_is_einval),
	T_RUN(what_is_no_file_does_not_open),
	T_RUN(open_flags_mean_what_they_mean_to_open),
	T_RUN(permissions_are_those_of_the_file),
	T_RUN(a_later_writer_joins_a_reader),
	T_RUN(another_cache_gets_ebusy_unless_shared),
	T_RUN(a_device_serves_one_cache_and_one_name),
	T_RUN(a_second_open_takes_what_is_there_or_gets_ebusy),
	T_RUN(names_of_one_inode_are_one_file),
	T_RUN(unknown_params_of_a_file_are_refused),
	T_RUN(params_of_later_versions_are_eopnotsupp),
	T_RUN(params_out_of_bounds_are_einval),
	T_RUN(tunables_out_of_bounds_change_nothing),
	T_RUN(params_are_read_from_text),
	T_RUN(text_that_is_wrong_changes_no_params),
	T_RUN(destroy_with_open_files_is_ebusy),
	T_RUN(destroy_writes_what_closed_files_left),
	T_RUN(after_abandon_handles_are_ebadf),
	T_RUN(a_short_stat_gets_its_part),
	T_RUN(devices_check_their_arguments),
	T_RUN(a_forked_child_gets_ebadf_and_makes_its_own_cache),
	T_RUN(last_close_of_an_unlinked_file_cancels_its_dirty_data),
	T_RUN(a_new_open_joins_the_dirty_data_of_a_last_close),
	T_RUN(stat_of_a_path_knows_the_cached_size),
	T_RUN(times_move_with_writes),
	T_RUN(fd_is_the_direct_one_of_the_file),
	T_RUN(a_file_that_shrank_outside_is_eio_never_zeros),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
