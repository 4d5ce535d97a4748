/*
 * device-limit.c - requests pass at the rate set, everything else passes as if there were no limit
 */
#define _GNU_SOURCE
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "atomic.h"
#include "device.h"
#include "device-io.h"
#include "device-mem.h"
#include "test.h"
#include "util.h"

Suite *suite_device_limit(void);

#define TRIES 5

static unsigned char out[1 << 16], in[1 << 16];
static struct iomap_device *lower, *dev;

static void make_on(const struct iomap_mem_params *mem, const struct iomap_limit_params *limit)
{
	ck_assert_int_eq(iomap_device_open_mem(mem, &lower), 0);
	ck_assert_int_eq(iomap_device_open_limit(lower, limit, &dev), 0);
}

static void teardown(void)
{
	if (dev)
		iomap_device_close(dev);
	if (lower)
		iomap_device_close(lower);
	dev = lower = NULL;
}

START_TEST(bad_parameters_are_refused)
{
	struct iomap_limit_params p = IOMAP_LIMIT_PARAMS_INIT;
	struct { struct iomap_limit_params p; uint64_t later; } newer = { .p = IOMAP_LIMIT_PARAMS_INIT };

	ck_assert_int_eq(iomap_device_open_mem(NULL, &lower), 0);
	ck_assert_int_eq(iomap_device_open_limit(NULL, &p, &dev), -EINVAL);
	ck_assert_int_eq(iomap_device_open_limit(lower, &p, NULL), -EINVAL);
	p.struct_size = 3;
	ck_assert_int_eq(iomap_device_open_limit(lower, &p, &dev), -EINVAL);
	newer.p.struct_size = sizeof(newer);
	newer.later = 1;
	ck_assert_int_eq(iomap_device_open_limit(lower, &newer.p, &dev), -EOPNOTSUPP);
	p = (struct iomap_limit_params){ .queue_depth = UINT_MAX };
	ck_assert_int_eq(iomap_device_open_limit(lower, &p, &dev), -EINVAL);
	ck_assert_ptr_null(dev);
	ck_assert_int_eq(iomap_device_set_limit(NULL, NULL), -EINVAL);
	ck_assert_int_eq(iomap_device_set_limit(lower, NULL), -EINVAL);
	ck_assert_int_eq(iomap_device_open_limit(lower, NULL, &dev), 0);
	ck_assert_int_eq(iomap_device_set_limit(dev, &newer.p), -EOPNOTSUPP);
}
END_TEST

START_TEST(bytes_size_and_space_are_the_lower_devices)
{
	struct iomap_device_info info;

	make_on(&(struct iomap_mem_params){ .block = 4096 }, NULL);
	t_fill(out, 0, sizeof(out), 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 10000), 10000);
	ck_assert_uint_eq(device_size(dev), 10000);
	ck_assert_uint_eq(device_size(lower), 10000);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 12288), 10000);
	ck_assert(t_check_fill(in, 0, 10000, 1));
	ck_assert_int_eq(t_dev_write(lower, 16384, out, 4096), 4096);
	ck_assert_uint_eq(device_size(dev), 20480);
	ck_assert_int_eq(device_set_size(lower, 5), 0);
	ck_assert_uint_eq(device_size(dev), 5);
	ck_assert_int_eq(device_set_size(dev, 6), 0);
	ck_assert_uint_eq(device_size(lower), 6);
	ck_assert_int_eq(device_allocate(dev, 0, 4096, 0), 0);
	ck_assert_uint_eq(device_size(lower), 4096);
	ck_assert_int_eq(iomap_device_info(dev, &info), 0);
	ck_assert_uint_eq(info.block, 4096);
	ck_assert_uint_eq(info.size, 4096);
	ck_assert(!device_fixed_size(dev));
	ck_assert_ptr_null(dev->file);
	ck_assert_int_eq(t_dev_flush(dev), 0);

	struct iomap_device_stat st = t_dev_stat(dev), below = t_dev_stat(lower);

	ck_assert_uint_eq(st.write_ios, 1);
	ck_assert_uint_eq(st.written_bytes, 10000);
	ck_assert_uint_eq(st.read_bytes, 10000);
	ck_assert_uint_eq(st.flushes, 1);
	ck_assert_uint_eq(below.write_ios, 2);
	ck_assert_uint_eq(below.flushes, 1);
}
END_TEST

START_TEST(an_owner_claims_the_whole_stack)
{
	int a, b;

	make_on(NULL, NULL);
	ck_assert_int_eq(device_claim(lower, &a), 0);
	ck_assert_int_eq(device_claim(dev, &b), -EBUSY);
	ck_assert_int_eq(device_claim(dev, &a), 0);
	device_unclaim(dev, &a);
	ck_assert_int_eq(device_claim(dev, &b), 0);
	ck_assert_int_eq(device_claim(lower, &a), -EBUSY);
}
END_TEST

START_TEST(the_lower_device_lives_as_long_as_it_is_needed)
{
	make_on(NULL, NULL);
	ck_assert_int_eq(iomap_device_close(lower), 0);
	lower = NULL;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 512), 512);
}
END_TEST

START_TEST(errors_come_back)
{
	make_on(NULL, NULL);
	ck_assert_int_eq(t_dev_write(dev, UINT64_C(1) << 63, out, 512), -EFBIG);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 1);
}
END_TEST

/* --- rate -------------------------------------------------------------------------------------------------- */

/* Writes @n times @len, all offered at once; how long it took until the last came back. */
static uint64_t time_writes(unsigned n, size_t len)
{
	struct t_io *io = calloc(n, sizeof(*io));
	uint64_t start, took;

	for (unsigned i = 0; i < n; i++)
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 0, out, len);
	start = plat_now_ns();
	for (unsigned i = 0; i < n; i++)
		t_io_start(&io[i], dev);
	for (unsigned i = 0; i < n; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), len);
	took = plat_now_ns() - start;
	free(io);
	return took;
}

/*
 * The last of @n requests of cost @cost may go when those before it have paid, less the burst: never earlier,
 * and no more than 3 % later in the best of a few tries (the machine may be busy).
 */
static void check_rate(const struct iomap_limit_params *p, unsigned n, size_t len, uint64_t cost, uint64_t rate)
{
	uint64_t best = UINT64_MAX, ideal = (n - 1) * cost * NS_PER_S / rate - 10 * NS_PER_MS;

	for (unsigned i = 0; i < TRIES && best > ideal + ideal * 3 / 100; i++) {
		make_on(NULL, p);
		uint64_t took = time_writes(n, len);

		ck_assert_uint_ge(took, ideal);
		best = min_u64(best, took);
		ck_assert_uint_eq(t_dev_stat(dev).write_ios, n);
		ck_assert_uint_eq(t_dev_stat(lower).written_bytes, n * len);
		teardown();
	}
	ck_assert_uint_le(best, ideal + ideal * 3 / 100);
}

START_TEST(iops_are_kept)
{
	check_rate(&(struct iomap_limit_params){ .iops = 2000, .queue_depth = 64 }, 1000, 512, 1, 2000);
}
END_TEST

START_TEST(bytes_per_second_are_kept)
{
	check_rate(&(struct iomap_limit_params){ .bytes_per_second = 8000000 }, 100, 40000, 40000, 8000000);
}
END_TEST

START_TEST(a_large_request_counts_as_several)
{
	/* 40000 = 10 times 4000; 512-byte requests still count as one */
	check_rate(&(struct iomap_limit_params){ .iops = 2000, .split_bytes = 4000 }, 101, 40000, 10, 2000);
	check_rate(&(struct iomap_limit_params){ .iops = 3000, .split_bytes = 4000 }, 300, 512, 1, 3000);
}
END_TEST

START_TEST(the_tighter_of_two_limits_counts)
{
	check_rate(&(struct iomap_limit_params){ .iops = 1000, .bytes_per_second = 1000000000 }, 200, 512, 1, 1000);
	check_rate(&(struct iomap_limit_params){ .iops = 100000, .bytes_per_second = 512000 }, 200, 512, 512, 512000);
}
END_TEST

START_TEST(lifting_the_limit_releases_what_waits)
{
	enum { N = 100 };
	static struct t_io io[N];
	const struct iomap_limit_params slow = { .iops = 1 };

	make_on(NULL, &slow);
	for (unsigned i = 0; i < N; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 512 * i, out, 512);
		ck_assert(t_io_offer(&io[i], dev));
	}
	ck_assert(!t_io_is_done(&io[N - 1]));
	ck_assert_int_eq(t_dev_flush(dev), 0);          /* flushes do not wait for tokens */
	uint64_t start = plat_now_ns();

	ck_assert_int_eq(iomap_device_set_limit(dev, NULL), 0);
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	ck_assert_uint_lt(plat_now_ns() - start, 20 * NS_PER_S);
	for (unsigned i = 1; i < N; i++)                /* in the order they came */
		ck_assert_uint_lt(io[i - 1].seq, io[i].seq);
}
END_TEST

START_TEST(a_new_rate_holds_for_what_waits)
{
	struct t_io io[3];

	make_on(NULL, &(struct iomap_limit_params){ .bytes_per_second = 1 });
	for (unsigned i = 0; i < 3; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 0, out, 512);
		t_io_start(&io[i], dev);
	}
	ck_assert_int_eq(t_io_wait(&io[0]), 512);
	/* 512 bytes are owed: 512 s so far, 51 ms at the new rate */
	uint64_t start = plat_now_ns();

	ck_assert_int_eq(iomap_device_set_limit(dev, &(struct iomap_limit_params){ .bytes_per_second = 10000 }), 0);
	for (unsigned i = 1; i < 3; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	ck_assert_uint_ge(plat_now_ns() - start, 80 * NS_PER_MS);
}
END_TEST

/* --- the queue --------------------------------------------------------------------------------------------- */

START_TEST(a_full_queue_takes_fewer_and_can_be_made_deeper)
{
	struct t_io io[20];
	struct iomap_request *reqs[20];

	make_on(NULL, &(struct iomap_limit_params){ .iops = 1, .queue_depth = 4 });
	ck_assert_int_eq(t_dev_write(dev, 0, out, 512), 512);
	for (unsigned i = 0; i < 20; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 0, out, 512);
		reqs[i] = &io[i].req;
	}
	ck_assert_int_eq(device_submit(dev, reqs, 20), 4);
	ck_assert_int_eq(device_submit(dev, reqs + 4, 16), 0);
	ck_assert_int_eq(iomap_device_set_limit(dev, &(struct iomap_limit_params){ .iops = 1, .queue_depth = 12 }), 0);
	ck_assert_int_eq(device_submit(dev, reqs + 4, 16), 8);
	ck_assert_int_eq(iomap_device_set_limit(dev, &(struct iomap_limit_params){ .queue_depth = 2 }), 0);
	for (unsigned i = 0; i < 12; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	for (unsigned i = 12; i < 20; i++) {
		t_io_start(&io[i], dev);
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	}
}
END_TEST

START_TEST(what_a_full_lower_device_refuses_is_offered_again_and_charged_once)
{
	enum { N = 60 };
	static struct t_io io[N];

	make_on(&(struct iomap_mem_params){ .latency_ns = NS_PER_MS / 2, .queue_depth = 2 },
		&(struct iomap_limit_params){ .iops = 1000000 });
	for (unsigned i = 0; i < N; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 512 * i, out, 512);
		ck_assert(t_io_offer(&io[i], dev));
	}
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	ck_assert_uint_eq(t_dev_stat(lower).write_ios, N);
	ck_assert_uint_gt(t_dev_stat(lower).io_retries, 0);
	ck_assert_uint_eq(device_size(dev), 512 * N);
}
END_TEST

START_TEST(limits_stack)
{
	struct iomap_device *upper;

	make_on(NULL, NULL);
	ck_assert_int_eq(iomap_device_open_limit(dev, NULL, &upper), 0);
	ck_assert_int_eq(t_dev_write(upper, 0, out, 1000), 1000);
	ck_assert_uint_eq(device_size(upper), 1000);
	ck_assert_uint_eq(device_size(dev), 1000);
	ck_assert_int_eq(t_dev_flush(upper), 0);
	ck_assert_uint_eq(t_dev_stat(lower).flushes, 1);
	iomap_device_close(upper);
}
END_TEST

struct worker { struct thread t; unsigned nr; bool ok; };

static void write_own_blocks(void *arg)
{
	struct worker *w = arg;
	unsigned char mine[512], back[512];

	w->ok = true;
	for (unsigned i = 0; i < 200; i++) {
		uint64_t pos = (i % 16 * 4 + w->nr) * 512;

		t_fill(mine, pos, sizeof(mine), i);
		if (t_dev_write(dev, pos, mine, sizeof(mine)) != sizeof(mine) ||
		    t_dev_read(dev, pos, back, sizeof(back)) != sizeof(back) || memcmp(mine, back, sizeof(mine)))
			w->ok = false;
		if (i % 32 == 0 && t_dev_flush(dev))
			w->ok = false;
	}
}

START_TEST(threads_change_the_limit_while_others_write)
{
	struct worker w[4];

	make_on(&(struct iomap_mem_params){ .latency_ns = 20000, .queue_depth = 2 },
		&(struct iomap_limit_params){ .queue_depth = 3 });
	for (unsigned i = 0; i < 4; i++) {
		w[i].nr = i;
		ck_assert_int_eq(thread_create(&w[i].t, "worker", write_own_blocks, &w[i]), 0);
	}
	for (unsigned i = 0; i < 100; i++) {
		const struct iomap_limit_params p = { .iops = 1000 * (i % 7), .bytes_per_second = 1000000 * (i % 5),
						      .queue_depth = 1 + i % 9 };

		ck_assert_int_eq(iomap_device_set_limit(dev, &p), 0);
		ck_assert_int_eq(t_dev_flush(dev), 0);
	}
	ck_assert_int_eq(iomap_device_set_limit(dev, NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		thread_join(&w[i].t);
		ck_assert(w[i].ok);
	}
}
END_TEST

/* --- in front of a kernel file ----------------------------------------------------------------------------- */

START_TEST(what_a_kernel_file_can_do_it_can_do_through_a_limit)
{
	const char *path = t_tmpfile();
	struct iomap_device *other;
	static _Alignas(4096) unsigned char block[4096];
	struct stat st;
	uint64_t at;

	if (!t_direct_io()) {
		t_skip("no O_DIRECT");
		return;
	}
	ck_assert_int_eq(iomap_device_open_aio(path, O_RDWR | O_CREAT, 0600, &lower), 0);
	ck_assert_int_eq(iomap_device_open_limit(lower, NULL, &dev), 0);
	ck_assert_int_eq(iomap_device_open_aio(path, O_RDWR, 0, &other), 0);
	ck_assert_ptr_nonnull(dev->file);
	ck_assert_int_ge(dev->file->fd(dev), 0);
	ck_assert_int_eq(dev->file->fd(dev), lower->file->fd(lower));
	ck_assert_int_eq(dev->file->claim(dev), 0);
	ck_assert_int_eq(other->file->claim(other), -EBUSY);
	ck_assert_int_eq(t_dev_write(dev, 0, block, 1000), 1000);
	ck_assert_int_eq(dev->file->fstat(dev, &st), 0);
	ck_assert_int_eq(st.st_size, 1000);
	ck_assert_int_eq(dev->file->fsync(dev), 0);
	ck_assert_int_eq(dev->file->make_writable(dev, path), 0);
	ck_assert_int_eq(device_seek(dev, 0, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, 0);
	iomap_device_close(other);
}
END_TEST

Suite *suite_device_limit(void)
{
	Suite *s = suite_create("device-limit");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, NULL, teardown);
	tcase_add_test(tc, bad_parameters_are_refused);
	tcase_add_test(tc, bytes_size_and_space_are_the_lower_devices);
	tcase_add_test(tc, an_owner_claims_the_whole_stack);
	tcase_add_test(tc, the_lower_device_lives_as_long_as_it_is_needed);
	tcase_add_test(tc, errors_come_back);
	tcase_add_test(tc, iops_are_kept);
	tcase_add_test(tc, bytes_per_second_are_kept);
	tcase_add_test(tc, a_large_request_counts_as_several);
	tcase_add_test(tc, the_tighter_of_two_limits_counts);
	tcase_add_test(tc, lifting_the_limit_releases_what_waits);
	tcase_add_test(tc, a_new_rate_holds_for_what_waits);
	tcase_add_test(tc, a_full_queue_takes_fewer_and_can_be_made_deeper);
	tcase_add_test(tc, what_a_full_lower_device_refuses_is_offered_again_and_charged_once);
	tcase_add_test(tc, limits_stack);
	tcase_add_test(tc, threads_change_the_limit_while_others_write);
	tcase_add_test(tc, what_a_kernel_file_can_do_it_can_do_through_a_limit);
	suite_add_tcase(s, tc);
	return s;
}
