/*
 * device-aio.c - files through O_DIRECT: exact sizes, continued transfers, descriptors and locks
 *
 * The backend is compiled into this test a second time under other names, with the calls that reach the kernel
 * going through the functions below, which shorten, refuse and log as a test says.
 */
#define _GNU_SOURCE
#define aio_queue_create        t_aio_queue_create
#define aio_queue_get           t_aio_queue_get
#define aio_queue_put           t_aio_queue_put
#define device_aio_create       t_device_aio_create
#define iomap_device_open_aio   t_open_aio
#define iomap_device_open_fd    t_open_fd
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <iomap/iomap.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "atomic.h"
#include "device.h"
#include "device-io.h"
#include "mem.h"
#include "test.h"
#include "util.h"

Suite *suite_device_aio(void);

/* --- between the backend and the kernel -------------------------------------------------------------------- */

#define NOTHING INT_MAX                 /* in a script: let it pass */

struct logged { bool write, tail; uint64_t pos, len; };

static struct {
	struct mutex lock;
	/* one entry a call of submit, 0 ends: how many to take at most, or an error */
	int submits[16];
	unsigned nr_submits;
	/* one entry a completion: its result, if smaller; or an error */
	int64_t results[16];
	unsigned nr_results;
	bool have_results;
	int tail_error, setup_error, reopen_error;
	struct logged log[64];
	unsigned nr_log;
} inject;

static void inject_log(bool write, bool tail, uint64_t pos, uint64_t len)
{
	if (inject.nr_log < ARRAY_SIZE(inject.log))
		inject.log[inject.nr_log++] = (struct logged){ write, tail, pos, len };
}

static int inject_submit(plat_aio_t aio, const struct plat_aio_op *ops, unsigned n)
{
	int say = NOTHING;

	mutex_lock(&inject.lock);
	if (inject.nr_submits < ARRAY_SIZE(inject.submits) && inject.submits[inject.nr_submits])
		say = inject.submits[inject.nr_submits++];
	mutex_unlock(&inject.lock);
	if (say < 0)
		return say;
	n = (unsigned)min_u64(n, (uint64_t)say);
	mutex_lock(&inject.lock);
	for (unsigned i = 0; i < n; i++) {
		uint64_t len = 0;

		for (int k = 0; k < ops[i].iovcnt; k++)
			len += ops[i].iov[k].iov_len;
		inject_log(ops[i].write, false, ops[i].pos, len);
	}
	mutex_unlock(&inject.lock);
	return plat_aio_submit(aio, ops, n);
}

static int inject_wait(plat_aio_t aio, unsigned min, struct plat_aio_event *events, unsigned max)
{
	int n = plat_aio_wait(aio, min, events, max);

	mutex_lock(&inject.lock);
	for (int i = 0; i < n && inject.have_results && inject.nr_results < ARRAY_SIZE(inject.results); i++) {
		int64_t say = inject.results[inject.nr_results++];

		if (say < events[i].result)
			events[i].result = say;
	}
	mutex_unlock(&inject.lock);
	return n;
}

static ssize_t inject_pwrite(int fd, const void *buf, size_t len, uint64_t pos)
{
	mutex_lock(&inject.lock);
	int error = inject.tail_error;

	inject_log(true, true, pos, len);
	mutex_unlock(&inject.lock);
	return error ? error : plat_pwrite(fd, buf, len, pos);
}

static int inject_setup(unsigned depth, plat_aio_t *aio)
{
	return inject.setup_error ? inject.setup_error : plat_aio_setup(depth, aio);
}

static int inject_reopen(int fd, int oflags)
{
	return inject.reopen_error ? inject.reopen_error : plat_reopen(fd, oflags);
}

#define plat_aio_setup  inject_setup
#define plat_aio_submit inject_submit
#define plat_aio_wait   inject_wait
#define plat_pwrite     inject_pwrite
#define plat_reopen     inject_reopen
#include "../../libiomap/device-aio.c"

static void inject_results(const int64_t *results, unsigned n)
{
	mutex_lock(&inject.lock);
	for (unsigned i = 0; i < ARRAY_SIZE(inject.results); i++)
		inject.results[i] = i < n ? results[i] : INT64_MAX;
	inject.nr_results = 0;
	inject.have_results = true;
	inject.nr_log = 0;
	mutex_unlock(&inject.lock);
}

static void inject_submits(const int *submits, unsigned n)
{
	mutex_lock(&inject.lock);
	memset(inject.submits, 0, sizeof(inject.submits));
	memcpy(inject.submits, submits, n * sizeof(*submits));
	inject.nr_submits = 0;
	inject.nr_log = 0;
	mutex_unlock(&inject.lock);
}

/* --- fixture ----------------------------------------------------------------------------------------------- */

#define BYTES (1U << 21)

static _Alignas(4096) unsigned char out[BYTES], in[BYTES];
static const char *path;
static struct iomap_device *dev;
static bool can;
static uint32_t block;

static void setup(void)
{
	memset(&inject, 0, sizeof(inject));
	mutex_init(&inject.lock, LOCK_WAIT);
	path = t_tmpfile();
	can = t_direct_io() && t_open_aio(path, O_RDWR | O_CREAT | O_EXCL, 0600, &dev) == 0;
	if (!can) {
		t_skip("no O_DIRECT");
		return;
	}
	block = dev->info.block;
}

static void teardown(void)
{
	if (dev)
		iomap_device_close(dev);
	dev = NULL;
	unlink(path);
}

#define NEED_DIRECT() do { if (!can) return; } while (0)

static off_t file_size(void)
{
	struct stat st;

	ck_assert_int_eq(stat(path, &st), 0);
	return st.st_size;
}

/* The file as everybody else sees it. */
static void check_file(size_t len, uint64_t seed)
{
	int fd = open(path, O_RDONLY);

	ck_assert_int_ge(fd, 0);
	memset(in, 0x55, len + 1);
	ck_assert_int_eq(pread(fd, in, len + 1, 0), (ssize_t)len);
	ck_assert(t_check_fill(in, 0, len, seed));
	close(fd);
}

static void check_log(const struct logged *want, unsigned n)
{
	mutex_lock(&inject.lock);
	unsigned nr = inject.nr_log;

	mutex_unlock(&inject.lock);
	ck_assert_uint_eq(nr, n);
	for (unsigned i = 0; i < n; i++) {
		ck_assert_int_eq(inject.log[i].write, want[i].write);
		ck_assert_int_eq(inject.log[i].tail, want[i].tail);
		ck_assert_uint_eq(inject.log[i].pos, want[i].pos);
		ck_assert_uint_eq(inject.log[i].len, want[i].len);
	}
}

/* --- sizes ------------------------------------------------------------------------------------------------- */

START_TEST(any_size_goes_out_and_comes_back_exactly)
{
	static const unsigned sizes[] = { 0, 1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 494700, 1048577 };

	NEED_DIRECT();
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		unsigned n = sizes[i], whole = (unsigned)round_up(n + 1, block);

		ck_assert_int_eq(device_set_size(dev, 0), 0);
		t_fill(out, 0, n, i);
		if (n)
			ck_assert_int_eq(t_dev_write(dev, 0, out, n), n);
		ck_assert_int_eq(file_size(), n);
		ck_assert_uint_eq(device_size(dev), n);
		check_file(n, i);
		memset(in, 0x55, whole);
		ck_assert_int_eq(t_dev_read(dev, 0, in, whole), n);
		ck_assert(t_check_fill(in, 0, n, i));
		ck_assert_int_eq(t_dev_read(dev, round_up(n, block), in, whole), 0);
	}
	ck_assert_int_eq(t_dev_flush(dev), 0);
}
END_TEST

START_TEST(a_file_grows_by_odd_steps)
{
	uint64_t size = 0, state = 1;

	NEED_DIRECT();
	t_fill(out, 0, BYTES, 3);
	for (unsigned i = 0; i < 60; i++) {
		uint64_t pos = round_down(size, block), end = size + 1 + t_random_below(&state, 20000);

		ck_assert_int_eq(t_dev_write(dev, pos, out + pos, end - pos), end - pos);
		size = end;
		ck_assert_int_eq(file_size(), (off_t)size);
	}
	check_file(size, 3);
	ck_assert_uint_eq(device_size(dev), size);
}
END_TEST

START_TEST(a_tail_inside_the_file_cuts_nothing)
{
	NEED_DIRECT();
	t_fill(out, 0, 3 * 4096, 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 3 * 4096), 3 * 4096);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 4096 + 100), 4096 + 100);
	check_file(3 * 4096, 1);
}
END_TEST

START_TEST(the_tail_goes_last_and_at_its_exact_length)
{
	NEED_DIRECT();
	ck_assert_int_eq(t_dev_write(dev, 0, out, 3 * 4096 + 100), 3 * 4096 + 100);
	check_log((struct logged[]){ { true, false, 0, 3 * 4096 }, { true, true, 3 * 4096, 100 } }, 2);
	inject.nr_log = 0;
	ck_assert_int_eq(t_dev_write(dev, 3 * 4096, out, 200), 200);
	check_log((struct logged[]){ { true, true, 3 * 4096, 200 } }, 1);
	ck_assert_int_eq(file_size(), 3 * 4096 + 200);
}
END_TEST

START_TEST(no_tail_after_a_failed_write)
{
	NEED_DIRECT();
	inject_results((int64_t[]){ -EIO }, 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 4096 + 100), -EIO);
	check_log((struct logged[]){ { true, false, 0, 4096 } }, 1);
	ck_assert_uint_eq(device_size(dev), 0);
	inject.tail_error = -ENOSPC;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 4096 + 100), -ENOSPC);
	inject.tail_error = 0;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 4096 + 100), 4096 + 100);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 2);
}
END_TEST

START_TEST(a_tail_whose_descriptor_cannot_be_opened_fails_and_can_be_tried_again)
{
	NEED_DIRECT();
	inject.reopen_error = -EMFILE;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 100), -EMFILE);
	inject.reopen_error = 0;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 100), 100);
	ck_assert_int_eq(file_size(), 100);
}
END_TEST

START_TEST(memory_in_many_pieces_arrives_in_order)
{
	enum { PIECES = 700 };
	static struct iovec iov[PIECES];
	struct t_io io;

	NEED_DIRECT();
	/* pieces of 512 and 1024 bytes backwards through memory; with a tail, so that they are cut up */
	static unsigned char all[PIECES * 1024], back[PIECES * 1024];
	size_t len = 0, at = sizeof(out);

	for (unsigned i = 0; i < PIECES; i++) {
		iov[i].iov_len = i % 3 ? 512 : 1024;
		if (i == PIECES - 1)
			iov[i].iov_len = 77;
		at -= 1024;
		iov[i].iov_base = out + at;
		t_fill(iov[i].iov_base, len, iov[i].iov_len, 9);
		len += iov[i].iov_len;
	}
	t_io_init(&io, IOMAP_REQ_WRITE, 4096, iov, PIECES);
	t_io_start(&io, dev);
	ck_assert_int_eq(t_io_wait(&io), len);
	ck_assert_int_eq(file_size(), (off_t)(4096 + len));

	int fd = open(path, O_RDONLY);

	ck_assert_int_eq(pread(fd, back, sizeof(back), 4096), len);
	close(fd);
	t_fill(all, 0, len, 9);
	ck_assert_mem_eq(all, back, len);
	ck_assert_uint_eq(t_dev_stat(dev).io_retries, 0);

	/* and back, into as many: the read ends at the end of the file */
	iov[PIECES - 1] = (struct iovec){ out, 512 };
	size_t room = 0;

	for (unsigned i = 0; i < PIECES; i++) {
		memset(iov[i].iov_base, 0x55, iov[i].iov_len);
		room += iov[i].iov_len;
	}
	iov[PIECES - 1].iov_len += round_up(room, block) - room;
	t_io_init(&io, IOMAP_REQ_READ, 4096, iov, PIECES);
	t_io_start(&io, dev);
	ck_assert_int_eq(t_io_wait(&io), len);
	for (size_t i = 0, pos = 0; i < PIECES; pos += iov[i++].iov_len)
		ck_assert_mem_eq(iov[i].iov_base, all + pos, min_u64(iov[i].iov_len, len - pos));
}
END_TEST

START_TEST(more_pieces_than_the_kernel_takes_are_split)
{
	enum { PIECES = 1500 };
	static struct iovec iov[PIECES];
	struct t_io io;

	NEED_DIRECT();
	for (unsigned i = 0; i < PIECES; i++)
		iov[i] = (struct iovec){ out + 512 * i, 512 };
	unsigned n = (unsigned)round_down(PIECES, block / 512);

	t_fill(out, 0, PIECES * 512, 4);
	t_io_init(&io, IOMAP_REQ_WRITE, 0, iov, (int)n);
	t_io_start(&io, dev);
	ck_assert_int_eq(t_io_wait(&io), n * 512);
	check_file(n * 512, 4);
}
END_TEST

/* --- short, refused ---------------------------------------------------------------------------------------- */

START_TEST(short_writes_go_on_at_the_block_reached)
{
	NEED_DIRECT();
	t_fill(out, 0, 16384, 1);
	inject_results((int64_t[]){ 4096, 1000 }, 2);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 16384), 16384);
	uint64_t at = 4096 + round_down(1000, block);

	check_log((struct logged[]){ { true, false, 0, 16384 }, { true, false, 4096, 12288 },
				     { true, false, at, 16384 - at } }, 3);
	check_file(16384, 1);
	ck_assert_uint_eq(t_dev_stat(dev).io_retries, 2);
	ck_assert_uint_eq(t_dev_stat(dev).write_ios, 1);

	inject_results((int64_t[]){ 4096, -EIO }, 2);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 16384), -EIO);
	inject_results((int64_t[]){ 0 }, 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 16384), -EIO);
	inject_results((int64_t[]){ 100, 100 }, 2);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 16384), -EIO);        /* nothing gained */
}
END_TEST

START_TEST(short_reads_go_on_until_the_end_of_the_file)
{
	NEED_DIRECT();
	t_fill(out, 0, 16384, 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 16384), 16384);
	inject_results((int64_t[]){ 1000 }, 1);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 16384), 16384);
	uint64_t at = round_down(1000, block);

	check_log((struct logged[]){ { false, false, 0, 16384 }, { false, false, at, 16384 - at } }, 2);
	ck_assert(t_check_fill(in, 0, 16384, 1));
	inject_results((int64_t[]){ 4096, -EIO }, 2);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 16384), -EIO);

	/* The end is known: one request. */
	ck_assert_int_eq(device_set_size(dev, 10000), 0);
	inject_results(NULL, 0);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 16384), 10000);
	check_log((struct logged[]){ { false, false, 0, 16384 } }, 1);

	/* The file was cut behind our back: it takes a second request to see that nothing more comes. */
	ck_assert_int_eq(truncate(path, 5000), 0);
	inject_results(NULL, 0);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 16384), 5000);
	at = round_down(5000, block);
	check_log((struct logged[]){ { false, false, 0, 16384 }, { false, false, at, 16384 - at } }, 2);
}
END_TEST

START_TEST(an_interrupted_piece_is_submitted_again)
{
	NEED_DIRECT();
	t_fill(out, 0, 12288, 2);
	inject_results((int64_t[]){ -EAGAIN, -EINTR, 4096, -EAGAIN }, 4);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 12000), 12000);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 0);
	ck_assert_uint_eq(t_dev_stat(dev).io_retries, 4);
	check_file(12000, 2);
}
END_TEST

START_TEST(a_submit_that_takes_fewer_loses_nothing)
{
	struct t_io io[8];
	struct iomap_request *reqs[8];
	unsigned taken = 0;

	NEED_DIRECT();
	for (unsigned i = 0; i < 8; i++) {
		t_fill(out + i * 4096, i * 4096, 4096, 5);
		t_io_init1(&io[i], IOMAP_REQ_WRITE, i * 4096, out + i * 4096, 4096);
		reqs[i] = &io[i].req;
	}
	inject_submits((int[]){ 3, -EAGAIN, 2, -EINTR, -EAGAIN }, 5);
	for (unsigned tries = 0; taken < 8; tries++) {
		ck_assert_uint_lt(tries, 10);
		taken += (unsigned)device_submit(dev, reqs + taken, 8 - taken);
	}
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 4096);
	check_file(8 * 4096, 5);
	ck_assert_uint_eq(t_dev_stat(dev).write_ios, 8);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 0);

	/* also where the worker submits */
	inject_results((int64_t[]){ 4096 }, 1);
	inject_submits((int[]){ NOTHING, -EAGAIN, -EAGAIN }, 3);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 8 * 4096), 8 * 4096);
	inject_results((int64_t[]){ 4096 }, 1);
	inject_submits((int[]){ NOTHING, -EBADF }, 2);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 8 * 4096), -EBADF);
}
END_TEST

START_TEST(an_error_of_submit_is_the_requests_result)
{
	struct t_io io[3];
	struct iomap_request *reqs[3];

	NEED_DIRECT();
	for (unsigned i = 0; i < 3; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, i * 4096, out, 4096);
		reqs[i] = &io[i].req;
	}
	inject_submits((int[]){ 1, -EINVAL }, 2);
	ck_assert_int_eq(device_submit(dev, reqs, 3), 1);
	inject_submits((int[]){ -EINVAL }, 1);
	ck_assert_int_eq(device_submit(dev, reqs + 1, 2), 1);
	ck_assert_int_eq(device_submit(dev, reqs + 2, 1), 1);
	ck_assert_int_eq(t_io_wait(&io[0]), 4096);
	ck_assert_int_eq(t_io_wait(&io[1]), -EINVAL);
	ck_assert_int_eq(t_io_wait(&io[2]), 4096);
}
END_TEST

START_TEST(a_mixed_batch_larger_than_the_queue_is_taken_in_turns)
{
	enum { N = 300 };
	static struct t_io io[N];
	struct iomap_request *reqs[N];
	unsigned taken = 0;

	NEED_DIRECT();
	/* every tenth is a bare tail inside the file */
	ck_assert_int_eq(device_set_size(dev, N * 4096), 0);
	t_fill(out, 0, N * 4096, 6);
	for (unsigned i = 0; i < N; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, i * 4096, out + i * 4096, i % 10 ? 4096 : 100);
		reqs[i] = &io[i].req;
	}
	while (taken < N)
		taken += (unsigned)device_submit(dev, reqs + taken, N - taken);
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), i % 10 ? 4096 : 100);
	ck_assert_int_eq(t_dev_read(dev, 0, in, N * 4096), N * 4096);
	for (unsigned i = 0; i < N; i++)
		ck_assert(t_check_fill(in + i * 4096, i * 4096, i % 10 ? 4096 : 100, 6));
	ck_assert_int_eq(file_size(), N * 4096);
}
END_TEST

/* --- the queue --------------------------------------------------------------------------------------------- */

static unsigned entries(const char *dir)
{
	DIR *d = opendir(dir);
	unsigned n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* C53 */
START_TEST(a_queue_that_cannot_be_set_up_leaves_nothing_behind)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	unsigned char data[4096], back[4096];
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct aio_queue *q = NULL;

	NEED_DIRECT();
	unsigned threads = entries("/proc/self/task"), fds = entries("/proc/self/fd");

	inject.setup_error = -EAGAIN;
	ck_assert_int_eq(aio_queue_create(65536, &q), -EAGAIN);
	struct iomap_device *none = NULL;

	ck_assert_int_eq(t_open_aio(path, O_RDWR, 0, &none), -EAGAIN);
	ck_assert_ptr_null(none);
	inject.setup_error = 0;
	ck_assert_int_eq(aio_queue_create(0, &q), -EINVAL);
	ck_assert_int_eq(aio_queue_create(UINT_MAX, &q), -EINVAL);
	ck_assert_ptr_null(q);
	ck_assert_uint_eq(entries("/proc/self/task"), threads);
	ck_assert_uint_eq(entries("/proc/self/fd"), fds);
	ck_assert_int_eq(aio_queue_create(128, &q), 0);
	aio_queue_put(q);
	ck_assert_uint_eq(entries("/proc/self/fd"), fds);

	/* the whole of it: a cache whose queue is too deep opens no file, one of 128 does, and works */
	params.memory_bytes = 1 << 20;
	params.queue_depth = 65536;
	ck_assert_int_eq(iomap_cache_create(&cache, &params), 0);
	threads = entries("/proc/self/task"), fds = entries("/proc/self/fd");
	inject.setup_error = -EAGAIN;
	ck_assert_int_eq(iomap_open(cache, path, O_RDWR, 0, &file), -EAGAIN);
	inject.setup_error = 0;
	ck_assert_uint_eq(entries("/proc/self/task"), threads);
	ck_assert_uint_eq(entries("/proc/self/fd"), fds);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
	params.queue_depth = 128;
	ck_assert_int_eq(iomap_cache_create(&cache, &params), 0);
	ck_assert_int_eq(iomap_open(cache, path, O_RDWR, 0, &file), 0);
	memset(data, 'A', sizeof(data));
	ck_assert_int_eq(iomap_pwrite(file, data, sizeof(data), 0), 4096);
	ck_assert_int_eq(iomap_fsync(file), 0);
	ck_assert_int_eq(iomap_cache_drop(cache), 0);
	ck_assert_int_eq(iomap_pread(file, back, sizeof(back), 0), 4096);
	ck_assert_mem_eq(data, back, sizeof(data));
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
}
END_TEST

struct worker { struct thread t; struct iomap_device *dev; unsigned nr; unsigned char *memory; bool ok; };

static void write_and_read_own_blocks(void *arg)
{
	struct worker *w = arg;
	unsigned char *mine = w->memory, *back = w->memory + 4096;
	uint64_t state = w->nr;

	w->ok = true;
	for (unsigned i = 0; i < 100 && w->ok; i++) {
		uint64_t pos = (t_random_below(&state, 16) * 4 + w->nr) * 4096;

		t_fill(mine, pos, 4096, i);
		if (t_dev_write(w->dev, pos, mine, 4096) != 4096 || t_dev_read(w->dev, pos, back, 4096) != 4096 ||
		    memcmp(mine, back, 4096))
			w->ok = false;
		if (i % 25 == 0 && t_dev_flush(w->dev))
			w->ok = false;
	}
}

START_TEST(devices_share_a_queue_that_is_smaller_than_their_load)
{
	const char *other_path = t_tmpfile();
	struct iomap_device *d[2] = { NULL, NULL };
	struct aio_queue *q;
	struct worker w[8];

	NEED_DIRECT();
	ck_assert_int_eq(aio_queue_create(3, &q), 0);
	for (unsigned i = 0; i < 2; i++) {
		int fd = open(i ? other_path : path, O_RDWR | O_CREAT | O_DIRECT, 0600);

		ck_assert_int_ge(fd, 0);
		ck_assert_int_eq(device_aio_create(q, fd, &d[i]), 0);
		ck_assert_int_eq(device_set_size(d[i], 64 * 4096), 0);
	}
	aio_queue_put(q);
	for (unsigned i = 0; i < 8; i++) {
		w[i] = (struct worker){ .dev = d[i % 2], .nr = i / 2, .memory = out + i * 8192 };
		ck_assert_int_eq(thread_create(&w[i].t, "worker", write_and_read_own_blocks, &w[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++) {
		thread_join(&w[i].t);
		ck_assert(w[i].ok);
	}
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(t_dev_stat(d[i]).written_bytes, 400 * 4096);
		iomap_device_close(d[i]);
	}
}
END_TEST

START_TEST(many_devices_come_and_go_with_work_just_done)
{
	NEED_DIRECT();
	for (unsigned i = 0; i < 50; i++) {
		struct iomap_device *d;

		ck_assert_int_eq(t_open_aio(path, O_RDWR, 0, &d), 0);
		ck_assert_int_eq(t_dev_write(d, 0, out, i % 2 ? 4096 : 4100), i % 2 ? 4096 : 4100);
		iomap_device_close(d);
	}
}
END_TEST

/* --- open -------------------------------------------------------------------------------------------------- */

START_TEST(what_cannot_be_a_device_is_refused_without_blocking)
{
	struct iomap_device *none = NULL;
	const char *other = t_tmpfile();
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	NEED_DIRECT();
	ck_assert_int_eq(t_open_aio(NULL, O_RDWR, 0, &none), -EINVAL);
	ck_assert_int_eq(t_open_aio(path, O_RDWR, 0, NULL), -EINVAL);
	ck_assert_int_eq(t_open_aio(path, O_RDWR | O_APPEND, 0, &none), -EINVAL);
	ck_assert_int_eq(t_open_aio(path, O_RDONLY | O_TRUNC, 0, &none), -EINVAL);
	ck_assert_int_eq(t_open_aio(path, O_RDWR | O_CREAT | O_EXCL, 0600, &none), -EEXIST);
	ck_assert_int_eq(t_open_aio(other, O_RDWR, 0, &none), -ENOENT);
	ck_assert_int_eq(t_open_aio(t_dir(), O_RDONLY, 0, &none), -EISDIR);
	ck_assert_int_eq(t_open_aio(t_dir(), O_RDWR, 0, &none), -EISDIR);
	ck_assert_int_eq(t_open_aio("/dev/null", O_RDWR, 0, &none), -ENODEV);
	ck_assert_int_eq(mkfifo(other, 0600), 0);
	ck_assert_int_eq(t_open_aio(other, O_RDONLY, 0, &none), -ENODEV);
	ck_assert_int_eq(t_open_aio(other, O_WRONLY, 0, &none), -ENODEV);
	ck_assert_int_eq(t_open_aio(other, O_RDWR | O_CREAT, 0600, &none), -ENODEV);
	unlink(other);

	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	if (strlen(other) < sizeof(addr.sun_path)) {
		strcpy(addr.sun_path, other);
		ck_assert_int_eq(bind(s, (struct sockaddr *)&addr, sizeof(addr)), 0);
		ck_assert_int_eq(t_open_aio(other, O_RDWR, 0, &none), -ENODEV);
		unlink(other);
	}
	ck_assert_int_eq(t_open_fd(s, &none), -ENODEV);
	close(s);
	ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_descriptor_must_be_open_for_direct_io)
{
	struct iomap_device *d = NULL;

	NEED_DIRECT();
	ck_assert_int_eq(t_open_fd(-1, &d), -EBADF);
	ck_assert_int_eq(t_open_fd(0, NULL), -EINVAL);
	int fd = open(path, O_RDWR);

	ck_assert_int_eq(t_open_fd(fd, &d), -EINVAL);
	close(fd);
	fd = open(path, O_RDWR | O_DIRECT | O_APPEND);
	ck_assert_int_eq(t_open_fd(fd, &d), -EINVAL);
	close(fd);
	fd = open(t_dir(), O_RDONLY | O_DIRECTORY);
	ck_assert_int_eq(t_open_fd(fd, &d), -EISDIR);
	close(fd);
	ck_assert_ptr_null(d);

	/* It is duplicated: the caller's may go, the file even be unlinked, and tails work. */
	fd = open(path, O_RDWR | O_DIRECT);
	ck_assert_int_eq(t_open_fd(fd, &d), 0);
	close(fd);
	ck_assert_int_eq(unlink(path), 0);
	t_fill(out, 0, 5000, 8);
	ck_assert_int_eq(t_dev_write(d, 0, out, 5000), 5000);
	ck_assert_int_eq(t_dev_read(d, 0, in, 8192), 5000);
	ck_assert(t_check_fill(in, 0, 5000, 8));
	struct stat st;

	ck_assert_int_eq(d->file->fstat(d, &st), 0);
	ck_assert_int_eq(st.st_size, 5000);
	iomap_device_close(d);
}
END_TEST

START_TEST(truncating_at_open_empties_the_file_unless_it_is_claimed)
{
	struct iomap_device *d = NULL;

	NEED_DIRECT();
	ck_assert_int_eq(t_dev_write(dev, 0, out, 5000), 5000);
	ck_assert_int_eq(dev->file->claim(dev), 0);
	ck_assert_int_eq(t_open_aio(path, O_RDWR | O_TRUNC, 0, &d), -EBUSY);
	ck_assert_int_eq(file_size(), 5000);
	iomap_device_close(dev);
	dev = NULL;
	ck_assert_int_eq(t_open_aio(path, O_WRONLY | O_CREAT | O_TRUNC, 0600, &d), 0);
	ck_assert_int_eq(file_size(), 0);
	ck_assert_uint_eq(device_size(d), 0);
	ck_assert_int_eq(t_dev_write(d, 0, out, 5000), 5000);
	ck_assert_int_eq(t_dev_read(d, 0, in, 8192), 5000);     /* opened for both, whoever asks for writing */
	ck_assert_int_eq(d->file->claim(d), 0);                 /* the lock of the truncation is gone */
	iomap_device_close(d);
}
END_TEST

START_TEST(one_claim_excludes_another_until_it_goes)
{
	struct iomap_device *a, *b;

	NEED_DIRECT();
	ck_assert_int_eq(t_open_aio(path, O_RDWR, 0, &a), 0);
	ck_assert_int_eq(t_open_aio(path, O_RDONLY, 0, &b), 0);
	ck_assert_int_eq(a->file->claim(a), 0);
	ck_assert_int_eq(a->file->claim(a), 0);
	ck_assert_int_eq(b->file->claim(b), -EBUSY);
	ck_assert_int_eq(dev->file->claim(dev), -EBUSY);
	iomap_device_close(a);
	ck_assert_int_eq(b->file->claim(b), 0);
	ck_assert_int_eq(dev->file->claim(dev), -EBUSY);        /* a reader excludes writers … */
	ck_assert_int_eq(t_open_aio(path, O_RDONLY, 0, &a), 0);
	ck_assert_int_eq(a->file->claim(a), 0);                 /* … not readers */
	iomap_device_close(a);
	iomap_device_close(b);
	ck_assert_int_eq(dev->file->claim(dev), 0);
}
END_TEST

START_TEST(the_claim_ends_with_the_device_even_if_the_open_file_lives_on)
{
	struct iomap_device *a;

	NEED_DIRECT();
	int fd = open(path, O_RDWR | O_DIRECT);

	ck_assert_int_eq(t_open_fd(fd, &a), 0);
	ck_assert_int_eq(a->file->claim(a), 0);
	ck_assert_int_eq(dev->file->claim(dev), -EBUSY);
	iomap_device_close(a);
	ck_assert_int_eq(dev->file->claim(dev), 0);
	close(fd);
}
END_TEST

START_TEST(a_reader_becomes_a_writer)
{
	struct iomap_device *a, *b;
	const char *other = t_tmpfile();

	NEED_DIRECT();
	ck_assert_int_eq(t_open_aio(path, O_RDONLY, 0, &a), 0);
	ck_assert_int_eq(a->file->claim(a), 0);
	ck_assert_int_eq(t_dev_write(a, 0, out, 4096), -EBADF);
	int fd = a->file->fd(a);

	/* not that file */
	ck_assert_int_eq(a->file->make_writable(a, other), -ENOENT);
	close(open(other, O_RDWR | O_CREAT, 0600));
	ck_assert_int_eq(a->file->make_writable(a, other), -ESTALE);
	ck_assert_int_eq(a->file->fd(a), fd);

	/* not while another reads it; and the claim is kept */
	ck_assert_int_eq(t_open_aio(path, O_RDONLY, 0, &b), 0);
	ck_assert_int_eq(b->file->claim(b), 0);
	ck_assert_int_eq(a->file->make_writable(a, path), -EBUSY);
	iomap_device_close(b);
	ck_assert_int_eq(dev->file->claim(dev), -EBUSY);

	ck_assert_int_eq(a->file->make_writable(a, path), 0);
	ck_assert_int_ne(a->file->fd(a), fd);
	ck_assert_int_eq(a->file->make_writable(a, path), 0);
	t_fill(out, 0, 4200, 1);
	ck_assert_int_eq(t_dev_write(a, 0, out, 4200), 4200);
	check_file(4200, 1);
	ck_assert_int_eq(t_open_aio(path, O_RDONLY, 0, &b), 0);
	ck_assert_int_eq(b->file->claim(b), -EBUSY);
	iomap_device_close(b);
	iomap_device_close(a);
	ck_assert_int_eq(dev->file->claim(dev), 0);
}
END_TEST

START_TEST(space_and_holes_are_the_file_systems)
{
	uint64_t at;

	NEED_DIRECT();
	ck_assert_int_eq(device_set_size(dev, 1 << 20), 0);
	ck_assert_int_eq(file_size(), 1 << 20);
	ck_assert_int_eq(t_dev_write(dev, 65536 * 4, out, 65536), 65536);
	ck_assert_int_eq(device_seek(dev, 0, SEEK_DATA, &at), 0);
	ck_assert_uint_le(at, 65536 * 4);
	ck_assert_int_eq(device_seek(dev, 1 << 20, SEEK_DATA, &at), -ENXIO);
	int ret = device_allocate(dev, 0, 2 << 20, 0);

	if (ret != -EOPNOTSUPP) {
		ck_assert_int_eq(ret, 0);
		ck_assert_int_eq(file_size(), 2 << 20);
		ck_assert_uint_eq(device_size(dev), 2 << 20);
	}
	ret = device_allocate(dev, 65536 * 4, 32768, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
	if (ret != -EOPNOTSUPP) {
		static const unsigned char zeros[32768];

		ck_assert_int_eq(ret, 0);
		ck_assert_int_eq(t_dev_read(dev, 65536 * 4, in, 65536), 65536);
		ck_assert_mem_eq(in, zeros, 32768);
		ck_assert_mem_eq(in + 32768, out + 32768, 32768);
	}
	ret = device_allocate(dev, 65536 * 4, 65536, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
	if (ret != -EOPNOTSUPP) {
		static const unsigned char zeros[65536];

		ck_assert_int_eq(ret, 0);
		ck_assert_int_eq(t_dev_read(dev, 65536 * 4, in, 65536), 65536);
		ck_assert_mem_eq(in, zeros, 65536);
	}
	ck_assert_int_eq(device_set_size(dev, 5), 0);
	ck_assert_int_eq(file_size(), 5);
	ck_assert_int_eq(dev->file->fsync(dev), 0);
	ck_assert_uint_eq(t_dev_stat(dev).flushes, 0);
	ck_assert_int_eq(t_dev_flush(dev), 0);
	ck_assert_uint_eq(t_dev_stat(dev).flushes, 1);
}
END_TEST

Suite *suite_device_aio(void)
{
	Suite *s = suite_create("device-aio");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, any_size_goes_out_and_comes_back_exactly);
	tcase_add_test(tc, a_file_grows_by_odd_steps);
	tcase_add_test(tc, a_tail_inside_the_file_cuts_nothing);
	tcase_add_test(tc, the_tail_goes_last_and_at_its_exact_length);
	tcase_add_test(tc, no_tail_after_a_failed_write);
	tcase_add_test(tc, a_tail_whose_descriptor_cannot_be_opened_fails_and_can_be_tried_again);
	tcase_add_test(tc, memory_in_many_pieces_arrives_in_order);
	tcase_add_test(tc, more_pieces_than_the_kernel_takes_are_split);
	tcase_add_test(tc, short_writes_go_on_at_the_block_reached);
	tcase_add_test(tc, short_reads_go_on_until_the_end_of_the_file);
	tcase_add_test(tc, an_interrupted_piece_is_submitted_again);
	tcase_add_test(tc, a_submit_that_takes_fewer_loses_nothing);
	tcase_add_test(tc, an_error_of_submit_is_the_requests_result);
	tcase_add_test(tc, a_mixed_batch_larger_than_the_queue_is_taken_in_turns);
	tcase_add_test(tc, a_queue_that_cannot_be_set_up_leaves_nothing_behind);
	tcase_add_test(tc, devices_share_a_queue_that_is_smaller_than_their_load);
	tcase_add_test(tc, many_devices_come_and_go_with_work_just_done);
	tcase_add_test(tc, what_cannot_be_a_device_is_refused_without_blocking);
	tcase_add_test(tc, a_descriptor_must_be_open_for_direct_io);
	tcase_add_test(tc, truncating_at_open_empties_the_file_unless_it_is_claimed);
	tcase_add_test(tc, one_claim_excludes_another_until_it_goes);
	tcase_add_test(tc, the_claim_ends_with_the_device_even_if_the_open_file_lives_on);
	tcase_add_test(tc, a_reader_becomes_a_writer);
	tcase_add_test(tc, space_and_holes_are_the_file_systems);
	suite_add_tcase(s, tc);
	return s;
}
