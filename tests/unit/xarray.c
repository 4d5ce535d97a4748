/*
 * xarray.c - the index tree says what a sorted array would say, to readers without locks too
 *
 * Right for any XA_SHIFT from 3: the same suite runs on trees of 8-slot nodes.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "bug.h"
#include "platform.h"
#include "rcu.h"
#include "test.h"
#include "xarray.h"

Suite *suite_xarray(void);

#define SLOTS   (UINT64_C(1) << XA_SHIFT)

static struct mem mem;
static struct xarray xa;
static struct xa_pool pool;
static char entries[1024];      /* their addresses are entries, odd ones among them */

static void init(void)
{
	mem_init_malloc(&mem);
	xa_init(&xa, &mem);
	pool = (struct xa_pool){ 0 };
}

static void check(void)
{
	char why[200];

	if (xa_check(&xa, why, sizeof(why)))
		ck_abort_msg("%s", why);
}

static void fini(void)
{
	check();
	xa_fini(&xa);
	ck_assert(xa_empty(&xa));
	xa_pool_fini(&xa, &pool);
	rcu_drain();
	ck_assert_uint_eq(mem_bytes(&mem), 0);
}

/* xa_store() with the nodes it asks for, exactly: more would be left over, fewer would not do. */
static int store(uint64_t index, uint64_t nr, void *entry)
{
	int ret = xa_store(&xa, index, nr, entry, &pool);

	if (ret == -EAGAIN) {
		if (pool.nr >= pool.need || xa_pool_fill(&xa, &pool) || pool.nr != pool.need)
			ck_abort_msg("the pool was not short, or is not full");
		ret = xa_store(&xa, index, nr, entry, &pool);
		if (ret || pool.nr)
			ck_abort_msg("asked for a wrong number of nodes: %d, %u left", ret, pool.nr);
	}
	return ret;
}

static uint64_t find_at(uint64_t from, uint64_t last)
{
	return xa_find(&xa, &from, last) ? from : UINT64_MAX - 1;
}

static const uint64_t edges[] = {
	0, 1, 2, SLOTS - 1, SLOTS, SLOTS + 1, SLOTS * SLOTS - 1, SLOTS * SLOTS, (UINT64_C(1) << 52) - 1, UINT64_C(1) << 52,
	(UINT64_C(1) << 63) - 1, UINT64_C(1) << 63, UINT64_MAX - SLOTS, UINT64_MAX - SLOTS + 1, UINT64_MAX - 1, UINT64_MAX,
};

START_TEST(empty_tree_has_nothing)
{
	uint64_t at = 0;

	init();
	ck_assert(xa_empty(&xa));
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		ck_assert_ptr_null(xa_load(&xa, edges[i]));
		ck_assert(!xa_get_mark(&xa, edges[i], XA_MARK_DIRTY));
		xa_clear_mark(&xa, edges[i], XA_MARK_DIRTY);
		xa_erase(&xa, edges[i], 1);
	}
	ck_assert_ptr_null(xa_find(&xa, &at, UINT64_MAX));
	at = 0;
	ck_assert_uint_eq(xa_copy_mark(&xa, &at, UINT64_MAX - 1, XA_MARK_DIRTY, XA_MARK_TOWRITE, 10), 0);
	ck_assert_uint_eq(at, UINT64_MAX);
	ck_assert(!xa_marked(&xa, XA_MARK_DIRTY));
	ck_assert_uint_eq(xa_nodes(&xa), 0);
	fini();
}
END_TEST

START_TEST(entry_is_at_its_index_and_nowhere_else)
{
	uint64_t index = edges[_i], at;

	init();
	ck_assert_int_eq(store(index, 1, &entries[1]), 0);
	check();
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++)
		ck_assert_ptr_eq(xa_load(&xa, edges[i]), edges[i] == index ? &entries[1] : NULL);
	ck_assert_ptr_eq(xa_load(&xa, index), &entries[1]);
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		at = edges[i];
		ck_assert_ptr_eq(xa_find(&xa, &at, UINT64_MAX), edges[i] <= index ? &entries[1] : NULL);
		ck_assert(edges[i] > index || at == index);
		at = 0;
		ck_assert_ptr_eq(xa_find(&xa, &at, edges[i]), edges[i] >= index ? &entries[1] : NULL);
		ck_assert(!xa_get_mark(&xa, edges[i], XA_MARK_WRITEBACK));
	}
	at = 0;
	ck_assert_ptr_null(xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_WRITEBACK));
	xa_set_mark(&xa, index, XA_MARK_WRITEBACK);
	check();
	at = 0;
	ck_assert_ptr_eq(xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_WRITEBACK), &entries[1]);
	ck_assert_uint_eq(at, index);
	ck_assert(xa_get_mark(&xa, index, XA_MARK_WRITEBACK));
	ck_assert(!xa_get_mark(&xa, index, XA_MARK_DIRTY));
	ck_assert(xa_marked(&xa, XA_MARK_WRITEBACK));
	xa_erase(&xa, index, 1);
	check();
	ck_assert(xa_empty(&xa));
	ck_assert_ptr_null(xa_load(&xa, index));
	ck_assert_uint_eq(xa_nodes(&xa), 0);
	fini();
}
END_TEST

START_TEST(all_edges_live_side_by_side)
{
	uint64_t at = 0;

	init();
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		size_t j = i * 7 % ARRAY_SIZE(edges);   /* another order; 7 and 16 have no factor in common */

		ck_assert_int_eq(store(edges[j], 1, &entries[j]), 0);
		check();
	}
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++, at++) {
		ck_assert_ptr_eq(xa_find(&xa, &at, UINT64_MAX), &entries[i]);
		ck_assert_uint_eq(at, edges[i]);
	}
	for (size_t i = ARRAY_SIZE(edges); i--; ) {
		xa_erase(&xa, edges[i], 1);
		check();
		at = 0;
		ck_assert_ptr_eq(xa_find(&xa, &at, UINT64_MAX), i ? &entries[0] : NULL);
	}
	fini();
}
END_TEST

START_TEST(large_object_fills_all_its_slots)
{
	static const struct { uint64_t index, nr; } ranges[] = {
		{ 0, 1 }, { 0, SLOTS }, { 0, SLOTS + 1 }, { 1, SLOTS }, { SLOTS - 1, 2 }, { 3, 512 }, { 512, 512 },
		{ SLOTS * SLOTS - 1, 2 }, { 4096 - 300, 512 }, { (UINT64_C(1) << 52) - 256, 512 },
		{ UINT64_MAX, 1 }, { UINT64_MAX - 511, 512 }, { UINT64_MAX - 600, 512 }, { 5, 5000 },
	};
	uint64_t index = ranges[_i].index, nr = ranges[_i].nr, at;

	if (index + nr < index && index + nr)
		ck_abort_msg("range %d wraps", _i);
	init();
	ck_assert_int_eq(store(index, nr, &entries[0]), 0);
	check();
	for (uint64_t i = 0; i < nr; i++)
		ck_assert_ptr_eq(xa_load(&xa, index + i), &entries[0]);
	if (index)
		ck_assert_ptr_null(xa_load(&xa, index - 1));
	if (index + nr)
		ck_assert_ptr_null(xa_load(&xa, index + nr));
	ck_assert_uint_eq(find_at(0, UINT64_MAX), index);
	ck_assert_uint_eq(find_at(index + nr - 1, UINT64_MAX), index + nr - 1);
	at = index;
	xa_set_mark(&xa, index, XA_MARK_DIRTY);
	ck_assert_ptr_eq(xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_DIRTY), &entries[0]);
	if (nr > 1) {
		at = index + 1;
		ck_assert_ptr_null(xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_DIRTY));
	}
	/* the right half becomes another object */
	if (nr > 1) {
		xa_replace(&xa, index + nr / 2, nr - nr / 2, &entries[1]);
		check();
		ck_assert_ptr_eq(xa_load(&xa, index + nr / 2 - 1), &entries[0]);
		ck_assert_ptr_eq(xa_load(&xa, index + nr / 2), &entries[1]);
		ck_assert_ptr_eq(xa_load(&xa, index + nr - 1), &entries[1]);
		ck_assert(xa_get_mark(&xa, index, XA_MARK_DIRTY));
	}
	xa_erase(&xa, index, nr);
	ck_assert(xa_empty(&xa));
	fini();
}
END_TEST

START_TEST(store_over_an_entry_changes_nothing)
{
	static const uint64_t taken[] = { 100, 101, 300, 610, 611 };

	for (size_t i = 0; i < ARRAY_SIZE(taken); i++) {
		init();
		ck_assert_int_eq(store(taken[i], 1, &entries[0]), 0);
		uint64_t before = xa_nodes(&xa);
		/* with nodes at hand or without, that there is an entry is said first */
		ck_assert_int_eq(xa_store(&xa, 100, 512, &entries[1], &pool), -EEXIST);
		pool.need = 50;
		ck_assert_int_eq(xa_pool_fill(&xa, &pool), 0);
		ck_assert_int_eq(xa_store(&xa, 100, 512, &entries[1], &pool), -EEXIST);
		ck_assert_uint_eq(pool.nr, 50);
		ck_assert_uint_eq(xa_nodes(&xa), before);
		for (uint64_t at = 0; at < 1000; at++)
			ck_assert_ptr_eq(xa_load(&xa, at), at == taken[i] ? &entries[0] : NULL);
		fini();
	}
}
END_TEST

START_TEST(store_without_nodes_changes_nothing)
{
	init();
	ck_assert_int_eq(store(5, 1, &entries[0]), 0);
	uint64_t before = xa_nodes(&xa);
	ck_assert_int_eq(xa_store(&xa, UINT64_C(1) << 40, 512, &entries[1], &pool), -EAGAIN);
	unsigned need = pool.need;
	ck_assert_uint_gt(need, 2);
	pool.need = need - 1;
	ck_assert_int_eq(xa_pool_fill(&xa, &pool), 0);
	ck_assert_int_eq(xa_store(&xa, UINT64_C(1) << 40, 512, &entries[1], &pool), -EAGAIN);
	ck_assert_uint_eq(pool.need, need);
	ck_assert_uint_eq(pool.nr, need - 1);
	ck_assert_uint_eq(xa_nodes(&xa), before);
	check();
	ck_assert_uint_eq(find_at(6, UINT64_MAX), UINT64_MAX - 1);
	ck_assert_int_eq(store(UINT64_C(1) << 40, 512, &entries[1]), 0);
	ck_assert_uint_eq(xa_nodes(&xa), before + need);
	fini();
}
END_TEST

START_TEST(no_memory_for_nodes_changes_nothing)
{
	struct t_alloc alloc;
	uint64_t n = 1;
	int ret;

	t_alloc_init(&alloc);
	ck_assert_int_eq(mem_init(&mem, &alloc.ops), 0);
	xa_init(&xa, &mem);
	pool = (struct xa_pool){ 0 };
	ck_assert_int_eq(store(5, 1, &entries[0]), 0);
	uint64_t before = xa_nodes(&xa);
	do {
		ck_assert_int_eq(xa_store(&xa, UINT64_C(1) << 40, 512, &entries[1], &pool), -EAGAIN);
		t_alloc_fail(&alloc, n);
		ret = xa_pool_fill(&xa, &pool);
		ck_assert_uint_eq(xa_nodes(&xa), before);
		check();
		if (ret) {
			ck_assert_int_eq(ret, -ENOMEM);
			ck_assert_uint_eq(pool.nr, n - 1);
			xa_pool_fini(&xa, &pool);
		}
		n++;
	} while (ret);
	ck_assert_uint_gt(n, 3);
	ck_assert_int_eq(xa_store(&xa, UINT64_C(1) << 40, 512, &entries[1], &pool), 0);
	fini();
	ck_assert_int_eq(alloc.bytes, 0);
	mem_fini(&mem);
}
END_TEST

START_TEST(tree_is_no_higher_than_it_must_be)
{
	init();
	ck_assert_int_eq(store(0, 1, &entries[0]), 0);
	ck_assert_uint_eq(xa_nodes(&xa), 1);
	xa_set_mark(&xa, 0, XA_MARK_TOWRITE);
	ck_assert_int_eq(store(UINT64_MAX, 1, &entries[1]), 0);
	ck_assert(xa_marked(&xa, XA_MARK_TOWRITE));
	ck_assert_uint_eq(xa_nodes(&xa), 2 * div_round_up(64, XA_SHIFT) - 1);
	xa_erase(&xa, UINT64_MAX, 1);
	ck_assert_uint_eq(xa_nodes(&xa), 1);
	ck_assert(xa_get_mark(&xa, 0, XA_MARK_TOWRITE));
	/* the low end goes, the high one stays where it is */
	ck_assert_int_eq(store(SLOTS * SLOTS, 1, &entries[1]), 0);
	ck_assert_uint_eq(xa_nodes(&xa), 5);
	xa_erase(&xa, 0, 1);
	ck_assert_uint_eq(xa_nodes(&xa), 3);
	ck_assert(!xa_marked(&xa, XA_MARK_TOWRITE));
	fini();
}
END_TEST

START_TEST(erasing_a_wide_range_skips_what_is_empty)
{
	init();
	for (size_t i = 0; i < ARRAY_SIZE(edges); i++) {
		ck_assert_int_eq(store(edges[i], 1, &entries[i]), 0);
		xa_set_mark(&xa, edges[i], XA_MARK_DIRTY);
	}
	xa_erase(&xa, 1, UINT64_MAX - 1);
	check();
	ck_assert_uint_eq(find_at(1, UINT64_MAX), UINT64_MAX);
	ck_assert_ptr_eq(xa_load(&xa, 0), &entries[0]);
	xa_erase(&xa, 1, UINT64_MAX);
	check();
	ck_assert_uint_eq(xa_nodes(&xa), 1);
	ck_assert(xa_get_mark(&xa, 0, XA_MARK_DIRTY));
	fini();
}
END_TEST

START_TEST(clearing_a_mark_leaves_the_others)
{
	uint64_t at;

	init();
	for (uint64_t i = 0; i < 3 * SLOTS; i++) {
		ck_assert_int_eq(store(i, 1, &entries[i]), 0);
		for (enum xa_mark mark = 0; mark < XA_MARKS; mark++)
			xa_set_mark(&xa, i, mark);
	}
	for (uint64_t i = 0; i < 3 * SLOTS; i++) {
		xa_clear_mark(&xa, i, XA_MARK_WRITEBACK);
		xa_clear_mark(&xa, i, XA_MARK_WRITEBACK);
		check();
		ck_assert(!xa_get_mark(&xa, i, XA_MARK_WRITEBACK));
		ck_assert(xa_get_mark(&xa, i, XA_MARK_DIRTY));
		ck_assert(xa_get_mark(&xa, i, XA_MARK_TOWRITE));
		at = 0;
		void *next = xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_WRITEBACK);
		ck_assert_ptr_eq(next, i + 1 < 3 * SLOTS ? &entries[i + 1] : NULL);
	}
	ck_assert(!xa_marked(&xa, XA_MARK_WRITEBACK));
	ck_assert(xa_marked(&xa, XA_MARK_DIRTY));
	fini();
}
END_TEST

START_TEST(marks_are_copied_up_to_a_limit)
{
	uint64_t first = 10, n, total = 0;

	init();
	for (uint64_t i = 0; i < 1000; i++) {
		ck_assert_int_eq(store(i, 1, &entries[i]), 0);
		if (i % 3 == 0)
			xa_set_mark(&xa, i, XA_MARK_DIRTY);
	}
	do {
		uint64_t from = first;

		n = xa_copy_mark(&xa, &first, 900, XA_MARK_DIRTY, XA_MARK_TOWRITE, 7);
		check();
		ck_assert_uint_le(n, 7);
		if (n == 7)
			ck_assert(first > from && first <= 901);
		total += n;
	} while (n == 7 && first <= 900);
	ck_assert_uint_eq(first, 901);
	ck_assert_uint_eq(total, 297);
	for (uint64_t i = 0; i < 1000; i++)
		ck_assert(xa_get_mark(&xa, i, XA_MARK_TOWRITE) == (i % 3 == 0 && i >= 10 && i <= 900));
	first = 5;
	ck_assert_uint_eq(xa_copy_mark(&xa, &first, 1000, XA_MARK_DIRTY, XA_MARK_WRITEBACK, 0), 0);
	ck_assert_uint_eq(first, 5);
	ck_assert(!xa_marked(&xa, XA_MARK_WRITEBACK));
	fini();
}
END_TEST

START_TEST(copying_marks_ends_at_the_last_index)
{
	uint64_t first = 0;

	init();
	ck_assert_int_eq(store(UINT64_MAX - 1, 2, &entries[0]), 0);
	xa_set_mark(&xa, UINT64_MAX - 1, XA_MARK_DIRTY);
	xa_set_mark(&xa, UINT64_MAX, XA_MARK_DIRTY);
	ck_assert_uint_eq(xa_copy_mark(&xa, &first, UINT64_MAX, XA_MARK_DIRTY, XA_MARK_TOWRITE, 1), 1);
	ck_assert_uint_eq(first, UINT64_MAX);
	ck_assert(!xa_get_mark(&xa, UINT64_MAX, XA_MARK_TOWRITE));
	ck_assert_uint_eq(xa_copy_mark(&xa, &first, UINT64_MAX, XA_MARK_DIRTY, XA_MARK_TOWRITE, 1), 1);
	ck_assert_uint_eq(first, 0);
	ck_assert(xa_get_mark(&xa, UINT64_MAX, XA_MARK_TOWRITE));
	fini();
}
END_TEST

/* --- looking into nodes ------------------------------------------------------------------------------------------------ */

/* What is in a node is found by its value: nothing here knows how nodes are laid out. */
#define MAX_NODES       8
static uint64_t *nodes[MAX_NODES];
static size_t node_words;
static unsigned nr_nodes;

static void *alloc_node(void *priv, size_t size, size_t align)
{
	void *p = aligned_alloc(align, round_up(size, align));

	(void)priv;
	if (nr_nodes == MAX_NODES)
		return NULL;
	nodes[nr_nodes++] = p;
	node_words = size / sizeof(uint64_t);
	return p;
}

static void free_node(void *priv, void *p, size_t size)
{
	(void)priv;
	(void)size;
	free(p);
}

static const struct iomap_allocator node_allocator = { alloc_node, free_node, NULL };

static void init_looking(void)
{
	nr_nodes = 0;
	ck_assert_int_eq(mem_init(&mem, &node_allocator), 0);
	xa_init(&xa, &mem);
	pool = (struct xa_pool){ 0 };
}

/* The one word of all nodes that holds @value; @in becomes its node. */
static uint64_t *word_with(uint64_t value, uint64_t **in)
{
	uint64_t *found = NULL;

	for (unsigned n = 0; n < nr_nodes; n++) {
		for (size_t i = 0; i < node_words; i++) {
			if (nodes[n][i] != value)
				continue;
			ck_assert_ptr_null(found);
			found = &nodes[n][i];
			*in = nodes[n];
		}
	}
	ck_assert_ptr_nonnull(found);
	return found;
}

/* With @value changed to @other somewhere the tree is broken. */
static void expect_broken(uint64_t value, uint64_t other)
{
	char why[200];
	uint64_t *node, *word = word_with(value, &node);

	check();
	*word = other;
	ck_assert_int_eq(xa_check(&xa, why, sizeof(why)), -EUCLEAN);
	*word = value;
	check();
}

START_TEST(checker_sees_what_is_broken)
{
	const uint64_t present = 1U << 2 | 1U << 4 | 1U << 5, dirty = 1U << 2 | 1U << 4, above = 1U << 2 | 1U << 1 | 1U << 0;

	init_looking();
	ck_assert_int_eq(store(2, 1, &entries[2]), 0);
	ck_assert_int_eq(store(4, 1, &entries[4]), 0);
	ck_assert_int_eq(store(5, 1, &entries[5]), 0);
	xa_set_mark(&xa, 2, XA_MARK_DIRTY);
	xa_set_mark(&xa, 4, XA_MARK_DIRTY);
	expect_broken(present, present & ~(UINT64_C(1) << 5));          /* a taken slot is called empty */
	expect_broken(present, present | 1U << 3);                      /* an empty one taken */
	expect_broken((uintptr_t)&entries[5], 0);                       /* an entry is lost */
	expect_broken(dirty, dirty | 1U << 3);                          /* an empty slot is marked */

	ck_assert_int_eq(store(SLOTS + 6, 1, &entries[6]), 0);
	ck_assert_int_eq(store(SLOTS * 2 + 7, 1, &entries[7]), 0);
	expect_broken(dirty, 0);                                        /* the root says there are marks */
	expect_broken(UINT64_C(1) << 6, 0);                             /* an empty node */
	expect_broken(above, above | 1U << 3);                          /* a node is lost */
	xa_set_mark(&xa, 5, XA_MARK_WRITEBACK);
	expect_broken(UINT64_C(1) << 5, 0);
	fini();
	mem_fini(&mem);
}
END_TEST

/* What a reader sees if an entry, or a whole node, goes between its look at the bits and its look at the slot. */
START_TEST(search_passes_over_what_went_meanwhile)
{
	uint64_t *leaf, *root, *slot, value, at;

	init_looking();
	ck_assert_int_eq(store(0, 1, &entries[0]), 0);
	ck_assert_int_eq(store(SLOTS, 2, &entries[1]), 0);
	ck_assert_int_eq(store(SLOTS + 2, 1, &entries[2]), 0);
	ck_assert_int_eq(store(SLOTS + 3, 1, &entries[3]), 0);
	ck_assert_int_eq(store(2 * SLOTS, 1, &entries[4]), 0);
	slot = word_with((uintptr_t)&entries[2], &leaf);
	value = *slot;
	*slot = 0;
	ck_assert_uint_eq(find_at(SLOTS + 2, UINT64_MAX), SLOTS + 3);
	ck_assert_uint_eq(find_at(SLOTS + 2, SLOTS + 2), UINT64_MAX - 1);
	*slot = value;
	slot = word_with((uintptr_t)&entries[3], &leaf);                /* the last one of the node */
	value = *slot;
	*slot = 0;
	ck_assert_uint_eq(find_at(SLOTS + 3, UINT64_MAX), 2 * SLOTS);
	*slot = value;
	slot = word_with((uintptr_t)leaf, &root);
	*slot = 0;
	ck_assert_uint_eq(find_at(1, UINT64_MAX), 2 * SLOTS);
	ck_assert_uint_eq(find_at(SLOTS, 2 * SLOTS - 1), UINT64_MAX - 1);
	ck_assert_ptr_null(xa_load(&xa, SLOTS));
	ck_assert(!xa_get_mark(&xa, SLOTS, XA_MARK_DIRTY));
	at = SLOTS;
	ck_assert_ptr_null(xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_DIRTY));
	*slot = (uintptr_t)leaf;
	fini();
	mem_fini(&mem);
}
END_TEST

/* --- against a sorted array -------------------------------------------------------------------------------------------- */

#define MODEL_MAX       6000

static struct slot { uint64_t index; unsigned entry, marks; } model[MODEL_MAX];
static size_t nr_slots;

static uint64_t seed, step;
#define FAIL(what)      ck_abort_msg("seed %llu step %llu: %s", (unsigned long long)seed, (unsigned long long)step, what)

/* The first slot at or after @index, or nr_slots. */
static size_t lower(uint64_t index)
{
	size_t lo = 0, hi = nr_slots;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (model[mid].index >= index)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* The end of the slots up to @last. */
static size_t upper(uint64_t last) { return last == UINT64_MAX ? nr_slots : lower(last + 1); }

/* How many nodes it takes to hold the model. */
static uint64_t model_nodes(void)
{
	uint64_t n = 0;

	for (unsigned shift = XA_SHIFT; nr_slots; shift += XA_SHIFT) {
		if (shift >= 64)
			return n + 1;
		for (size_t i = 0; i < nr_slots; i++)
			n += !i || model[i].index >> shift != model[i - 1].index >> shift;
		if (!(model[nr_slots - 1].index >> shift))
			return n;
	}
	return 0;
}

static void compare(void)
{
	uint64_t at = 0;
	char why[200];

	if (xa_check(&xa, why, sizeof(why)))
		FAIL(why);
	if (xa_nodes(&xa) != model_nodes())
		FAIL("wrong number of nodes");
	if (xa_empty(&xa) != !nr_slots)
		FAIL("xa_empty()");
	for (size_t i = 0; i < nr_slots; i++, at++) {
		if (xa_find(&xa, &at, UINT64_MAX) != &entries[model[i].entry] || at != model[i].index)
			FAIL("xa_find() from one to the next");
		if (xa_load(&xa, at) != &entries[model[i].entry])
			FAIL("xa_load()");
		for (enum xa_mark mark = 0; mark < XA_MARKS; mark++)
			if (xa_get_mark(&xa, at, mark) != (model[i].marks >> mark & 1))
				FAIL("xa_get_mark()");
	}
	if (at && xa_find(&xa, &at, UINT64_MAX))
		FAIL("xa_find() after the last");
	for (enum xa_mark mark = 0; mark < XA_MARKS; mark++) {
		bool any = false;

		at = 0;
		for (size_t i = 0; i < nr_slots; i++) {
			if (!(model[i].marks >> mark & 1))
				continue;
			if (xa_find_marked(&xa, &at, UINT64_MAX, mark) != &entries[model[i].entry] || at != model[i].index)
				FAIL("xa_find_marked() from one to the next");
			any = true;
			at++;
		}
		if ((!any || at) && xa_find_marked(&xa, &at, UINT64_MAX, mark))
			FAIL("xa_find_marked() after the last");
		if (xa_marked(&xa, mark) != any)
			FAIL("xa_marked()");
	}
}

static void do_store(uint64_t index, uint64_t nr, unsigned entry)
{
	size_t from = lower(index);
	bool taken = from < upper(index + (nr - 1));

	if (!taken && nr_slots + nr > MODEL_MAX)
		return;
	if (store(index, nr, &entries[entry]) != (taken ? -EEXIST : 0))
		FAIL("xa_store()");
	if (taken)
		return;
	memmove(model + from + nr, model + from, (nr_slots - from) * sizeof(*model));
	nr_slots += nr;
	for (uint64_t i = 0; i < nr; i++)
		model[from + i] = (struct slot){ index + i, entry, 0 };
}

static void do_erase(uint64_t index, uint64_t nr)
{
	size_t from = lower(index), to = upper(index + (nr - 1));

	xa_erase(&xa, index, nr);
	memmove(model + from, model + to, (nr_slots - to) * sizeof(*model));
	nr_slots -= to - from;
}

static void do_find(uint64_t index, uint64_t last, int mark)
{
	size_t i = lower(index), to = upper(last);
	uint64_t at = index;
	void *got = mark < 0 ? xa_find(&xa, &at, last) : xa_find_marked(&xa, &at, last, (enum xa_mark)mark);

	while (mark >= 0 && i < to && !(model[i].marks >> mark & 1))
		i++;
	if (got != (i < to ? &entries[model[i].entry] : NULL) || (got && at != model[i].index))
		FAIL(mark < 0 ? "xa_find()" : "xa_find_marked()");
	i = lower(index);
	if (xa_load(&xa, index) != (i < nr_slots && model[i].index == index ? &entries[model[i].entry] : NULL))
		FAIL("xa_load()");
}

static void do_copy(uint64_t first, uint64_t last, enum xa_mark from, enum xa_mark to, uint64_t max)
{
	uint64_t n = 0, at = first;
	uint64_t copied = xa_copy_mark(&xa, &at, last, from, to, max);
	size_t i = lower(first);

	for (; i < upper(last) && n < max; i++) {
		if (!(model[i].marks >> from & 1))
			continue;
		model[i].marks |= 1U << to;
		n++;
	}
	if (copied != n)
		FAIL("xa_copy_mark() says another number");
	if (n < max && at != last + 1)
		FAIL("xa_copy_mark() did not end");
	/* nothing to do is skipped, at most */
	if (n == max && at != last + 1 && (at <= model[i - 1].index || upper(at - 1) > i))
		for (size_t j = i; j < upper(at - 1); j++)
			if (model[j].marks >> from & 1)
				FAIL("xa_copy_mark() goes on in a wrong place");
}

static void do_replace(size_t i, uint64_t max, unsigned entry)
{
	size_t n = 1;

	while (n < max && i + n < nr_slots && model[i + n].index == model[i].index + n)
		n++;
	xa_replace(&xa, model[i].index, n, &entries[entry]);
	for (size_t j = i; j < i + n; j++)
		model[j].entry = entry;
}

static uint64_t some_index(uint64_t *state)
{
	static const uint64_t bases[] = {
		0, 4096 - 300, UINT64_C(1) << 18, (UINT64_C(1) << 24) - 100, UINT64_C(1) << 36, (UINT64_C(1) << 52) - 1000,
		UINT64_C(1) << 63, UINT64_MAX - 1023,
	};

	/* half of the time within one crowded range */
	uint64_t base = t_random(state) & 1 ? bases[1] : bases[t_random_below(state, ARRAY_SIZE(bases))];

	return base + t_random_below(state, 1024);
}

enum op { STORE, ERASE, FIND, FIND_MARKED, SET_MARK, CLEAR_MARK, COPY_MARK, REPLACE, NR_OPS };

static void random_step(uint64_t *state, enum op op)
{
	uint64_t index = some_index(state), room = UINT64_MAX - index;
	unsigned entry = (unsigned)t_random_below(state, sizeof(entries));
	size_t i = nr_slots ? (size_t)t_random_below(state, nr_slots) : 0;
	enum xa_mark mark = (enum xa_mark)t_random_below(state, XA_MARKS), to = (enum xa_mark)t_random_below(state, XA_MARKS);
	uint64_t nr = 1 + t_random_below(state, t_random_below(state, 8) ? 8 : 512);

	nr = min_u64(nr, room + (room < UINT64_MAX));
	if (op >= SET_MARK && op != COPY_MARK && !nr_slots)
		return;
	switch (op) {
	case STORE:
		if (!t_random_below(state, 4))          /* as folios are: a power of two, aligned */
			nr = UINT64_C(1) << log2_floor(nr), index = round_down(index, nr);
		do_store(index, nr, entry);
		break;
	case ERASE:
		if (!t_random_below(state, 64))
			nr = room + (room < UINT64_MAX);
		do_erase(index, nr);
		break;
	case FIND:
		do_find(index, t_random_below(state, 2) ? UINT64_MAX : index + (nr - 1), -1);
		break;
	case FIND_MARKED:
		do_find(index, t_random_below(state, 2) ? UINT64_MAX : index + (nr - 1), (int)mark);
		break;
	case SET_MARK:
		xa_set_mark(&xa, model[i].index, mark);
		model[i].marks |= 1U << mark;
		break;
	case CLEAR_MARK:
		xa_clear_mark(&xa, model[i].index, mark);
		model[i].marks &= ~(1U << mark);
		break;
	case COPY_MARK:
		do_copy(index, index + (nr - 1), mark, to, 1 + t_random_below(state, 100));
		break;
	case REPLACE:
		do_replace(i, nr, entry);
		break;
	case NR_OPS:
		break;
	}
}

START_TEST(random_operations_agree_with_a_sorted_array)
{
	enum { STEPS = 40000 };
	seed = 1 + (uint64_t)_i;
	uint64_t state = seed;
	unsigned without = 0;

	init();
	nr_slots = 0;
	for (step = 0; step < STEPS; step++) {
		/* some operations are left out for a while, so that the others pile up */
		if (step % 2000 == 0)
			without = (unsigned)(t_random(&state) & t_random(&state));
		enum op op = (enum op)t_random_below(&state, NR_OPS);
		if (without >> op & 1)
			continue;
		random_step(&state, op);
		if (step % 64 == 0)
			compare();
	}
	compare();
	fini();
}
END_TEST

/* --- readers against a writer --------------------------------------------------------------------------------------------- */

/*
 * The writer makes a new object for each store. Entries are objects, so a reader can tell whether what it found belongs where it
 * was found, and whether it had been erased before the reader began. Some objects are there, and dirty, all the time.
 */
struct object { uint64_t index, nr; _Atomic uint64_t erased; };         /* erased: the clock then, or 0 */

#define PLACES          40
#define WRITES          60000
#define READS           3000

#define FAR             (UINT64_C(5) << 20)

static const uint64_t stable[] = { 3, SLOTS + 6, FAR + SLOTS * SLOTS - 1 };
static struct object stable_objects[ARRAY_SIZE(stable)];
static struct object objects[WRITES + 1];
static struct { uint64_t index, nr; } places[PLACES];
static _Atomic uint64_t clock_now;
static struct mutex tree_lock;

struct reader { struct thread thread; uint64_t seed; const char *broken; };

static int store_locked(uint64_t index, uint64_t nr, void *entry)
{
	for (;;) {
		mutex_lock(&tree_lock);
		int ret = xa_store(&xa, index, nr, entry, &pool);
		mutex_unlock(&tree_lock);
		if (ret != -EAGAIN)
			return ret;
		ret = xa_pool_fill(&xa, &pool);
		if (ret)
			return ret;
	}
}

static void erase_locked(struct object *object)
{
	mutex_lock(&tree_lock);
	xa_erase(&xa, object->index, object->nr);
	mutex_unlock(&tree_lock);
	uint64_t now = load_relaxed(&clock_now) + 1;    /* only this thread moves it */
	store_relaxed(&object->erased, now);
	store_release(&clock_now, now);                 /* pairs with the readers': later they must not find it */
}

static void write_randomly(void *arg)
{
	struct reader *me = arg;
	struct object *at[PLACES] = { NULL }, *next = objects;
	uint64_t state = me->seed;

	for (unsigned i = 0; i < WRITES && !me->broken; i++) {
		unsigned p = (unsigned)t_random_below(&state, PLACES);
		struct object *object = at[p];
		uint64_t dice = t_random_below(&state, 6);

		if (!object) {
			*next = (struct object){ places[p].index, places[p].nr, 0 };
			if (store_locked(next->index, next->nr, next))
				me->broken = "xa_store() failed";
			at[p] = next++;
		} else if (dice < 3) {
			erase_locked(object);
			at[p] = NULL;
		} else {
			mutex_lock(&tree_lock);
			if (dice == 3)
				xa_set_mark(&xa, object->index, XA_MARK_DIRTY);
			else if (dice == 4)
				xa_clear_mark(&xa, object->index, XA_MARK_DIRTY);
			else
				xa_replace(&xa, object->index, object->nr, object);
			mutex_unlock(&tree_lock);
		}
		if (i % 1000 == 0) {
			static char why[200];

			mutex_lock(&tree_lock);
			if (xa_check(&xa, why, sizeof(why)))
				me->broken = why;
			mutex_unlock(&tree_lock);
		}
	}
	for (unsigned p = 0; p < PLACES; p++)
		if (at[p])
			erase_locked(at[p]);
}

static const char *judge(const struct object *object, uint64_t index, uint64_t began)
{
	uint64_t erased = load_relaxed(&object->erased);        /* ordered by the clock */

	if (index < object->index || index - object->index >= object->nr)
		return "an entry was found where it never was";
	if (erased && erased <= began)
		return "an entry was found that was gone before";
	return NULL;
}

/* One pass over the tree; what is stable must all be met. Gives up the RCU section between entries where @pauses. */
static const char *scan(bool marked, bool pauses)
{
	const char *broken = NULL;
	unsigned met = 0;

	rcu_enter();
	for (uint64_t at = 0; !broken; at++) {
		uint64_t began = load_acquire(&clock_now);
		const struct object *object = marked ? xa_find_marked(&xa, &at, UINT64_MAX, XA_MARK_DIRTY) :
						       xa_find(&xa, &at, UINT64_MAX);

		if (!object)
			break;
		broken = judge(object, at, began);
		if (met < ARRAY_SIZE(stable) && at > stable[met])
			broken = "a search passed over an entry";
		if (met < ARRAY_SIZE(stable) && at == stable[met])
			met++;
		if (at == UINT64_MAX)
			break;
		if (pauses) {
			rcu_exit();
			rcu_enter();
		}
	}
	rcu_exit();
	if (!broken && met != ARRAY_SIZE(stable))
		broken = "a search missed an entry";
	return broken;
}

static const char *look_up(uint64_t *state)
{
	const char *broken = NULL;
	size_t i = (size_t)t_random_below(state, ARRAY_SIZE(stable));

	rcu_enter();
	if (xa_load(&xa, stable[i]) != &stable_objects[i])
		broken = "xa_load() missed an entry";
	if (!xa_get_mark(&xa, stable[i], XA_MARK_DIRTY) || !xa_marked(&xa, XA_MARK_DIRTY))
		broken = "a mark was missed";
	for (int n = 0; n < 50 && !broken; n++) {
		unsigned p = (unsigned)t_random_below(state, PLACES);
		uint64_t index = places[p].index + t_random_below(state, places[p].nr);
		uint64_t began = load_acquire(&clock_now);
		const struct object *object = xa_load(&xa, index);

		if (object)
			broken = judge(object, index, began);
	}
	rcu_exit();
	return broken;
}

static void read_randomly(void *arg)
{
	struct reader *me = arg;
	uint64_t state = me->seed;

	for (unsigned i = 0; i < READS && !me->broken; i++) {
		me->broken = scan(i % 2, i % 4 >= 2);
		for (int n = 0; n < 10 && !me->broken; n++)
			me->broken = look_up(&state);
	}
}

START_TEST(readers_without_locks_see_what_is_there)
{
	/*
	 * Two crowded ranges; leaves of one entry each, which come and go before a leaf that stays; and some far away that make
	 * the root grow and shrink.
	 */
	static const struct { uint64_t base, apart; unsigned nr; } ranges[] = {
		{ 20, 0, 4 }, { 4096 - 150, 0, 9 }, { FAR, SLOTS, 7 }, { FAR * 2, SLOTS, 7 }, { FAR * 3, SLOTS * SLOTS, 7 },
		{ UINT64_C(1) << 40, UINT64_C(1) << 30, 4 }, { UINT64_MAX - 8, 0, 2 },
	};
	struct reader threads[3] = { { .seed = 31 }, { .seed = 32 }, { .seed = 33 } };
	unsigned p = 0;

	init();
	mutex_init(&tree_lock, LOCK_TREE);
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		uint64_t index = ranges[i].base;

		for (unsigned n = 0; n < ranges[i].nr; n++, p++) {
			places[p].index = index;
			places[p].nr = ranges[i].apart || index < SLOTS * 2 ? 1 : 1 + n * 7 % 48;
			index += ranges[i].apart ? ranges[i].apart : places[p].nr + n % 2;
		}
	}
	ck_assert_uint_eq(p, PLACES);
	for (size_t i = 0; i < ARRAY_SIZE(stable); i++) {
		stable_objects[i] = (struct object){ stable[i], 1, 0 };
		ck_assert_int_eq(store(stable[i], 1, &stable_objects[i]), 0);
		xa_set_mark(&xa, stable[i], XA_MARK_DIRTY);
	}
	ck_assert_int_eq(thread_create(&threads[0].thread, "write", write_randomly, &threads[0]), 0);
	ck_assert_int_eq(thread_create(&threads[1].thread, "read", read_randomly, &threads[1]), 0);
	ck_assert_int_eq(thread_create(&threads[2].thread, "read", read_randomly, &threads[2]), 0);
	for (int i = 0; i < 3; i++) {
		thread_join(&threads[i].thread);
		if (threads[i].broken)
			ck_abort_msg("thread %d: %s", i, threads[i].broken);
	}
	for (size_t i = 0; i < ARRAY_SIZE(stable); i++)
		xa_erase(&xa, stable[i], 1);
	ck_assert(xa_empty(&xa));
	mutex_fini(&tree_lock);
	fini();
}
END_TEST

Suite *suite_xarray(void)
{
	Suite *s = suite_create("xarray");
	TCase *tc = tcase_create("xarray");

	tcase_add_test(tc, empty_tree_has_nothing);
	tcase_add_loop_test(tc, entry_is_at_its_index_and_nowhere_else, 0, ARRAY_SIZE(edges));
	tcase_add_test(tc, all_edges_live_side_by_side);
	tcase_add_loop_test(tc, large_object_fills_all_its_slots, 0, 14);
	tcase_add_test(tc, store_over_an_entry_changes_nothing);
	tcase_add_test(tc, store_without_nodes_changes_nothing);
	tcase_add_test(tc, no_memory_for_nodes_changes_nothing);
	tcase_add_test(tc, tree_is_no_higher_than_it_must_be);
	tcase_add_test(tc, erasing_a_wide_range_skips_what_is_empty);
	tcase_add_test(tc, clearing_a_mark_leaves_the_others);
	tcase_add_test(tc, marks_are_copied_up_to_a_limit);
	tcase_add_test(tc, copying_marks_ends_at_the_last_index);
	tcase_add_test(tc, checker_sees_what_is_broken);
	tcase_add_test(tc, search_passes_over_what_went_meanwhile);
	tcase_add_loop_test(tc, random_operations_agree_with_a_sorted_array, 0, 4);
	tcase_add_test(tc, readers_without_locks_see_what_is_there);
	suite_add_tcase(s, tc);
	return s;
}
