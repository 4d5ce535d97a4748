/*
 * cowstore.c - examples/cowstore: its parts that need no cache (space, trees, lists of records), and what it does when its
 * device fails (power cuts: stress/cowstore-crash.c)
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "crash-device.h"
#include "internal.h"
#include "test.h"

Suite *suite_cowstore(void);

enum { BLOCKS = 4096 };

/* A device of BLOCKS blocks; which of them were written since the last look. */
static unsigned char disk[BLOCKS][COW_BLOCK];
static unsigned writes;
static struct space space;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int disk_read(void *priv, const struct cow_ptr *ptr, void *block)
{
	(void)priv;
	ck_assert_uint_ge(ptr->blk, COW_ROOTS);
	ck_assert_uint_lt(ptr->blk, BLOCKS);
	if (cow_sum(disk[ptr->blk], COW_BLOCK) != ptr->sum)
		return -EUCLEAN;
	memcpy(block, disk[ptr->blk], COW_BLOCK);
	return 0;
}

static int disk_write(void *priv, uint64_t blk, const void *block)
{
	(void)priv;
	ck_assert_uint_ge(blk, COW_ROOTS);
	ck_assert_uint_lt(blk, BLOCKS);
	memcpy(disk[blk], block, COW_BLOCK);
	writes++;
	return 0;
}

static const struct tree_io io = { .read = disk_read, .write = disk_write };

static void setup(void)
{
	ck_assert_int_eq(cow_space_init(&space, BLOCKS), 0);
	writes = 0;
}

static void teardown(void)
{
	cow_space_fini(&space);
}

/* --- space ------------------------------------------------------------------------------------------------ */

START_TEST(space_hands_out_each_block_once)
{
	uint64_t got, sum = 0;

	for (uint64_t n = 0; n < BLOCKS - COW_ROOTS; n += got) {
		uint64_t blk = cow_space_take(&space, 100, &got);

		ck_assert_uint_ge(blk, COW_ROOTS);
		ck_assert_uint_gt(got, 0);
		for (uint64_t k = 0; k < got; k++)
			sum += blk + k;
	}
	ck_assert_uint_eq(sum, (uint64_t)BLOCKS * (BLOCKS - 1) / 2 - 1);
	ck_assert_uint_eq(space.nr_free, 0);
	ck_assert_uint_eq(cow_space_take(&space, 1, &got), 0);
	ck_assert_uint_eq(got, 0);
	/* the last block and the first, given back, are found across the end */
	cow_space_give(&space, BLOCKS - 1);
	cow_space_give(&space, COW_ROOTS);
	ck_assert_uint_eq(cow_space_take(&space, 2, &got), COW_ROOTS);
	ck_assert_uint_eq(got, 1);
	ck_assert_uint_eq(cow_space_take(&space, 2, &got), BLOCKS - 1);
	ck_assert_uint_eq(got, 1);
}
END_TEST

START_TEST(space_promised_is_not_promised_again)
{
	ck_assert(cow_space_reserve(&space, BLOCKS - COW_ROOTS - 10, 10));
	ck_assert(!cow_space_reserve(&space, 1, 10));
	ck_assert(cow_space_reserve(&space, 10, 0));
	ck_assert(!cow_space_reserve(&space, 1, 0));
	cow_space_unreserve(&space, 1);
	ck_assert(cow_space_reserve(&space, 1, 0));
}
END_TEST

START_TEST(block_is_free_with_its_last_pointer)
{
	uint64_t got, blk = cow_space_take(&space, 1, &got), nr_free = space.nr_free;

	ck_assert_uint_eq(cow_space_ref(&space, blk), 0);
	ck_assert_uint_eq(cow_space_ref(&space, blk), 1);
	ck_assert_uint_eq(cow_space_unref(&space, blk), 1);
	ck_assert_uint_eq(space.nr_free, nr_free);
	ck_assert_uint_eq(cow_space_unref(&space, blk), 0);
	ck_assert_uint_eq(space.nr_free, nr_free + 1);
}
END_TEST

/* --- trees ------------------------------------------------------------------------------------------------ */

/* Makes block @idx of @t exist, as the engine does; and says what cow_tree_cost() promised. */
static unsigned put(struct tree *t, uint64_t idx)
{
	unsigned cost = cow_tree_cost(t, idx);
	uint64_t before = cow_tree_count_dirty(t), got;
	struct node *leaf = cow_tree_make(t, idx);

	ck_assert_ptr_nonnull(leaf);
	cow_tree_dirty(t, idx);
	ck_assert_uint_eq(cow_tree_count_dirty(t), before + cost);
	ck_assert_ptr_eq(cow_tree_find(t, idx), leaf);
	leaf->e[idx % COW_FANOUT].blk = cow_space_take(&space, 1, &got);
	leaf->e[idx % COW_FANOUT].sum = idx;
	return cost;
}

static struct cow_ref save(struct tree *t)
{
	struct cow_ref ref = { .size = 0 };

	ck_assert_int_eq(cow_tree_write(t, &io, &space, &lock, &ref), 0);
	cow_tree_settle(t, &ref);
	ck_assert_uint_eq(cow_tree_count_dirty(t), 0);
	return ref;
}

static bool has(const struct tree *t, uint64_t idx)
{
	const struct node *leaf = cow_tree_find(t, idx);

	return leaf && leaf->e[idx % COW_FANOUT].blk && leaf->e[idx % COW_FANOUT].sum == idx;
}

START_TEST(one_block_needs_no_node)
{
	struct tree t, back;
	struct cow_ref ref;

	ck_assert_int_eq(cow_tree_init(&t), 0);
	ref = save(&t);
	ck_assert_uint_eq(ref.top.blk, 0);
	put(&t, 0);
	ref = save(&t);
	ck_assert_uint_eq(ref.levels, 0);
	ck_assert_uint_eq(writes, 0);
	ck_assert_int_eq(cow_tree_load(&back, &io, &ref), 0);
	ck_assert(has(&back, 0));
	cow_tree_fini(&back);
	/* the second block: now there is one */
	put(&t, 1);
	ref = save(&t);
	ck_assert_uint_eq(ref.levels, 1);
	ck_assert_uint_eq(writes, 1);
	cow_tree_fini(&t);
}
END_TEST

/* Blocks at and around the edges of each level. */
static const uint64_t edges[] = { 0, 1, 255, 256, 257, 65535, 65536, 65537, (1ULL << 24) - 1, 1ULL << 24, (1ULL << 32) - 1 };
enum { EDGES = sizeof(edges) / sizeof(*edges) };

START_TEST(tree_grows_and_comes_back)
{
	struct tree t, back;
	struct cow_ref ref;

	ck_assert_int_eq(cow_tree_init(&t), 0);
	for (unsigned n = 0; n < EDGES; n++) {
		put(&t, edges[n]);
		ref = save(&t);
		ck_assert_int_eq(cow_tree_load(&back, &io, &ref), 0);
		for (unsigned k = 0; k < EDGES; k++)
			ck_assert_int_eq(has(&back, edges[k]), k <= n);
		ck_assert(!has(&back, 2));
		cow_tree_fini(&back);
	}
	cow_tree_fini(&t);
}
END_TEST

START_TEST(tree_made_in_one_go_comes_back)
{
	struct tree t, back;
	struct cow_ref ref;

	for (unsigned n = 1; n <= EDGES; n++) {
		ck_assert_int_eq(cow_tree_init(&t), 0);
		for (unsigned k = n; k--;)              /* highest first */
			put(&t, edges[k]);
		ref = save(&t);
		ck_assert_int_eq(cow_tree_load(&back, &io, &ref), 0);
		for (unsigned k = 0; k < EDGES; k++)
			ck_assert_int_eq(has(&back, edges[k]), k < n);
		cow_tree_fini(&back);
		cow_tree_fini(&t);
	}
}
END_TEST

START_TEST(small_change_writes_one_node_a_level)
{
	struct tree t;
	struct cow_ref ref, old;

	ck_assert_int_eq(cow_tree_init(&t), 0);
	for (uint64_t idx = 0; idx < 700; idx++)
		put(&t, idx);
	old = save(&t);
	writes = 0;
	put(&t, 300);
	ref = save(&t);
	ck_assert_uint_eq(writes, 2);
	ck_assert_uint_ne(ref.top.blk, old.top.blk);
	/* and writes over nothing: the old tree is still there */
	struct tree back;

	ck_assert_int_eq(cow_tree_load(&back, &io, &old), 0);
	ck_assert(has(&back, 300));
	ck_assert_uint_ne(cow_tree_find(&back, 300)->e[300 % COW_FANOUT].blk, cow_tree_find(&t, 300)->e[300 % COW_FANOUT].blk);
	cow_tree_fini(&back);
	writes = 0;
	save(&t);
	ck_assert_uint_eq(writes, 0);
	cow_tree_fini(&t);
}
END_TEST

static unsigned dropped;

static void drop(void *priv, struct node *leaf, unsigned i)
{
	(void)priv;
	dropped += leaf->e[i].blk != 0;
}

START_TEST(cut_leaves_what_lies_before)
{
	struct tree t, back;
	struct cow_ref ref;

	for (unsigned n = 0; n <= EDGES; n++) {
		uint64_t first = n < EDGES ? edges[n] : edges[EDGES - 1] + 1;

		ck_assert_int_eq(cow_tree_init(&t), 0);
		for (unsigned k = 0; k < EDGES; k++)
			put(&t, edges[k]);
		save(&t);
		dropped = 0;
		uint64_t most = cow_tree_cut_cost(&t, first);

		cow_tree_cut(&t, first, drop, NULL);
		ck_assert_uint_eq(dropped, EDGES - n);
		ck_assert_uint_le(cow_tree_count_dirty(&t), most);
		ref = save(&t);
		ck_assert_int_eq(cow_tree_load(&back, &io, &ref), 0);
		for (unsigned k = 0; k < EDGES; k++) {
			ck_assert_int_eq(has(&t, edges[k]), k < n);
			ck_assert_int_eq(has(&back, edges[k]), k < n);
		}
		cow_tree_fini(&back);
		/* and can grow again */
		put(&t, 70000);
		ref = save(&t);
		ck_assert_int_eq(cow_tree_load(&back, &io, &ref), 0);
		ck_assert(has(&back, 70000));
		ck_assert_int_eq(has(&back, 0), n > 0);
		cow_tree_fini(&back);
		cow_tree_fini(&t);
	}
}
END_TEST

START_TEST(cut_to_nothing_is_small)
{
	struct tree t;
	struct cow_ref ref;

	ck_assert_int_eq(cow_tree_init(&t), 0);
	put(&t, 1ULL << 24);
	save(&t);
	cow_tree_cut(&t, 0, drop, NULL);
	put(&t, 0);
	ref = save(&t);
	ck_assert_uint_eq(ref.levels, 0);
	cow_tree_fini(&t);
}
END_TEST

START_TEST(damaged_node_is_an_error)
{
	struct tree t;
	struct cow_ref ref;

	ck_assert_int_eq(cow_tree_init(&t), 0);
	put(&t, 0);
	put(&t, 1000);
	ref = save(&t);
	cow_tree_fini(&t);
	disk[ref.top.blk][17] ^= 1;
	ck_assert_int_eq(cow_tree_load(&t, &io, &ref), -EUCLEAN);
	ref.levels = COW_LEVELS + 1;
	ck_assert_int_eq(cow_tree_load(&t, &io, &ref), -EUCLEAN);
}
END_TEST

/* --- records ---------------------------------------------------------------------------------------------- */

START_TEST(records_are_found_by_name_after_loading)
{
	struct cow_ref ref = { .size = 0 };
	struct catalog c;
	char name[32];

	ck_assert_int_eq(cow_catalog_load(&c, &io, &ref), 0);
	for (unsigned i = 0; i < 5000; i++) {
		ck_assert_int_eq(cow_catalog_prepare(&c), 0);
		unsigned cost = cow_catalog_cost(&c, c.free);
		uint64_t before = cow_catalog_count_dirty(&c);

		snprintf(name, sizeof(name), "name %u", i);
		uint32_t index = cow_catalog_add(&c, name);

		cow_catalog_touch(&c, index);
		ck_assert_uint_eq(cow_catalog_count_dirty(&c), before + cost);
		c.rec[index].tree.size = i;
	}
	for (unsigned i = 0; i < 5000; i += 3) {
		snprintf(name, sizeof(name), "name %u", i);
		uint32_t index = cow_catalog_find(&c, name);

		ck_assert_uint_ne(index, COW_NONE);
		cow_catalog_touch(&c, index);
		cow_catalog_remove(&c, index);
	}
	ck_assert_int_eq(cow_catalog_write(&c, &io, &space, &lock, &ref), 0);
	cow_catalog_fini(&c);
	ck_assert_int_eq(cow_catalog_load(&c, &io, &ref), 0);
	ck_assert_uint_eq(c.used, 5000 - 1667);
	for (unsigned i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "name %u", i);
		uint32_t index = cow_catalog_find(&c, name);

		ck_assert_int_eq(index == COW_NONE, i % 3 == 0);
		if (index != COW_NONE)
			ck_assert_uint_eq(c.rec[index].tree.size, i);
	}
	cow_catalog_fini(&c);
}
END_TEST

START_TEST(one_changed_record_writes_one_block_and_one_node)
{
	struct cow_ref ref = { .size = 0 };
	struct catalog c;
	char name[32];

	ck_assert_int_eq(cow_catalog_load(&c, &io, &ref), 0);
	for (unsigned i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "name %u", i);
		ck_assert_int_eq(cow_catalog_prepare(&c), 0);
		cow_catalog_touch(&c, cow_catalog_add(&c, name));
	}
	ck_assert_int_eq(cow_catalog_write(&c, &io, &space, &lock, &ref), 0);
	cow_tree_settle(&c.tree, &ref);
	writes = 0;
	cow_catalog_touch(&c, cow_catalog_find(&c, "name 50"));
	ck_assert_int_eq(cow_catalog_write(&c, &io, &space, &lock, &ref), 0);
	ck_assert_uint_eq(writes, 2);
	cow_catalog_fini(&c);
}
END_TEST

START_TEST(record_without_an_end_is_an_error)
{
	struct cow_ref ref = { .size = 0 };
	struct cow_record rec[COW_RECORDS] = { 0 };
	struct catalog c;

	memset(rec[3].name, 'x', sizeof(rec[3].name));
	disk_write(NULL, 7, rec);
	ref.top = (struct cow_ptr) { 7, cow_sum(rec, COW_BLOCK) };
	ref.size = COW_BLOCK;
	ck_assert_int_eq(cow_catalog_load(&c, &io, &ref), -EUCLEAN);
	ref.size = COW_BLOCK + 1;
	ck_assert_int_eq(cow_catalog_load(&c, &io, &ref), -EUCLEAN);
}
END_TEST

/* --- a device that fails ---------------------------------------------------------------------------------- */

enum { BYTES = 1 << 20, SIZE = 50000 };

static unsigned char image[BYTES];

static struct cow_store *open_store(struct t_crash *crash, bool format, struct iomap_device **device)
{
	struct cow_params params = { .cache_bytes = 1 << 20, .format = format };
	struct cow_store *store;

	*device = t_crash_device(crash, false);
	ck_assert_int_eq(cow_open(*device, &params, &store), 0);
	return store;
}

static void close_store(struct cow_store *store, struct iomap_device *device)
{
	cow_close(store);
	iomap_device_close(device);
}

static int write_object(struct cow_store *store, const char *name, uint64_t seed)
{
	static unsigned char buf[SIZE];
	struct cow_object *o;
	int ret = cow_object_open(store, name, NULL, true, &o);

	ck_assert_int_eq(ret, 0);
	t_fill(buf, 0, SIZE, seed);
	ssize_t n = cow_write(o, buf, SIZE, 0);

	cow_object_close(o);
	return n == SIZE ? 0 : -EIO;
}

static bool object_is(struct cow_store *store, const char *name, const char *snapshot, uint64_t seed)
{
	static unsigned char buf[SIZE + 1], want[SIZE];
	struct cow_object *o;

	ck_assert_int_eq(cow_object_open(store, name, snapshot, false, &o), 0);
	ck_assert_int_eq(cow_read(o, buf, sizeof(buf), 0), SIZE);
	cow_object_close(o);
	t_fill(want, 0, SIZE, seed);
	return memcmp(buf, want, SIZE) == 0;
}

/* A store with object "a" (seed 1) and a snapshot "s" of it, in image. */
static void make_image(void)
{
	struct t_crash *crash = t_crash_create(BYTES, NULL);
	struct iomap_device *device;
	struct cow_store *store = open_store(crash, true, &device);

	ck_assert_int_eq(write_object(store, "a", 1), 0);
	ck_assert_int_eq(cow_snapshot(store, "s"), 0);
	ck_assert_int_eq(cow_commit(store), 0);
	close_store(store, device);
	memcpy(image, t_crash_bytes(crash), BYTES);
	t_crash_free(crash);
}

/* The nth write or flush of a commit fails, and all after it; afterwards the device works again. */
START_TEST(commit_on_a_failing_device_is_old_or_new)
{
	unsigned again = 0, given_up = 0;
	bool good = false;

	make_image();
	for (unsigned n = 0; !good; n++) {
		struct t_crash *crash = t_crash_create(BYTES, image);
		struct iomap_device *device;
		struct cow_store *store = open_store(crash, false, &device);
		int ret;

		ck_assert_uint_lt(n, 100);
		ck_assert_int_eq(write_object(store, "a", 2), 0);
		t_crash_fail(crash, n, -EIO);
		ret = cow_commit(store);
		good = !ret;
		t_crash_fail(crash, UINT64_MAX, 0);
		if (!good) {
			ck_assert_int_eq(ret, -EIO);
			ret = cow_commit(store);
			again += !ret;
			given_up += ret == -EROFS;
			if (ret == -EROFS)
				ck_assert_int_ne(write_object(store, "a", 3), 0);
		}
		ck_assert(object_is(store, "a", "s", 1));
		ck_assert(object_is(store, "a", NULL, 2));      /* as it was written, durable or not */
		close_store(store, device);
		store = open_store(crash, false, &device);
		ck_assert_int_eq(cow_verify(store), 0);
		ck_assert(object_is(store, "a", "s", 1));
		if (!ret)
			ck_assert(object_is(store, "a", NULL, 2));
		else
			ck_assert(object_is(store, "a", NULL, 1) || object_is(store, "a", NULL, 2));
		close_store(store, device);
		t_crash_free(crash);
	}
	ck_assert_uint_gt(again, 0);            /* it failed before anything of the metadata was written */
	ck_assert_uint_gt(given_up, 0);         /* and later */
}
END_TEST

START_TEST(damaged_contents_are_not_returned)
{
	static unsigned char buf[SIZE];
	unsigned told = 0;

	make_image();
	for (uint64_t blk = COW_ROOTS; blk < BYTES / COW_BLOCK; blk++) {
		struct t_crash *crash;
		struct cow_params params = { .cache_bytes = 1 << 20, .readonly = true };
		struct iomap_device *device;
		struct cow_store *store;
		struct cow_object *o;

		image[blk * COW_BLOCK + 100] ^= 4;
		crash = t_crash_create(BYTES, image);
		image[blk * COW_BLOCK + 100] ^= 4;
		device = t_crash_device(crash, false);
		int ret = cow_open(device, &params, &store);

		if (ret) {
			ck_assert_int_eq(ret, -EUCLEAN);
			told++;
		} else {
			ck_assert_int_eq(cow_object_open(store, "a", NULL, false, &o), 0);
			uint64_t pos = 0;
			ssize_t n;

			while ((n = cow_read(o, buf, 777, pos)) > 0)
				pos += (uint64_t)n;
			cow_object_close(o);
			if (n) {
				ck_assert_int_eq(n, -EBADMSG);
				ck_assert_int_gt(cow_verify(store), 0);
				told++;
			} else {
				ck_assert_uint_eq(pos, SIZE);
				ck_assert(object_is(store, "a", NULL, 1));
				ck_assert_int_eq(cow_verify(store), 0);
			}
			cow_close(store);
		}
		iomap_device_close(device);
		t_crash_free(crash);
	}
	/* 13 blocks of contents, one node, a block of records for objects and one for snapshots */
	ck_assert_uint_eq(told, 16);
}
END_TEST

START_TEST(full_store_takes_no_more_and_can_be_emptied)
{
	struct t_crash *crash = t_crash_create(BYTES, NULL);
	struct iomap_device *device;
	struct cow_store *store = open_store(crash, true, &device);
	struct cow_stat before, after;
	char name[16];
	unsigned n = 0;

	ck_assert_int_eq(cow_stat(store, &before), 0);
	for (;; n++) {
		snprintf(name, sizeof(name), "o %u", n);
		int ret = write_object(store, name, n);

		ck_assert_int_eq(cow_commit(store), 0);
		if (ret)
			break;
	}
	ck_assert_uint_gt(n, 10);
	ck_assert_int_eq(cow_verify(store), 0);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "o %u", i);
		ck_assert(object_is(store, name, NULL, i));
	}
	for (unsigned i = 0; i <= n; i++) {
		snprintf(name, sizeof(name), "o %u", i);
		ck_assert_int_eq(cow_remove(store, name), 0);
		ck_assert_int_eq(cow_commit(store), 0);
	}
	ck_assert_int_eq(cow_verify(store), 0);
	ck_assert_int_eq(cow_stat(store, &after), 0);
	ck_assert_uint_eq(after.objects, 0);
	ck_assert_uint_ge(after.free_blocks + 4, before.free_blocks);   /* records are kept for reuse */
	close_store(store, device);
	t_crash_free(crash);
}
END_TEST

START_TEST(callers_mistakes_change_nothing)
{
	struct t_crash *crash = t_crash_create(BYTES, NULL);
	struct iomap_device *device;
	struct cow_store *store = open_store(crash, true, &device);
	struct cow_object *o, *old;
	char name[COW_NAME_MAX + 2];

	memset(name, 'n', sizeof(name));
	name[COW_NAME_MAX + 1] = '\0';
	ck_assert_int_eq(cow_object_open(store, name, NULL, true, &o), -EINVAL);
	ck_assert_int_eq(cow_object_open(store, "", NULL, true, &o), -EINVAL);
	ck_assert_int_eq(cow_object_open(store, "a@b", NULL, true, &o), -EINVAL);
	ck_assert_int_eq(cow_object_open(store, "a", NULL, false, &o), -ENOENT);
	ck_assert_int_eq(cow_object_open(store, "a", "s", false, &o), -ENOENT);
	ck_assert_int_eq(cow_remove(store, "a"), -ENOENT);
	ck_assert_int_eq(cow_snapshot_remove(store, "s"), -ENOENT);
	name[COW_NAME_MAX] = '\0';
	ck_assert_int_eq(write_object(store, name, 7), 0);
	ck_assert_int_eq(cow_verify(store), -EBUSY);
	ck_assert_int_eq(cow_snapshot(store, "s"), 0);
	ck_assert_int_eq(cow_snapshot(store, "s"), -EEXIST);
	ck_assert_int_eq(cow_object_open(store, name, "s", false, &o), -ENOENT);        /* not before the commit */
	ck_assert_int_eq(cow_commit(store), 0);
	ck_assert_int_eq(cow_object_open(store, name, NULL, false, &o), 0);
	ck_assert_int_eq(cow_object_open(store, name, "s", false, &old), 0);
	ck_assert_int_eq(cow_remove(store, name), -EBUSY);
	ck_assert_int_eq(cow_snapshot_remove(store, "s"), -EBUSY);
	ck_assert_int_eq(cow_write(old, "x", 1, 0), -EROFS);
	ck_assert_int_eq(cow_truncate(old, 0), -EROFS);
	ck_assert_int_eq(cow_write(o, "x", 1, COW_SIZE_MAX), -EFBIG);
	ck_assert_int_eq(cow_truncate(o, COW_SIZE_MAX + 1), -EFBIG);
	ck_assert_int_eq(cow_read(o, name, 10, SIZE), 0);
	ck_assert_int_eq(cow_read(o, name, 10, UINT64_MAX), 0);
	cow_object_close(o);
	cow_object_close(old);
	ck_assert_int_eq(cow_verify(store), 0);
	close_store(store, device);
	t_crash_free(crash);
}
END_TEST

START_TEST(holes_and_sizes_come_back)
{
	struct t_crash *crash = t_crash_create(BYTES, NULL);
	struct iomap_device *device;
	struct cow_store *store = open_store(crash, true, &device);
	struct cow_object *o;
	unsigned char buf[8];

	ck_assert_int_eq(cow_object_open(store, "far", NULL, true, &o), 0);
	ck_assert_int_eq(cow_write(o, "end", 3, COW_SIZE_MAX - 3), 3);
	ck_assert_int_eq(cow_write(o, "xyz", 3, 5000), 3);
	ck_assert_int_eq(cow_truncate(o, COW_SIZE_MAX), 0);
	cow_object_close(o);
	ck_assert_int_eq(cow_object_open(store, "grown", NULL, true, &o), 0);
	ck_assert_int_eq(cow_write(o, "abc", 3, 0), 3);
	ck_assert_int_eq(cow_truncate(o, 2), 0);
	ck_assert_int_eq(cow_truncate(o, 100000), 0);
	cow_object_close(o);
	ck_assert_int_eq(cow_commit(store), 0);
	close_store(store, device);
	store = open_store(crash, false, &device);
	ck_assert_int_eq(cow_object_open(store, "far", NULL, false, &o), 0);
	ck_assert_uint_eq(cow_size(o), COW_SIZE_MAX);
	ck_assert_int_eq(cow_read(o, buf, 8, COW_SIZE_MAX - 3), 3);
	ck_assert_int_eq(memcmp(buf, "end", 3), 0);
	ck_assert_int_eq(cow_read(o, buf, 5, 4999), 5);
	ck_assert_int_eq(memcmp(buf, "\0xyz\0", 5), 0);
	ck_assert_int_eq(cow_truncate(o, 5002), 0);
	cow_object_close(o);
	ck_assert_int_eq(cow_object_open(store, "grown", NULL, false, &o), 0);
	ck_assert_uint_eq(cow_size(o), 100000);
	ck_assert_int_eq(cow_read(o, buf, 4, 0), 4);
	ck_assert_int_eq(memcmp(buf, "ab\0\0", 4), 0);
	cow_object_close(o);
	ck_assert_int_eq(cow_commit(store), 0);
	ck_assert_int_eq(cow_verify(store), 0);
	ck_assert_int_eq(cow_object_open(store, "far", NULL, false, &o), 0);
	ck_assert_int_eq(cow_read(o, buf, 5, 4999), 3);
	ck_assert_int_eq(memcmp(buf, "\0xy", 3), 0);
	cow_object_close(o);
	close_store(store, device);
	t_crash_free(crash);
}
END_TEST

Suite *suite_cowstore(void)
{
	Suite *s = suite_create("cowstore");
	TCase *tc = tcase_create("cowstore");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, space_hands_out_each_block_once);
	tcase_add_test(tc, space_promised_is_not_promised_again);
	tcase_add_test(tc, block_is_free_with_its_last_pointer);
	tcase_add_test(tc, one_block_needs_no_node);
	tcase_add_test(tc, tree_grows_and_comes_back);
	tcase_add_test(tc, tree_made_in_one_go_comes_back);
	tcase_add_test(tc, small_change_writes_one_node_a_level);
	tcase_add_test(tc, cut_leaves_what_lies_before);
	tcase_add_test(tc, cut_to_nothing_is_small);
	tcase_add_test(tc, damaged_node_is_an_error);
	tcase_add_test(tc, records_are_found_by_name_after_loading);
	tcase_add_test(tc, one_changed_record_writes_one_block_and_one_node);
	tcase_add_test(tc, record_without_an_end_is_an_error);
	suite_add_tcase(s, tc);
	tc = tcase_create("store");
	tcase_add_test(tc, commit_on_a_failing_device_is_old_or_new);
	tcase_add_test(tc, damaged_contents_are_not_returned);
	tcase_add_test(tc, full_store_takes_no_more_and_can_be_emptied);
	tcase_add_test(tc, callers_mistakes_change_nothing);
	tcase_add_test(tc, holes_and_sizes_come_back);
	suite_add_tcase(s, tc);
	return s;
}
