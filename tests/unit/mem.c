/*
 * mem.c - every source of metadata memory gives zeroed, aligned, exactly counted pieces
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <iomap/cache.h>
#include "mem.h"
#include "platform.h"
#include "util.h"

Suite *suite_mem(void);

/* An allocator that hands out garbage, remembers what it was asked, and fails on demand. */
struct picky { unsigned calls, fail_at; int64_t bytes; size_t last_align; };

static void *picky_alloc(void *priv, size_t size, size_t align)
{
	struct picky *picky = priv;
	void *p = NULL;

	if (++picky->calls == picky->fail_at)
		return NULL;
	if (posix_memalign(&p, max_u64(align, sizeof(void *)), size))
		return NULL;
	memset(p, 0xa5, size);
	picky->bytes += (int64_t)size;
	picky->last_align = align;
	return p;
}

static void picky_free(void *priv, void *p, size_t size)
{
	struct picky *picky = priv;

	picky->bytes -= (int64_t)size;
	free(p);
}

static struct picky picky;
static const struct iomap_allocator picky_allocator = { picky_alloc, picky_free, &picky };

enum { FROM_DEFAULT, FROM_MALLOC, FROM_USER, NR_SOURCES };

static void init_from(struct mem *m, int source)
{
	picky = (struct picky){ 0 };
	if (source == FROM_MALLOC)
		mem_init_malloc(m);
	else
		ck_assert_int_eq(mem_init(m, source == FROM_USER ? &picky_allocator : NULL), 0);
}

static bool all_zero(const unsigned char *p, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (p[i])
			return false;
	return true;
}

START_TEST(memory_is_zeroed_even_where_it_was_used_before)
{
	struct mem m;

	init_from(&m, _i);
	for (size_t size = 1; size <= 70000; size = size * 3 + 1) {
		for (int again = 0; again < 3; again++) {
			unsigned char *p = mem_alloc(&m, size);

			ck_assert_ptr_nonnull(p);
			ck_assert(all_zero(p, size));
			memset(p, 0xff, size);
			mem_free(&m, p, size);
		}
	}
	mem_fini(&m);
}
END_TEST

START_TEST(memory_is_aligned_as_asked)
{
	struct mem m;

	init_from(&m, _i);
	for (size_t align = 1; align <= 65536; align *= 2) {
		for (size_t size = 1; size <= 5000; size = size * 4 + 1) {
			unsigned char *p = mem_alloc_aligned(&m, size, align);

			ck_assert_ptr_nonnull(p);
			ck_assert_uint_eq((uintptr_t)p & (align - 1), 0);
			ck_assert(all_zero(p, size));
			mem_free(&m, p, size);
		}
	}
	ck_assert_uint_eq(mem_bytes(&m), 0);
	mem_fini(&m);
}
END_TEST

START_TEST(the_count_is_the_sum_of_what_is_out)
{
	struct mem m;
	void *p[100];
	uint64_t sum = 0;

	init_from(&m, _i);
	ck_assert_uint_eq(mem_bytes(&m), 0);
	for (unsigned i = 0; i < 100; i++) {
		p[i] = mem_alloc(&m, i * 37 + 1);
		ck_assert_ptr_nonnull(p[i]);
		sum += i * 37 + 1;
		ck_assert_uint_eq(mem_bytes(&m), sum);
	}
	for (unsigned i = 0; i < 100; i++) {
		unsigned k = (i * 67) % 100;

		mem_free(&m, p[k], k * 37 + 1);
		sum -= k * 37 + 1;
		ck_assert_uint_eq(mem_bytes(&m), sum);
	}
	ck_assert_uint_eq(mem_bytes(&m), 0);
	mem_fini(&m);
}
END_TEST

START_TEST(freeing_null_does_nothing)
{
	struct mem m;

	init_from(&m, _i);
	mem_free(&m, NULL, 4096);
	ck_assert_uint_eq(mem_bytes(&m), 0);
	mem_fini(&m);
}
END_TEST

START_TEST(a_users_allocator_sees_every_size_alignment_and_free)
{
	struct mem m;

	init_from(&m, FROM_USER);
	void *a = mem_alloc_aligned(&m, 100, 256), *b = mem_alloc(&m, 1);

	ck_assert_ptr_nonnull(a);
	ck_assert_ptr_nonnull(b);
	ck_assert_uint_eq(picky.calls, 2);
	ck_assert_uint_eq(picky.last_align, _Alignof(max_align_t));
	ck_assert_int_eq(picky.bytes, 101);
	mem_free(&m, a, 100);
	mem_free(&m, b, 1);
	ck_assert_int_eq(picky.bytes, 0);
	mem_fini(&m);
}
END_TEST

START_TEST(a_failing_users_allocator_fails_the_call_and_counts_nothing)
{
	struct mem m;

	for (unsigned n = 1; n <= 4; n++) {
		void *p[4];

		init_from(&m, FROM_USER);
		picky.fail_at = n;
		for (unsigned i = 0; i < 4; i++) {
			p[i] = mem_alloc(&m, 1000);
			ck_assert_int_eq(p[i] == NULL, i + 1 == n);
		}
		ck_assert_uint_eq(mem_bytes(&m), 3000);
		ck_assert_int_eq(picky.bytes, 3000);
		for (unsigned i = 0; i < 4; i++)
			mem_free(&m, p[i], 1000);
		ck_assert_uint_eq(mem_bytes(&m), 0);
		ck_assert_int_eq(picky.bytes, 0);
		mem_fini(&m);
	}
}
END_TEST

START_TEST(an_impossible_size_is_refused_and_counts_nothing)
{
	struct mem m;

	ck_assert_int_eq(mem_init(&m, NULL), 0);
	if (!m.has_arena)               /* a sanitizer's malloc would end the program here */
		mem_fini(&m);
	else {
		ck_assert_ptr_null(mem_alloc(&m, SIZE_MAX / 4));
		ck_assert_uint_eq(mem_bytes(&m), 0);
		mem_fini(&m);
	}
}
END_TEST

START_TEST(an_arena_takes_back_what_was_not_freed)
{
	for (unsigned round = 0; round < 50; round++) {
		struct mem m;

		ck_assert_int_eq(mem_init(&m, NULL), 0);
		for (unsigned i = 0; m.has_arena && i < 16; i++)
			ck_assert_ptr_nonnull(mem_alloc(&m, 65536));
		mem_fini(&m);
		ck_assert(!m.has_arena);
	}
}
END_TEST

static void alloc_and_free(void *arg)
{
	struct mem *m = arg;

	for (size_t i = 0; i < 20000; i++)
		mem_free(m, mem_alloc(m, i % 500 + 1), i % 500 + 1);
}

START_TEST(two_threads_lose_no_byte_of_the_count)
{
	struct mem m;
	struct thread t;

	init_from(&m, _i);
	ck_assert_int_eq(thread_create(&t, "alloc", alloc_and_free, &m), 0);
	alloc_and_free(&m);
	thread_join(&t);
	ck_assert_uint_eq(mem_bytes(&m), 0);
	mem_fini(&m);
}
END_TEST

Suite *suite_mem(void)
{
	Suite *s = suite_create("mem");
	TCase *tc = tcase_create("mem");

	suite_add_tcase(s, tc);
	tcase_add_loop_test(tc, memory_is_zeroed_even_where_it_was_used_before, 0, NR_SOURCES);
	tcase_add_loop_test(tc, memory_is_aligned_as_asked, 0, NR_SOURCES);
	tcase_add_loop_test(tc, the_count_is_the_sum_of_what_is_out, 0, NR_SOURCES);
	tcase_add_loop_test(tc, freeing_null_does_nothing, 0, NR_SOURCES);
	tcase_add_test(tc, a_users_allocator_sees_every_size_alignment_and_free);
	tcase_add_test(tc, a_failing_users_allocator_fails_the_call_and_counts_nothing);
	tcase_add_test(tc, an_impossible_size_is_refused_and_counts_nothing);
	tcase_add_test(tc, an_arena_takes_back_what_was_not_freed);
	tcase_add_loop_test(tc, two_threads_lose_no_byte_of_the_count, 0, FROM_USER);   /* the picky one is for one thread */
	return s;
}
