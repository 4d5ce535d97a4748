/*
 * device-mem.c - the memory device keeps bytes like a file, and is as slow and faulty as asked
 */
#define _GNU_SOURCE
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "atomic.h"
#include "device.h"
#include "device-io.h"
#include "device-mem.h"
#include "test.h"
#include "util.h"

Suite *suite_device_mem(void);

static unsigned char out[1 << 20], in[1 << 20];
static struct iomap_device *dev;

static void make(const struct iomap_mem_params *params)
{
	ck_assert_int_eq(iomap_device_open_mem(params, &dev), 0);
}

static void teardown(void)
{
	if (dev)
		iomap_device_close(dev);
	dev = NULL;
}

static bool all_zero(const unsigned char *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (p[i])
			return false;
	return true;
}

START_TEST(bad_parameters_are_refused)
{
	struct iomap_mem_params p = IOMAP_MEM_PARAMS_INIT;
	struct { struct iomap_mem_params p; uint64_t later; } newer = { .p = IOMAP_MEM_PARAMS_INIT };

	ck_assert_int_eq(iomap_device_open_mem(&p, NULL), -EINVAL);
	p.block = 1000;
	ck_assert_int_eq(iomap_device_open_mem(&p, &dev), -EINVAL);
	p.block = 0;
	p.struct_size = 8;
	ck_assert_int_eq(iomap_device_open_mem(&p, &dev), -EINVAL);
	p.struct_size = SIZE_MAX;
	ck_assert_int_eq(iomap_device_open_mem(&p, &dev), -EINVAL);
	newer.p.struct_size = sizeof(newer);
	newer.later = 1;
	ck_assert_int_eq(iomap_device_open_mem(&newer.p, &dev), -EOPNOTSUPP);
	ck_assert_ptr_null(dev);
	newer.later = 0;
	make(&newer.p);
	teardown();
	p.struct_size = 0;
	p.size = 12345;
	make(&p);

	struct iomap_device_info info;

	ck_assert_int_eq(iomap_device_info(dev, &info), 0);
	ck_assert_uint_eq(info.block, 512);
	ck_assert_uint_eq(info.size, 12345);
}
END_TEST

START_TEST(what_was_written_is_read_and_the_rest_is_zeros)
{
	struct iomap_mem_params p = { .size = 1 << 20 };

	make(&p);
	ck_assert_int_eq(t_dev_read(dev, 0, in, sizeof(in)), sizeof(in));
	ck_assert(all_zero(in, sizeof(in)));
	t_fill(out, 65024, 3 * 65536, 1);
	ck_assert_int_eq(t_dev_write(dev, 65024, out, 3 * 65536), 3 * 65536);
	ck_assert_int_eq(t_dev_read(dev, 0, in, sizeof(in)), sizeof(in));
	ck_assert(all_zero(in, 65024));
	ck_assert(t_check_fill(in + 65024, 65024, 3 * 65536, 1));
	ck_assert(all_zero(in + 65024 + 3 * 65536, sizeof(in) - 65024 - 3 * 65536));
	ck_assert_uint_eq(device_size(dev), 1 << 20);
}
END_TEST

START_TEST(reads_end_at_the_size_and_writes_move_it)
{
	make(NULL);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 512), 0);
	t_fill(out, 0, 1000, 1);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 1000), 1000);
	ck_assert_uint_eq(device_size(dev), 1000);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 4096), 1000);
	ck_assert(t_check_fill(in, 0, 1000, 1));
	ck_assert_int_eq(t_dev_read(dev, 512, in, 512), 488);
	ck_assert_int_eq(t_dev_read(dev, 1024, in, 512), 0);
	ck_assert_int_eq(t_dev_write(dev, 8192, out, 512), 512);
	ck_assert_uint_eq(device_size(dev), 8704);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 8192), 8192);
	ck_assert(all_zero(in + 1000, 8192 - 1000));
}
END_TEST

START_TEST(offsets_reach_up_to_2_to_the_63)
{
	const uint64_t last = (UINT64_C(1) << 63) - 512;

	make(NULL);
	t_fill(out, 0, 512, 7);
	ck_assert_int_eq(t_dev_write(dev, last - 512, out, 512), 512);
	ck_assert_uint_eq(device_size(dev), last);
	ck_assert_int_eq(t_dev_read(dev, last - 512, in, 512), 512);
	ck_assert(t_check_fill(in, 0, 512, 7));
	ck_assert_int_eq(t_dev_write(dev, last + 512, out, 512), -EFBIG);
	ck_assert_int_eq(t_dev_read(dev, 1 << 30, in, 4096), 4096);
	ck_assert(all_zero(in, 4096));
	ck_assert_int_eq(device_set_size(dev, 0), 0);
	ck_assert_int_eq(device_set_size(dev, INT64_MAX), 0);
	ck_assert_int_eq(t_dev_read(dev, last - 512, in, 512), 512);
	ck_assert(all_zero(in, 512));
}
END_TEST

START_TEST(what_was_cut_off_reads_as_zeros_when_it_grows_back)
{
	make(NULL);
	memset(out, 0xaa, sizeof(out));
	ck_assert_int_eq(t_dev_write(dev, 0, out, 262144), 262144);
	static const unsigned cuts[] = { 262143, 196609, 196608, 196607, 65536, 1000, 1, 0 };

	for (unsigned i = 0; i < ARRAY_SIZE(cuts); i++) {
		ck_assert_int_eq(device_set_size(dev, cuts[i]), 0);
		ck_assert_uint_eq(device_size(dev), cuts[i]);
		ck_assert_int_eq(device_set_size(dev, 262144), 0);
		ck_assert_int_eq(t_dev_read(dev, 0, in, 262144), 262144);
		ck_assert_mem_eq(in, out, cuts[i]);
		ck_assert(all_zero(in + cuts[i], 262144 - cuts[i]));
	}
}
END_TEST

START_TEST(punching_and_zeroing_leave_zeros)
{
	make(NULL);
	memset(out, 0xaa, sizeof(out));
	ck_assert_int_eq(t_dev_write(dev, 0, out, 262144), 262144);
	ck_assert_int_eq(device_allocate(dev, 1000, 200000, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_int_eq(device_allocate(dev, 262000, 1000, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_uint_eq(device_size(dev), 262144);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 262144), 262144);
	ck_assert_mem_eq(in, out, 1000);
	ck_assert(all_zero(in + 1000, 200000));
	ck_assert_mem_eq(in + 201000, out, 61000);
	ck_assert(all_zero(in + 262000, 144));
	ck_assert_int_eq(device_allocate(dev, 262000, 1000, FALLOC_FL_ZERO_RANGE), 0);
	ck_assert_uint_eq(device_size(dev), 263000);
	ck_assert_int_eq(device_allocate(dev, 0, 1 << 20, FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_uint_eq(device_size(dev), 263000);
	ck_assert_int_eq(device_allocate(dev, 0, 1 << 20, 0), 0);
	ck_assert_uint_eq(device_size(dev), 1 << 20);
}
END_TEST

START_TEST(what_was_never_written_or_is_zeroed_is_a_hole)
{
	static unsigned char bytes[4096];
	uint64_t at, far = UINT64_C(1) << 40;

	make(NULL);
	ck_assert_int_eq(device_seek(dev, 0, SEEK_HOLE, &at), -ENXIO);
	ck_assert_int_eq(device_set_size(dev, far + 100000), 0);
	ck_assert_int_eq(device_seek(dev, 0, SEEK_DATA, &at), -ENXIO);
	ck_assert_int_eq(device_seek(dev, 5, SEEK_HOLE, &at), 0);
	ck_assert_uint_eq(at, 5);
	for (unsigned i = 0; i < 17; i++)       /* over the edge of a chunk */
		ck_assert_int_eq(t_dev_write(dev, 4096 + i * 4096, bytes, 4096), 4096);
	ck_assert_int_eq(t_dev_write(dev, far, bytes, 512), 512);
	ck_assert_int_eq(device_seek(dev, 0, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, 4096);
	ck_assert_int_eq(device_seek(dev, 5000, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, 5000);
	ck_assert_int_eq(device_seek(dev, 5000, SEEK_HOLE, &at), 0);
	ck_assert_uint_eq(at, 4096 + 17 * 4096);
	ck_assert_int_eq(device_seek(dev, at, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, far);
	ck_assert_int_eq(device_seek(dev, far, SEEK_HOLE, &at), 0);
	ck_assert_uint_eq(at, far + 512);
	ck_assert_int_eq(device_seek(dev, far + 512, SEEK_DATA, &at), -ENXIO);
	ck_assert_int_eq(device_seek(dev, far + 100000, SEEK_HOLE, &at), -ENXIO);
	ck_assert_int_eq(device_seek(dev, 0, 99, &at), -EINVAL);
	ck_assert_int_eq(device_allocate(dev, 8192, 4096, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_int_eq(device_allocate(dev, 12288 + 100, 1000, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), 0);
	ck_assert_int_eq(device_seek(dev, 4096, SEEK_HOLE, &at), 0);
	ck_assert_uint_eq(at, 8192);
	ck_assert_int_eq(device_seek(dev, 8192, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, 12288);
	ck_assert_int_eq(device_seek(dev, 12288, SEEK_HOLE, &at), 0);   /* the 512 bytes that lie whole in the range */
	ck_assert_uint_eq(at, 12288 + 512);
	ck_assert_int_eq(device_seek(dev, at, SEEK_DATA, &at), 0);
	ck_assert_uint_eq(at, 12288 + 1024);
	ck_assert_int_eq(device_set_size(dev, 6000), 0);
	ck_assert_int_eq(device_set_size(dev, 20000), 0);
	ck_assert_int_eq(device_seek(dev, 8192, SEEK_DATA, &at), -ENXIO);
	ck_assert_int_eq(device_seek(dev, 4096, SEEK_HOLE, &at), 0);
	ck_assert_uint_le(at, 6144);
}
END_TEST

START_TEST(raw_contents_can_be_looked_at_and_changed_past_the_size)
{
	make(NULL);
	ck_assert_int_eq(device_mem_poke(dev, 65530, "across", 6), 0);
	ck_assert_int_eq(device_mem_poke(dev, 65536, "!", 1), 0);
	ck_assert_int_eq(device_mem_peek(dev, 65528, in, 10), 0);
	ck_assert_mem_eq(in, "\0\0across!\0", 10);
	ck_assert_uint_eq(device_size(dev), 0);
	ck_assert_uint_eq(t_dev_stat(dev).read_ios + t_dev_stat(dev).write_ios, 0);
	ck_assert_int_eq(device_set_size(dev, 1 << 20), 0);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 1 << 20), 1 << 20);
	ck_assert(all_zero(in, 1 << 20));
	ck_assert_int_eq(device_mem_peek(dev, UINT64_MAX, in, 2), -EINVAL);
	ck_assert_int_eq(device_mem_peek(NULL, 0, in, 2), -EINVAL);
}
END_TEST

/* --- the hook ---------------------------------------------------------------------------------------------- */

static struct { int64_t verdict; uint64_t delay_ns; _Atomic unsigned calls[3]; } hook;

static int64_t fail_hook(void *priv, const struct iomap_request *req, uint64_t *delay_ns)
{
	ck_assert_ptr_eq(priv, &hook);
	hook.calls[req->op]++;
	*delay_ns += hook.delay_ns;
	return hook.verdict;
}

static void make_hooked(unsigned depth)
{
	const struct iomap_mem_params p = { .queue_depth = depth, .fail = fail_hook, .fail_priv = &hook };

	memset(&hook, 0, sizeof(hook));
	make(&p);
}

START_TEST(the_hook_decides_what_takes_effect)
{
	make_hooked(0);
	memset(out, 0xaa, 8192);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 4096), 4096);
	hook.verdict = -ENOSPC;
	memset(out, 0xbb, 8192);
	ck_assert_int_eq(t_dev_write(dev, 0, out, 8192), -ENOSPC);
	ck_assert_int_eq(t_dev_flush(dev), -ENOSPC);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 512), -ENOSPC);
	ck_assert_uint_eq(device_size(dev), 4096);
	hook.verdict = 1000;
	ck_assert_int_eq(t_dev_write(dev, 0, out, 8192), 1000);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 4096), 1000);
	ck_assert_int_eq(t_dev_flush(dev), 0);
	hook.verdict = 0;
	ck_assert_uint_eq(device_size(dev), 4096);
	ck_assert_int_eq(t_dev_read(dev, 0, in, 4096), 4096);
	ck_assert_mem_eq(in, out, 1000);
	memset(out, 0xaa, 8192);
	ck_assert_mem_eq(in + 1000, out, 3096);
	hook.verdict = 100000;          /* more than there is */
	ck_assert_int_eq(t_dev_read(dev, 0, in, 8192), 4096);
	hook.verdict = 4608;            /* short, and past the end */
	ck_assert_int_eq(t_dev_write(dev, 0, out, 8192), 4608);
	ck_assert_uint_eq(device_size(dev), 4608);
	ck_assert_uint_eq(hook.calls[IOMAP_REQ_WRITE], 4);
	ck_assert_uint_eq(hook.calls[IOMAP_REQ_READ], 4);
	ck_assert_uint_eq(hook.calls[IOMAP_REQ_FLUSH], 2);
	ck_assert_uint_eq(t_dev_stat(dev).io_errors, 3);
}
END_TEST

/* --- time -------------------------------------------------------------------------------------------------- */

START_TEST(delayed_requests_complete_in_the_order_of_their_time)
{
	struct t_io io[5];
	static const unsigned delay_ms[] = { 200, 100, 0, 300, 100 };
	static const unsigned order[] = { 2, 1, 4, 0, 3 };

	make_hooked(0);
	device_set_size(dev, 4096);
	for (unsigned i = 0; i < 5; i++) {
		hook.delay_ns = delay_ms[i] * NS_PER_MS;
		t_io_init1(&io[i], IOMAP_REQ_READ, 0, in + 512 * i, 512);
		t_io_start(&io[i], dev);
	}
	ck_assert(t_io_is_done(&io[2]));
	for (unsigned i = 0; i < 5; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	for (unsigned i = 1; i < 5; i++)
		ck_assert_uint_lt(io[order[i - 1]].seq, io[order[i]].seq);
}
END_TEST

START_TEST(a_full_queue_takes_fewer_and_the_hook_is_not_asked)
{
	struct t_io io[4];
	struct iomap_request *reqs[4];

	make_hooked(3);
	hook.delay_ns = 200 * NS_PER_MS;
	for (unsigned i = 0; i < 4; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 512 * i, out, 512);
		reqs[i] = &io[i].req;
	}
	ck_assert_int_eq(device_submit(dev, reqs, 4), 3);
	ck_assert_uint_eq(hook.calls[IOMAP_REQ_WRITE], 3);
	ck_assert_uint_eq(t_dev_stat(dev).io_retries, 1);
	hook.delay_ns = 0;
	ck_assert_int_eq(t_dev_flush(dev), 0);          /* needs no place in the queue */
	ck_assert_int_eq(t_io_wait(&io[0]), 512);
	t_io_start(&io[3], dev);
	for (unsigned i = 1; i < 4; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 512);
	ck_assert_uint_eq(hook.calls[IOMAP_REQ_WRITE], 4);
}
END_TEST

START_TEST(bytes_move_when_a_request_is_due_not_before)
{
	struct t_io wr;

	make_hooked(0);
	hook.delay_ns = 200 * NS_PER_MS;
	memset(out, 1, 512);
	t_io_init1(&wr, IOMAP_REQ_WRITE, 0, out, 512);
	t_io_start(&wr, dev);
	memset(out, 2, 512);            /* what a cache must never do: it shows */
	hook.delay_ns = 0;
	ck_assert_int_eq(t_dev_flush(dev), 0);
	ck_assert_int_eq(t_io_wait(&wr), 512);
	ck_assert_int_eq(device_mem_peek(dev, 0, in, 512), 0);
	ck_assert_int_eq(in[0], 2);
}
END_TEST

START_TEST(many_flushes_at_once_all_come_back)
{
	enum { N = 100 };               /* more than the device keeps at once */
	static struct t_io io[N];

	make_hooked(0);
	hook.delay_ns = NS_PER_MS;
	for (unsigned i = 0; i < N; i++) {
		t_io_init(&io[i], IOMAP_REQ_FLUSH, 0, NULL, 0);
		ck_assert_int_eq(device_flush(dev, &io[i].req), 0);
	}
	for (unsigned i = 0; i < N; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), 0);
	ck_assert_uint_eq(t_dev_stat(dev).flushes, N);
}
END_TEST

/* Runs @n writes of @len at once; how long that took. */
static uint64_t time_writes(unsigned n, size_t len)
{
	struct t_io *io = calloc(n, sizeof(*io));
	uint64_t start = plat_now_ns();

	for (unsigned i = 0; i < n; i++) {
		t_io_init1(&io[i], IOMAP_REQ_WRITE, 0, out, len);
		t_io_start(&io[i], dev);
	}
	for (unsigned i = 0; i < n; i++)
		ck_assert_int_eq(t_io_wait(&io[i]), len);
	free(io);
	return plat_now_ns() - start;
}

START_TEST(latency_and_rates_are_never_undercut)
{
	make(&(struct iomap_mem_params){ .latency_ns = 5 * NS_PER_MS });
	ck_assert_uint_ge(time_writes(4, 512), 5 * NS_PER_MS);
	teardown();
	make(&(struct iomap_mem_params){ .iops = 1000 });
	ck_assert_uint_ge(time_writes(51, 512), 50 * NS_PER_MS);
	teardown();
	make(&(struct iomap_mem_params){ .bytes_per_second = 1 << 20 });
	ck_assert_uint_ge(time_writes(16, 4096), 62 * NS_PER_MS);
	teardown();
	make(&(struct iomap_mem_params){ .iops = 1000, .bytes_per_second = 1 << 20, .latency_ns = NS_PER_MS,
					 .queue_depth = 4 });
	ck_assert_uint_ge(time_writes(16, 4096), 62 * NS_PER_MS);
}
END_TEST

/* --- threads ----------------------------------------------------------------------------------------------- */

struct worker { struct thread t; unsigned nr; bool ok; };

static void write_and_read_own_blocks(void *arg)
{
	struct worker *w = arg;
	unsigned char mine[4096], back[4096];
	uint64_t state = w->nr;

	w->ok = true;
	for (unsigned i = 0; i < 500; i++) {
		uint64_t pos = (t_random_below(&state, 64) * 4 + w->nr) * 4096;

		t_fill(mine, pos, sizeof(mine), i);
		if (t_dev_write(dev, pos, mine, sizeof(mine)) != sizeof(mine) ||
		    t_dev_read(dev, pos, back, sizeof(back)) != sizeof(back) || memcmp(mine, back, sizeof(mine)))
			w->ok = false;
	}
}

START_TEST(threads_share_chunks_without_losing_bytes)
{
	struct worker w[4];

	make(_i ? &(struct iomap_mem_params){ .latency_ns = 20000 } : NULL);
	for (unsigned i = 0; i < 4; i++) {
		w[i].nr = i;
		ck_assert_int_eq(thread_create(&w[i].t, "worker", write_and_read_own_blocks, &w[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		thread_join(&w[i].t);
		ck_assert(w[i].ok);
	}
	ck_assert_uint_eq(t_dev_stat(dev).written_bytes, 4 * 500 * 4096);
}
END_TEST

Suite *suite_device_mem(void)
{
	Suite *s = suite_create("device-mem");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, NULL, teardown);
	tcase_add_test(tc, bad_parameters_are_refused);
	tcase_add_test(tc, what_was_written_is_read_and_the_rest_is_zeros);
	tcase_add_test(tc, reads_end_at_the_size_and_writes_move_it);
	tcase_add_test(tc, offsets_reach_up_to_2_to_the_63);
	tcase_add_test(tc, what_was_cut_off_reads_as_zeros_when_it_grows_back);
	tcase_add_test(tc, punching_and_zeroing_leave_zeros);
	tcase_add_test(tc, what_was_never_written_or_is_zeroed_is_a_hole);
	tcase_add_test(tc, raw_contents_can_be_looked_at_and_changed_past_the_size);
	tcase_add_test(tc, the_hook_decides_what_takes_effect);
	tcase_add_test(tc, delayed_requests_complete_in_the_order_of_their_time);
	tcase_add_test(tc, a_full_queue_takes_fewer_and_the_hook_is_not_asked);
	tcase_add_test(tc, bytes_move_when_a_request_is_due_not_before);
	tcase_add_test(tc, many_flushes_at_once_all_come_back);
	tcase_add_test(tc, latency_and_rates_are_never_undercut);
	tcase_add_loop_test(tc, threads_share_chunks_without_losing_bytes, 0, 2);
	suite_add_tcase(s, tc);
	return s;
}
