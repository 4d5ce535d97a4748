/*
 * device.c - what every device gets from the library: counting, size, references
 */
#define _GNU_SOURCE
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "device.h"
#include "device-io.h"
#include "util.h"

Suite *suite_device(void);

/* A backend that does as it is told: takes so many, keeps them, completes when the test says so. */
static struct {
	int answer;                     /* of submit: how many to take, or an error */
	int flush_answer;
	struct iomap_request *kept[8];
	unsigned nr_kept;
	unsigned destroyed;
	uint64_t set_size;
	int set_size_answer;
	int allocate_answer;
} be;

static int be_submit(struct iomap_device *dev, struct iomap_request **reqs, unsigned n)
{
	(void)dev;
	if (be.answer < 0)
		return be.answer;
	n = (unsigned)min_u64(n, (uint64_t)be.answer);
	for (unsigned i = 0; i < n; i++)
		be.kept[be.nr_kept++] = reqs[i];
	return (int)n;
}

static int be_flush(struct iomap_device *dev, struct iomap_request *req)
{
	(void)dev;
	if (be.flush_answer < 0)
		return be.flush_answer;
	be.kept[be.nr_kept++] = req;
	return 0;
}

static int be_set_size(struct iomap_device *dev, uint64_t size)
{
	(void)dev;
	be.set_size = size;
	return be.set_size_answer;
}

static int be_allocate(struct iomap_device *dev, uint64_t pos, uint64_t len, int mode)
{
	(void)dev;
	(void)pos;
	(void)len;
	(void)mode;
	return be.allocate_answer;
}

static void be_destroy(struct iomap_device *dev)
{
	ck_assert_ptr_eq(iomap_device_priv(dev), &be);
	be.destroyed++;
}

static const struct iomap_device_ops file_like = { be_submit, be_flush, be_set_size, be_allocate, NULL, be_destroy };
static const struct iomap_device_ops disk_like = { be_submit, be_flush, NULL, NULL, NULL, be_destroy };
static const struct iomap_device_info info = { .block = 512, .mem_align = 8, .size = 4096 };

static struct iomap_device *dev;
static _Alignas(512) unsigned char buf[8192];

static void make(const struct iomap_device_ops *ops)
{
	memset(&be, 0, sizeof(be));
	be.answer = 8;
	ck_assert_int_eq(iomap_device_create(ops, &be, &info, &dev), 0);
}

static void complete(unsigned i, int64_t result)
{
	be.kept[i]->result = result;
	be.kept[i]->done(be.kept[i]);
}

START_TEST(create_refuses_what_is_incomplete_or_out_of_range)
{
	struct iomap_device *none = NULL;
	struct iomap_device_ops ops;
	struct iomap_device_info bad;

	ck_assert_int_eq(iomap_device_create(NULL, NULL, &info, &none), -EINVAL);
	ck_assert_int_eq(iomap_device_create(&file_like, NULL, NULL, &none), -EINVAL);
	ck_assert_int_eq(iomap_device_create(&file_like, NULL, &info, NULL), -EINVAL);
	ops = file_like;
	ops.submit = NULL;
	ck_assert_int_eq(iomap_device_create(&ops, NULL, &info, &none), -EINVAL);
	ops = file_like;
	ops.flush = NULL;
	ck_assert_int_eq(iomap_device_create(&ops, NULL, &info, &none), -EINVAL);
	ops = file_like;
	ops.destroy = NULL;
	ck_assert_int_eq(iomap_device_create(&ops, NULL, &info, &none), -EINVAL);
	static const uint32_t blocks[] = { 0, 1, 256, 511, 513, 768, 131072 };

	for (unsigned i = 0; i < ARRAY_SIZE(blocks); i++) {
		bad = info;
		bad.block = blocks[i];
		ck_assert_int_eq(iomap_device_create(&file_like, NULL, &bad, &none), -EINVAL);
	}
	static const uint32_t aligns[] = { 3, 513, 8192 };

	for (unsigned i = 0; i < ARRAY_SIZE(aligns); i++) {
		bad = info;
		bad.mem_align = aligns[i];
		ck_assert_int_eq(iomap_device_create(&file_like, NULL, &bad, &none), -EINVAL);
	}
	bad = info;
	bad.max_bytes = 511;
	ck_assert_int_eq(iomap_device_create(&file_like, NULL, &bad, &none), -EINVAL);
	bad = info;
	bad.size = UINT64_MAX;
	ck_assert_int_eq(iomap_device_create(&file_like, NULL, &bad, &none), -EINVAL);
	ck_assert_ptr_null(none);
	ck_assert_int_eq(iomap_device_close(NULL), -EINVAL);
	ck_assert_int_eq(iomap_device_info(NULL, &bad), -EINVAL);
	ck_assert_ptr_null(iomap_device_priv(NULL));
}
END_TEST

START_TEST(the_last_reference_destroys)
{
	make(&file_like);
	ck_assert_ptr_eq(device_get(dev), dev);
	ck_assert_int_eq(iomap_device_close(dev), 0);
	ck_assert_uint_eq(be.destroyed, 0);
	device_put(dev);
	ck_assert_uint_eq(be.destroyed, 1);
}
END_TEST

START_TEST(a_device_serves_one_owner)
{
	int a, b;

	make(&file_like);
	ck_assert_int_eq(device_claim(dev, &a), 0);
	ck_assert_int_eq(device_claim(dev, &a), 0);
	ck_assert_int_eq(device_claim(dev, &b), -EBUSY);
	device_unclaim(dev, &b);
	ck_assert_int_eq(device_claim(dev, &b), -EBUSY);
	device_unclaim(dev, &a);
	ck_assert_int_eq(device_claim(dev, &b), 0);
	iomap_device_close(dev);
}
END_TEST

START_TEST(requests_not_taken_come_back_as_they_went)
{
	struct t_io io[3];
	struct iomap_request *reqs[3];
	void (*done)(struct iomap_request *);

	make(&file_like);
	for (unsigned i = 0; i < 3; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 512 * i, buf, 512);
		reqs[i] = &io[i].req;
	}
	done = io[0].req.done;
	be.answer = 1;
	ck_assert_int_eq(device_submit(dev, reqs, 3), 1);
	ck_assert(io[1].req.done == done);
	ck_assert(io[2].req.done == done);
	ck_assert_uint_eq(be.nr_kept, 1);
	static const int none[] = { 0, -EAGAIN, -EINTR };

	for (unsigned i = 0; i < ARRAY_SIZE(none); i++) {
		be.answer = none[i];
		ck_assert_int_eq(device_submit(dev, reqs + 1, 2), 0);
		ck_assert(io[1].req.done == done);
		ck_assert(!t_io_is_done(&io[1]));
	}
	be.answer = 2;
	ck_assert_int_eq(device_submit(dev, reqs + 1, 2), 2);
	for (unsigned i = 0; i < 3; i++) {
		complete(i, 512);
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
		ck_assert(io[i].req.done == done);
	}
	ck_assert_int_eq(device_submit(dev, reqs, 0), 0);
	iomap_device_close(dev);
}
END_TEST

START_TEST(a_request_refused_for_good_is_completed_with_the_error)
{
	struct t_io io[2];
	struct iomap_request *reqs[2];

	make(&file_like);
	for (unsigned i = 0; i < 2; i++) {
		t_io_init1(&io[i], IOMAP_REQ_READ, 512 * i, buf, 512);
		reqs[i] = &io[i].req;
	}
	be.answer = -EBADF;
	ck_assert_int_eq(device_submit(dev, reqs, 2), 1);
	ck_assert_int_eq(t_io_wait(&io[0]), -EBADF);
	ck_assert(!t_io_is_done(&io[1]));
	ck_assert_int_eq(device_submit(dev, reqs + 1, 1), 1);
	ck_assert_int_eq(t_io_wait(&io[1]), -EBADF);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 2);
	iomap_device_close(dev);
}
END_TEST

/* Starts a write of @len at @pos and completes it with @result. Returns the size its owner saw. */
static uint64_t size_after_write(uint64_t pos, size_t len, int64_t result)
{
	struct t_io io;

	be.nr_kept = 0;
	t_io_init1(&io, IOMAP_REQ_WRITE, pos, buf, len);
	t_io_start(&io, dev);
	complete(0, result);
	t_io_wait(&io);
	return io.size_seen;
}

START_TEST(a_completed_write_raises_the_size_before_its_owner_hears)
{
	make(&file_like);
	ck_assert_uint_eq(device_size(dev), 4096);
	ck_assert_uint_eq(size_after_write(0, 512, 512), 4096);
	ck_assert_uint_eq(size_after_write(4096, 512, -EIO), 4096);
	ck_assert_uint_eq(size_after_write(4096, 1024, 0), 4096);
	ck_assert_uint_eq(size_after_write(4096, 1024, 512), 4608);
	ck_assert_uint_eq(size_after_write(4096, 1000, 1000), 5096);
	ck_assert_uint_eq(size_after_write(0, 512, 512), 5096);
	ck_assert_uint_eq(device_size(dev), 5096);

	struct iomap_device_info now;

	ck_assert_int_eq(iomap_device_info(dev, &now), 0);
	ck_assert_uint_eq(now.size, 5096);
	ck_assert_uint_eq(now.block, 512);
	iomap_device_close(dev);
}
END_TEST

START_TEST(a_fixed_size_stays)
{
	make(&disk_like);
	ck_assert(device_fixed_size(dev));
	ck_assert_uint_eq(size_after_write(4096, 512, 512), 4096);
	ck_assert_int_eq(device_set_size(dev, 100), -EOPNOTSUPP);
	ck_assert_int_eq(device_allocate(dev, 0, 512, 0), -EOPNOTSUPP);
	uint64_t at;

	ck_assert_int_eq(device_seek(dev, 0, SEEK_DATA, &at), -EOPNOTSUPP);
	ck_assert_uint_eq(device_size(dev), 4096);
	iomap_device_close(dev);
}
END_TEST

START_TEST(set_size_and_allocate_change_the_size_if_they_succeed)
{
	make(&file_like);
	ck_assert_int_eq(device_set_size(dev, 100), 0);
	ck_assert_uint_eq(be.set_size, 100);
	ck_assert_uint_eq(device_size(dev), 100);
	be.set_size_answer = -ENOSPC;
	ck_assert_int_eq(device_set_size(dev, 200), -ENOSPC);
	ck_assert_uint_eq(device_size(dev), 100);
	ck_assert_int_eq(device_set_size(dev, UINT64_C(1) << 63), -EFBIG);

	ck_assert_int_eq(device_allocate(dev, 0, 0, 0), -EINVAL);
	ck_assert_int_eq(device_allocate(dev, INT64_MAX, 1, 0), -EFBIG);
	ck_assert_int_eq(device_allocate(dev, 0, 1000, FALLOC_FL_PUNCH_HOLE), -EOPNOTSUPP);
	ck_assert_int_eq(device_allocate(dev, 0, 1000, FALLOC_FL_COLLAPSE_RANGE), -EOPNOTSUPP);
	ck_assert_int_eq(device_allocate(dev, 0, 1000, FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_int_eq(device_allocate(dev, 0, 1000, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_uint_eq(device_size(dev), 100);
	be.allocate_answer = -ENOSPC;
	ck_assert_int_eq(device_allocate(dev, 0, 1000, 0), -ENOSPC);
	ck_assert_uint_eq(device_size(dev), 100);
	be.allocate_answer = 0;
	ck_assert_int_eq(device_allocate(dev, 0, 1000, 0), 0);
	ck_assert_uint_eq(device_size(dev), 1000);
	ck_assert_int_eq(device_allocate(dev, 1000, 1, FALLOC_FL_ZERO_RANGE), 0);
	ck_assert_uint_eq(device_size(dev), 1001);
	ck_assert_int_eq(device_allocate(dev, 0, 10, 0), 0);
	ck_assert_uint_eq(device_size(dev), 1001);
	iomap_device_close(dev);
}
END_TEST

START_TEST(requests_are_counted_by_their_result)
{
	struct t_io io[5];
	static const int64_t results[] = { 512, -EIO, 100, -ENOSPC, 1024 };

	make(&file_like);
	for (unsigned i = 0; i < 5; i++) {
		t_io_init1(&io[i], i < 2 ? IOMAP_REQ_READ : IOMAP_REQ_WRITE, 0, buf, 1024);
		t_io_start(&io[i], dev);
	}
	for (unsigned i = 0; i < 5; i++) {
		complete(i, results[i]);
		ck_assert_int_eq(t_io_wait(&io[i]), results[i]);
	}

	struct iomap_device_stat st = t_dev_stat(dev);

	ck_assert_uint_eq(st.read_ios, 2);
	ck_assert_uint_eq(st.read_bytes, 512);
	ck_assert_uint_eq(st.write_ios, 3);
	ck_assert_uint_eq(st.written_bytes, 1124);
	ck_assert_uint_eq(st.io_errors, 2);
	ck_assert_uint_eq(st.flushes, 0);
	ck_assert_uint_eq(st.io_retries, 0);
	iomap_device_close(dev);
}
END_TEST

START_TEST(flushes_are_counted_and_come_back)
{
	struct t_io io;
	void (*done)(struct iomap_request *);

	make(&file_like);
	t_io_init(&io, IOMAP_REQ_FLUSH, 0, NULL, 0);
	done = io.req.done;
	be.flush_answer = -EIO;
	ck_assert_int_eq(device_flush(dev, &io.req), -EIO);
	ck_assert(io.req.done == done);
	ck_assert(!t_io_is_done(&io));
	be.flush_answer = 0;
	ck_assert_int_eq(device_flush(dev, &io.req), 0);
	ck_assert(!t_io_is_done(&io));
	complete(0, 0);
	ck_assert_int_eq(t_io_wait(&io), 0);
	ck_assert_uint_eq(t_dev_stat(dev).flushes, 2);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 1);
	iomap_device_close(dev);
}
END_TEST

START_TEST(statistics_fit_older_and_newer_callers)
{
	struct { struct iomap_device_stat st; uint64_t more; } newer;

	make(&file_like);
	size_after_write(0, 512, 512);
	memset(&newer, 0xff, sizeof(newer));
	ck_assert_int_eq(iomap_device_stat(dev, &newer.st, sizeof(newer)), 0);
	ck_assert_uint_eq(newer.st.written_bytes, 512);
	ck_assert_uint_eq(newer.more, 0);
	memset(&newer, 0xff, sizeof(newer));
	ck_assert_int_eq(iomap_device_stat(dev, &newer.st, 16), 0);
	ck_assert_uint_eq(newer.st.written_bytes, 512);
	ck_assert_uint_eq(newer.st.read_ios, UINT64_MAX);
	ck_assert_int_eq(iomap_device_stat(dev, &newer.st, 0), -EINVAL);
	ck_assert_int_eq(iomap_device_stat(dev, &newer.st, 12), -EINVAL);
	ck_assert_int_eq(iomap_device_stat(dev, NULL, 16), -EINVAL);
	ck_assert_int_eq(iomap_device_stat(NULL, &newer.st, 16), -EINVAL);
	iomap_device_close(dev);
}
END_TEST

Suite *suite_device(void)
{
	Suite *s = suite_create("device");
	TCase *tc = tcase_create("all");

	tcase_add_test(tc, create_refuses_what_is_incomplete_or_out_of_range);
	tcase_add_test(tc, the_last_reference_destroys);
	tcase_add_test(tc, a_device_serves_one_owner);
	tcase_add_test(tc, requests_not_taken_come_back_as_they_went);
	tcase_add_test(tc, a_request_refused_for_good_is_completed_with_the_error);
	tcase_add_test(tc, a_completed_write_raises_the_size_before_its_owner_hears);
	tcase_add_test(tc, a_fixed_size_stays);
	tcase_add_test(tc, set_size_and_allocate_change_the_size_if_they_succeed);
	tcase_add_test(tc, requests_are_counted_by_their_result);
	tcase_add_test(tc, flushes_are_counted_and_come_back);
	tcase_add_test(tc, statistics_fit_older_and_newer_callers);
	suite_add_tcase(s, tc);
	return s;
}
